"""Rules over faults of single records: records that no release of Kafka writes, or that a broker cannot load."""

import numpy as np
import pyarrow as pa

from share_state.fold.state_log import FoldedLog
from share_state.fold.states import KEY
from share_state.kafka.releases import versions_with
from share_state.kafka.state_records import Fault, Layout
from share_state.rules.breaches import ERROR, FINDINGS, INFO, NOTHING, PLACE, WARNING, Breaches, Column
from share_state.rules.registry import Scope, rule

_KEY_TEXT = "the broker could not load this partition"
_READ_LIMITS = versions_with(lambda release: release.limits_values)


def _with_fault(folded: FoldedLog, fault: int) -> np.ndarray:
    rows = folded.observations.records
    return rows[rows["fault"] & fault != 0]


def _each(
    rows: np.ndarray, text: Column, severity: np.ndarray | None = None, **evidence: np.ndarray
) -> Breaches:
    if (rows["batches"] > 1).any():
        evidence[FINDINGS] = rows["batches"].copy()
    key, settled = rows["key"].astype(np.int64), np.ones(len(rows), bool)
    return Breaches(
        rows["offset"].copy(), (text,), key=key, evidence=evidence, severity=severity, settled=settled
    )


@rule("UNKNOWN_RECORD_TYPE", Scope.STATE_LOG, INFO, "Kafka ShareCoordinatorRecordSerde")
def unknown_record_type(folded: FoldedLog) -> Breaches:
    """Every record is a ShareSnapshot or a ShareUpdate.

    Types of a newer release are skipped, as the broker skips them: one finding per type.

    Do: upgrade share_state.
    """
    counts_by_type = folded.observations.counts.unknown_types
    if not counts_by_type:
        return NOTHING
    types = np.array(list(counts_by_type))
    first, count = np.array(list(counts_by_type.values()), np.int64).T
    text = (count.copy(), " records of unknown type ", types, " were skipped; this is the first")
    return Breaches(first.copy(), text, evidence={"type": types, "records": count.copy()})


@rule("UNKNOWN_TAG", Scope.STATE_LOG, INFO, "KIP-482")
def unknown_tag(folded: FoldedLog) -> Breaches:
    """No record has a tagged field that this version does not know.

    Tags of a newer release are ignored, as in Kafka.

    Do: upgrade share_state.
    """
    first, count = folded.observations.counts.unknown_tags
    return Breaches(np.array([first]), (f"{count} records have unknown tagged fields; this is the first",),
                  evidence={"records": np.array([count])}) if count else NOTHING  # fmt: skip


@rule(
    "LAYOUT_MIXED",
    Scope.STATE_LOG,
    WARNING,
    "Kafka ShareSnapshotValue.json, ShareUpdateValue.json of 4.0 and 4.1",
)
def layout_mixed(folded: FoldedLog) -> Breaches:
    """All values of a log have one layout: that of 4.0, or that of 4.1 and later.

    Neither a 4.0 broker nor a later one can load all of a log with both.

    Do: recreate the groups; later brokers cannot use records of 4.0.
    """
    layouts = folded.observations.counts.layouts
    if len(layouts) < 2:
        return NOTHING
    early, current = layouts[Layout.EARLY], layouts[Layout.CURRENT]
    return Breaches(np.array([max(early, current)]),
                  (f"values in the layout of 4.0 (from {PLACE} {early}) and of 4.1 or later (from {PLACE} {current})",),
                  evidence={"first_4.0": np.array([early]), "first_4.1": np.array([current])})  # fmt: skip


@rule("KEY_MALFORMED", Scope.STATE_LOG, ERROR, "Kafka ShareSnapshotKey.json, ShareUpdateKey.json")
def key_malformed(folded: FoldedLog) -> Breaches:
    """Every key is a type, a group id, a topic id and a partition, and nothing more.

    Trailing bytes are a warning, because Kafka ignores them.
    """
    rows = _with_fault(folded, Fault.KEY_MALFORMED | Fault.KEY_TRAILING)
    if not len(rows):
        return NOTHING
    trailing = rows["fault"] & Fault.KEY_TRAILING != 0
    texts = [f"the key cannot be read; {_KEY_TEXT}", "the key has trailing bytes, which Kafka ignores"]
    text = pa.DictionaryArray.from_arrays(trailing.astype(np.int8), texts)
    return _each(rows, text, np.where(trailing, WARNING, ERROR).astype(object))


