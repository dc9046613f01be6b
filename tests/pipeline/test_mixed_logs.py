"""Logs that hold records of each other: no cutoff is safe, whichever part of the tool computes it."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import share_state
from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.fold.limits import Limits
from share_state.kafka.primitives import partition_for
from share_state.pipeline.live_tables import LiveTables
from share_state.pipeline.local_stream import LocalStream
from share_state.pipeline.mixed_logs import MIXED
from share_state.pipeline.state_file import SavedStream
from share_state.pipeline.stream_files import GrowingFolder
from share_state.pipeline.stream_findings import KnownGroups
from share_state.pipeline.stream_fold import StreamFold
from share_state.pipeline.stream_run import StreamRun
from share_state.sources.topics import Topics
from tests.kafka.batches import NOW
from tests.pipeline.test_split_keys import KEY
from tests.pipeline.test_stream_tables import Stream
from tests.present import present
from tests.profiles import by_profile
from tests.rules.histories import AVAILABLE, snapshot
from tests.sources.formats.tables import rows, write
from tests.truth import DATA

_OTHER = "most of its records are no state records"


def _records(placed: list[tuple[int, int]]) -> list[pa.Table]:
    """A snapshot of each share-partition, one table for each; (partition, state partition)."""
    ends, tables = dict[int, int](), list[pa.Table]()
    for partition, number in placed:
        offset = ends.get(number, 0)
        ends[number] = offset + 1
        one = snapshot([(0, 9, AVAILABLE, 1)], partition=partition)
        tables.append(rows(number, [offset], [NOW], [one.key], [one.value]))
    return tables


def _safety(cutoffs: pa.Table) -> list[dict[str, Any]]:
    return cutoffs.select(["partition", "safe", "reason"]).sort_by("partition").to_pylist()


@settings(max_examples=by_profile(4, 200))
@given(
    placed=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), min_size=2, max_size=5, unique=True),
    cut=st.integers(1, 4),
)
def test_cutoffs_of_a_stream_are_safe_only_where_those_of_a_reconstruct_are(
    placed: list[tuple[int, int]], cut: int, tmp_path_factory: pytest.TempPathFactory
):
    folder, tables = tmp_path_factory.mktemp("mixed"), _records(placed)
    stream = Stream(folder / "lake")
    parts = [part for part in (tables[:cut], tables[cut:]) if part]
    for number, part in enumerate(parts):
        # Each is a process of its own: what the first has read of the other logs is only in the tables.
        stream.write([stream.fold_rows(pa.concat_tables(part))], first=number)
    expected = share_state.cutoff(str(write(pa.concat_tables(tables), folder / "whole.parquet")))
    # A reconstruct may have a second reason: it knows the largest state partition when it folds the first.
    found, expected = (
        [(row["safe"], MIXED in (row["reason"] or "")) for row in _safety(cutoffs)]
        for cutoffs in (CommittedTables(stream.lake).read("cutoff"), expected)
    )
    assert found == expected


def test_keys_of_a_second_log_make_the_cutoff_of_the_first_unsafe(tmp_path: Path):
    others = range(1, 30)
    # With any number of partitions at least 2, one of the two is in the wrong log.
    second = next(one for one in others if _modulus([(0, 0), (one, 1)]) == 1)
    first, other = _records([(0, 0), (second, 1)])
    stream = Stream(tmp_path / "lake")
    stream.write([stream.fold_rows(first)])
    assert _safety(CommittedTables(stream.lake).read("cutoff"))[0]["safe"]
    stream.write([stream.fold_rows(other)], first=1)
    for number, one in enumerate((first, other)):
        write(one, tmp_path / f"in/{number}.parquet")
    in_memory = _in_memory(tmp_path / "in")
    for cutoffs in (CommittedTables(stream.lake).read("cutoff"), in_memory.read("cutoff")):
        assert [(row["safe"], row["reason"]) for row in _safety(cutoffs)] == [(False, MIXED), (False, MIXED)]


def test_a_log_whose_keys_cannot_be_read_counts_as_one_of_the_partitions(tmp_path: Path):
    # The keys of two logs fit some numbers of partitions, but none that has the third log, too.
    placed, modulus = next(
        (placed, modulus)
        for placed in ([(0, 0), (one, 1)] for one in range(1, 100))
        if 1 < (modulus := _modulus(placed)) < 50
    )
    third = rows(modulus, [0], [NOW], [b"no key"], [b"no value"])
    stream, tables = Stream(tmp_path / "lake"), [*_records(placed), third]
    stream.write([stream.fold_rows(one) for one in tables])
    expected = share_state.cutoff(str(write(pa.concat_tables(tables), tmp_path / "whole.parquet")))
    for cutoffs in (expected, CommittedTables(stream.lake).read("cutoff")):
        assert all(MIXED in row["reason"] for row in _safety(cutoffs))


def _in_memory(folder: Path) -> LiveTables:
    """The tables that metrics of a stream show."""
    source, begun = GrowingFolder(str(folder), 1000), SavedStream((str(folder),))
    stream = LocalStream(
        source, StreamFold(), begun, StreamRun("a-stream"), None, trigger=0.0, once=True, is_shown=True
    )
    stream.run()
    return LiveTables(present(stream.shown), Topics(), Limits(), KnownGroups())


def _modulus(placed: list[tuple[int, int]]) -> int:
    """The greatest number of state partitions that some keys fit; 1 if they fit no larger one."""
    counts = range(1, 1000)
    belongs = [(f"{':'.join(KEY)}:{partition}", number) for partition, number in placed]
    return max(count for count in counts if all(partition_for(key, count) == number % count for key, number in belongs))


def test_no_way_to_a_cutoff_calls_it_safe_where_most_records_are_no_state_records(tmp_path: Path):
    logs = tmp_path / "logs"
    shutil.copytree(DATA / "4.3.1/chaos/__share_group_state-0", logs / "__share_group_state-0")
    shutil.copytree(DATA / "4.3.1/chaos/__consumer_offsets-0", logs / "__share_group_state-1")
    assert run(["stream", str(logs), "--out", str(tmp_path / "lake"), "--once", "--quiet"]) in (0, 1)
    for cutoffs in (share_state.cutoff(str(logs)), CommittedTables(str(tmp_path / "lake")).read("cutoff")):
        assert _OTHER in _safety(cutoffs)[1]["reason"]
