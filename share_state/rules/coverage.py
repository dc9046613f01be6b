"""Rules over what the input is: state partitions that are not in it, logs of something else, exports that are old."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import pluralize
from share_state.fold.durations import duration_text
from share_state.fold.state_log import FoldedLog
from share_state.fold.states import KEY, SHARE_GROUP_STATE, to_datetime
from share_state.rules.breaches import ERROR, NOTHING, PLACE, WARNING, Breaches, GroupBreach
from share_state.rules.registry import Scope, rule
from share_state.schema.declarations import table_schema
from share_state.sources.partition_count import StatePartitionCoverage
from share_state.sources.resume_point import ResumeStatus

EXPORT_STALE = "EXPORT_STALE"
_HOUR_MS = 3_600_000
_PARTITIONS = "Kafka CreatePartitionsRequest: the partitions of a topic only increase"

_MISSING = "not in the input, so its share-partitions are not in the tables ({})"
_LEFT = "no longer in the input; its share-partitions keep the state that was read last"


@rule("STATE_PARTITION_MISSING", Scope.INPUT, ERROR, _PARTITIONS)
def state_partition_missing(coverage: StatePartitionCoverage) -> Breaches:
    """The input holds every partition of the state topic.

    Its share-partitions are not in the tables; if an earlier audit read the partition, they keep the state
    from then. A path that names one log partition selects it alone.

    Do: export every state partition. To look at one log partition alone, give the path of its folder.
    """
    missing = np.array([*coverage.missing, *coverage.left], np.int32)
    has_left = np.isin(missing, coverage.left)
    schema = table_schema("findings")
    identity = {name: pa.nulls(len(missing), schema.field(name).type) for name in KEY}
    identity |= {"dialect": pa.repeat(SHARE_GROUP_STATE, len(missing)), "state_partition": pa.array(missing)}
    return Breaches(
        np.full(len(missing), -1),
        (pc.if_else(pa.array(has_left), _LEFT, _MISSING.format(coverage.ground)),),
        identity=identity,
    )


# Of a partition that an earlier audit read.
@rule("STATE_PARTITION_MISSING", Scope.STATE_LOG, ERROR, _PARTITIONS)
def state_partition_gone(folded: FoldedLog) -> Breaches:
    """The input holds every partition of the state topic."""
    if folded.observations.resume_status != ResumeStatus.MISSING:
        return NOTHING
    text = "not in the input; its share-partitions keep the state from the previous audit"
    return Breaches(np.array([folded.observations.read_before]), (text,), settled=np.array([False]))


@rule(
    "NO_STATE_RECORDS",
    Scope.STATE_LOG,
    ERROR,
    "Kafka ShareCoordinatorRecordSerde, ShareCoordinatorShard.replay",
)
def no_state_records(folded: FoldedLog) -> Breaches:
    """Most records of a log are state records: their key names a share-partition, and their value can be read.

    Otherwise the log, or a column of the table, is that of another topic, or in an unknown encoding. An input
    without any state record is refused.

    Do: give the log of `__share_group_state`; check `--column`. The cutoff of such a log is never safe.
    """
    counts = folded.observations.counts
    if not counts.holds_other_records:
        return NOTHING
    state_records = counts.records - counts.other_records
    text = f"{state_records} of {pluralize(counts.records, 'record')} are state records"
    text += "; is this the log of another topic?"
    evidence = {"records": np.array([counts.records]), "state_records": np.array([state_records])}
    return Breaches(np.array([folded.first_offset]), (text,), evidence=evidence)


@rule(
    "SHARE_PARTITION_VANISHED", Scope.STATE_LOG, ERROR, "Kafka ShareCoordinatorShard.deleteState, tombstones"
)
def share_partition_vanished(folded: FoldedLog) -> Breaches:
    """A share-partition with state at the last audit is still in the log, or the log shows its tombstone.

    Its last state stays in the tables, suspect, until its records are back or `--afresh` reads the log anew.

    Do: export the log whole. If its records are lost for good, `audit --afresh LOG` drops its last state.
    """
    vanished = folded.observations.vanished
    last = folded.all_chains.chains["last_offset"][vanished]
    text = (
        "the last audit read its state up to ",
        f"{PLACE} ",
        last,
        "; now the log has no record of it, nor a tombstone",
    )
    return Breaches(last, text, key=vanished)


@dataclass(frozen=True, slots=True)
class ExportAge:
    """How old an export was when it was audited.

    Attributes:
        newest: ms, timestamp of the newest record of the state logs, the group logs and the dead letters.
        audited: ms, when the audit began, by the clock of the machine.
        limit: limits.export_age, in hours; 0 for any age.
    """

    newest: int
    audited: int
    limit: float


@rule(EXPORT_STALE, Scope.EXPORT, WARNING, "Kafka share.coordinator.state.topic, record timestamps")
def export_stale(export: ExportAge) -> Iterator[GroupBreach]:
    """The newest record of an audited export is younger than limits.export_age.

    Otherwise the export is not renewed, or no share group has been active since. A live cluster is never
    stale.

    Do: check when the export was made; for audits of old exports, set `limits.export_age: 0`.
    """
    if export.limit and export.audited - export.newest > export.limit * _HOUR_MS:
        limit = duration_text(round(export.limit * _HOUR_MS))
        # Without its age, so that two audits of the same export find the same.
        text = f"the newest record of the export is of {to_datetime(export.newest):%Y-%m-%d %H:%M:%S} UTC, more than"
        why = "the export is not renewed, or no share group has been active since"
        yield GroupBreach(f"{text} {limit} before the audit: {why}", evidence={"newest_ms": export.newest})