@rule("VALUE_MALFORMED", Scope.STATE_LOG, ERROR, "Kafka CoordinatorRecordSerde.deserialize")
def value_malformed(folded: FoldedLog) -> Breaches:
    """Every value is read to its last byte by one of the known layouts.

    A value that Kafka reads in spite of a fault is folded, with a warning.
    """
    flaws = {
        Fault.VALUE_MALFORMED: f"the value fits no layout; {_KEY_TEXT}",
        Fault.VALUE_TRAILING: "the value has trailing bytes, which Kafka ignores",
        Fault.TAG_SIZE: "tag 0 is not 4 bytes long; Kafka reads 4 bytes anyway",
        Fault.OVER_LIMIT: f"more batches or tags than Kafka {_READ_LIMITS} read; other releases load it",
    }
    rows = _with_fault(folded, sum(flaws))
    if not len(rows):
        return NOTHING
    first = np.select([rows["fault"] & flaw != 0 for flaw in flaws], range(len(flaws)))
    text = pa.DictionaryArray.from_arrays(first.astype(np.int8), list(flaws.values()))
    fatal = rows["fault"] & (Fault.VALUE_MALFORMED | Fault.OVER_LIMIT) != 0
    return _each(rows, text, np.where(fatal, ERROR, WARNING).astype(object))


@rule("VALUE_VERSION_UNKNOWN", Scope.STATE_LOG, ERROR, "Kafka CoordinatorRecordSerde.deserialize")
def value_version_unknown(folded: FoldedLog) -> Breaches:
    """Every value has version 0.

    Do: upgrade again.
    """
    rows = _with_fault(folded, Fault.VALUE_VERSION)
    return _each(rows, f"the value's version is unknown; {_KEY_TEXT}", version=rows["value_version"].copy())


@rule("UPDATE_TOMBSTONE", Scope.STATE_LOG, ERROR, "Kafka ShareCoordinatorShard.replay")
def update_tombstone(folded: FoldedLog) -> Breaches:
    """Only a snapshot key has a null value.

    Replay of a null value with an update key fails with a NullPointerException.

    Do: the coordinator cannot load this partition: restore it from a replica, or delete the records before
    the next valid snapshots.
    """
    return _each(_with_fault(folded, Fault.UPDATE_TOMBSTONE), f"an update without a value; {_KEY_TEXT}")


@rule("INVERTED_RANGE", Scope.STATE_LOG, ERROR, "Kafka PersisterStateBatchCombiner")
def inverted_range(folded: FoldedLog) -> Breaches:
    """Every range ends at or after its first offset, and before 2^63 - 1.

    Merging any other range hangs a broker up to 4.3 and fails the load of 4.4.
    """
    rows = _with_fault(folded, Fault.INVERTED_RANGE)
    return _each(
        rows, "a range ends before it begins, or at 2^63 - 1; brokers hang or fail on it, so it was left out"
    )


@rule("WRONG_PARTITION", Scope.STATE_LOG, ERROR, "Kafka ShareCoordinatorService.partitionFor")
def wrong_partition(folded: FoldedLog) -> Breaches:
    """The records of a share-partition are in the state partition that its key hashes to.

    The broker does not look for it in any other. Where the number of state partitions is only that of the
    folders in the input, the message says so.

    Do: if the message supposes a number of state partitions, give `state_partitions`. Never change the
    records; the broker cannot find the state there.
    """
    seen, count = folded.observations, folded.observations.count
    misplaced, belongs = seen.misplaced
    supposed = ""
    if count is not None and count.is_inferred:
        or_else = ", or the input lacks state partitions" if seen.rests_on_input else ""
        supposed = f" of the {count.number} in the input{or_else}"
    last = folded.all_chains.chains["last_offset"][misplaced]
    text = ("its key belongs to state partition ", belongs, supposed)
    return Breaches(last, text, key=misplaced, evidence={"belongs_to": belongs})


@rule("SPLIT_KEY", Scope.STATES, ERROR, "Kafka ShareCoordinatorService.partitionFor")
def split_key(split: pa.Table) -> Breaches:
    """All records of a share-partition are in one state partition.

    State is in several of them if partitions were added to the topic. If their number is known, the state in
    the partition that the key hashes to is used; otherwise all are suspect. They are also suspect if one of
    the logs has no number: the logs may be parts or copies of one state partition.

    Do: give `state_partitions` if it is unknown; never change the partition count.
    """
    owner = split["owner"].fill_null(-1).to_numpy()
    supposed = split["supposed"].to_pylist()
    consequences = [
        f"the one in {number} is used{why}" if number >= 0 else "any of them may be outdated"
        for number, why in zip(owner.tolist(), supposed, strict=True)
    ]
    return Breaches(
        split["last_offset"].fill_null(-1).to_numpy(),
        (
            "its state is in several state partitions (",
            split["logs"],
            "): ",
            pa.array(consequences, pa.string()),
        ),
        evidence={
            "state_partitions": split["logs"],
            "counts": split["owner"].cast(pa.string()).fill_null("none"),
        },
        identity={name: split[name].combine_chunks() for name in (*KEY, "state_partition")},
    )
