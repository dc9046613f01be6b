"""The share groups' assignor of Kafka 4.2 and later: which member reads which partitions."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from share_state.fold.groups.group_tables import expected_assignment_sizes, members_per_partition
from share_state.kafka.primitives import string_hash
from share_state.simulator.hash_order import (
    HashOfSets,
    HashSet,
    int_hash,
    place_hash,
    topic_hash,
)

Place = tuple[str, int]
"""Topic id, partition."""

Assigned = dict[str, list[int]]
"""Topic id -> partitions."""

Assignment = dict[str, Assigned]
"""Member id -> what it is to read."""


def assign(
    subscriptions: Mapping[str, Sequence[str]],
    assignable: Mapping[str, Sequence[int]],
    current: Mapping[str, Mapping[str, Iterable[int]]],
) -> Assignment:
    """What every member is to read: balanced, and with as few changes as that allows.

    If all members subscribe to the same topics, all partitions are balanced together, else those of each topic
    alone. Partitions of a topic that nobody subscribes to any more are taken away only in the first case.

    Args:
        subscriptions: member id -> ids of its topics.
        assignable: topic id -> its initialized partitions, ascending.
        current: member id -> what it was to read so far.
    Source: Kafka SimpleAssignor, SimpleHomogeneousAssignmentBuilder, SimpleHeterogeneousAssignmentBuilder.
    """
    known = HashSet(string_hash, subscriptions)
    members = list(known)
    owned = [_in_order(current.get(member, {})) for member in members]
    wanted = [list(HashSet(topic_hash, subscriptions[member])) for member in members]
    if not any(wanted):
        return {member: {} for member in members}
    if len({frozenset(topics) for topics in wanted}) == 1:
        topics = wanted[0]
        targets = [(topic, number) for topic in topics for number in assignable.get(topic, ())]
        places = [[place for place in of_member if place[0] in topics] for of_member in owned]
        balance = _Balance(targets, list(range(len(members))), places, place_hash)
        return dict(zip(members, map(_by_topic, balance.assigned()), strict=True))
    return dict(zip(members, map(_by_topic, _per_topic(wanted, assignable, owned)), strict=True))


def _per_topic(
    wanted: Sequence[Sequence[str]], assignable: Mapping[str, Sequence[int]], owned: Sequence[Sequence[Place]]
) -> list[list[Place]]:
    """What each member reads if the members subscribe to different topics."""
    topics = HashSet(topic_hash, (topic for of_member in wanted for topic in of_member))
    assigned = [[place for place in of_member if place[0] not in topics] for of_member in owned]
    for topic in topics:
        subscribed = [member for member, of_member in enumerate(wanted) if topic in of_member]
        places = [[place for place in of_member if place[0] == topic] for of_member in owned]
        targets = [(topic, number) for number in assignable.get(topic, ())]
        balance = _Balance(targets, subscribed, places, _partition_hash)
        for member, added in enumerate(balance.assigned()):
            assigned[member] += added
    return assigned


class _Balance:
    """Balances partitions among the members that may read them.

    Members have the numbers of Kafka's order.

    Args:
        targets: the partitions to assign.
        subscribed: numbers of the members that may read them, ascending.
        owned: what each member of the group has had of these topics.
        hash_of: what orders partitions.
    """

    def __init__(
        self,
        targets: Sequence[Place],
        subscribed: Sequence[int],
        owned: Sequence[Sequence[Place]],
        hash_of: Callable[[Place], int],
    ) -> None:
        self._sharing = members_per_partition(len(subscribed), len(targets))
        self._desired = [0] * len(owned)
        for member, size in zip(
            subscribed, expected_assignment_sizes(len(subscribed), len(targets)), strict=True
        ):
            self._desired[member] = size
        self._subscribed = subscribed
        self._readers = HashOfSets[Place](hash_of, len(targets))
        self._of_member = [HashSet[Place](hash_of) for _ in owned]
        for member, places in enumerate(owned):
            for place in places:
                self._read(member, place)
        self._revoke_from_overfilled()
        self._revoke_overshared()
        for place in targets:
            self._readers.get_or_add(place)
        self._assign_rest()

    def assigned(self) -> list[list[Place]]:
        """What each member of the group reads."""
        return [list(places) for places in self._of_member]

    def _read(self, member: int, place: Place) -> None:
        self._readers.get_or_add(place).add(member)
        self._of_member[member].add(place)

    def _revoke(self, member: int, place: Place) -> None:
        self._readers[place].remove(member)
        self._of_member[member].remove(place)

    def _revoke_from_overfilled(self) -> None:
        for member, places in enumerate(self._of_member):
            for place in list(places)[: max(0, len(places) - self._desired[member])]:
                self._revoke(member, place)

    def _revoke_overshared(self) -> None:
        for place in self._readers:
            readers = self._readers[place]
            for member in list(readers)[: max(0, len(readers) - self._sharing)]:
                self._revoke(member, place)

    def _assign_rest(self) -> None:
        """Go once over the partitions, and round and round over the members that have too few.

        As in Kafka, a member that gets a partition in this step does not count as its reader, so it may get it
        twice. Where Kafka's assignor then fails, because no member is left, partitions stay with too few readers.
        """
        unfilled = [one for one in self._subscribed if len(self._of_member[one]) < self._desired[one]]
        following, has_assigned = 0, False
        for place in self._readers:
            missing = self._sharing - len(self._readers[place])
            while unfilled and missing > 0:
                if following == len(unfilled):
                    if not has_assigned:
                        break
                    following, has_assigned = 0, False
                member = unfilled[following]
                following += 1
                if member in self._readers[place]:
                    continue
                self._of_member[member].add(place)
                missing -= 1
                has_assigned = True
                if len(self._of_member[member]) >= self._desired[member]:
                    following -= 1
                    del unfilled[following]


def _partition_hash(place: Place) -> int:
    """Where topics are balanced alone, Kafka's keys are the numbers of partitions."""
    return int_hash(place[1])


def _in_order(assigned: Mapping[str, Iterable[int]]) -> list[Place]:
    """An assignment's partitions in the order of Kafka's map of sets."""
    return [
        (topic, number)
        for topic in HashSet(topic_hash, assigned)
        for number in HashSet(int_hash, assigned[topic])
    ]


def _by_topic(places: Iterable[Place]) -> Assigned:
    """Partitions by topic."""
    assigned: Assigned = {}
    for topic, number in sorted(places):
        assigned.setdefault(topic, []).append(number)
    return assigned
