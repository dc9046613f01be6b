"""The order in which Java iterates hash maps, which decides what Kafka's assignor gives to whom."""

import base64
import struct
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

_LEAST_CAPACITY = 16
_LOAD_FACTOR = 0.75
_UINT32 = 0xFFFFFFFF


def topic_hash(topic_id: str) -> int:
    """Uuid.hashCode of a topic id in Kafka's text form, as an unsigned number."""
    high, low = uuid_halves(topic_id)
    mixed = high ^ low
    return (mixed >> 32) ^ (mixed & _UINT32)


def uuid_halves(topic_id: str) -> tuple[int, int]:
    """The most and the least significant 64 bits of an id in Kafka's text form."""
    high, low = struct.unpack(">QQ", base64.urlsafe_b64decode(f"{topic_id}=="))
    return high, low


def place_hash(place: tuple[str, int]) -> int:
    """TopicIdPartition.hashCode of a topic id and a partition, as an unsigned number."""
    return (31 * topic_hash(place[0]) + place[1]) & _UINT32


def int_hash(number: int) -> int:
    """java.lang.Integer.hashCode of a number that is not negative."""
    return number


class _HashOrder(Generic[Key]):
    """Keys in the order in which java.util.HashMap iterates them.

    Buckets with 8 keys and more, which Java turns into trees, are not told apart.

    Args:
        hash_of: the key's hashCode, unsigned.
        expected: number of keys for which Kafka sizes the map; None for Java's default size.
    Source: java.util.HashMap; Kafka AssignorHelpers.newHashMap.
    """

    def __init__(self, hash_of: Callable[[Key], int], expected: int | None = None) -> None:
        self._hash_of = hash_of
        self._ranks: dict[Key, int] = {}
        wanted = _LEAST_CAPACITY if expected is None else int((expected + 1) / _LOAD_FACTOR + 1)
        self._capacity = 1 << (wanted - 1).bit_length()
        self._added = 0

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, key: object) -> bool:
        return key in self._ranks

    def __iter__(self) -> Iterator[Key]:
        return iter(sorted(self._ranks, key=lambda key: (self._bucket(key), self._ranks[key])))

    def _bucket(self, key: Key) -> int:
        code = self._hash_of(key)
        return (code ^ code >> 16) & (self._capacity - 1)

    def _grow(self) -> None:
        if len(self._ranks) > _LOAD_FACTOR * self._capacity:
            self._capacity *= 2


class HashSet(_HashOrder[Key]):
    """A set that is iterated in the order of java.util.HashSet."""

    def __init__(self, hash_of: Callable[[Key], int], keys: Iterable[Key] = ()) -> None:
        super().__init__(hash_of)
        for key in keys:
            self.add(key)

    def add(self, key: Key) -> None:
        """Add a key, as the last of its bucket."""
        self._added += 1
        self._ranks.setdefault(key, self._added)
        self._grow()

    def remove(self, key: Key) -> None:
        """Remove a key; the set does not shrink."""
        del self._ranks[key]


class HashOfSets(_HashOrder[Key]):
    """A map of sets of numbers that is filled by Map.computeIfAbsent."""

    def __init__(self, hash_of: Callable[[Key], int], expected: int | None = None) -> None:
        super().__init__(hash_of, expected)
        self._values: dict[Key, HashSet[int]] = {}

    def __getitem__(self, key: Key) -> HashSet[int]:
        return self._values[key]

    def get_or_add(self, key: Key) -> HashSet[int]:
        """The set of a key. A new key is the first of its bucket, and the map grows before it is added."""
        self._grow()
        if key not in self._values:
            self._added += 1
            self._ranks[key] = -self._added
            self._values[key] = HashSet(int_hash)
        return self._values[key]
