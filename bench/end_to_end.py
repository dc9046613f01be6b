"""`share-state reconstruct` as a person runs it: from the shell, start-up counted, Delta tables written."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from bench.digest import Digest
from bench.exports import Export
from bench.kafka import DATA
from bench.process_tree import TreeUsage, run_tree
from share_state.errors import ShareStateError

IN_SPARK = ("--master", "local[*]")
"""For measurements whose exports lie on both sides of the size up to which the command needs no Spark."""


class CommandError(ShareStateError):
    """Raised when the measured command fails."""


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """One run of the command.

    Attributes:
        export: what it read.
        usage: wall, CPU and memory of its process tree.
        phases: name -> seconds of wall time, as the command tells them, then what is left of the whole.
        digest: of the share_partition_state it wrote.
        live_bytes: of the rows of share_partition_state and in_flight in memory, as Arrow holds them: the live state.
        printed: its last line.
    """

    export: Export
    usage: TreeUsage
    phases: dict[str, float]
    digest: dict[str, Any]
    live_bytes: int
    printed: str

    @property
    def peak_bytes(self) -> int:
        """The largest process that folds, interpreter and libraries counted."""
        return self.usage.peak_bytes.get("worker" if self.is_in_spark else "command", 0)

    @property
    def is_in_spark(self) -> bool:
        """Whether its tasks were Spark's."""
        return "start Spark" in self.phases


def reconstructing(export: Export, warehouse: Path) -> tuple[str, ...]:
    """The arguments of the command that is measured."""
    return ("reconstruct", str(export.folder), "--out", str(warehouse), "--fail-on", "off")


def reconstructed(export: Export, *options: str) -> EndToEnd:
    """Run the command over an export into a fresh warehouse, which is removed afterwards.

    Args:
        export: to be read.
        options: of the command.
    Raises:
        CommandError: if it does not exit with 0, with its last line.
    """
    with tempfile.TemporaryDirectory(prefix="end-to-end-", dir=DATA) as scratch:
        warehouse = Path(scratch, "warehouse")
        usage, told, printed = commanded(*reconstructing(export, warehouse), *options)
        digest, live_bytes = _live_state(warehouse)
        return EndToEnd(export, usage, told, digest, live_bytes, printed)


def typical_run(runs: Sequence[EndToEnd]) -> EndToEnd:
    """The run of median CPU time (the lower of the middle two)."""
    return sorted(runs, key=lambda run: run.usage.cpu_s)[(len(runs) - 1) // 2]


def commanded(*arguments: str, program: Sequence[str] = ()) -> tuple[TreeUsage, dict[str, float], str]:
    """Run `share-state` with these arguments.

    Args:
        arguments: of the command.
        program: what to run in its place, with the same arguments.
    Returns:
        What its process tree used, seconds of each phase, and its last line.
    Raises:
        CommandError: if it does not exit with 0, with its last line.
    """
    with tempfile.TemporaryDirectory(prefix="command-", dir=DATA) as scratch:
        phases = Path(scratch, "phases.json")
        environment = {**os.environ, "SHARE_STATE_PHASES": str(phases)}
        with Path(scratch, "out").open("w+") as out, Path(scratch, "err").open("w+") as err:
            usage = run_tree([*(program or (_share_state(),)), *arguments], environment, out, err)
            out.seek(0)
            err.seek(0)
            printed, complained = out.read().strip(), err.read().strip()
        if usage.exit_code:
            last = (complained or printed or "no message").splitlines()[-1]
            raise CommandError(f"share-state {arguments[0]} ended with {usage.exit_code}: {last}")
        told = json.loads(phases.read_text()) if phases.exists() else {}
        told["interpreter, imports, exit"] = round(usage.wall_s - sum(told.values()), 3)
        return usage, told, printed.splitlines()[-1] if printed else ""


def _share_state() -> str:
    """The console script beside this interpreter."""
    command = shutil.which("share-state", path=str(Path(sys.executable).parent))
    if command is None:
        raise CommandError(f"{Path(sys.executable).parent}: no share-state here; run `make setup`")
    return command


def _live_state(warehouse: Path) -> tuple[dict[str, Any], int]:
    digest, size = Digest(), 0
    for file in DeltaTable(str(warehouse / "share_partition_state")).file_uris():
        states = pq.read_table(file)
        digest.add(states)
        size += states.nbytes
    for file in DeltaTable(str(warehouse / "in_flight")).file_uris():
        size += pq.read_table(file).nbytes
    return digest.as_json(), size
