"""The draft's chains as they are written: bytes, epochs that wrap, back offsets; and what the fold makes of them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.fold.draft.control_log import FoldedControlLog, fold_control_log
from share_state.rules.findings import judge
from share_state.simulator.control_record_writer import ControlState, DraftWriter
from share_state.simulator.log_writer import LogWriter
from share_state.simulator.types import CheckpointWrite, DeltaWrite
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_topic_logs
from tests.fold.control_records.model import Checkpoint, Delta, recover
from tests.kafka.batches import NOW
from tests.simulator.logs.test_segments import rows_of
from tests.simulator.state_batches import state_batch
from tests.truth import runs

RELEASED, ACKED, ARCHIVED = 0, 2, 4
GROUPS = ("G1", "G2", "é😀")


def delta(*batches: tuple[int, int, int, int]) -> DeltaWrite:
    return DeltaWrite(tuple(state_batch(*batch) for batch in batches))


def checkpoint(start: int, end: int, *batches: tuple[int, int, int, int]) -> CheckpointWrite:
    return CheckpointWrite(start, end, tuple(state_batch(*batch) for batch in batches))


def log_at(folder: Path, offset: int) -> LogWriter:
    return LogWriter(folder / "T-0", base_offset=offset)


def folded(folder: Path, until: int | None = None) -> FoldedControlLog:
    (found,) = find_topic_logs([str(folder)])
    return fold_control_log(found, Window(until_offset=until))


WORKED_EXAMPLE = [
    (delta((100, 109, ACKED, 1)), (110, 110),
     "0002473100010000000000000082000000010000000000000064000000000000006d020001"),
    (delta((110, 110, RELEASED, 1)), (110, 111),
     "000247310001000000000000008300000001000000000000006e000000000000006e000001"),
    (delta((111, 118, RELEASED, 0), (119, 119, ACKED, 1)), (110, 120),
     "000247310001000000000000008400000002000000000000006f0000000000000076000000"
     "00000000000000770000000000000077020001"),
    (delta((111, 112, RELEASED, 1)), (110, 120),
     "000247310001000000000000008500000001000000000000006f0000000000000070000001"),
    (delta((113, 118, ACKED, 1)), (110, 120),
     "00024731000100000000000000860000000100000000000000710000000000000076020001"),
    (delta((110, 110, ACKED, 2)), (111, 120),
     "000247310001000000000000008700000001000000000000006e000000000000006e020002"),
    (delta((111, 112, ACKED, 2)), (120, 120),
     "000247310001000000000000008800000001000000000000006f0000000000000070020002"),
]  # fmt: skip


def test_the_worked_example_is_written_byte_for_byte(tmp_path):
    log = log_at(tmp_path, 130)
    writer = DraftWriter(log)
    assert writer.checkpoint("G1", checkpoint(100, 100), NOW) == 130
    assert [writer.delta("G1", write, NOW) for write, *_ in WORKED_EXAMPLE] == list(range(131, 138))
    assert writer.checkpoint("G1", checkpoint(120, 120), NOW) == 138
    log.flush()
    (found,) = find_topic_logs([str(tmp_path)])
    records = rows_of(found, control=True)
    values = [(value or b"").hex() for _, _, _, value in records]
    assert values == [
        "0002473100010000000000000064000000000000006400000000",
        *(value for *_, value in WORKED_EXAMPLE),
        "0002473100020000000000000078000000000000007800000000",
    ]
    assert [(key or b"").hex() for _, _, key, _ in records] == ["00000005", *["00000006"] * 7, "00000005"]
    for offset, (_, (start, end), _) in enumerate(WORKED_EXAMPLE, 132):
        (row,) = folded(tmp_path, offset).states.to_pylist()
        assert (row["start_offset"], row["end_offset"]) == (start, end)


def test_a_value_may_have_a_version_in_front(tmp_path):
    log = log_at(tmp_path, 0)
    writer = DraftWriter(log, version_prefix=True)
    writer.checkpoint("G1", checkpoint(100, 100), NOW)
    writer.delta("G1", delta((100, 109, ACKED, 1)), NOW)
    log.flush()
    (found,) = find_topic_logs([str(tmp_path)])
    values = [(value or b"").hex() for _, _, _, value in rows_of(found, control=True)]
    assert values[0] == "0000" + "0002473100010000000000000064000000000000006400000000"
    assert folded(tmp_path).states["start_offset"].to_pylist() == [110]


def test_two_groups_share_a_log_and_epochs_start_over(tmp_path):
    log = log_at(tmp_path, 500)
    writer = DraftWriter(log, first_epoch=1)
    other = DraftWriter(log, first_epoch=65535)
    offsets = [
        writer.checkpoint("G1", checkpoint(0, 0), NOW),
        other.checkpoint("G2", checkpoint(0, 0), NOW),
        writer.delta("G1", delta((0, 4, ACKED, 1)), NOW),
        other.delta("G2", delta((0, 1, ACKED, 1)), NOW),
        other.checkpoint("G2", checkpoint(2, 2), NOW),
        other.delta("G2", delta((2, 4, ARCHIVED, 1)), NOW),
        writer.checkpoint("G1", checkpoint(5, 5), NOW),
    ]
    log.flush()
    assert offsets == list(range(500, 507))
    (found,) = find_topic_logs([str(tmp_path)])
    values = [(value or b"").hex() for _, _, _, value in rows_of(found, control=True)]
    assert values[1].startswith("00024732ffff")
    assert values[3].startswith("00024732ffff" + f"{501:016x}")
    assert values[4].startswith("000247320000")
    assert values[5].startswith("000247320000" + f"{504:016x}")
    state = folded(tmp_path)
    assert state.states["start_offset"].to_pylist() == [5, 5]
    assert (state.earliest.offset, state.earliest.limited_by) == (504, "G2")
    assert set(judge(state)["rule"].to_pylist()) == {"SPSO_BELOW_LOG_START"}


def states_of(state: FoldedControlLog) -> dict[str, ControlState]:
    return {
        row["group_id"]: ControlState(
            start_offset=row["start_offset"],
            end_offset=row["end_offset"],
            batches=tuple(state_batch(*batch.values()) for batch in row["state_batches"]),
            checkpoint_epoch=row["snapshot_epoch"],
            checkpoint_offset=row["snapshot_offset"],
            last_offset=row["last_offset"],
            deltas=row["updates_since_snapshot"],
        )
        for row in state.states.to_pylist()
    }


@st.composite
def tuples(draw: st.DrawFn) -> tuple[int, int, int, int]:
    first = draw(st.integers(0, 30))
    state = draw(st.sampled_from([RELEASED, ACKED, ARCHIVED]))
    return first, first + draw(st.integers(0, 8)), state, draw(st.integers(0, 3))


@st.composite
def steps(draw: st.DrawFn) -> tuple:
    """User data, a checkpoint or a delta."""
    kind = draw(st.sampled_from(["data", "checkpoint", "delta", "delta", "delta"]))
    batches = sorted(draw(st.lists(tuples(), max_size=3, unique_by=lambda one: one[0])))
    apart = []
    for one in batches:
        if not apart or one[0] > apart[-1][1]:
            apart.append(one)
    if kind == "checkpoint":
        start = draw(st.integers(0, 10))
        end = max([start, *(one[1] + 1 for one in apart)])
        return kind, draw(st.sampled_from(GROUPS)), start, end, tuple(one for one in apart if one[0] >= start)
    return kind, draw(st.sampled_from(GROUPS)), tuple(apart)


@pytest.mark.parametrize("first_epoch", [1, 65534])
@given(st.lists(steps(), max_size=25), st.integers(0, 40))
def test_every_prefix_folds_to_what_its_records_say(first_epoch, drawn, until):
    written: dict[int, Checkpoint | Delta] = {}
    chains: dict[str, tuple[int, int]] = {}
    with TemporaryDirectory() as folder:
        log = log_at(Path(folder), 0)
        writer = DraftWriter(log, first_epoch=first_epoch)
        for kind, group, *rest in drawn:
            offset = log.next_offset
            if kind == "data":
                log.append(NOW, b"k", b"v")
            elif kind == "checkpoint" or group not in chains:
                start, end, states = rest if kind == "checkpoint" else (0, 0, ())
                assert writer.checkpoint(group, checkpoint(start, end, *states), NOW) == offset
                epoch = (chains[group][0] + 1) % 65536 if group in chains else first_epoch
                written[offset], chains[group] = Checkpoint(group, epoch, start, end, states), (epoch, offset)
            else:
                assert writer.delta(group, delta(*rest[0]), NOW) == offset
                epoch, back = chains[group]
                written[offset], chains[group] = Delta(group, epoch, back, rest[0]), (epoch, offset)
        log.flush()
        state = folded(Path(folder), until)
        if until >= log.next_offset:
            assert states_of(state) == writer.states
    expected = recover({offset: record for offset, record in written.items() if offset < until}, strict=True)
    assert not any(one.is_broken for one in expected.values())
    rows = {row["group_id"]: row for row in state.states.to_pylist()}
    assert rows.keys() == expected.keys()
    for group, one in expected.items():
        values = sorted((offset, value) for offset, value in one.value.items() if offset >= one.start)
        told = [tuple(batch.values()) for batch in rows[group]["state_batches"]]
        assert told == [(first, last, *value) for first, last, value in runs(values)]
        assert (rows[group]["start_offset"], rows[group]["end_offset"]) == (one.start, max(one.start, one.end))
        assert rows[group]["snapshot_epoch"] == one.epoch
        assert (rows[group]["snapshot_offset"], rows[group]["last_offset"]) == (one.sco, one.last)
    broken = {"BROKEN_CHAIN", "FORK", "CROSS_EPOCH", "CROSS_GROUP", "EPOCH_GAP", "EPOCH_REPEAT", "STALE_EPOCH"}
    assert not broken & set(judge(state)["rule"].to_pylist())
