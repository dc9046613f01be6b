"""Every form of the logs that real brokers wrote folds to the same tables, bit for bit where the form can tell."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_log import fold_log
from share_state.rules.breaches import ERROR
from share_state.rules.findings import judge, judge_records
from share_state.sources.console_text import console_log
from share_state.sources.discovery import find_logs
from share_state.sources.input_detection import detect_format
from share_state.sources.log_partition import LogPartition
from tests.present import present
from tests.profiles import some_of
from tests.sources.formats.tables import BY_KEY, PLACES, SIZES, found, shuffled, table_of, tables_of, write
from tests.truth import DATA, scenarios

SCENARIOS = pytest.mark.parametrize(
    "scenario", some_of(scenarios(), 4), ids=lambda path: f"{path.parent.name}/{path.name}"
)


def texts(pattern: str) -> list[Path]:
    """Texts of Kafka's tools beside the logs that they were made of."""
    paths = sorted(DATA.glob(f"4.*/*/{pattern}"))
    assert paths
    return paths


def named(path: Path) -> str:
    return f"{path.parent.parent.name}/{path.parent.name}"


def _in_a_table(scenario: Path) -> list[LogPartition]:
    folder = scenario / "crash-copy" if (scenario / "crash-copy").exists() else scenario
    return find_logs([str(folder)])


@SCENARIOS
def test_a_table_folds_to_the_tables_of_the_segments(scenario: Path, tmp_path: Path):
    logs = [log for log in _in_a_table(scenario) if log.size]
    table = table_of(logs)
    half = len(table) // 2
    write(table.slice(half), tmp_path / "a.parquet", row_group=500)
    write(table.slice(0, half), tmp_path / "b.parquet", row_group=300)
    again = found(tmp_path)
    held = {present(log.partition): log for log in logs if len(table_of([log]))}
    assert [log.partition for log in again] == sorted(held)
    for log in again:
        original = held[present(log.partition)]
        segments, rows = fold_log(original), fold_log(log)
        # A table that begins after offset 0 does not show that the broker's log does.
        is_shown = not original.start_is_recorded
        without = [*SIZES, *(() if is_shown else ("safe", "reason", "suspect"))]
        expected, told = tables_of(segments, without=without), tables_of(rows, without=without)
        if original.start_is_recorded:
            # A consumer never gets what lies before the log start, and a broker's loader reads the batch that holds it.
            told.pop("findings")
            expected.pop("findings")
        assert told == expected
        assert rows.cutoff.select(SIZES).to_pylist() == [dict.fromkeys(SIZES)]


def test_views_of_texts_and_bytes_fold_to_the_same_tables(tmp_path: Path):
    """As delta-rs leaves them after DELETE, UPDATE and MERGE; with rows of many logs in a group of rows."""
    table = shuffled(table_of(find_logs([str(DATA / "4.3.1/happy")])))
    views = {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}
    schema = pa.schema([field.with_type(views.get(field.type, field.type)) for field in table.schema])
    write(table, tmp_path / "plain.parquet", row_group=50)
    write(table.cast(schema), tmp_path / "views.parquet", row_group=50)
    plain, with_views = (
        {log.partition: tables_of(fold_log(log)) for log in found(tmp_path / name)}
        for name in ("plain.parquet", "views.parquet")
    )
    assert plain == with_views
    assert len(plain) == 3


def test_a_pruned_log_without_offsets_has_no_broken_chain():
    log = console_log([DATA / "4.3.1/prune/console-consumer-formatter.txt"])
    folded = fold_log(log, options=FoldOptions(judge=judge_records))
    assert ERROR not in judge(folded, records=folded.record_breaches)["severity"].to_pylist()


@pytest.mark.parametrize("text", texts("console-consumer-formatter.txt"), ids=named)
def test_the_console_consumers_text_folds_to_the_tables_of_the_segments(text: Path):
    (log,) = found(text)
    told = fold_log(log)
    folds = [fold_log(log) for log in find_logs([str(text.parent)])]
    expected = pa.concat_tables(fold.states for fold in folds).sort_by(BY_KEY)
    assert told.states.select(PLACES) == pa.table(
        {name: pa.nulls(len(expected), told.states[name].type) for name in PLACES}
    )
    assert (
        tables_of(told)["share_partition_state"].drop_columns(PLACES) == expected.drop_columns(PLACES).combine_chunks()
    )
    flights = pa.concat_tables(fold.in_flight for fold in folds).sort_by([*BY_KEY, ("first_offset", "ascending")])
    assert tables_of(told)["in_flight"] == flights.combine_chunks()
    (cutoff,) = told.cutoff.to_pylist()
    assert (cutoff["cutoff_offset"], cutoff["safe"], cutoff["reason"]) == (None, False, "this format has no offsets")
    assert told.record_count == sum(fold.record_count for fold in folds)


@pytest.mark.parametrize("text", texts("dump-log-*.txt"), ids=named)
def test_the_dump_tools_text_folds_to_the_tables_of_the_segments(text: Path):
    (log,) = found(text)
    # Each text is of one segment; where there are more, only that one is compared.
    (segments,) = find_logs([str(text.parent / log.name / f"{log.segments[0].base_offset:020}.log")])
    expected, told = fold_log(segments), fold_log(log)
    without = ["log_start_offset", "redundant_records", "redundant_bytes"] if segments.start_is_recorded else []
    # A text that begins after offset 0 does not show that the broker's log does.
    without += ["safe", "reason", "suspect"] if segments.log_start_offset > 0 else []
    assert tables_of(told, without=without) == tables_of(expected, without=without)
    assert told.record_count == expected.record_count


@pytest.mark.parametrize(
    ("form", "paths"),
    [
        ("console-json", texts("console-consumer-formatter.txt")),
        ("dump-log", texts("dump-log-*.txt")),
        ("segments", scenarios()),
        ("segments", sorted(DATA.glob("4.3.1/happy/*/*.log"))),
    ],
)
def test_a_form_is_recognised_by_its_content(form: str, paths: list[Path]):
    assert {detect_format([str(path)]) for path in paths} == {form}


def test_rows_in_any_order_and_twice_fold_to_the_same(tmp_path: Path):
    logs = find_logs([str(DATA / "4.3.1/chaos")])
    table = table_of(logs)
    write(shuffled(pa.concat_tables([table, table.slice(100, 900)])), tmp_path / "all.parquet", row_group=256)
    for segments, rows in zip(logs, found(tmp_path), strict=True):
        told = fold_log(rows, chunk=1 << 14)
        assert tables_of(told, without=SIZES) == tables_of(fold_log(segments), without=SIZES)


def test_a_local_delta_table_is_read_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    logs = find_logs([str(DATA / "4.3.1/happy")])
    write_deltalake(str(tmp_path / "lake house/bronze"), table_of(logs), partition_by=["topic", "partition"])
    monkeypatch.chdir(tmp_path / "lake house")
    for place in (tmp_path / "lake house/bronze", "bronze"):
        for one, other in zip(found(place), logs, strict=True):
            assert tables_of(fold_log(one), without=SIZES) == tables_of(fold_log(other), without=SIZES)
