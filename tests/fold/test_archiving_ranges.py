"""The ranges that enter and leave ARCHIVING, compared with a model of every single offset."""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.fold.dead_letters import archiving
from share_state.fold.dead_letters.archiving import merge_ranges
from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_log import fold_log
from share_state.schema.declarations import table_schema
from share_state.sources.discovery import find_logs
from tests.kafka.batches import NOW
from tests.log_writer import Key, batch, snapshot, tombstone, update, write_log_folder

KEYS: tuple[Key, ...] = (("app", "AAECAwQFBgcICQoLDA0ODw", 0), ("other", "AAECAwQFBgcICQoLDA0ODw", 3))
ARCHIVING, ARCHIVED = 3, 4
OFFSETS = 12

_BATCHES = st.lists(
    st.tuples(st.integers(0, OFFSETS - 1), st.integers(0, 4), st.sampled_from([0, 2, 3, 3, 4])), max_size=3
)
_RECORDS = st.tuples(
    st.sampled_from(["update"] * 5 + ["snapshot", "tombstone"]),
    st.integers(0, len(KEYS) - 1),
    _BATCHES,
    st.integers(-1, OFFSETS),
    st.integers(0, 1),
    st.integers(0, 1),
)
"""Kind, share-partition, ranges, start, state epoch and leader epoch."""


@dataclass
class History:
    """One time that an offset was in ARCHIVING or ARCHIVED."""

    entered: int | None
    left: int | None = None
    by: str | None = None
    returned: int | None = None


class Model:
    """The histories of every offset of one share-partition."""

    def __init__(self) -> None:
        self.epoch, self.start = None, 0
        self.of: dict[int, list[History]] = {}

    def _end(self, at: int, offsets: range, by: str) -> None:
        for offset in offsets:
            for history in self.of.get(offset, [])[-1:]:
                if history.by is None:
                    history.left, history.by = at, by

    def _reset(self, at: int) -> None:
        self._end(at, range(OFFSETS + 9), "RESET")
        for histories in self.of.values():
            # What is ARCHIVED before a reset is another history than after it.
            histories.append(History(None, at, "RESET"))

    def take(self, at: int, kind: str, ranges: list[tuple[int, int, int]], start: int, epoch: int, leader: int) -> None:
        """Apply a record."""
        if kind == "tombstone":
            if self.epoch is not None:
                self._reset(at)
            self.epoch, self.start = None, 0
            self._restart(at, 0)
            return
        if kind == "snapshot":
            # Without ranges, with leader epoch 0 and an earlier start, it initializes the share-partition.
            goes_back = not ranges and leader == 0 and max(start, 0) < self.start
            if self.epoch is not None and (self.epoch != epoch or goes_back):
                self._reset(at)
            self.epoch = epoch
        for wanted in (ARCHIVING, ARCHIVED):
            for first, more, state in ranges:
                for offset in range(first, first + more + 1) if state == wanted else ():
                    histories = self.of.setdefault(offset, [])
                    last = histories[-1] if histories else None
                    if state == ARCHIVING and (last is None or last.by is not None):
                        histories.append(History(at))
                    elif state == ARCHIVED and (last is None or last.by == "RESET"):
                        histories.append(History(None, at, "ARCHIVED"))
                    elif state == ARCHIVED and last is not None and last.by != "ARCHIVED":
                        last.left, last.by, last.returned = at, "ARCHIVED", None
        if start > self.start:
            self._end(at, range(self.start, start), "START_OFFSET")
        self.start = max(start, 0) if kind == "snapshot" or start >= 0 else self.start
        if kind == "snapshot" and not ranges:
            self._restart(at, self.start)

    def _restart(self, at: int, start: int) -> None:
        """No offset from the start on is finished any more."""
        for offset, histories in self.of.items():
            for one in histories if offset >= start else ():
                one.returned = at if one.returned is None else one.returned

    def rows(self) -> set[tuple[Any, ...]]:
        """(offset, entered at, left at, left by, returned at) of every history."""
        return {
            (offset, one.entered, one.left, one.by, one.returned)
            for offset, histories in self.of.items()
            for one in histories
            if one.entered is not None or one.by == "ARCHIVED"
        }


def _rows(table: Any, group: str) -> set[tuple[Any, ...]]:
    return {
        (offset, row["archiving_offset"], row["left_offset"], row["left_by"], row["returned_offset"])
        for row in table.to_pylist()
        if row["group_id"] == group
        for offset in range(row["first_offset"], row["last_offset"] + 1)
    }


