"""Records of `__consumer_offsets` about groups that cannot be read, or that a broker could not load."""

from collections.abc import Callable

from share_state.fold.groups_met import GroupFault
from share_state.rules.groups_findings import ERROR, INFO, WARNING, GroupFinding, Rules, RuleText

Faults = tuple[GroupFault, ...]
"""What `fold_groups` and `fold_sticky` met."""

_TEXTS = (
    RuleText("TORN_TAIL", WARNING, "Every segment ends where a batch ends.", "Kafka LogSegment.recover"),
    RuleText("CRC_MISMATCH", ERROR, "The CRC-32C of every batch matches its bytes.", "Kafka DefaultRecordBatch"),
    RuleText("MAGIC_UNSUPPORTED", ERROR, "Every batch is of format version 2.", "Kafka RecordBatch"),
    RuleText(
        "BATCH_MALFORMED", ERROR, "The lengths and counts in every batch agree with its bytes.", "Kafka DefaultRecord"
    ),
    RuleText(
        "DUPLICATE_OFFSET_CONFLICT", ERROR, "Where an offset is found twice, both hold the same bytes.", "spec I41"
    ),
    RuleText(
        "UNKNOWN_RECORD_TYPE", INFO, "Every record is of a type that is known.", "Kafka GroupCoordinatorRecordSerde"
    ),
    RuleText("UNKNOWN_TAG", INFO, "No record of a share group carries a tagged field that is not known.", "KIP-482"),
    RuleText("LAYOUT_MIXED", WARNING, "All share groups are written by 4.0, or all by 4.1 and later.", "spec 7"),
    RuleText("KEY_MALFORMED", ERROR, "Every key of a group's record can be read.", "Kafka GroupCoordinatorRecordSerde"),
    RuleText(
        "VALUE_MALFORMED", ERROR, "Every value of a group's record is read to its last byte.", "Kafka MessageUtil"
    ),
    RuleText(
        "VALUE_VERSION_UNKNOWN",
        ERROR,
        "Every value is of a version that is known.",
        "Kafka GroupCoordinatorRecordSerde",
    ),
    RuleText(
        "GROUP_DELETED_IN_USE",
        ERROR,
        "A group is deleted after its members, a member after its assignment.",
        "Kafka GroupMetadataManager.replay",
    ),
)


def _of_code(code: str, harmless: str) -> Callable[[Faults], list[GroupFinding]]:
    def check(faults: Faults) -> list[GroupFinding]:
        return [
            GroupFinding(
                fault.message,
                fault.group_id,
                offset=fault.offset,
                evidence={} if fault.partition is None else {"group_partition": fault.partition},
                severity=harmless if fault.is_harmless else None,
            )
            for fault in faults
            if fault.code == code
        ]

    return check


RECORD_RULES: Rules[Faults] = tuple(
    (text, _of_code(text.code, INFO if text.severity == INFO else WARNING)) for text in _TEXTS
)
"""Rules over records and batches; the functions take the faults of FoldedGroups and FoldedSticky."""
