"""Offsets that were reset to an earlier one: REWIND, until consumers have come back or stopped."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from share_state.fold.fold_options import FoldOptions
from share_state.fold.history import add_verdicts, history_pieces
from share_state.fold.limits import Limits
from share_state.fold.state_log import fold_log
from share_state.rules.findings import judge_records
from tests.kafka.batches import NOW, Record
from tests.rules.histories import ACKNOWLEDGED, MINUTE, log_with, snapshot, tombstone, update


def _verdict(folder: Path, *history: Record, until: int = 0) -> dict[str, Any]:
    """The row of a first audit, `until` ms after the first record."""
    options = FoldOptions(judge=judge_records, limits=Limits(stall_minutes=10))
    folded = fold_log(log_with(folder, *history), options=options)
    rows = pa.concat_tables(list(history_pieces(folded)))
    (row,) = add_verdicts(rows, NOW + until, "run", options.limits).to_pylist()
    return row


def _reset(start: int, epoch: int = 1) -> Record:
    """The snapshot that an initialization writes."""
    return snapshot(start=start, leader_epoch=0, epoch=epoch)


def _finished(first: int, last: int) -> list[tuple[int, int, int, int]]:
    return [(first, last, ACKNOWLEDGED, 1)]


def test_a_reset_to_an_earlier_offset_is_a_rewind_in_the_first_audit(tmp_path: Path):
    row = _verdict(tmp_path, snapshot(start=50), _reset(20))
    assert (row["verdict"], row["reason"]) == ("REWIND", "30 offsets back: SPSO went from 50 to 20")
    assert row["rewound_from"] == 50


def test_a_leader_starts_after_finished_records_though_the_recorded_start_is_lower(tmp_path: Path):
    history = (snapshot(start=10), update(_finished(10, 39), start=10, count=30), _reset(15))
    row = _verdict(tmp_path, *history)
    assert row["reason"] == "25 offsets back: SPSO went from 40 to 15"


def test_consumers_that_came_back_end_the_rewind(tmp_path: Path):
    history = [snapshot(start=50), _reset(20), update(_finished(20, 48), start=20, epoch=1, count=29)]
    assert _verdict(tmp_path / "before", *history)["verdict"] == "REWIND"
    history.append(update(_finished(49, 49), start=20, epoch=1, count=30))
    row = _verdict(tmp_path / "after", *history)
    assert (row["verdict"], row["rewound_from"]) == ("OK", None)


def test_consumers_that_stopped_after_the_reset_are_the_verdict(tmp_path: Path):
    waiting = update([(20, 29, 0, 1)], start=20, epoch=1)
    row = _verdict(tmp_path, snapshot(start=50), _reset(20), waiting, until=11 * MINUTE)
    assert (row["verdict"], row["rewound_from"]) == ("STOP", 50)


def test_several_resets_are_told_from_the_farthest_offset(tmp_path: Path):
    history = (snapshot(start=50), _reset(20), _reset(5, epoch=2))
    assert _verdict(tmp_path, *history)["reason"] == "45 offsets back: SPSO went from 50 to 5"


def test_a_share_partition_that_was_deleted_begins_anew(tmp_path: Path):
    history = (snapshot(start=50), _reset(20), tombstone(), snapshot(start=3, leader_epoch=0))
    row = _verdict(tmp_path, *history)
    assert (row["verdict"], row["rewound_from"]) == ("OK", None)


def test_a_reset_to_a_later_offset_is_no_rewind(tmp_path: Path):
    assert _verdict(tmp_path, snapshot(start=50), _reset(80))["verdict"] == "OK"