@given(st.lists(_RECORDS, min_size=1, max_size=40))
def test_every_offset_has_the_history_that_its_records_tell(drawn: list[Any]):
    models = [Model() for _ in KEYS]
    written = []
    # Every share-partition of a whole log begins with a snapshot.
    begin = [("snapshot", number, [], 0, 0, 0) for number in range(len(KEYS))]
    for at, (kind, number, ranges, start, epoch, leader) in enumerate([*begin, *drawn]):
        model = models[number]
        chosen = "snapshot" if model.epoch is None and kind == "update" else kind
        batches = [(first, first + more, state, 5) for first, more, state in ranges]
        if chosen == "tombstone":
            written.append([tombstone(KEYS[number])])
        elif chosen == "snapshot":
            fields: dict[str, Any] = {"state_epoch": epoch, "leader_epoch": leader, "start_offset": max(start, 0)}
            written.append([snapshot(KEYS[number], batches, **fields)])
        else:
            written.append([update(KEYS[number], batches, start_offset=start)])
        model.take(at, chosen, ranges, start, epoch, leader)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_log_folder(folder, 0, [batch(records, timestamp=NOW + 1000 * at) for at, records in enumerate(written)])
        (log,) = find_logs([str(folder)])
        groups = frozenset(group for group, _, _ in KEYS)
        for chunk in (1 << 20, 64):
            options = FoldOptions(archiving_groups=groups, marks_returned=True)
            table = fold_log(log, options=options, chunk=chunk).archiving_ranges
            assert table is not None
            for model, (group, _, _) in zip(models, KEYS, strict=True):
                assert _rows(table, group) == model.rows()
            table = fold_log(log, options=replace(options, marks_returned=False), chunk=chunk).archiving_ranges
            assert table is not None
            assert merge_ranges([table, table]).equals(merge_ranges([table]))
        assert fold_log(log).archiving_ranges is None


def test_only_share_partitions_with_archiving_or_dead_letters_have_ranges(tmp_path: Path):
    rejected = [update(KEYS[0], [(3, 5, ARCHIVED, 5)]), update(KEYS[1], [(3, 5, ARCHIVED, 5)])]
    write_log_folder(tmp_path, 0, [batch([snapshot(KEYS[0]), snapshot(KEYS[1]), *rejected])])
    (log,) = find_logs([str(tmp_path)])
    none, one = (
        fold_log(log, options=FoldOptions(archiving_groups=frozenset(groups))).archiving_ranges
        for groups in ((), ("app",))
    )
    assert none is not None and one is not None
    assert len(none) == 0
    assert one["group_id"].to_pylist() == ["app"]


@pytest.mark.parametrize("most_events", [1, 1 << 18])
def test_offsets_that_a_reset_returns_are_told_from_those_that_it_skips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_events: int
):
    """A window that is empty when a snapshot is due returns nothing."""
    monkeypatch.setattr(archiving, "_MOST_EVENTS", most_events)
    records = [
        snapshot(KEYS[0]),
        update(KEYS[0], [(3, 9, ARCHIVED, 5)]),
        update(KEYS[0], start_offset=10),
        snapshot(KEYS[0], start_offset=10, leader_epoch=1, snapshot_epoch=1),
        snapshot(KEYS[0], start_offset=5, snapshot_epoch=2),
        update(KEYS[0], [(5, 6, ARCHIVED, 5)]),
    ]
    write_log_folder(tmp_path, 0, [batch([one], timestamp=NOW + at) for at, one in enumerate(records)])
    (log,) = find_logs([str(tmp_path)])
    options = FoldOptions(archiving_groups=archiving.EVERY_GROUP, marks_returned=True)
    ranges = fold_log(log, options=options, chunk=64).archiving_ranges
    assert ranges is not None
    rows = ranges.select(["first_offset", "last_offset", "left_offset", "returned_offset"]).to_pylist()
    assert sorted((tuple(row.values()) for row in rows), key=str) == [(3, 4, 1, None), (5, 6, 5, None), (5, 9, 1, 4)]


def _told(*ends: tuple[int | None, int | None, str | None]) -> pa.Table:
    """What one audit tells of offset 5: (record of ARCHIVING, record that ended it, what ended it) each."""
    place = {"group_id": "app", "topic_id": KEYS[0][1], "partition": 0, "first_offset": 5, "last_offset": 5}
    rows = [
        place | {"delivery_count": 5, "archiving_offset": entered, "left_offset": left, "left_by": by}
        for entered, left, by in ends
    ]
    return pa.Table.from_pylist(rows, schema=table_schema(archiving.RANGES))


def test_archiving_before_and_after_a_reset_of_a_later_audit_are_two_histories():
    """But one if the offset went to ARCHIVED directly each time, as docs/limits.md says."""
    first, waiting = _told((8, 10, "ARCHIVED")), _told((8, None, None))
    again, directly = _told((28, 30, "ARCHIVED")), _told((None, 30, "ARCHIVED"))

    def merged(*audits: pa.Table) -> set[tuple[Any, ...]]:
        rows = merge_ranges([merge_ranges(audits[:-1]), audits[-1]]).to_pylist()
        return {(row["archiving_offset"], row["left_offset"], row["left_by"]) for row in rows}

    assert merged(first, again) == {(8, 10, "ARCHIVED"), (28, 30, "ARCHIVED")}
    assert merged(waiting, _told((None, 20, "RESET")), again) == {(8, 20, "RESET"), (28, 30, "ARCHIVED")}
    assert merged(waiting, _told((None, 20, "RESET")), directly) == {(8, 20, "RESET"), (None, 30, "ARCHIVED")}
    assert merged(first, directly) == {(8, 10, "ARCHIVED")}
