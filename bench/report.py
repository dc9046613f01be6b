"""What a run of the benchmark says: each table as it is done, and at its end what holds, what differs, every number."""

import json
import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.claims import Claim
from bench.exports import Export, Shape, made

_PIPED = 140


class Report:
    """Prints tables at once; keeps claims, differences and numbers for the closing lines."""

    def __init__(self) -> None:
        self._console = Console(width=None if sys.stdout.isatty() else _PIPED, highlight=False)
        self._progress = Console(stderr=True, quiet=not sys.stderr.isatty())
        self._claims: list[Claim] = []
        self._differences: list[str] = []
        self._numbers: dict[str, Any] = {"cpus": os.cpu_count()}
        self._compared = False

    def doing(self, what: str) -> AbstractContextManager[object]:
        """A line on stderr while something goes on, where somebody looks."""
        return self._progress.status(f"{what} …")

    def made(self, shape: Shape) -> Export:
        """The export of a shape, made where it is not there."""
        with self.doing("generating"):
            return made(shape)

    def show(self, title: str, table: Table) -> None:
        """Print a table under its title."""
        self._console.print(title, soft_wrap=True)
        self._console.print(table)

    def claim(self, claims: Iterable[Claim]) -> None:
        """Take in what holds or does not; printed when the report closes."""
        self._claims += claims

    def compare(self, difference: str | None) -> None:
        """Take in where the states of two sides differ; None where they agree."""
        self._compared = True
        if difference is not None:
            self._differences.append(difference)

    def note(self, name: str, numbers: Any) -> None:
        """Keep numbers under a name for the JSON file; a name that comes again makes a list."""
        self._numbers.setdefault(name, []).append(numbers)

    def close(self, json_file: Path | None) -> bool:
        """Print the closing lines and write the numbers.

        Returns:
            Whether the two sides agree wherever they were compared.
        """
        for claim in self._claims:
            self._console.print(
                f"{'holds ' if claim.holds else 'MISSED'} {claim.statement}: {claim.measured}", soft_wrap=True
            )
        for difference in self._differences:
            self._console.print(f"DIFFER {difference}", soft_wrap=True, markup=False)
        if self._compared and not self._differences:
            self._console.print("Both sides hold the same state after every export.")
        if json_file is not None:
            self._numbers["claims"] = [asdict(claim) for claim in self._claims]
            json_file.write_text(json.dumps(self._numbers, indent=1) + "\n")
        return not self._differences
