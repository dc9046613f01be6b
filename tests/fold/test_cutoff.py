"""The cutoff of a log partition, what makes it unsafe, and the proof that what lies before it is redundant."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given

from share_state.fold.dialect import NOT_COMPARED, CutoffVerification, verify_cutoff
from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_chains import NO_OFFSET
from share_state.fold.state_log import FoldedLog, fold_log
from share_state.sources.as_of import Window
from tests.fold.model import SNAPSHOT_KIND, TOMBSTONE_KIND, UPDATE_KIND, Written, replay
from tests.fold.random_logs import as_kafka_writes, folder_of, logs, numbered

S0, S1, S2 = (Written(SNAPSHOT_KIND, partition, ((0, 3, 2, 1),), start=0) for partition in range(3))
U0, U1, U2 = (Written(UPDATE_KIND, partition, ((4, 5, 2, 1),), start=1) for partition in range(3))
D0, D1, D2 = (Written(TOMBSTONE_KIND, partition) for partition in range(3))


def _cutoff(folder: Path, *records: Written, begins_at: int = 0) -> tuple[FoldedLog, dict]:
    log = folder_of(as_kafka_writes([[record] for record in records]), folder, base_offset=begins_at)
    folded = fold_log(replace(log, start_is_recorded=begins_at > 0))
    (row,) = folded.cutoff.to_pylist()
    return folded, row


def _proof(folded: FoldedLog) -> CutoffVerification | None:
    return verify_cutoff(folded, Window(), FoldOptions())


@pytest.mark.parametrize(
    ("records", "offset", "redundant", "holder"),
    [
        ((), None, 0, None),
        ((U0,), None, 0, None),
        ((S0,), None, 0, 0),
        ((S0, S0), 1, 1, 0),
        ((S0, U0, U0, S1), None, 0, 0),
        ((S0, S1, S0, U1, U0), 1, 1, 1),
        ((S0, S1, S0, S1, S2), 2, 2, 0),
        ((S0, S1, D0, U1), 1, 1, 1),
        ((S0, D0), 1, 1, None),
        ((S0, U0, D0, S1, D1), 4, 4, None),
        ((S0, S1, D0, S0, S1), 3, 3, 0),
        ((D0,), None, 0, None),
        ((U1, D0), 1, 1, None),
    ],
)
def test_the_cutoff_is_the_least_snapshot_offset_of_the_live_share_partitions(
    tmp_path: Path, records: tuple[Written, ...], offset: int | None, redundant: int, holder: int | None
):
    _, row = _cutoff(tmp_path, *records)
    assert (row["cutoff_offset"], row["redundant_records"]) == (offset, redundant)
    assert row["limited_by_partition"] == holder
    assert row["limited_by_group"] == (None if holder is None else "g")
    assert row["limited_by_topic_id"] == (None if holder is None else "AAECAwQFBgcICQoLDA0ODw")
    assert row["live_share_partitions"] == len(replay(enumerate(records)))
    assert (row["log_start_offset"], row["log_end_offset"]) == (0, len(records))


def test_a_state_that_rests_on_an_update_before_the_cutoff_makes_it_unsafe(tmp_path: Path):
    folded, row = _cutoff(tmp_path, U0, S1, S1)
    assert (row["cutoff_offset"], row["safe"]) == (2, False)
    assert "the snapshot of 1 share-partition is not in the input, nor in the broker's log" in row["reason"]
    proof = _proof(folded)
    assert proof is not None
    assert proof.differing == ("g:AAECAwQFBgcICQoLDA0ODw:0",)


def test_no_cutoff_is_safe_while_a_live_share_partition_has_no_snapshot_in_the_log(tmp_path: Path):
    folded, row = _cutoff(tmp_path, S1, S1, D0, U0)
    assert (row["cutoff_offset"], row["safe"]) == (1, False)
    # Folding again cannot show what the input does not hold.
    assert _proof(folded) == CutoffVerification(2, ())


def test_a_redundant_update_without_a_snapshot_before_it_is_no_danger(tmp_path: Path):
    # As the broker's pruning leaves them: the key has a later snapshot.
    folded, row = _cutoff(tmp_path, U0, S1, S0, begins_at=10)
    assert (row["cutoff_offset"], row["safe"]) == (11, True)
    assert _proof(folded) == CutoffVerification(2, ())


@pytest.mark.parametrize(
    ("records", "at"),
    [
        ((replace(S0, epoch=0), replace(S0, epoch=2)), 1),
        ((replace(S0, epoch=0), replace(S0, epoch=0)), 1),
        ((replace(S0, epoch=1), replace(S0, epoch=2)), 0),
        ((replace(S0, epoch=0), replace(U0, epoch=1), replace(S0, epoch=1)), 1),
        ((replace(U0, epoch=0), replace(S0, epoch=1)), 0),
        ((S0, D0, replace(S0, epoch=1), replace(S0, epoch=2)), 2),
    ],
)
def test_no_cutoff_is_safe_if_snapshot_epochs_do_not_follow(tmp_path: Path, records: tuple[Written, ...], at: int):
    folded = fold_log(folder_of([[record] for record in (S1, *records, replace(S1, epoch=1))], tmp_path))
    (row,) = folded.cutoff.to_pylist()
    assert not row["safe"]
    assert row["reason"].startswith(f"the snapshot epoch at offset {at + 1} does not follow the one before it")
    assert folded.checkpoint is not None
    assert folded.checkpoint.last_break == at + 1


def test_damage_before_the_cutoff_is_no_difference_between_the_states(tmp_path: Path):
    # The damaged batch may have held a snapshot of partition 0, so its state is suspect; without the batch it is not.
    log = folder_of([[record] for record in (S2, S1, U0)], tmp_path)
    (segment,) = tmp_path.rglob("*.log")
    damaged = bytearray(segment.read_bytes())
    damaged[80] ^= 1
    segment.write_bytes(damaged)
    folded = fold_log(log)
    assert folded.cutoff["cutoff_offset"].to_pylist() == [1]
    assert sorted(folded.states["suspect"].to_pylist()) == [False, True]
    assert _proof(folded) == CutoffVerification(2, ())


@given(logs())
def test_the_cutoff_is_kafka_s_on_any_log(tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]]):
    folded = fold_log(folder_of(log, tmp_path_factory.mktemp("log")))
    live: dict[int, int] = {}
    last = 0
    for offset, record in numbered(log):
        if record.kind != UPDATE_KIND:
            last = offset
            live[record.partition] = offset
            if record.kind == TOMBSTONE_KIND:
                del live[record.partition]
    assert folded.cutoff["cutoff_offset"].to_pylist() == [min(live.values(), default=last) or None]


@given(logs())
def test_a_cutoff_is_safe_exactly_where_each_live_share_partition_has_its_snapshot(
    tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]]
):
    pruned = folder_of(as_kafka_writes(log), tmp_path_factory.mktemp("log"), base_offset=7)
    folded = fold_log(replace(pruned, start_is_recorded=True))
    proof = _proof(folded)
    if folded.cutoff["cutoff_offset"][0].as_py() is None:
        assert proof is None
    else:
        assert proof is not None
        assert proof.compared == len(folded.states)
        has_snapshots = folded.states["snapshot_offset"].null_count == 0
        follows_a_tombstone = folded.all_chains.last_break != NO_OFFSET
        assert folded.cutoff["safe"].to_pylist() == [has_snapshots and not follows_a_tombstone]
        assert not (has_snapshots and proof.differing)


@given(logs(orphans=False))
def test_a_proof_fails_one_offset_beyond_the_cutoff(tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]]):
    folded = fold_log(folder_of(log, tmp_path_factory.mktemp("log")))
    (row,) = folded.cutoff.to_pylist()
    beyond = row | {"cutoff_offset": (row["cutoff_offset"] or 0) + 1}
    proof = _proof(replace(folded, cutoff=pa.Table.from_pylist([beyond], schema=folded.cutoff.schema)))
    assert proof is not None
    # Exactly the one that holds the cutoff back loses its snapshot.
    assert proof.differing == (f"g:AAECAwQFBgcICQoLDA0ODw:{row['limited_by_partition']}",)


@given(logs(orphans=False))
def test_only_what_a_broker_forgets_may_change(tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]]):
    found = folder_of(log, tmp_path_factory.mktemp("log"))
    folded = fold_log(found)
    offset = folded.cutoff["cutoff_offset"][0].as_py() or 0
    by_partition = [("partition", "ascending")]
    again = fold_log(found, Window(from_offset=offset)).states.sort_by(by_partition)
    assert again.drop(list(NOT_COMPARED)) == folded.states.sort_by(by_partition).drop(list(NOT_COMPARED))
