"""Which members of a share group had a topic-partition, as far as `__consumer_offsets` still tells."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from share_state.fold.groups_replay import GroupReplay
from share_state.wire.group_records import record_types, told_records
from share_state.wire.located import located
from share_state.wire.log import read_chunks
from share_state.wire.log_folder import LogPartition, Window


@dataclass(slots=True)
class Holders:
    """Who had a topic-partition over time. The topic is compacted, so that old assignments may be gone.

    Attributes:
        times: ms, when it changed, ascending.
        members: the ids of the members that had it from then on, sorted.
    """

    times: list[int] = field(default_factory=list)
    members: list[tuple[str, ...]] = field(default_factory=list)

    def at(self, time: int) -> tuple[str, ...] | None:
        """The members that had it at a time in ms; None before anything is known."""
        place = bisect_right(self.times, time)
        return self.members[place - 1] if place else None


def holders(logs: Sequence[LogPartition], group_id: str, topic_id: str, partition: int) -> Holders:
    """Who had a topic-partition of a share group: several members at once, as share groups do.

    Args:
        logs: of `find_group_logs`.
        group_id, topic_id, partition: the share-partition.
    Raises:
        InputError: if a segment cannot be read.
    Source: Kafka ShareGroupCurrentMemberAssignmentValue.
    """
    changes: list[tuple[int, tuple[str, ...]]] = []
    for log in logs:
        replay, had = GroupReplay(log.partition), ()
        for part in read_chunks(log, merge=True):
            records = located(part, 0, Window()).records
            for told in told_records(part.data, records, record_types(part.data, records)):
                if told.key is None or group_id.encode() not in told.key:
                    continue
                replay.apply(told)
                group = replay.groups.get(group_id)
                members = group.members.values() if group else ()
                has = tuple(sorted(one.member_id for one in members if partition in one.assigned.get(topic_id, ())))
                if has != had:
                    changes.append((told.timestamp, has))
                had = has
    changes.sort(key=lambda change: change[0])
    return Holders([time for time, _ in changes], [members for _, members in changes])
