"""The rule over the age of unfinished records, against the time for which brokers keep records."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from share_state.fold.durations import duration_text
from share_state.fold.states import KEY, to_datetime
from share_state.rules.breaches import NOTHING, WARNING, Breaches
from share_state.rules.registry import Scope, rule

_UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class UnfinishedRecords:
    """The first unfinished records of share-partitions, and how long brokers keep records.

    Attributes:
        rows: per share-partition: columns KEY, state_partition, effective_start_offset, record_offset and
            time_ms (of its first unfinished record that is not deleted), and unfinished (records).
        retention_ms: topic -> retention.ms of topics that set it, -1 for no limit.
        default_retention_ms: that of other topics; None if unknown.
        now_ms: the time up to which ages are measured.
        ratio: limits.retention_ratio.
    """

    rows: pa.Table
    retention_ms: Mapping[str, int]
    default_retention_ms: int | None
    now_ms: int
    ratio: float


@rule(
    "RETENTION_AHEAD",
    Scope.RETENTION,
    WARNING,
    "Kafka UnifiedLog.deleteRetentionMsBreachedSegments, retention.ms",
)
def retention_ahead(unfinished: UnfinishedRecords) -> Breaches:
    """The first unfinished record of a share-partition is younger than limits.retention_ratio of its topic's retention.

    Brokers delete a segment once its newest record is older than retention.ms; records that are not finished
    by then are lost to the group. Judged where the input has the topic's log and its configs.

    Do: raise `retention.ms` of the topic, or have the group catch up before that time.
    """
    rows = unfinished.rows
    default = unfinished.default_retention_ms
    kept = [unfinished.retention_ms.get(topic, default) for topic in rows["topic"].to_pylist()]
    retention = np.array([_UNLIMITED if value is None else value for value in kept], np.int64)
    times = rows["time_ms"].to_numpy()
    is_old = unfinished.now_ms - times >= unfinished.ratio * retention
    breaking = np.flatnonzero((retention > 0) & is_old)
    if not len(breaking):
        return NOTHING
    broken = rows.take(pa.array(breaking))
    due = times[breaking] + retention[breaking]
    text = (
        "the first unfinished record, offset ",
        broken["record_offset"],
        ", was written at ",
        _time_texts(times[breaking]),
        "; brokers may delete it from ",
        _time_texts(due),
        " on: retention.ms of the topic is ",
        pa.array([duration_text(int(value)) for value in retention[breaking]]),
    )
    evidence = {
        "records": broken["unfinished"],
        "start_offset": broken["effective_start_offset"],
        "record_offset": broken["record_offset"],
        "written_ms": times[breaking],
        "retention_ms": retention[breaking],
    }
    identity = {name: broken[name].combine_chunks() for name in (*KEY, "state_partition")}
    return Breaches(np.full(len(breaking), -1), text, evidence=evidence, identity=identity)


def _time_texts(milliseconds: np.ndarray) -> pa.Array:
    """Times as texts in UTC."""
    times = [to_datetime(value) for value in milliseconds.tolist()]
    return pa.array(
        ["a time after 9999" if time is None else f"{time:%Y-%m-%d %H:%M:%S} UTC" for time in times]
    )
