"""Copies of one log from several brokers: an obsolete one opens no hole, in the files of a real cluster."""

from pathlib import Path

import pyarrow as pa
import pytest

from share_state.config.input_spec import OPTIONS, input_spec
from share_state.kafka.record_batches import BatchStatus
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.planning import build_plan
from share_state.sources.discovery import find_logs
from share_state.sources.segments import read_chunks, without_obsolete_copies
from tests.kafka.batches import UPDATE, Batch, Record, consecutive, in_bytes, key, log_of, snapshot, update
from tests.truth import expected_states

REPLICAS = Path(__file__).parent / "replicas"
"""A log partition of a real cluster: `b2-stale` (offsets 0 to 246) ends before the log start of `b1` (1704)."""


def _tables(*copies: str) -> tuple[dict[str, pa.Table], tuple[str, ...]]:
    sources = [{"path": str(REPLICAS / copy)} for copy in copies]
    plan = build_plan(input_spec(OPTIONS, sources=sources, state_partitions=4), OPTIONS)
    return LocalExecutor().result_tables(plan), plan.notes


@pytest.mark.parametrize("copies", [("b1", "b2-stale"), ("b2-stale", "b1")])
def test_a_copy_that_ends_before_the_log_start_of_another_is_left_out(copies: tuple[str, ...]):
    tables, notes = _tables(*copies)
    expected, _ = _tables("b1")
    for name, table in tables.items():
        assert table.to_pylist() == expected[name].to_pylist(), name
    states = {
        (row["group_id"], row["topic_id"], row["partition"]): row for row in tables["share_partition_state"].to_pylist()
    }
    truth = expected_states(REPLICAS / "truth.jsonl")
    assert {name: row["start_offset"] for name, row in states.items()} == {
        name: row["start_offset"] for name, row in truth.items()
    }
    assert tables["cutoff"]["safe"].to_pylist() == [True]
    (note,) = notes
    assert "obsolete copies are left out" in note
    assert "b2-stale/__share_group_state-1" in note


LOG = consecutive([Batch([Record(key(partition=number), snapshot([(0, 9, 2, 1)]))]) for number in range(6)])
"""A snapshot of another share-partition at each of the offsets 0 to 5."""


def _copy(folder: Path, batches: list[Batch], **checkpoints: str) -> str:
    log_of(folder, in_bytes(batches), base_offset=batches[0].base_offset)
    for name, entries in checkpoints.items():
        place = folder / "__share_group_state-0" if name == "leader_epoch_checkpoint" else folder
        (place / name.replace("_", "-")).write_text(f"0\n{len(entries.splitlines())}\n{entries}\n")
    return str(folder)


def _offsets(*folders: str) -> list[int]:
    (log,) = find_logs(folders)
    chunks = read_chunks(without_obsolete_copies(log), merge=True)
    return [int(row["base_offset"]) for part in chunks for row in part.batches if row["status"] == BatchStatus.VALID]


def test_copies_that_together_have_no_hole_are_all_read(tmp_path: Path):
    parts = {"old": LOG[:2], "new": LOG[4:], "between": LOG[1:4], "adjacent": LOG[2:4]}
    copies = {name: _copy(tmp_path / name, batches) for name, batches in parts.items()}
    assert _offsets(copies["old"], copies["new"]) == [4, 5]
    assert _offsets(copies["old"], copies["new"], copies["between"]) == [0, 1, 2, 3, 4, 5]
    assert _offsets(copies["old"], copies["new"], copies["adjacent"]) == [0, 1, 2, 3, 4, 5]


def test_an_obsolete_copy_is_recognised_by_the_recorded_log_start(tmp_path: Path):
    old = _copy(tmp_path / "old", LOG[:3])
    new = _copy(tmp_path / "new", LOG, log_start_offset_checkpoint="__share_group_state 0 4")
    assert find_logs([old, new])[0].log_start_offset == 0
    assert without_obsolete_copies(find_logs([old, new])[0]).log_start_offset == 4


def _epoch(batches: list[Batch], epoch: int) -> list[Batch]:
    content = [Record(key(UPDATE, partition=0), update([(10 + epoch, 12, 2, 1)])) for _ in batches]
    return [
        Batch([record], base_offset=batch.base_offset, leader_epoch=epoch)
        for record, batch in zip(content, batches, strict=True)
    ]


def _judged(*folders: str) -> tuple[dict[str, int], bool, int]:
    """Findings about the copies by severity and rule, whether the cutoff is safe, and the end offset of the log."""
    sources = [{"path": folder} for folder in folders]
    tables = LocalExecutor().result_tables(build_plan(input_spec(OPTIONS, sources=sources), OPTIONS))
    rows = tables["findings"].to_pylist()
    of_copies = [row for row in rows if row["rule"] in ("UNREPLICATED_TAIL", "DUPLICATE_OFFSET_CONFLICT", "OFFSET_GAP")]
    found = {f"{row['severity']} {row['rule']} {row['offset']}": 1 for row in of_copies}
    (limit,) = tables["cutoff"].to_pylist()
    return found, limit["safe"], limit["log_end_offset"]


@pytest.mark.parametrize("order", [1, -1])
def test_records_that_only_a_dead_leader_held_are_an_unreplicated_tail(tmp_path: Path, order: int):
    dead = _copy(tmp_path / "dead", LOG, replication_offset_checkpoint="__share_group_state 0 4")
    alive = _copy(tmp_path / "alive", [*LOG[:4], *_epoch(LOG[4:5], 1)])
    tail = {"info UNREPLICATED_TAIL 4": 1, "info UNREPLICATED_TAIL 5": 1}
    assert _judged(*(dead, alive)[::order]) == (tail, True, 5)


def test_a_tail_is_unreplicated_even_before_the_next_leader_writes(tmp_path: Path):
    dead = _copy(tmp_path / "dead", LOG, replication_offset_checkpoint="__share_group_state 0 4")
    alive = _copy(tmp_path / "alive", LOG[:5], leader_epoch_checkpoint="0 0\n1 5")
    assert _judged(dead, alive) == ({"info UNREPLICATED_TAIL 5": 1}, True, 5)


def test_what_was_committed_and_then_replaced_is_a_conflict(tmp_path: Path):
    unclean = _copy(tmp_path / "unclean", LOG, replication_offset_checkpoint="__share_group_state 0 6")
    alive = _copy(tmp_path / "alive", [*LOG[:5], *_epoch(LOG[5:], 1)])
    assert _judged(unclean, alive) == ({"error DUPLICATE_OFFSET_CONFLICT 5": 1}, False, 6)


def test_records_above_the_high_watermark_count_if_no_later_epoch_replaced_them(tmp_path: Path):
    leader = _copy(tmp_path / "leader", LOG, replication_offset_checkpoint="__share_group_state 0 3")
    follower = _copy(tmp_path / "follower", LOG[:4], leader_epoch_checkpoint="0 0\n1 6")
    assert _judged(leader, follower) == ({}, True, 6)
