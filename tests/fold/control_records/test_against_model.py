"""Any chains, right and wrong ones: the compiled fold equals a walk over records and offsets."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.fold.dialect import verify_cutoff
from share_state.fold.draft.control_chains import fold_control, is_superseded
from share_state.fold.draft.control_log import FoldedControlLog, decode_control_log, fold_control_log
from share_state.fold.fold_options import FoldOptions
from share_state.fold.states import in_flight_of
from share_state.rules.findings import judge
from share_state.sources.as_of import Window
from tests.fold.control_records.logs import checkpoint, control, control_options, delta, log_of, marker, user_data
from tests.fold.control_records.model import Checkpoint, Delta, Modelled, recover
from tests.kafka.batches import Batch
from tests.profiles import nightly

OFFSETS = st.integers(0, 40)


@st.composite
def tuples(draw: st.DrawFn, *, flawed: bool) -> tuple[tuple[int, int, int, int], ...]:
    """Tuples of one record: any order, overlaps and holes; inverted ones and odd states only where `flawed`."""
    states = st.sampled_from([0, 0, 2, 4] + [1, 3, 7] * flawed)
    found = []
    for _ in range(draw(st.integers(0, 4))):
        first = draw(OFFSETS)
        last = first + draw(st.integers(-1 if flawed else 0, 6))
        found.append((first, last, draw(states), draw(st.integers(0, 3))))
    return tuple(found)


@st.composite
def logs(draw: st.DrawFn) -> dict[int, Checkpoint | Delta]:
    """A log of a few groups; most links and epochs are right."""
    log: dict[int, Checkpoint | Delta] = {}
    offset = draw(st.integers(0, 100))
    newest: dict[str, int] = {}
    epochs: dict[str, int] = {}
    for _ in range(draw(st.integers(0, 25))):
        group = draw(st.sampled_from(["a", "bb", "ü"]))
        if group not in epochs:
            epochs[group] = draw(st.sampled_from([1, 65534, 65535]))
        if draw(st.integers(0, 4)) == 0:
            start = draw(OFFSETS)
            epochs[group] = (epochs[group] + draw(st.sampled_from([1, 1, 1, 1, 0, 2]))) % 65536
            end = start + draw(st.integers(0, 10))
            log[offset] = Checkpoint(group, epochs[group], start, end, draw(tuples(flawed=draw(st.booleans()))))
        else:
            epoch = (epochs[group] + draw(st.sampled_from([0] * 10 + [-1, 1]))) % 65536
            known = [newest.get(group, 0)] * 12 + [0, offset, offset + 3, *log]
            log[offset] = Delta(group, epoch, draw(st.sampled_from(known)), draw(tuples(flawed=draw(st.booleans()))))
        newest[group] = offset
        offset += draw(st.integers(1, 4))
    return log


def batches(log: dict[int, Checkpoint | Delta], among: st.DataObject | None = None) -> list[Batch]:
    """The log as batches; with `among`, other batches fill some of the offsets between."""
    found = []
    for offset, record in log.items():
        if isinstance(record, Checkpoint):
            written = checkpoint(record.group, record.epoch, record.start, record.end, record.states)
        else:
            written = delta(record.group, record.epoch, record.back, record.states)
        found.append(control(offset, written, codec=among.draw(st.sampled_from([0, 0, 1, 2, 3, 4])) if among else 0))
        if among and offset + 1 not in log and among.draw(st.booleans()):
            other = among.draw(st.sampled_from([user_data, marker]))
            found.append(other(offset + 1))
    return found


def same(folded: FoldedControlLog, expected: dict[str, Modelled]) -> None:
    """Hold every column of the fold against the model."""
    rows = {row["group_id"]: row for row in folded.states.to_pylist()}
    assert rows.keys() == expected.keys()
    for group, model in expected.items():
        row = rows[group]
        assert {
            "start_offset": model.start, "end_offset": model.end, "snapshot_epoch": model.epoch,
            "snapshot_offset": model.sco, "last_offset": model.last, "updates_since_snapshot": model.deltas,
            "suspect": model.is_broken or model.is_doubtful,
        }.items() <= row.items()  # fmt: skip
        values = {
            offset: (batch["delivery_state"], batch["delivery_count"])
            for batch in row["state_batches"]
            for offset in range(batch["first_offset"], batch["last_offset"] + 1)
        }
        assert values == {offset: value for offset, value in model.value.items() if offset >= model.start}
        for earlier, later in zip(row["state_batches"], row["state_batches"][1:], strict=False):
            touching = earlier["last_offset"] + 1 == later["first_offset"]
            assert earlier["last_offset"] < later["first_offset"]
            assert not (touching and list(earlier.values())[2:] == list(later.values())[2:])
        tiles = [row for row in folded.in_flight.to_pylist() if row["group_id"] == group]
        assert [tile["first_offset"] for tile in tiles] + [model.end] == [
            model.start, *(tile["last_offset"] + 1 for tile in tiles)
        ]  # fmt: skip
        for tile in tiles:
            for offset in range(tile["first_offset"], tile["last_offset"] + 1):
                value = (tile["delivery_state"], tile["delivery_count"])
                assert (value, tile["gap"]) == (model.value.get(offset, (0, 0)), offset not in model.value)
    assert in_flight_of(folded.states).cast(folded.in_flight.schema).equals(folded.in_flight)
    notes, groups = folded.all_chains.notes, folded.records.rows["group"]
    for number, group in enumerate(folded.groups.to_pylist()):
        if group in expected:
            assert notes["below_start"][groups == number].sum() == expected[group].below_start
            assert notes["hole_offsets"][groups == number].sum() == len(expected[group].uncovered)


@given(log=logs(), strict=st.booleans(), data=st.data())
def test_any_chains_fold_as_by_hand(tmp_path_factory: pytest.TempPathFactory, log, strict: bool, data: st.DataObject):
    folder = tmp_path_factory.mktemp("log")
    found = fold_control_log(
        log_of(folder, batches(log, data)),
        options=control_options(mode="strict" if strict else "best-effort"),
        chunk=data.draw(st.sampled_from([64, 1000, 1 << 20])),
    )
    same(found, recover(log, strict=strict))
    judge(found)


@given(log=logs(), data=st.data())
def test_every_prefix_is_the_state_as_of_its_end(
    tmp_path_factory: pytest.TempPathFactory, log, data: st.DataObject
):  # fmt: skip
    until = data.draw(st.integers(0, 130))
    found = fold_control_log(log_of(tmp_path_factory.mktemp("log"), batches(log)), Window(until_offset=until))
    same(found, recover({offset: record for offset, record in log.items() if offset < until}, strict=True))


@given(log=logs(), strict=st.booleans())
def test_dropping_what_lies_before_the_cutoff_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, log, strict: bool
):
    folded = fold_control_log(
        log_of(tmp_path_factory.mktemp("log"), batches(log)),
        options=control_options(mode="strict" if strict else "best-effort"),
    )
    proof = verify_cutoff(folded, Window(), FoldOptions(control=folded.options))
    assert proof is None or proof.differing == ()
    if folded.earliest.offset is not None:
        assert folded.redundant_records == sum(offset < folded.earliest.offset for offset in log)


@nightly("thousands of chains; the test below draws some")
def test_thousands_of_chains_of_one_topic_partition_fold_as_by_hand(tmp_path: Path):
    """Several thousand groups whose epochs wrap, written in turn, with faults in every tenth chain."""
    random = np.random.default_rng(4)
    log: dict[int, Checkpoint | Delta] = {}
    chains: dict[str, tuple[int, int]] = {}
    for offset in range(40_000):
        group = f"group-{random.integers(3000)}"
        back, epoch = chains.get(group, (-1, 65535))
        if back < 0 or random.integers(10) == 0:
            epoch, start = (epoch + 1) % 65536 if back >= 0 else 65535, int(random.integers(40))
            log[offset] = Checkpoint(group, epoch, start, start + 3, ((start, start + 2, 0, 1),))
        else:
            first = int(random.integers(50))
            state = (first, first + int(random.integers(5)), int(random.choice([0, 2, 4])), int(random.integers(4)))
            wrong = group.endswith("7") and random.integers(5) == 0
            log[offset] = Delta(group, epoch, back - wrong, (state,))
        chains[group] = (offset, epoch)
    everything = log_of(tmp_path, batches(log))
    for mode in ("strict", "best-effort"):
        found = fold_control_log(everything, options=control_options(mode=mode), chunk=1 << 18)
        same_scalars(found, recover(log, strict=mode == "strict"))


def same_scalars(folded: FoldedControlLog, expected: dict[str, Modelled]) -> None:
    """As `same`, for tables too long to walk group by group."""
    values: dict[str, dict[int, tuple[int, int]]] = {group: {} for group in expected}
    for row in folded.states.to_pylist():
        model = expected[row["group_id"]]
        assert (row["start_offset"], row["end_offset"], row["last_offset"]) == (model.start, model.end, model.last)
        assert row["suspect"] == model.is_broken
        for batch in row["state_batches"]:
            for offset in range(batch["first_offset"], batch["last_offset"] + 1):
                values[row["group_id"]][offset] = (batch["delivery_state"], batch["delivery_count"])
    for group, model in expected.items():
        assert values[group] == {offset: value for offset, value in model.value.items() if offset >= model.start}


@given(log=logs(), strict=st.booleans())
def test_superseded_records_may_stay_or_go(tmp_path_factory: pytest.TempPathFactory, log, strict: bool):
    everything = list(decode_control_log(log_of(tmp_path_factory.mktemp("log"), batches(log)), Window()))
    for records, groups in everything:
        needed = records.take(np.flatnonzero(~is_superseded(records, len(groups))))
        whole, again = (fold_control(part, len(groups), strict=strict) for part in (records, needed))
        assert np.array_equal(whole.chains, again.chains)
        assert np.array_equal(whole.batches, again.batches)
        assert len(needed.tuples) == needed.rows["tuple_count"].sum()


def test_only_the_records_behind_the_latest_checkpoint_are_kept(tmp_path: Path):
    log = {0: Checkpoint("a", 1, 0, 0), 1: Delta("a", 1, 0, ((0, 3, 0, 1),)), 2: Checkpoint("a", 2, 1, 1)}
    found = fold_control_log(log_of(tmp_path, batches(log)))
    assert found.records.rows["offset"].tolist() == [2]
