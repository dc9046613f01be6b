"""`share-state audit` behind a history: what the next night costs once the first has read all but the newest bytes."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.end_to_end import commanded
from bench.exports import Export
from bench.kafka import DATA
from bench.process_tree import TreeUsage

NEW_BYTES = 1 << 20
"""Of each log partition, for the second night."""

_UNJUDGED = ("--fail-on", "off")

_START_UP = ("start Spark", "stop Spark", "interpreter, imports, exit")


@dataclass(frozen=True, slots=True)
class Night:
    """Two audits of one export: of all but its newest bytes, then of those.

    Attributes:
        old_bytes, new_bytes: that the first and the second had to read.
        first, second: what their process trees used.
        phases: seconds of each phase of the second.
    """

    old_bytes: int
    new_bytes: int
    first: TreeUsage
    second: TreeUsage
    phases: dict[str, float]

    @property
    def beyond_start_up(self) -> float:
        """Seconds of the second audit without the interpreter and Spark coming and going."""
        return sum(seconds for phase, seconds in self.phases.items() if phase not in _START_UP)


def spent(command: str, export: Export, place: Sequence[str]) -> TreeUsage:
    """What a command takes that reads an export and writes a fresh warehouse.

    Args:
        command: `audit` or `reconstruct`.
        export: to be read.
        place: says where tasks run, as in `shapes.measured`.
    Raises:
        CommandError: if it does not exit with 0.
    """
    with tempfile.TemporaryDirectory(prefix=f"{command}-", dir=DATA) as warehouse:
        return commanded(command, str(export.folder), "--out", warehouse, *_UNJUDGED, *place)[0]


def nights_of(export: Export, place: Sequence[str]) -> Night:
    """Audit an export in two nights, into a fresh warehouse; `place` as for `spent`.

    Raises:
        CommandError: if an audit does not exit with 0.
    """
    with tempfile.TemporaryDirectory(prefix="nightly-", dir=DATA) as scratch:
        logs, warehouse = Path(scratch, "logs"), str(Path(scratch, "warehouse"))
        cut = {_linked(source, logs / source.name) for source in export.folder.iterdir() if source.is_dir()}
        for last, source in cut:
            last.write_bytes(source.read_bytes()[:-NEW_BYTES])
        old = sum(file.stat().st_size for file in logs.glob("*/*.log"))
        first, _, _ = commanded("audit", str(logs), "--out", warehouse, *_UNJUDGED, *place)
        for last, source in cut:
            last.write_bytes(source.read_bytes())
        new = sum(file.stat().st_size for file in logs.glob("*/*.log")) - old
        second, phases, _ = commanded("audit", str(logs), "--out", warehouse, *_UNJUDGED, *place)
        return Night(old, new, first, second, phases)


def _linked(source: Path, place: Path) -> tuple[Path, Path]:
    """A log partition's folder by links, but for its last segment: where that is to lie, and what it is to hold."""
    place.mkdir(parents=True)
    *earlier, last = sorted(source.glob("*.log"))
    for segment in earlier:
        (place / segment.name).symlink_to(segment)
    return place / last.name, last
