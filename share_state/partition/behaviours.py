"""How simulated share groups behave: a table, one row a kind of group that operators know."""

from dataclasses import dataclass

_SECOND, _MINUTE = 1_000, 60_000

Span = tuple[int, int]
"""The least and the greatest of something that is drawn, both inclusive."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What the members of a group do, and what is done to the group. Times in ms; 0 is never.

    Attributes:
        name: of the behaviour.
        says: what to see of it, in a sentence.
        members: of each topic-partition.
        poll_ms: between two fetches of a member.
        work_ms: between a fetch and its acknowledgement.
        fetch_records: wanted of a fetch.
        released, rejected: shares of the records that are released and rejected.
        poison_every: every so many offsets holds a record that nobody can process, so that it is always released.
        drops_every_ms: how often a member's session ends while it holds records.
        renews_for_ms: how long a member holds on to its first record before it accepts it.
        leader_moves_every_ms: how often another broker becomes leader.
        writes_fail_every_ms: how often writes fail for a while.
        deleted_every_ms: how often the share-partitions are deleted and, a while later, made again.
        altered_every_ms: how often somebody sets the offsets back.
        log_start_moves_every_ms: how often retention passes the start.
        dead_letters: whether what cannot be processed goes to a dead letter queue (from 4.4 on).
    """

    name: str
    says: str
    members: int = 1
    poll_ms: Span = (200, 900)
    work_ms: Span = (50, 800)
    fetch_records: Span = (5, 40)
    released: float = 0.01
    rejected: float = 0.002
    poison_every: int = 0
    drops_every_ms: int = 0
    renews_for_ms: int = 0
    leader_moves_every_ms: int = 7 * _MINUTE
    writes_fail_every_ms: int = 0
    deleted_every_ms: int = 0
    altered_every_ms: int = 0
    log_start_moves_every_ms: int = 0
    dead_letters: bool = False


BEHAVIOURS = (
    Behaviour("steady", "two members that accept nearly everything at once", members=2),
    Behaviour("slow", "a member that often works longer than its locks last, so that records come again",
              poll_ms=(2 * _SECOND, 9 * _SECOND), work_ms=(5 * _SECOND, 36 * _SECOND), fetch_records=(20, 120)),
    Behaviour("poison", "records that nobody can process: released until the delivery limit archives them",
              poison_every=53, released=0.05, rejected=0.02),
    Behaviour("crashing", "members that lose their session with records in hand, leaders that move, writes that fail",
              members=2, drops_every_ms=8 * _SECOND, leader_moves_every_ms=50 * _SECOND,
              writes_fail_every_ms=40 * _SECOND, work_ms=(500, 4 * _SECOND)),
    Behaviour("stalled", "a member that renews the lock of one record for minutes while others go on",
              members=2, renews_for_ms=6 * _MINUTE, leader_moves_every_ms=0),
    Behaviour("recreated", "a group that is deleted and made again", deleted_every_ms=3 * _MINUTE),
    Behaviour("altered", "a group whose offsets are set back, and that retention overtakes",
              altered_every_ms=2 * _MINUTE, log_start_moves_every_ms=90 * _SECOND),
    Behaviour("dead-letters", "a group whose hopeless records go to a dead letter queue",
              poison_every=41, rejected=0.03, dead_letters=True),
)  # fmt: skip
"""Groups take turns: group n behaves as row n, over and over."""
