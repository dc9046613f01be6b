"""Tables made piece by piece are the tables made at once."""

from pathlib import Path

import pytest

from share_state.delta.reader import open_table
from share_state.delta.warehouse import Warehouse
from share_state.fold import log_stats
from share_state.fold.state_log import fold_log
from share_state.schema.declarations import table_schema
from share_state.sources.discovery import find_logs
from tests.profiles import some_of
from tests.truth import DATA

SCENARIOS = ["4.3.1/fuzz", "4.4.0/dlq", "4.0.2/chaos", "4.3.1/fifty"]


@pytest.mark.parametrize("rows", some_of([1, 2, 7, 50], 2))
@pytest.mark.parametrize("scenario", some_of(SCENARIOS, 2))
def test_pieces_are_the_whole(monkeypatch: pytest.MonkeyPatch, scenario: str, rows: int):
    for log in find_logs([str(DATA / scenario)]):
        folded = fold_log(log)
        states, in_flight = folded.states, folded.in_flight
        monkeypatch.setattr(log_stats, "_ROWS_PER_PIECE", rows)
        assert folded.states.equals(states)
        assert folded.in_flight.equals(in_flight)
        assert len(list(folded.state_pieces)) >= min(len(states), len(states) // rows)
        monkeypatch.undo()


def test_of_no_share_partition_there_is_one_empty_piece(tmp_path: Path):
    place = tmp_path / "__share_group_state-0"
    place.mkdir()
    (place / f"{0:020}.log").write_bytes(b"")
    (log,) = find_logs([str(tmp_path)])
    folded = fold_log(log)
    assert [len(piece) for piece in folded.state_pieces] == [0]
    assert folded.states.equals(table_schema("share_partition_state").empty_table())
    assert folded.in_flight.equals(table_schema("in_flight").empty_table())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_is_written_of_pieces_is_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: str):
    monkeypatch.setattr(log_stats, "_ROWS_PER_PIECE", 5)
    log = find_logs([str(DATA / scenario)])[0]
    folded = fold_log(log)
    for name, tables in {"share_partition_state": folded.state_pieces, "in_flight": folded.in_flight_pieces}.items():
        with Warehouse(str(tmp_path)) as lake:
            lake.replace(name, tables)
        whole = getattr(folded, "states" if name == "share_partition_state" else name)
        written = open_table(f"{tmp_path}/{name}")
        assert written is not None
        assert sorted(written.to_pyarrow_table().to_pylist(), key=repr) == sorted(whole.to_pylist(), key=repr)
