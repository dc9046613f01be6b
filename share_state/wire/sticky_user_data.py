"""User data of the sticky assignors (KIP-341): what a member claims to have had, and since which generation."""

from dataclasses import dataclass

from share_state.declarations import layout
from share_state.wire.codec import CodecError, decode
from share_state.wire.subscription import ABSENT, TopicPartition, flat


@dataclass(frozen=True, slots=True)
class StickyUserData:
    """What a member claims.

    Attributes:
        version: 0 or 1, None where there is no user data or it cannot be read.
        claims: in the order of the bytes.
        generation: in which it had them; None where absent (no user data, or version 0), -1 where it cannot be read.
        trailing: bytes behind it, which Kafka ignores.
        flaw: why it cannot be read, "" where it can.
    """

    version: int | None
    claims: tuple[TopicPartition, ...]
    generation: int | None
    trailing: int = 0
    flaw: str = ""


NO_USER_DATA = StickyUserData(None, (), None)


def read_sticky_user_data(data: bytes | None) -> StickyUserData:
    """Read the user data of the assignor "sticky": the later layout if it fits, else the earlier one.

    No version is written, so version 0 with four or more bytes behind it is taken for version 1.

    Source: Kafka StickyAssignor.deserializeTopicPartitionAssignment; KIP-341.
    """
    if not data:
        return NO_USER_DATA
    failure = ""
    for version in (1, 0):
        try:
            fields, consumed = decode(layout("sticky_assignor_user_data", f"v{version}"), data)
        except CodecError as error:
            failure = str(error)
            continue
        return StickyUserData(
            version, flat(fields["previous_assignment"]), fields.get("generation"), len(data) - consumed
        )
    return StickyUserData(None, (), ABSENT, flaw=failure)


def read_cooperative_generation(data: bytes | None) -> int | None:
    """The generation in the user data of the assignor "cooperative-sticky", for clients whose subscription has none.

    Returns:
        None where there is no user data, -1 where it cannot be read.
    Source: Kafka CooperativeStickyAssignor.memberData.
    """
    if data is None:
        return None
    try:
        return decode(layout("cooperative_sticky_assignor_user_data", "v0"), data)[0]["generation"]
    except CodecError:
        return ABSENT
