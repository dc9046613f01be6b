"""What an audit resumes from was changed by another program: that is found, and the state is that of a fresh audit."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.fold.checkpoint import RowDigest
from share_state.pipeline.resume import DAMAGED
from share_state.schema.declarations import table_schema
from share_state.sources.discovery import find_logs
from share_state.sources.segment_frames import frame_segments
from tests.nights.test_healing import audit, once, rules_found, tables
from tests.profiles import SLOW, nightly, some_of
from tests.truth import DATA, logs_alone

WHOLE = logs_alone(DATA / "4.3.1/happy")
LOGS, STATES = "carried_logs", "carried_share_partitions"

Row = dict[str, Any]


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A warehouse of the first half of each log; the tables of a fresh audit of the whole."""
    folder = tmp_path_factory.mktemp("night")
    shutil.copytree(WHOLE, folder / "half")
    for log in find_logs([str(folder / "half")]):
        (framed,) = frame_segments(log.segments)
        middle = framed.batches["file_position"][len(framed.batches) // 2]
        path = Path(log.segments[0].path)
        path.write_bytes(path.read_bytes()[:middle])
    audit(folder / "half", folder / "w")
    return folder / "w", once(WHOLE, folder)


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tables of a fresh audit by the command, which knows the names of the topics."""
    lake = tmp_path_factory.mktemp("named")
    assert run(["audit", str(WHOLE), "--out", str(lake), "--quiet"]) == 0
    return tables(lake)


def rewrite(warehouse: Path, table: str, change: Callable[[list[Row]], None]) -> None:
    """Change the rows of a table in its file, and its size in the log: all that a reader sees is valid."""
    (add,) = CommittedTables(str(warehouse)).files(table)
    path = Path(add["path"])
    rows = pq.read_table(path).to_pylist()
    change(rows)
    schema = pa.schema([field.with_nullable(True) for field in table_schema(table)])
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    for entry in (warehouse / table / "_delta_log").glob("*.json"):
        text = entry.read_text()
        entry.write_text(text.replace(f'"size":{add["size_bytes"]}', f'"size":{path.stat().st_size}'))


def without_digests(rows: list[Row]) -> None:
    """Make the rows of an earlier release."""
    for row in rows:
        log = json.loads(row["carried"])
        row["carried"] = json.dumps({key: log[key] for key in log.keys() - {"digest", "share_partitions"}})


def with_broken_json(rows: list[Row]) -> None:
    rows[0]["carried"] = rows[0]["carried"][:-30]


def with_a_later_snapshot_record(rows: list[Row]) -> None:
    rows[0]["carried"] = re.sub(r'"last_snapshot_record": -?\d+', '"last_snapshot_record": 7', rows[0]["carried"])


def with_a_later_start(rows: list[Row]) -> None:
    rows[0]["start_offset"] += 1


def without_a_row(rows: list[Row]) -> None:
    del rows[0]


def with_two_rows_exchanged(rows: list[Row]) -> None:
    keys = [row["key"] for row in rows[:2]]
    rows[0]["key"] = keys[1]
    rows[1]["key"] = keys[0]


@pytest.mark.parametrize(
    ("table", "change"),
    some_of(
        [
            (LOGS, with_a_later_snapshot_record),
            (STATES, with_a_later_start),
            (STATES, without_a_row),
            (STATES, with_two_rows_exchanged),
        ],
        1,
    ),
)
def test_a_changed_state_is_found_and_not_believed(
    night: tuple[Path, Any], tmp_path: Path, table: str, change: Callable[[list[Row]], None]
):
    warehouse, expected = night
    shutil.copytree(warehouse, tmp_path / "w")
    rewrite(tmp_path / "w", table, change)
    result = audit(WHOLE, tmp_path / "w")
    assert result.findings["error", "RESUME_STATE_CHANGED"] == 1
    assert rules_found(tmp_path / "w")["RESUME_STATE_CHANGED"] == 1
    assert any("RESUME_STATE_CHANGED" in note for note in result.notes)
    assert tables(tmp_path / "w") == expected
    # The next audit resumes from what this one has written.
    assert ("error", "RESUME_STATE_CHANGED") not in audit(WHOLE, tmp_path / "w").findings


@nightly("three audits")
@pytest.mark.parametrize(
    ("name", "value"),
    some_of(
        [
            ("layouts", [[7, 0], [2, 5]]),
            ("foreign", [0]),
            ("transactional", [1, 2, 3]),
            ("records", "x"),
            ("foreign", [2**64, 1]),
        ],
        1,
    ),
)
def test_counts_that_no_run_writes_are_a_damaged_row(
    night: tuple[Path, Any], named: Any, tmp_path: Path, name: str, value: Any, capfd: pytest.CaptureFixture[str]
):
    def change(rows: list[Row]) -> None:
        without_digests(rows)
        rows[0]["carried"] = json.dumps(json.loads(rows[0]["carried"]) | {name: value})

    shutil.copytree(night[0], tmp_path / "w")
    rewrite(tmp_path / "w", LOGS, change)
    assert run(["audit", str(WHOLE), "--out", str(tmp_path / "w")]) == 0
    assert capfd.readouterr().err.count(DAMAGED) == 1
    assert tables(tmp_path / "w") == named


@nightly("two audits")
@pytest.mark.parametrize("afresh", some_of([[], ["--afresh"]], 1))
def test_a_damaged_row_is_a_note(
    night: tuple[Path, Any], named: Any, tmp_path: Path, afresh: list[str], capfd: pytest.CaptureFixture[str]
):
    shutil.copytree(night[0], tmp_path / "w")
    rewrite(tmp_path / "w", LOGS, with_broken_json)
    assert run(["audit", str(WHOLE), "--out", str(tmp_path / "w"), *afresh]) == 0
    assert capfd.readouterr().err.count(DAMAGED) == 1
    assert tables(tmp_path / "w") == named
    assert "RESUME_STATE_CHANGED" not in rules_found(tmp_path / "w")


def test_an_earlier_warehouse_without_digests_is_resumed(night: tuple[Path, Any], tmp_path: Path):
    warehouse, expected = night
    shutil.copytree(warehouse, tmp_path / "w")
    rewrite(tmp_path / "w", LOGS, without_digests)
    result = audit(WHOLE, tmp_path / "w")
    assert (result.notes, result.records < 110) == ((), True)
    assert tables(tmp_path / "w") == expected
    carried = CommittedTables(str(tmp_path / "w")).read(LOGS)["carried"].to_pylist()
    assert all({"digest", "share_partitions"} <= json.loads(one).keys() for one in carried)


def test_rows_in_another_order_are_the_same_state(night: tuple[Path, Any], tmp_path: Path):
    shutil.copytree(night[0], tmp_path / "w")
    rewrite(tmp_path / "w", STATES, lambda rows: rows.reverse())
    result = audit(WHOLE, tmp_path / "w")
    assert (result.notes, result.records < 110) == ((), True)
    assert tables(tmp_path / "w") == night[1]


def test_a_changed_state_of_a_log_that_is_missing_is_not_kept(night: tuple[Path, Any], tmp_path: Path):
    shutil.copytree(night[0], tmp_path / "w")
    rewrite(tmp_path / "w", LOGS, with_broken_json)
    rest = [path for path in sorted(WHOLE.glob("__share_group_state-*")) if not path.name.endswith("-0")]
    audit(rest, tmp_path / "w")
    assert rules_found(tmp_path / "w")["RESUME_STATE_CHANGED"] == 1
    assert "LOG_MISSING" not in rules_found(tmp_path / "w")


@pytest.mark.parametrize("command", ["audit", "reconstruct", "show"])
def test_a_link_in_place_of_a_table_is_refused(
    night: tuple[Path, Any], tmp_path: Path, command: str, capfd: pytest.CaptureFixture[str]
):
    lake = tmp_path / "w"
    shutil.copytree(night[0], lake)
    (lake / "share_partition_state").rename(tmp_path / "elsewhere")
    (lake / "share_partition_state").symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.rglob("*"))
    call = [command, str(lake)] if command == "show" else [command, str(WHOLE), "--out", str(lake)]
    assert run([*call, "--quiet"]) == 2
    said = capfd.readouterr().err
    assert said.startswith(f"share-state: {lake}/share_partition_state: a symbolic link is in place of the folder")
    assert said.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


_TEXTS = st.one_of(st.text(max_size=3), st.sampled_from(["{}", "null", "[]", "0", '"', "}", "1", "-", "9" * 30, "e9"]))
_NUMBERS = st.one_of(st.sampled_from([-1, 0, 1, 2**31 - 1, -(2**31)]), st.integers(-(2**63), 2**63 - 1))


@st.composite
def _changes(draw: st.DrawFn) -> tuple[str, Callable[[list[Row]], None]]:
    """A table, and a change to some value of it, or to its rows."""
    table = draw(st.sampled_from([LOGS, STATES]))
    place, numbers, text = draw(st.integers(0, 10**6)), draw(_NUMBERS), draw(_TEXTS)
    field = draw(st.sampled_from(list(table_schema(table)) if table == STATES else list(table_schema(table))[::-1]))
    kind = draw(st.sampled_from(["value"] * 8 + ["null", "remove", "repeat"]))

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            at = place % (len(value) + 1)
            return value[:at] + text + value[at + 1 :]
        if isinstance(value, bytes):
            at = place % (len(value) + 1)
            return value[:at] + text.encode("utf-8", "replace") + value[at + 1 :]
        if isinstance(value, list):
            ranges = [dict(one) for one in value[1:]]
            return [{**one, "first_offset": numbers} for one in ranges] if place % 2 else value[:-1]
        if isinstance(value, bool):
            return not value
        return max(-(2**31), min(2**31 - 1, numbers)) if pa.types.is_int32(field.type) else numbers

    def change(rows: list[Row]) -> None:
        row = rows[place % len(rows)]
        if kind == "remove":
            rows.remove(row)
        elif kind == "repeat":
            rows.append(dict(row))
        else:
            row[field.name] = None if kind == "null" else changed(row[field.name])

    return table, change


@nightly("an audit for each column")
@SLOW
@given(change=_changes())
@example(change=(LOGS, lambda rows: rows[1].update(carried="[" * 100_000)))
@example(change=(LOGS, lambda rows: rows[1].update(carried=None)))
@example(change=(STATES, lambda rows: rows.clear()))
def test_no_change_of_a_row_leads_to_another_state(
    night: tuple[Path, Any],
    named: Any,
    tmp_path_factory: pytest.TempPathFactory,
    change: tuple[str, Callable[[list[Row]], None]],
):
    lake = tmp_path_factory.mktemp("changed") / "w"
    shutil.copytree(night[0], lake)
    rewrite(lake, *change)
    assert run(["audit", str(WHOLE), "--out", str(lake), "--quiet"]) in (0, 1)
    assert tables(lake) == named
    shutil.rmtree(lake)


@nightly("an audit for each example")
@SLOW
@given(place=st.integers(0, 10**6), text=_TEXTS)
def test_no_damage_to_a_row_without_digest_is_an_unexpected_failure(
    night: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory, place: int, text: str
):
    lake = tmp_path_factory.mktemp("changed") / "w"
    shutil.copytree(night[0], lake)

    def change(rows: list[Row]) -> None:
        without_digests(rows)
        carried = rows[0]["carried"]
        at = place % len(carried)
        rows[0]["carried"] = carried[:at] + text + carried[at + 1 :]

    rewrite(lake, LOGS, change)
    assert run(["audit", str(WHOLE), "--out", str(lake), "--quiet"]) in (0, 1, 2)
    shutil.rmtree(lake)


def test_the_digest_of_rows_does_not_depend_on_the_pieces_in_which_they_come(night: tuple[Path, Any]):
    rows = CommittedTables(str(night[0])).read(STATES)
    whole, pieces = RowDigest(), RowDigest()
    whole.take(rows)
    # Sums of hashes overflow, of which nobody is warned.
    for number in [*reversed(range(len(rows)))] * 9:
        pieces.take(rows.slice(number, 1))
    for _ in range(8):
        whole.take(rows)
    assert pieces.text == whole.text != RowDigest().text
