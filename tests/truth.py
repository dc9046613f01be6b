"""What a fixture's truth says a folded log must look like: rows in the shape of the tables, computed the plain way.

An independent model: it shares no code with share_state and works offset by offset.
"""

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"

Key = tuple[str, str, int]
"""(group_id, topic_id, partition)"""

STATE_NAMES = {0: "AVAILABLE", 1: "ACQUIRED", 2: "ACKNOWLEDGED", 3: "ARCHIVING", 4: "ARCHIVED"}
TERMINAL = {2, 4}
AVAILABLE = 0

COPIES = {"archive-unpruned": "archive-", "crash-copy": "crash-", "killed-copy": "killed-"}
"""Folders inside a scenario that have a truth of their own, and how its files begin."""


def without_topics(folder: Path, place: Path) -> Path:
    """A copy of an export without the topics file beside its logs."""
    return Path(shutil.copytree(folder, place, ignore=shutil.ignore_patterns("topics.json")))


_PLACE = tempfile.TemporaryDirectory(prefix="share_state-tests-")


@cache
def logs_alone(folder: Path) -> Path:
    """The export without its topics file, copied once per process: as other forms of it, it names no topic."""
    return without_topics(folder, Path(_PLACE.name) / folder.parent.name / folder.name)


@dataclass(frozen=True)
class Case:
    """A folder to fold and the truth of it.

    Attributes:
        name: as shown by pytest.
        folder: holds `__share_group_state-N`.
        begin: how the truth files' names begin, "" for the scenario itself.
        states: file of the expected share-partitions.
        scenario: where the truth files lie.
        is_as_of: whether only the records before the truth's nextOffset count.
    """

    name: str
    folder: Path
    begin: str
    states: Path
    scenario: Path
    is_as_of: bool = False

    @property
    def rows(self) -> dict[Key, dict]:
        """Expected rows of share_partition_state, all but updates_since_snapshot."""
        return expected_states(self.states)

    @property
    def partitions(self) -> dict[int, dict]:
        """What the oracle says of each state partition."""
        return {row["statePartition"]: row for row in json.loads(self._beside("redundant.json").read_text())}

    @property
    def deleted(self) -> set[Key]:
        """Share-partitions whose last record is a tombstone; not recorded for points in time."""
        return set() if self.is_as_of else {_key(row) for row in _lines(self._beside("deleted-keys.jsonl"))}

    def _beside(self, name: str) -> Path:
        return self.scenario / f"{self.begin}{name}"


def scenarios() -> list[Path]:
    """Every `<release>/<scenario>` folder of the fixtures."""
    return sorted(path for path in DATA.glob("4.*/*") if path.is_dir())


def cases() -> list[Case]:
    """Every folder that has a truth: scenarios, copies inside them, and scenarios as of earlier offsets."""
    found = []
    for scenario in scenarios():
        name = f"{scenario.parent.name}/{scenario.name}"
        if (scenario / "truth.jsonl").exists():
            found.append(Case(name, scenario, "", scenario / "truth.jsonl", scenario))
        for folder, begin in COPIES.items():
            if (scenario / folder).exists():
                truth = scenario / f"{begin}truth.jsonl"
                found.append(Case(f"{name}/{folder}", scenario / folder, begin, truth, scenario))
        for oracle in sorted(scenario.glob("asof-*-oracle.jsonl")):
            begin = oracle.name.removesuffix("oracle.jsonl")
            found.append(Case(f"{name}@{begin[:-1]}", scenario, begin, oracle, scenario, is_as_of=True))
    return found


@cache
def expected_states(truth: Path) -> dict[Key, dict]:
    """Rows of share_partition_state by key, updates_since_snapshot left out: no truth column says it.

    Columns that a release does not record are as the contract has them: count -1, times null.
    """
    return {_key(row): _expected_state(row) for row in _lines(truth)}


def _expected_state(row: dict) -> dict:
    start, values = row["startOffset"], value_by_offset(row["stateBatches"])
    return {
        "dialect": "share_group_state",
        "group_id": row["group"],
        "topic_id": row["topicId"],
        "topic": None,
        "partition": row["partition"],
        "state_partition": row["statePartition"],
        "start_offset": start,
        "effective_start_offset": effective_start(start, values),
        "end_offset": end_offset(start, values),
        "snapshot_epoch": row["snapshotEpoch"],
        "state_epoch": row["stateEpoch"],
        "leader_epoch": row["leaderEpoch"],
        "delivery_complete_count": row.get("deliveryCompleteCount", -1),
        "state_batches": [
            {"first_offset": first, "last_offset": last, "delivery_state": state, "delivery_count": count}
            for first, last, (count, state) in runs(sorted(values.items()))
        ],
        "create_time": _time(row.get("createTimestamp", 0)),
        "write_time": _time(row.get("writeTimestamp", 0)),
        "max_leader_epoch": row["maxLeaderEpoch"],
        "max_state_epoch": row["maxStateEpoch"],
        "snapshot_offset": row["lastSnapshotOffset"],
        "last_offset": row["lastRecordOffset"],
        "suspect": False,
        "topic_end_offset": None,
    }


def value_by_offset(batches: Iterable[Sequence[int]]) -> dict[int, tuple[int, int]]:
    """Offset -> the greatest (delivery count, state) of the batches [first, last, state, count] that cover it."""
    values: dict[int, tuple[int, int]] = {}
    for first, last, state, count in batches:
        for offset in range(first, last + 1):
            values[offset] = max(values.get(offset, (count, state)), (count, state))
    return values


def runs(values: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, int, Any]]:
    """(first, last, value) of neighbouring offsets of equal value, longest runs first to last."""
    first: int | None = None
    last, value = 0, None
    for offset, here in values:
        if first is not None and offset == last + 1 and here == value:
            last = offset
            continue
        if first is not None:
            yield first, last, value
        first, last, value = offset, offset, here
    if first is not None:
        yield first, last, value


def effective_start(start: int, values: dict[int, tuple[int, int]]) -> int:
    """The first offset from the start on that is not terminal; what no batch covers is not."""
    while start >= 0 and start in values and values[start][1] in TERMINAL:
        start += 1
    return start


def end_offset(start: int, values: dict[int, tuple[int, int]]) -> int | None:
    """Behind the last covered offset; the start where nothing is covered, None where there is no start."""
    return None if start < 0 else max([start, *(offset + 1 for offset in values)])


def expected_in_flight(row: dict) -> list[dict]:
    """Rows of in_flight of one share-partition, key columns left out.

    Args:
        row: of `expected_states`.
    """
    start, end = row["start_offset"], row["end_offset"]
    covered = {
        offset: (batch["delivery_state"], batch["delivery_count"], False)
        for batch in row["state_batches"]
        for offset in range(batch["first_offset"], batch["last_offset"] + 1)
    }
    window = (
        [] if end is None else [(offset, covered.get(offset, (AVAILABLE, 0, True))) for offset in range(start, end)]
    )
    return [
        {
            "first_offset": first,
            "last_offset": last,
            "record_count": last - first + 1,
            "delivery_state": state,
            "state": STATE_NAMES[state],
            "delivery_count": count,
            "terminal": state in TERMINAL,
            "gap": gap,
        }
        for first, last, (state, count, gap) in runs(window)
    ]


def _key(row: dict) -> Key:
    return row["group"], row["topicId"], row["partition"]


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _time(milliseconds: int) -> datetime | None:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds) if milliseconds else None
