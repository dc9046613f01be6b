"""What is met while `__consumer_offsets` is replayed, and is judged or read later."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupFault:
    """Something in the log that cannot be read or should not be there.

    Attributes:
        code: the rule that it breaks.
        partition: of `__consumer_offsets`, None where the log does not tell.
        offset: where it is, -1 where it has none.
        message: what is wrong, in a sentence.
        group_id: whom it is about, where that is known.
        is_harmless: whether Kafka reads it in spite of it.
    """

    code: str
    partition: int | None
    offset: int
    message: str
    group_id: str | None = None
    is_harmless: bool = False


@dataclass(frozen=True, slots=True)
class EpochStep:
    """A share group's epoch that is not its predecessor's plus one."""

    group_id: str
    offset: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Generation:
    """One record of a group of the classic protocol, still bytes.

    Attributes:
        group_id: the group.
        partition: of `__consumer_offsets`, None where the log does not tell.
        offset: of the record.
        time: ms, its stamp.
        value: a GroupMetadataValue, its version in front.
    """

    group_id: str
    partition: int | None
    offset: int
    time: int
    value: bytes
