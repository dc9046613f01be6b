"""What audits of tables, which they read whole, notice between two nights."""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from share_state.delta.committed import CommittedTables
from share_state.sources.discovery import find_logs
from tests.cli.commands import Command, run_cli
from tests.profiles import nightly
from tests.sources.formats.tables import table_of
from tests.truth import DATA

EARLY = DATA / "cases/table-shorter/early.parquet"


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process."""
    return partial(run_cli, capfd)


@pytest.fixture(scope="module")
def whole() -> pa.Table:
    """The records of 4.3.1/chaos, which `early.parquet` begins with."""
    return table_of(find_logs([str(DATA / "4.3.1/chaos")]))


def _night(cli: Command, folder: Path, rows: pa.Table | Path, *options: str) -> dict[str, int]:
    """Audit a table as the only input of a warehouse; returns rule -> findings."""
    table = rows if isinstance(rows, pa.Table) else pq.read_table(rows)
    pq.write_table(table, folder / "rows.parquet")
    said = cli("audit", folder / "rows.parquet", "--out", folder / "w", "--json", "-q", *options)
    assert said.code in (0, 1), said.err
    return {one["rule"]: one["count"] for one in said.json["findings"]}


def _states(folder: Path) -> list[dict]:
    """The rows of share_partition_state in the order of their keys."""
    states = CommittedTables(str(folder / "w")).read("share_partition_state")
    return states.sort_by([(name, "ascending") for name in ("group_id", "topic_id", "partition")]).to_pylist()


def _is_of(rows: pa.Table, key: dict) -> pa.Array:
    """Whether each record of a table is one of a share-partition."""
    group = key["group_id"].encode()
    begins = [b"\0" + bytes([kind]) + len(group).to_bytes(2) + group for kind in (0, 1)]
    ends = key["partition"].to_bytes(4)
    return pa.array([text[:-20] in begins and text.endswith(ends) for text in rows["key"].to_pylist()])


@nightly("three audits")
def test_a_table_that_ends_before_the_last_one_is_behind_and_keeps_the_state(
    cli: Command, whole: pa.Table, tmp_path: Path
):
    assert _night(cli, tmp_path, whole) == {}
    before = _states(tmp_path)
    assert _night(cli, tmp_path, EARLY) == {"LOG_BEHIND": 3}
    assert _states(tmp_path) == before
    tables = CommittedTables(str(tmp_path / "w"))
    behind = tables.read("share_partition_history", pc.field("run_id") == tables.run["run_id"])
    assert len(behind) > 0
    assert "REWIND" not in behind["verdict"].to_pylist()
    assert _night(cli, tmp_path, whole) == {}
    assert _states(tmp_path) == before


@nightly("three audits; test_healing removes whole tables")
def test_a_share_partition_that_is_gone_from_a_table_is_an_error_and_stays(
    cli: Command, whole: pa.Table, tmp_path: Path
):
    _night(cli, tmp_path, whole)
    before = _states(tmp_path)
    (gone,) = [row for row in before if (row["group_id"], row["partition"]) == ("g4", 3)][:1]
    filtered = whole.filter(pc.invert(_is_of(whole, gone)))
    for _ in range(2):
        assert _night(cli, tmp_path, filtered)["SHARE_PARTITION_VANISHED"] >= 1
        kept = {(row["group_id"], row["topic_id"], row["partition"]): row for row in _states(tmp_path)}
        row = kept[gone["group_id"], gone["topic_id"], gone["partition"]]
        assert row["suspect"]
        assert row["start_offset"] == gone["start_offset"]
        assert len(kept) == len(before)
    assert not _night(cli, tmp_path, whole)
    assert _states(tmp_path) == before


@nightly("two audits")
def test_reading_a_log_afresh_drops_a_share_partition_that_is_gone(cli: Command, whole: pa.Table, tmp_path: Path):
    _night(cli, tmp_path, whole)
    gone = _states(tmp_path)[0]
    filtered = whole.filter(pc.invert(_is_of(whole, gone)))
    assert "SHARE_PARTITION_VANISHED" not in _night(cli, tmp_path, filtered, "--afresh")
    assert gone["last_offset"] not in [
        row["last_offset"]
        for row in _states(tmp_path)
        if row["group_id"] == gone["group_id"] and row["state_partition"] == gone["state_partition"]
    ]


@nightly("two audits")
def test_a_share_partition_whose_tombstone_is_in_the_table_has_not_vanished(
    cli: Command, whole: pa.Table, tmp_path: Path
):
    _night(cli, tmp_path, whole)
    key = whole.filter(pc.equal(whole["partition"], 0))["key"][0].as_py()
    end = max(whole.filter(pc.equal(whole["partition"], 0))["offset"].to_pylist()) + 1
    tombstone = whole.slice(0, 1).to_pylist()[0] | {
        "key": b"\0\0" + key[2:],
        "value": None,
        "offset": end,
        "partition": 0,
    }
    rows = pa.concat_tables([whole, pa.Table.from_pylist([tombstone], whole.schema)])
    assert "SHARE_PARTITION_VANISHED" not in _night(cli, tmp_path, rows)
