"""Rules over dead letters and the offsets that the state logs show in ARCHIVING."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from share_state.rules.breaches import ERROR, INFO, WARNING, GroupBreach
from share_state.rules.registry import Scope, rule

_KEY = ["group_id", "topic_id", "topic", "partition"]


@dataclass(frozen=True, slots=True)
class AuditedDeadLetters:
    """Input of the rules over dead letters.

    Attributes:
        letters, lost: rows of `dead_letters` and `lost_dead_letters`.
        unusable: group -> why the brokers cannot write its dead letters, as far as the cluster's settings are
            known.
    """

    letters: pa.Table
    lost: pa.Table
    unusable: Mapping[str, str] = field(default_factory=dict)


def _about(rows: pa.Table, text: str, *more: tuple[str, str]) -> Iterator[GroupBreach]:
    """A breach per share-partition; `text` is formatted with the columns of the aggregation."""
    for row in (
        rows.group_by(_KEY).aggregate([*more]).sort_by([(name, "ascending") for name in _KEY]).to_pylist()
    ):
        evidence = {name: value for name, value in row.items() if name not in _KEY}
        yield GroupBreach(text.format(**row), *(row[name] for name in _KEY), evidence=evidence)


def _about_letters(letters: pa.Table, which: str) -> list[GroupBreach]:
    """A breach per share-partition with such dead letters; `which` completes the words "offsets that"."""
    text = f"{{offset_count:,}} dead letters belong to offsets that {which}, from {{offset_min}} to {{offset_max}}"
    return list(_about(letters, text, ("offset", "count"), ("offset", "min"), ("offset", "max")))


@rule(
    "DEAD_LETTER_LOST",
    Scope.DEAD_LETTERS,
    ERROR,
    "KIP-1191; Kafka SharePartition, DefaultShareGroupDLQManager",
)
def dead_letter_lost(audited: AuditedDeadLetters) -> list[GroupBreach]:
    """Each offset that leaves ARCHIVING has a dead letter.

    Otherwise the write to the dead-letter topic failed.

    Do: fix the topic; read the offsets of the table `lost_dead_letters` from the source topic while it still
    holds them.
    """
    text = (
        "{record_count_sum:,} offsets left ARCHIVING without a dead letter, from {first_offset_min} to "
        "{last_offset_max}: table lost_dead_letters"
    )
    sums = (("record_count", "sum"), ("first_offset", "min"), ("last_offset", "max"))
    return list(_about(audited.lost, text, *sums))


@rule("DEAD_LETTER_DUPLICATE", Scope.DEAD_LETTERS, INFO, "KIP-1191; Kafka SharePartition.maybeInitialize")
def dead_letter_duplicate(audited: AuditedDeadLetters) -> list[GroupBreach]:
    """An offset that is archived once has one dead letter.

    The next leader of a share-partition may write it again.

    Do: nothing; consumers of the dead-letter topic can recognize duplicates by their headers.
    """
    return _about_letters(audited.letters.filter(pc.field("duplicate")), "already have one")


@rule(
    "DEAD_LETTER_UNEXPECTED",
    Scope.DEAD_LETTERS,
    WARNING,
    "KIP-1191; Kafka SharePartition, ShareGroupDLQManager.enqueue",
)
def dead_letter_unexpected(audited: AuditedDeadLetters) -> list[GroupBreach]:
    """Each dead letter belongs to an offset that the state log shows in ARCHIVING or ARCHIVED.

    Judged only if the state log would show it.

    Do: find the producer; check that both exports are from one cluster.
    """
    return _about_letters(
        audited.letters.filter(pc.field("archived") == pa.scalar(False)), "were never archived"
    )


@rule("DLQ_UNUSABLE", Scope.DEAD_LETTERS, WARNING, "KIP-1191; Kafka ShareGroupDLQStateManager")
def dlq_unusable(audited: AuditedDeadLetters) -> list[GroupBreach]:
    """The dead-letter topic of a share group exists or can be created, accepts dead letters and has leaders.

    Otherwise rejected records are archived without a dead letter. Judged for live clusters, and where the
    input has the metadata log.

    Do: fix the topic or the group's config before records are rejected; DEAD_LETTER_LOST shows what is
    already lost.
    """
    return [
        GroupBreach(f"its dead letters cannot be written: {why}", group)
        for group, why in audited.unusable.items()
    ]
