"""Single records that no coordinator of a released Kafka writes, or that a broker could not load."""

import numpy as np
import pyarrow as pa

from share_state.fold.log import FoldedLog
from share_state.kafka.state_records import Fault, Layout
from share_state.rules.registry import ERROR, INFO, NOTHING, PLACE, WARNING, Broken, rule

_KEY_TEXT = "the broker could not load this partition"


def _with(folded: FoldedLog, fault: int) -> np.ndarray:
    rows = folded.observed.records
    return rows[rows["fault"] & fault != 0]


def _each(rows: np.ndarray, text: str, **evidence: np.ndarray) -> Broken:
    return (
        Broken(
            rows["offset"].copy(),
            (text,),
            key=rows["key"].astype(np.int64),
            evidence=evidence,
            settled=np.ones(len(rows), bool),
        )
        if len(rows)
        else NOTHING
    )


@rule(
    "UNKNOWN_RECORD_TYPE",
    severity=INFO,
    source="spec I05; Kafka ShareCoordinatorRecordSerde",
    statement="Every record is a ShareSnapshot or a ShareUpdate.",
)
def unknown_record_type(folded: FoldedLog) -> Broken:
    """Record types of a newer release, skipped as the broker skips them: one row a type, with their number."""
    seen = folded.observed.counts.unknown_types
    if not seen:
        return NOTHING
    types, (first, count) = np.array(list(seen)), np.array(list(seen.values()), np.int64).T
    return Broken(first.copy(), (count.copy(), " records of unknown type ", types, " were skipped, the first here"),
                  evidence={"type": types, "records": count.copy()})  # fmt: skip


@rule(
    "UNKNOWN_TAG",
    severity=INFO,
    source="spec I05, 2.6",
    statement="No record carries a tagged field that this version does not know.",
)
def unknown_tag(folded: FoldedLog) -> Broken:
    """Tagged fields of a newer release, ignored as Kafka ignores them."""
    first, count = folded.observed.counts.unknown_tags
    return Broken(np.array([first]), (f"{count} records carry unknown tagged fields, the first here",),
                  evidence={"records": np.array([count])}) if count else NOTHING  # fmt: skip


@rule(
    "LAYOUT_MIXED",
    severity=WARNING,
    source="spec 2.6",
    statement="All values of a log have one layout: that of 4.0, or that of 4.1 and later.",
)
def layout_mixed(folded: FoldedLog) -> Broken:
    """A log that a 4.0 broker and a later one wrote: neither of them can load all of it."""
    layouts = folded.observed.counts.layouts
    if len(layouts) < 2:
        return NOTHING
    early, current = layouts[Layout.EARLY], layouts[Layout.CURRENT]
    return Broken(np.array([max(early, current)]),
                  (f"values in the layout of 4.0 (from {PLACE} {early}) and of 4.1 or later (from {PLACE} {current})",),
                  evidence={"first_4.0": np.array([early]), "first_4.1": np.array([current])})  # fmt: skip


@rule(
    "KEY_MALFORMED",
    severity=ERROR,
    source="spec I01",
    statement="Every key is a type, a group id, a topic id and a partition, and nothing more.",
)
def key_malformed(folded: FoldedLog) -> Broken:
    """Keys that name no share-partition, and keys with bytes to spare (which Kafka ignores: a warning)."""
    rows = _with(folded, Fault.KEY_MALFORMED | Fault.KEY_TRAILING)
    if not len(rows):
        return NOTHING
    trailing = rows["fault"] & Fault.KEY_TRAILING != 0
    text = np.where(
        trailing, "the key has bytes behind it, which Kafka ignores", f"the key cannot be read; {_KEY_TEXT}"
    )
    return Broken(rows["offset"].copy(), (pa.array(text),), key=rows["key"].astype(np.int64),
                  severity=np.where(trailing, WARNING, ERROR).astype(object),
                  settled=np.ones(len(rows), bool))  # fmt: skip


@rule(
    "VALUE_MALFORMED",
    severity=ERROR,
    source="spec I04; 4.4 addendum 2.8",
    statement="Every value is read to its last byte by one of the known layouts.",
)
def value_malformed(folded: FoldedLog) -> Broken:
    """Values that no layout reads; values that Kafka reads in spite of a flaw are a warning, and were folded."""
    flaws = {
        Fault.VALUE_MALFORMED: f"the value fits no layout; {_KEY_TEXT}",
        Fault.VALUE_TRAILING: "the value has bytes behind it, which Kafka ignores",
        Fault.TAG_SIZE: "tag 0 is not 4 bytes long; Kafka reads 4 all the same",
        Fault.OVER_LIMIT: "more batches or tags than Kafka 4.4 reads; older releases load it",
    }
    rows = _with(folded, sum(flaws))
    if not len(rows):
        return NOTHING
    text = np.select([rows["fault"] & flaw != 0 for flaw in flaws], list(flaws.values()), "")
    fatal = rows["fault"] & (Fault.VALUE_MALFORMED | Fault.OVER_LIMIT) != 0
    return Broken(rows["offset"].copy(), (pa.array(text),), key=rows["key"].astype(np.int64),
                  severity=np.where(fatal, ERROR, WARNING).astype(object),
                  settled=np.ones(len(rows), bool))  # fmt: skip


@rule(
    "VALUE_VERSION_UNKNOWN",
    severity=ERROR,
    source="spec I03",
    statement="Every value says version 0.",
)
def value_version_unknown(folded: FoldedLog) -> Broken:
    """Values of a version that no release reads."""
    rows = _with(folded, Fault.VALUE_VERSION)
    return _each(rows, f"the value's version is unknown; {_KEY_TEXT}", version=rows["value_version"].copy())


@rule(
    "UPDATE_TOMBSTONE",
    severity=ERROR,
    source="spec I02",
    statement="A null value stands only under a snapshot key.",
)
def update_tombstone(folded: FoldedLog) -> Broken:
    """Null values under an update key: replay ends in a NullPointerException."""
    return _each(_with(folded, Fault.UPDATE_TOMBSTONE), f"an update without a value; {_KEY_TEXT}")


@rule(
    "INVERTED_RANGE",
    severity=ERROR,
    source="spec I07, 4.6; 4.4 addendum 4.4",
    statement="Every range ends at or after its first offset, and before 2^63 - 1.",
)
def inverted_range(folded: FoldedLog) -> Broken:
    """Records with a range that covers nothing: merging it hangs a broker up to 4.3 and fails the load of 4.4."""
    rows = _with(folded, Fault.INVERTED_RANGE)
    return _each(rows, "a range ends before it begins; it was left out of the state, a broker hangs or fails on it")


@rule(
    "WRONG_PARTITION",
    severity=ERROR,
    source="spec I06; Kafka ShareCoordinatorService.partitionFor",
    statement="The records of a share-partition lie in the state partition that its key hashes to.",
)
def wrong_partition(folded: FoldedLog) -> Broken:
    """Share-partitions in a state partition where the broker will not look for them."""
    stray, belongs = folded.observed.misplaced
    if not len(stray):
        return NOTHING
    return Broken(
        folded.all_chains.chains["last_offset"][stray].copy(),
        ("its key belongs to state partition ", belongs),
        key=stray,
        evidence={"belongs_to": belongs},
    )
