"""After any nights the tables are those of one audit over the last night's input, plus what is documented to stay."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from share_state.config.input_spec import OPTIONS, input_spec
from share_state.delta.committed import CommittedTables
from share_state.delta.warehouse import Warehouse
from share_state.errors import NothingCommittedError
from share_state.fold.state_chains import NO_OFFSET
from share_state.fold.state_log import FoldedLog, fold_log
from share_state.pipeline import audit as audit_module
from share_state.pipeline import result as result_module
from share_state.pipeline.audit import run_audit
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.planning import build_plan
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition
from tests.nights.exports import (
    BATCHES_PER_SEGMENT,
    TOPIC_IDS,
    Log,
    Part,
    memory_part,
    named,
    simulated_topic,
    write_part,
)
from tests.profiles import by_profile, nightly

PARTITIONS = (3, 2, 4, 3)
"""State partitions of each generation of the topic."""
PRUNED_AWAY = {"max_leader_epoch", "max_state_epoch"}
"""An audit remembers the greatest epochs of records that have been deleted since."""
ESTIMATED = {"redundant_bytes", "pinned_bytes"}

Tables = dict[str, Any]
"""Rows of state, in-flight and cutoff of one log partition."""


class KilledError(Exception):
    """Stands for the end of the process."""


@dataclass
class Memory:
    """What the last audit left of a log partition.

    Attributes:
        tables: as committed.
        read: batches that it has read.
        is_sound: whether it lacks nothing of them.
        generation: of the topic.
    """

    tables: Tables
    read: int
    is_sound: bool
    generation: int


def _tables(states: list[dict], in_flight: list[dict], cutoff: list[dict]) -> Tables:
    def key(row: dict) -> tuple:
        return row["group_id"], row["topic_id"], row["partition"]

    return {
        "states": sorted(({k: v for k, v in row.items() if k not in PRUNED_AWAY} for row in states), key=key),
        "in_flight": sorted(in_flight, key=lambda row: (*key(row), row["first_offset"])),
        "cutoff": [{k: v for k, v in row.items() if k not in ESTIMATED} for row in cutoff],
    }


def _folded_tables(folded: FoldedLog) -> Tables:
    return _tables(folded.states.to_pylist(), folded.in_flight.to_pylist(), folded.cutoff.to_pylist())


def _is_sound(folded: FoldedLog) -> bool:
    """Whether the fold lacks nothing before the point where the next one resumes."""
    left = folded.checkpoint
    return left is not None and left.last_lost_offset == NO_OFFSET and not (
        left.chains.chains["suspect_offset"] != NO_OFFSET
    ).any()  # fmt: skip


class Nights(RuleBasedStateMachine):
    """A cluster whose logs are exported and audited night by night."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(mkdtemp(prefix="nights-"))
        self.warehouse = self.root / "warehouse"
        self.nights = 0
        self.generation = 0
        self.memory: dict[int, Memory] = {}
        self.clock, self.limits = timedelta(), {}

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @initialize(has_ids=st.booleans())
    def begin(self, has_ids: bool) -> None:
        self.has_ids = has_ids
        self._make_topic()

    def _make_topic(self) -> None:
        self.logs = simulated_topic(self.generation, PARTITIONS[self.generation])
        self.copies: list[list[Part]] = [[Part() for _ in self.logs]]
        for number in range(len(self.logs)):
            self.grow(number, 30, also=True)

    def _part(self, copy: int, number: int) -> tuple[Part, Log, int]:
        number %= len(self.logs)
        return self.copies[copy % len(self.copies)][number], self.logs[number], number

    # What happens to the logs and their copies by day.

    @rule(number=st.integers(0, 3), batches=st.integers(1, 60), also=st.booleans())
    def grow(self, number: int, batches: int, also: bool) -> None:
        """The first copy grows, the others perhaps; a copy that has grown is no longer cut."""
        number %= len(self.logs)
        for copy in self.copies if also else self.copies[:1]:
            part = copy[number]
            part.cut = 0
            part.end = min(max(part.end, self.copies[0][number].end * also) + batches * (copy is self.copies[0]),
                           len(self.logs[number].batches))  # fmt: skip
        if also:
            for copy in self.copies[1:]:
                copy[number].end = self.copies[0][number].end

    @rule(copy=st.integers(0, 2), number=st.integers(0, 3), size=st.integers(1, 3000))
    def cut(self, copy: int, number: int, size: int) -> None:
        self._part(copy, number)[0].cut = size

    @rule(copy=st.integers(0, 2), number=st.integers(0, 3), at=st.floats(0, 1))
    def damage(self, copy: int, number: int, at: float) -> None:
        part, _, _ = self._part(copy, number)
        part.damaged.add(int(at * max(part.end - 1, 0)))

    @rule(copy=st.integers(0, 2), number=st.integers(0, 3), at=st.floats(0, 1))
    def lose_segment(self, copy: int, number: int, at: float) -> None:
        """Any but the first: that looks as if it had been deleted by the broker."""
        part, _, _ = self._part(copy, number)
        last = max(part.end - 1, 0) // BATCHES_PER_SEGMENT
        if last > part.first_segment:
            part.lost.add(part.first_segment + 1 + int(at * (last - part.first_segment - 1)))

    @rule(copy=st.integers(0, 2), number=st.integers(0, 3))
    def lose_partition(self, copy: int, number: int) -> None:
        self._part(copy, number)[0].is_there = False

    @rule(copy=st.integers(0, 2))
    def mend(self, copy: int) -> None:
        for part in self.copies[copy % len(self.copies)]:
            part.mend()

    @precondition(lambda self: len(self.copies) < 3)
    @rule(behind=st.integers(0, 40))
    def add_copy(self, behind: int) -> None:
        parts = [replace(part, lost=set(), damaged=set(), cut=0, is_there=True) for part in self.copies[0]]
        for part in parts:
            # Not less than what was there when the log was last deleted from.
            part.end = max(part.end - behind, min(part.end, self._needed(part)))
        self.copies.append(parts)

    def _needed(self, part: Part) -> int:
        return (part.first_segment + 4) * BATCHES_PER_SEGMENT

    @precondition(lambda self: len(self.copies) > 1)
    @rule(copy=st.integers(0, 2))
    def remove_copy(self, copy: int) -> None:
        del self.copies[copy % len(self.copies)]

    @rule(number=st.integers(0, 3), of_all=st.booleans())
    def prune(self, number: int, of_all: bool) -> None:
        """The broker deletes whole segments below the cutoff that all copies agree on."""
        number %= len(self.logs)
        log = self.logs[number]
        end = min(copy[number].end for copy in self.copies)
        place = self.root / "prefix"
        first = max(copy[number].first_segment for copy in self.copies)
        write_part(place / "__share_group_state-0", Part(end, first).segments(log), None)
        (found,) = find_logs([str(place)])
        offset = fold_log(found).cutoff["cutoff_offset"][0].as_py() or 0
        shutil.rmtree(place)
        while (first + 1) * BATCHES_PER_SEGMENT < end - 4 * BATCHES_PER_SEGMENT and (
            log.base_offsets[(first + 1) * BATCHES_PER_SEGMENT] <= offset
        ):
            first += 1
        for copy in self.copies if of_all else self.copies[:1]:
            copy[number].first_segment = max(copy[number].first_segment, first)

    @precondition(lambda self: self.generation + 1 < len(PARTITIONS))
    @rule()
    def make_topic_anew(self) -> None:
        self.generation += 1
        self._make_topic()
        self.night()

    # What happens to the audit.

    @rule(hours=st.integers(-48, 48))
    def turn_clock(self, hours: int) -> None:
        self.clock = timedelta(hours=hours)

    @rule(count=st.integers(2, 9))
    def change_limits(self, count: int) -> None:
        self.limits = {"delivery_count": count}

    @rule(write=st.integers(0, 8))
    def killed_night(self, write: int) -> None:
        """An audit that is killed in place of one of its commits changes nothing."""
        before = self._committed()
        place = self._export()
        if place is not None:
            with suppress(KilledError), _killed_at(write):
                self._audit(place)
                self._expect(place)
                return
            assert self._committed() == before

    @rule()
    def night(self) -> None:
        place = self._export()
        if place is not None:
            self._audit(place)
            self._expect(place)

    @rule(copy=st.integers(0, 2), number=st.integers(0, 3), at=st.floats(0, 1), is_lost=st.booleans())
    def bad_night_then_a_good_one(self, copy: int, number: int, at: float, is_lost: bool) -> None:
        self.grow(number, BATCHES_PER_SEGMENT * 3, also=True)
        (self.lose_segment if is_lost else self.damage)(copy, number, at)
        self.night()
        self.mend(copy)
        self.night()

    def _export(self) -> Path | None:
        """Write what each copy holds to a new folder."""
        self.nights += 1
        place = self.root / f"night-{self.nights}"
        for name, copy in enumerate(self.copies):
            for number, part in enumerate(copy):
                segments = part.segments(self.logs[number]) if part.is_there else {}
                if segments:
                    write_part(named(place / f"broker-{name}", [number])[0], segments, self._topic_id())
        return place if place.exists() else None

    def _topic_id(self) -> str | None:
        return TOPIC_IDS[self.generation] if self.has_ids else None

    def _plan(self, place: Path) -> Any:
        sources = [{"path": str(folder)} for folder in sorted(place.iterdir())]
        return build_plan(input_spec(OPTIONS, sources=sources, limits=self.limits), OPTIONS)

    def _audit(self, place: Path) -> None:
        with _clock(self.clock):
            run_audit(lambda _: nullcontext(LocalExecutor()), self._plan(place), str(self.warehouse),
                      inputs=(str(place),), options={"limits": str(self.limits)})  # fmt: skip

    def _committed(self) -> dict[int, Tables]:
        """The tables by log partition, as a reader finds them."""
        try:
            tables = CommittedTables(str(self.warehouse))
        except NothingCommittedError:
            return {}
        states, cutoff = tables.read("share_partition_state").to_pylist(), tables.read("cutoff").to_pylist()
        owner = {(row["group_id"], row["topic_id"], row["partition"]): row["state_partition"] for row in states}
        in_flight = tables.read("in_flight").to_pylist()
        return {
            row["partition"]: _tables(
                [one for one in states if one["state_partition"] == row["partition"]],
                [
                    one
                    for one in in_flight
                    if owner[one["group_id"], one["topic_id"], one["partition"]] == row["partition"]
                ],
                [row],
            )
            for row in cutoff
        }

    def _expect(self, place: Path) -> None:
        """Compare every log partition with what one audit over this night's input would find, or what stays."""
        committed = self._committed()
        logs = {log.partition: log for log in self._plan(place).logs}
        if {*logs, *self.memory} >= {len(self.logs) - 1}:
            # The number of state partitions was seen once, so it is known.
            assert "WRONG_PARTITION" not in CommittedTables(str(self.warehouse)).read("findings")["rule"].to_pylist()
        before = {number: known for number, known in self.memory.items() if known.generation == self.generation}
        self.memory = {}
        assert committed.keys() == logs.keys() | before.keys()
        for number, found in committed.items():
            known = before.get(number)
            if number not in logs:
                assert known is not None
                assert found == known.tables, "a missing log changed"
                self.memory[number] = known
                continue
            self._expect_log(number, logs[number], known, found)

    def _expect_log(self, number: int, log: LogPartition, known: Memory | None, found: Tables) -> None:
        fresh = fold_log(log)
        is_behind = known is not None and known.read > 0 and self._valid_end(number) < known.read
        allowed: list[tuple[str, Tables, int, bool]] = []
        if not is_behind:
            allowed.append(("fresh", _folded_tables(fresh), self._read(number, fresh), _is_sound(fresh)))
        if known is not None and is_behind:
            allowed.append(("kept", known.tables, known.read, known.is_sound))
        if known is not None and known.is_sound and self._first_batch(number) < known.read:
            resumed = self._resumed(number, known.read)
            allowed.append(("resumed", _folded_tables(resumed), self._read(number, resumed), _is_sound(resumed)))
        for _, tables, read, is_sound in allowed:
            if found == tables:
                self.memory[number] = Memory(found, read, is_sound, self.generation)
                return
        assert {name: found for name, *_ in allowed} == {name: tables for name, tables, *_ in allowed}

    def _read(self, number: int, folded: FoldedLog) -> int:
        """The batches up to the point where the next audit resumes."""
        left = folded.checkpoint
        return 0 if left is None else self.logs[number].base_offsets.index(left.mark.next_offset)

    def _valid_end(self, number: int) -> int:
        """Behind the last batch that any copy holds whole."""
        ends = [0]
        for copy in self.copies:
            part, log, size = copy[number], self.logs[number], 0
            if not part.is_there:
                continue
            last = max(part.end - 1, 0) // BATCHES_PER_SEGMENT
            for batch in range(part.end - 1, part.first_segment * BATCHES_PER_SEGMENT - 1, -1):
                segment = batch // BATCHES_PER_SEGMENT
                size += len(log.batches[batch])
                if segment in part.lost or (segment == last and size - len(log.batches[batch]) < part.cut):
                    continue
                if batch in part.damaged:
                    continue
                ends.append(batch + 1)
                break
        return max(ends)

    def _first_batch(self, number: int) -> int:
        """At which the log starts tonight."""
        return min(copy[number].first_segment for copy in self.copies if copy[number].is_there) * BATCHES_PER_SEGMENT

    def _resumed(self, number: int, read: int) -> FoldedLog:
        """A fold of what was read before, as it was, and of what this night's copies hold behind it."""
        place, log = self.root / "resumed", self.logs[number]
        first = self._first_batch(number) // BATCHES_PER_SEGMENT
        write_part(named(place / "memory", [number])[0], memory_part(log, first, read), None)
        for name, copy in enumerate(self.copies):
            segments = copy[number].segments(log, read) if copy[number].is_there else {}
            if segments:
                write_part(named(place / f"broker-{name}", [number])[0], segments, None)
        (found,) = find_logs([str(folder) for folder in sorted(place.iterdir())])
        folded = fold_log(found)
        shutil.rmtree(place)
        return folded


@contextmanager
def _killed_at(write: int) -> Iterator[None]:
    """End the process in place of the n-th commit of a table."""
    commits, original = iter(range(write + 1)), Warehouse.commit

    def commit(*arguments: Any, **named: Any) -> Any:
        if next(commits, None) == write:
            raise KilledError
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Warehouse, "commit", commit)
        yield


@contextmanager
def _clock(shift: timedelta) -> Iterator[None]:
    """Turn the clock of the audit."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + shift

    with pytest.MonkeyPatch.context() as patch:
        for module in (audit_module, result_module):
            patch.setattr(module, "datetime", Shifted)
        yield


Nights.TestCase.settings = settings(
    max_examples=by_profile(1, 1000), stateful_step_count=by_profile(6, 30), print_blob=True
)
TestNights = nightly("drawn nights; test_lives and test_healing have some")(Nights.TestCase)
