"""When the first unfinished record of each share-partition was written, by the logs of its topic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.input_spec import JUDGE_NONE
from share_state.errors import InputError
from share_state.fold.history import HISTORY_TABLE, RECORD_TIMES, unfinished_records
from share_state.fold.states import KEY, row_texts
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.result import AGES_NOTE
from share_state.pipeline.sink import Sink
from share_state.rules.findings import findings
from share_state.rules.registry import Scope
from share_state.rules.retention import UnfinishedRecords
from share_state.schema.declarations import table_schema
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.sources.record_times import FolderRecordTimes, RecordTimes
from share_state.sources.topics import Topics

if TYPE_CHECKING:
    from share_state.sources.kafka_source import KafkaSource

_PLACE = RECORD_TIMES.names[:-1]
_RECORD = ("topic", "partition", "first_offset")
_COLUMNS = (*KEY, "state_partition", "effective_start_offset", "lag", "waiting_records", "archiving_records")


def find_record_times(plan: FoldPlan) -> RecordTimes | None:
    """Where the records of the topics of a plan can be read; None if nowhere."""
    of_clusters = [
        log.source for log in plan.logs if log.source is not None and log.source.form == KAFKA_FORM
    ]
    if of_clusters:
        from share_state.sources.live_record_times import LiveRecordTimes  # noqa: PLC0415  the client is an extra

        source = cast("KafkaSource", of_clusters[0])
        return LiveRecordTimes(source.address, source.properties)
    return FolderRecordTimes(plan.data_folders) if plan.data_folders else None


@dataclass(frozen=True, slots=True)
class OldestRecords:
    """The first unfinished records of share-partitions.

    Attributes:
        times: when they were written, as RECORD_TIMES; None if no topic's log is in the input.
        findings: those that brokers will soon delete; the run_id is still null.
        notes: why the records could not be read.
    """

    times: pa.Table | None
    findings: pa.Table
    notes: tuple[str, ...] = ()


def judge_oldest_records(plan: FoldPlan, sink: Sink, now_ms: int) -> OldestRecords:
    """Read when the first unfinished records were written, and compare that with the retention of their topics.

    Args:
        plan: what was folded.
        sink: with the rows of `history_pieces`, of which the driver reads a few columns.
        now_ms: the time up to which ages are measured.
    """
    topics, nothing = find_record_times(plan), table_schema("findings").empty_table()
    try:
        rows = None if topics is None else _read_oldest(topics, sink, plan.options.topics)
        if topics is None or rows is None:
            return OldestRecords(None, nothing)
        times = (
            rows.select(RECORD_TIMES.names)
            .group_by(_PLACE, use_threads=False)
            .aggregate([("time_ms", "min")])
        )
        is_judged = plan.judging != JUDGE_NONE and len(rows)
        found = _judge_retention(plan, topics, rows, now_ms) if is_judged else nothing
        return OldestRecords(times.rename_columns(RECORD_TIMES.names), found)
    except InputError as error:
        return OldestRecords(None, nothing, (f"{AGES_NOTE}{error}",))


def _read_oldest(topics: RecordTimes, sink: Sink, known: Topics) -> pa.Table | None:
    """The unfinished share-partitions whose first unfinished record is there.

    Returns:
        Columns KEY, state_partition, effective_start_offset, unfinished (records), record_offset and time_ms;
        None if no topic has a log.
    """
    partitions = topics.partitions()
    if partitions is not None and not partitions:
        return None
    rows = sink.read(HISTORY_TABLE, _COLUMNS)
    rows = rows.append_column("unfinished", pa.array(unfinished_records(rows)))
    if partitions is not None:
        rows = rows.filter(pc.is_in(row_texts([rows["topic"], rows["partition"]]), _texts(partitions)))
    is_known = pc.and_(pc.is_valid(rows["topic"]), pc.greater_equal(rows["effective_start_offset"], 0))
    rows = rows.filter(pc.and_(is_known, pc.greater(rows["unfinished"], 0)))
    # Records before the log start are deleted, also where their bytes are still there.
    log_starts = known.start_of(*(rows[name].combine_chunks() for name in ("topic_id", "partition")))
    first = pc.max_element_wise(rows["effective_start_offset"], pa.chunked_array([log_starts]))
    rows = rows.append_column("first_offset", first)
    places = list(zip(*(rows[name].to_pylist() for name in _RECORD), strict=True))
    records = topics.read(places)
    found = [records.get(place, (None, None)) for place in places]
    for number, name in enumerate(("record_offset", "time_ms")):
        rows = rows.append_column(name, pa.array([record[number] for record in found], pa.int64()))
    return rows.filter(pc.is_valid(rows["time_ms"])).drop_columns("first_offset")


def _texts(partitions: Sequence[tuple[str, int]]) -> pa.Array:
    topics, numbers = zip(*partitions, strict=True)
    return row_texts([pa.chunked_array([pa.array(topics)]), pa.chunked_array([pa.array(numbers)])])


def _judge_retention(plan: FoldPlan, topics: RecordTimes, rows: pa.Table, now_ms: int) -> pa.Table:
    of_brokers = topics.retention(pc.unique(rows["topic"]).to_pylist())
    unfinished = UnfinishedRecords(
        rows=rows,
        retention_ms={**(plan.cluster.retention_ms if plan.cluster else {}), **of_brokers},
        default_retention_ms=plan.cluster.default_retention_ms if plan.cluster else None,
        now_ms=now_ms,
        ratio=plan.options.limits.retention_ratio,
    )
    return findings(Scope.RETENTION, unfinished, plan.severities)
