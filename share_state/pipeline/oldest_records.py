"""When the first unfinished record of each share-partition was written, from the logs of topics in a data folder."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.input_spec import JUDGE_NONE
from share_state.fold.history import HISTORY_TABLE, RECORD_TIMES, unfinished_records
from share_state.fold.states import KEY, row_texts
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.sink import Sink
from share_state.rules.findings import findings
from share_state.rules.registry import Scope
from share_state.rules.retention import UnfinishedRecords
from share_state.schema.declarations import table_schema
from share_state.sources.object_stores import InputPath, StorePath, to_path
from share_state.sources.record_times import read_record_times
from share_state.sources.topic_extents import topic_folders

_PLACE = RECORD_TIMES.names[:-1]
_COLUMNS = (*KEY, "state_partition", "effective_start_offset", "lag", "waiting_records", "archiving_records")


def read_oldest_records(plan: FoldPlan, sink: Sink) -> pa.Table | None:
    """The unfinished share-partitions whose first unfinished record is in a topic's log in the input.

    Args:
        plan: what was folded.
        sink: with the rows of `history_pieces`, of which the driver reads a few columns.
    Returns:
        Columns KEY, state_partition, effective_start_offset, unfinished (records) and time_ms; None if no topic's log
        is in the input.
    Raises:
        InputError: if a segment cannot be read.
    """
    data_folders = [folder for path in plan.data_folders if not isinstance(folder := to_path(path), StorePath)]
    folders = topic_folders(data_folders)
    if not folders:
        return None
    rows = sink.read(HISTORY_TABLE, _COLUMNS)
    rows = rows.append_column("unfinished", pa.array(unfinished_records(rows)))
    has_log = pc.is_in(row_texts([rows["topic"], rows["partition"]]), _texts(folders))
    rows = rows.filter(pc.and_(has_log, pc.greater(rows["unfinished"], 0)))
    rows = rows.filter(pc.greater_equal(rows["effective_start_offset"], 0))
    return rows.append_column("time_ms", _times_of(rows, data_folders))


def _texts(folders: Sequence[tuple[str, int]]) -> pa.Array:
    topics, partitions = zip(*folders, strict=True)
    return row_texts([pa.chunked_array([pa.array(topics)]), pa.chunked_array([pa.array(partitions)])])


def _times_of(rows: pa.Table, data_folders: Sequence[InputPath]) -> pa.Array:
    places = list(zip(*(rows[name].to_pylist() for name in _PLACE), strict=True))
    times = read_record_times(data_folders, places)
    return pa.array([times.get(place) for place in places], pa.int64())


def record_times(oldest: pa.Table | None) -> pa.Table | None:
    """The times of `read_oldest_records` as RECORD_TIMES."""
    if oldest is None:
        return None
    known = oldest.select(RECORD_TIMES.names).filter(pc.is_valid(oldest["time_ms"]))
    return known.group_by(_PLACE, use_threads=False).aggregate([("time_ms", "min")]).rename_columns(RECORD_TIMES.names)


def judge_retention(plan: FoldPlan, oldest: pa.Table | None, now_ms: int) -> pa.Table:
    """The findings about unfinished records that brokers will soon delete.

    Args:
        plan: what was folded.
        oldest: the result of `read_oldest_records`.
        now_ms: the time up to which ages are measured.
    """
    if plan.judging == JUDGE_NONE or oldest is None or plan.cluster is None:
        return table_schema("findings").empty_table()
    unfinished = UnfinishedRecords(
        rows=oldest.filter(pc.is_valid(oldest["time_ms"])),
        retention_ms=plan.cluster.retention_ms,
        default_retention_ms=plan.cluster.default_retention_ms,
        now_ms=now_ms,
        ratio=plan.options.limits.retention_ratio,
    )
    return findings(Scope.RETENTION, unfinished, plan.severities)
