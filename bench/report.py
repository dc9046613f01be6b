"""What a run of the benchmark prints: tables as they are measured, then claims; and a JSON file."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rich.table
from rich.console import Console

_PIPED_WIDTH = 140


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim, and what was measured. The exit code is 1 if a claim about states fails."""

    statement: str
    measured: str
    holds: bool
    is_about_states: bool = False


@dataclass(frozen=True, slots=True)
class Bound:
    """What is claimed: `subject` is at least or at most `bound`; a measurement fills in its fields in braces."""

    subject: str
    side: str
    bound: float

    def check(self, value: float, measured: str, **fields: Any) -> Claim:
        """Check a measured value, shown as `measured`."""
        holds = value >= self.bound if self.side == "at least" else value <= self.bound
        return Claim(f"{self.subject.format(**fields)}: {self.side} {self.bound:.3g}", measured, holds)


@dataclass(frozen=True, slots=True)
class Table:
    """A table to print: columns are `heading|format`, for cells that are numbers; `passes` goes to the JSON file."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[float | str]]
    passes: Any = None


Item = Table | Claim


class Report:
    """Prints tables at once and claims at the end."""

    def __init__(self) -> None:
        self.progress = Console(stderr=True, quiet=not sys.stderr.isatty())
        self._console = Console(
            width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False, markup=False
        )
        self._claims, self._tables = list[Claim](), list[Table]()

    def add(self, item: Item) -> None:
        """Take what a measurement yields."""
        if isinstance(item, Claim):
            self._claims.append(item)
            return
        table = rich.table.Table()
        columns = [column.partition("|") for column in item.columns]
        for number, (heading, _, _) in enumerate(columns):
            table.add_column(heading, justify="right" if number else "left")
        for row in item.rows:
            cells = zip(row, columns, strict=True)
            table.add_row(
                *(cell if isinstance(cell, str) else f"{cell:{form}}" for cell, (_, _, form) in cells)
            )
        self._console.print(item.title, soft_wrap=True)
        self._console.print(table)
        self._tables.append(item)

    def close(self, json_file: Path | None) -> bool:
        """Print the claims and write the numbers; returns whether all states agree."""
        states = [claim.holds for claim in self._claims if claim.is_about_states]
        for claim in self._claims:
            if not (claim.is_about_states and claim.holds):
                verdict = "holds " if claim.holds else "MISSED"
                self._console.print(f"{verdict} {claim.statement}; measured {claim.measured}", soft_wrap=True)
        if states and all(states):
            self._console.print("Both sides hold the same state after every export.")
        if json_file is not None:
            numbers = {"claims": self._claims, "tables": self._tables}
            json_file.write_text(json.dumps(numbers, indent=1, default=asdict) + "\n")
        return all(states)
