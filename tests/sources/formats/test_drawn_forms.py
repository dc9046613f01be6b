"""Drawn logs in every form: tables and texts of our own writers fold to what the segments fold to."""

import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from share_state.fold.state_log import FoldedLog, fold_log
from share_state.sources.as_of import Window
from tests.fold.model import Written
from tests.fold.random_logs import logs
from tests.kafka.batches import Batch, consecutive, in_bytes, log_of
from tests.profiles import nightly
from tests.sources.formats.printed import console_text, dump_text
from tests.sources.formats.tables import PLACES, SIZES, found, rows, table_of, tables_of, write

Log = list[list[Written]]


def _batches(log: Log) -> list[Batch]:
    return consecutive([Batch([written.record for written in batch]) for batch in log])


def _segments(log: Log, folder: str) -> FoldedLog:
    return fold_log(log_of(Path(folder), in_bytes(_batches(log))))


def _early(log: Log) -> bool:
    return any(written.early for batch in log for written in batch)


@given(log=logs().filter(bool), chunk=st.sampled_from([1, 100, 1 << 20]))
def test_dumped_text_folds_as_the_segments_do(log: Log, chunk: int):
    with tempfile.TemporaryDirectory() as folder:
        expected = _segments(log, folder)
        text = Path(folder, "dump.txt")
        text.write_text(dump_text(_batches(log), early=_early(log)), encoding="utf-8")
        (dumped,) = found(text)
        assert tables_of(fold_log(dumped, chunk=chunk)) == tables_of(expected)


@nightly("drawn texts; the tests above draw one segment")
@given(log=logs().filter(bool), cut=st.integers(0, 10), chunk=st.sampled_from([1, 100, 1 << 20]))
def test_text_of_several_segments_in_any_order_and_twice_folds_as_the_segments_do(log: Log, cut: int, chunk: int):
    batches = _batches(log)
    parts = [part for part in (batches[:cut], batches[cut:]) if part]
    with tempfile.TemporaryDirectory() as folder:
        expected = _segments(log, folder)
        for number, part in enumerate([*reversed(parts), parts[-1]]):
            Path(folder, f"{number}.txt").write_text(dump_text(part, early=_early(log)), encoding="utf-8")
        (dumped,) = found(f"{folder}/*.txt")
        told = fold_log(dumped, chunk=chunk)
        # A segment's positions count from its own start, so bytes and findings' places are not those of one segment.
        assert tables_of(told, without=SIZES) == tables_of(expected, without=SIZES)
        assert told.observations.repeated_batches == len(parts[-1])


@given(log=logs().filter(bool), chunk=st.sampled_from([1, 100, 1 << 20]), between=st.sampled_from(["", "\n", " \n\t"]))
def test_console_json_folds_as_the_segments_do(log: Log, chunk: int, between: str):
    with tempfile.TemporaryDirectory() as folder:
        expected = _segments(log, folder).states.drop_columns([*PLACES, "suspect"])
        text = Path(folder, "console.txt")
        records = [record for batch in _batches(log) for record in batch.records]
        text.write_text(console_text(records, early=_early(log), between=between), encoding="utf-8")
        (told,) = found(text)
        folded = fold_log(told, chunk=chunk)
        assert folded.states.drop_columns([*PLACES, "suspect"]) == expected
        assert folded.record_count == len(records)


@given(
    log=logs().filter(bool),
    order=st.randoms(use_true_random=False),
    repeats=st.integers(0, 3),
    row_group=st.integers(1, 6),
    files=st.integers(1, 3),
    chunk=st.sampled_from([1, 100, 1 << 20]),
)
def test_a_table_in_any_order_folds_as_the_segments_do(log, order, repeats, row_group, files, chunk):
    with tempfile.TemporaryDirectory() as folder:
        segments = log_of(Path(folder), in_bytes(_batches(log)))
        table = table_of([segments])
        places = [*range(len(table)), *order.choices(range(len(table)), k=repeats)]
        order.shuffle(places)
        other = rows(7, [3], [0], [b"\0\0"], [None])
        for number in range(files):
            part = pa.concat_tables([table.take(pa.array(places[number::files], pa.int64())), other.slice(0, number)])
            write(part, Path(folder, "table", f"{number}.parquet"), row_group=row_group)
        told = [one for one in found(Path(folder, "table")) if one.partition == 0]
        folded = fold_log(told[0], chunk=chunk)
        assert tables_of(folded, without=SIZES) == tables_of(fold_log(segments), without=SIZES)
        assert folded.observations.repeated_batches == repeats


@given(log=logs().filter(bool), offset=st.integers(0, 40))
def test_an_as_of_offset_cuts_every_placed_form_alike(log: Log, offset: int):
    with tempfile.TemporaryDirectory() as folder:
        segments, window = log_of(Path(folder), in_bytes(_batches(log))), Window(until_offset=offset)
        text = Path(folder, "dump.txt")
        text.write_text(dump_text(_batches(log), early=_early(log)), encoding="utf-8")
        table = write(table_of([segments]), Path(folder, "rows.parquet"), row_group=3)
        expected = fold_log(segments, window)
        assert tables_of(fold_log(found(text)[0], window)) == tables_of(expected)
        told = fold_log(found(table)[0], window)
        assert tables_of(told, without=SIZES) == tables_of(expected, without=SIZES)
