"""Compressed batches read as plain ones do, whatever is mixed and however little is held at a time."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from share_state.config.input_spec import KEYS, input_spec
from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_log import FoldedLog, fold_log
from share_state.pipeline.planning import build_plan
from share_state.sources.segments import read_chunks
from tests.kafka.batches import (
    SNAPSHOT,
    UPDATE,
    Batch,
    Record,
    consecutive,
    in_bytes,
    key,
    log_of,
    packed,
    snapshot,
    update,
)
from tests.kafka.judged import judged_bytes

EVERY_CODEC = (0, 1, 2, 3, 4)
SMALL = 700

BATCHES = consecutive(
    [Batch([Record(key(SNAPSHOT, partition=number), snapshot([(0, 9, 0, 1)])) for number in range(5)])]
    + [
        Batch(
            [
                Record(key(UPDATE, partition=number % 5), update([(number, number + 2, 2, 3)]))
                for _ in range(1 + number % 7)
            ]
        )
        for number in range(60)
    ]
)


def _folded(folder: Path, codecs: Sequence[int], chunk: int, cores: int) -> FoldedLog:
    batches = [replace(batch, attributes=codecs[row % len(codecs)]) for row, batch in enumerate(BATCHES)]
    return fold_log(log_of(folder, in_bytes(batches)), options=FoldOptions(cores=cores), chunk=chunk)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("chunk", [SMALL, 1 << 20])
@pytest.mark.parametrize("codecs", [(1,), (2,), (3,), (4,), EVERY_CODEC, (0, 0, 0, 4)])
def test_compressed_batches_say_what_plain_ones_say(tmp_path: Path, codecs: tuple[int, ...], chunk: int, cores: int):
    plain = _folded(tmp_path / "plain", (0,), 1 << 20, 1)
    packed = _folded(tmp_path / "packed", codecs, chunk, cores)
    assert packed.states.equals(plain.states)
    assert packed.in_flight.equals(plain.in_flight)
    assert packed.record_count == plain.record_count == sum(len(batch.records) for batch in BATCHES)


def test_a_batch_larger_than_what_is_held_is_read(tmp_path: Path):
    many = [Record(key(SNAPSHOT, partition=number), snapshot([(0, 9, 0, 1)])) for number in range(200)]
    log = log_of(
        tmp_path, in_bytes(consecutive([BATCHES[0], Batch(many, attributes=4), Batch(many[:3], attributes=1)]))
    )
    assert len(fold_log(log, options=FoldOptions(cores=2), chunk=SMALL).states) == 200


def test_where_chunks_end_does_not_depend_on_how_many_are_held(tmp_path: Path):
    # A body larger than a buffer makes that buffer larger for good, and by turns another one is next.
    large = Batch([Record(key(SNAPSHOT, partition=number), snapshot([(0, 9, 0, 1)])) for number in range(200)])
    packed = [replace(batch, attributes=4) for batch in consecutive([*BATCHES[:9], large, *BATCHES[9:]])]
    log = log_of(tmp_path, in_bytes(packed))
    held = [[len(part.batches) for part in read_chunks(log, chunk=SMALL, buffers=count)] for count in (1, 2, 3)]
    assert held[0] == held[1] == held[2]
    assert len(held[0]) > len(BATCHES) // 9


def test_a_batch_that_cannot_be_inflated_is_left_out_alone(tmp_path: Path):
    broken = [replace(batch, attributes=4) for batch in BATCHES]
    broken[7] = replace(broken[7], body=b"no zstd at all")
    folded = fold_log(log_of(tmp_path, in_bytes(broken)), chunk=SMALL)
    assert folded.record_count == sum(len(batch.records) for batch in BATCHES) - len(BATCHES[7].records)
    assert folded.last_lost_offset == BATCHES[7].base_offset


@pytest.mark.parametrize("codec", EVERY_CODEC[1:])
@pytest.mark.parametrize("row", [0, 7])
def test_a_batch_that_inflates_to_nothing_is_left_out_alone(tmp_path: Path, codec: int, row: int):
    empty = list(BATCHES)
    empty[row] = replace(empty[row], attributes=codec, body=packed(codec, b""))
    found = judged_bytes(tmp_path, in_bytes(empty), chunk=SMALL)
    assert found.causes["BATCH_MALFORMED"] == 1
    assert found.folded.record_count == sum(len(batch.records) for batch in BATCHES) - len(BATCHES[row].records)


@pytest.mark.parametrize("codec", EVERY_CODEC[1:])
def test_a_batch_above_the_limit_is_malformed_and_the_limit_is_a_setting(tmp_path: Path, codec: int):
    large = Batch(
        [Record(key(UPDATE), update([(0, 1, 2, 1)]), headers=[(b"filler", bytes(1 << 20))])], attributes=codec
    )
    log_of(tmp_path, in_bytes(consecutive([*BATCHES[:9], large, *BATCHES[9:]])))
    sizes = {"above": 1 << 20, "below": 1 << 21}
    found = {}
    for name, size in sizes.items():
        spec = input_spec(KEYS, sources=[{"path": str(tmp_path)}], limits={"batch_bytes": size})
        plan = build_plan(spec, KEYS)
        found[name] = plan.judge(plan.fold(plan.logs[0])).to_pylist()
    malformed = [row for row in found["above"] if row["rule"] == "BATCH_MALFORMED"]
    assert len(malformed) == 1
    assert "more than 1048576 bytes when decompressed" in malformed[0]["message"]
    assert not [row for row in found["below"] if row["rule"] == "BATCH_MALFORMED"]
