"""How many partitions a topic has, and which of them are not in the input.

The number is stated, or read from a cluster; else it is inferred from the folders in the input. The keys show
if an inferred number is too small, since each hashes to its state partition: `PartitionCount`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from share_state.kafka.primitives import partition_for
from share_state.sources.discovery import recorded_partitions
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.sources.log_partition import GROUP_TOPIC, STATE_TOPIC, LogPartition

_KEYS_THAT_CONTRADICT = 8
"""The numbers of 8 keys have a common divisor above 1 by chance in 0.4 % of all logs."""

_MOST_MISSING = 1000
_KEYS_THAT_SHOW = 20
"""The numbers of 20 keys have a common divisor above 1 by chance in one of a million inputs."""


@dataclass(frozen=True, slots=True)
class PartitionCount:
    """How many partitions the state topic has, as far as it is known before the keys are read.

    Attributes:
        number: the number; None if unknown.
        least: the least possible number: after the greatest partition in the input.
        is_inferred: whether the number is only that of the folders in the input, some of which may be
            missing.
        recorded: partitions that a broker's checkpoint file beside the folders lists.
    """

    number: int | None = None
    least: int = 1
    is_inferred: bool = False
    recorded: frozenset[int] = frozenset()

    def stated(self, number: int) -> "PartitionCount":
        """This count, but with a number that is known and not inferred."""
        return replace(self, number=number, is_inferred=False)

    def places_as(self, other: "PartitionCount") -> bool:
        """Whether keys belong to the same partitions by another count."""
        are_stated = None not in (self.number, other.number) and not (self.is_inferred or other.is_inferred)
        return self.number == other.number if are_stated else self == other

    def is_contradicted(self, key_modulus: int, keys: int) -> bool:
        """Whether the keys show that an inferred number is too small: they all fit a larger one, and not this one.

        Args:
            key_modulus: the greatest number of state partitions that the keys fit.
            keys: number of keys; a few fit a larger number by chance.
        """
        if not self.is_inferred or self.number is None or keys < _KEYS_THAT_CONTRADICT:
            return False
        return key_modulus > self.number and key_modulus % self.number != 0

    def shown_by_keys(self, key_modulus: int, keys: int) -> int | None:
        """The number that the keys show; None if it is stated, or if there are too few keys to tell.

        Args:
            key_modulus, keys: as in `is_contradicted`, of all logs of the topic.
        """
        if self.number is not None and not self.is_inferred:
            return None
        is_larger = key_modulus > max(self.least, self.number or 0)
        is_shown = keys >= _KEYS_THAT_SHOW or self.is_contradicted(key_modulus, keys)
        return key_modulus if is_larger and is_shown else None


def key_modulus(hashes: np.ndarray, partition: int) -> int:
    """The greatest number of state partitions with which all keys of a log belong to it; 0 if each number fits.

    Args:
        hashes: from `KeyTable.coordinator_hashes`.
        partition: number of the log partition.
    """
    return int(np.gcd.reduce(hashes - partition))


@dataclass(frozen=True, slots=True)
class StatePartitionCoverage:
    """Which partitions of the state topic are not in the input.

    Attributes:
        missing: their numbers, at most 1,000.
        ground: how it is known that they exist.
        left: numbers of those that a stream has read, and that have left its input since.
    """

    missing: tuple[int, ...]
    ground: str
    left: tuple[int, ...] = ()


def state_partition_coverage(
    logs: Sequence[LogPartition], count: PartitionCount, key_modulus: int, keys: int
) -> StatePartitionCoverage:
    """Compare the state partitions in the input with those that must exist.

    Folders of segments and clusters show partitions without records, too. A table or a text does not, so
    nothing is missing there for certain.

    Args:
        logs: the log partitions in the input.
        count: how many state partitions there are.
        key_modulus, keys: the greatest number of state partitions that all keys fit, and number of keys.
    """
    state_logs = [log for log in logs if log.topic == STATE_TOPIC]
    numbers = {log.partition for log in state_logs if log.partition is not None}
    is_listed = all(log.source is None or log.source.form == KAFKA_FORM for log in state_logs)
    if not is_listed or not numbers or len(numbers) < len(state_logs):
        return StatePartitionCoverage((), "")
    if (shown := count.shown_by_keys(key_modulus, keys)) is not None:
        number, ground = shown, f"the keys in the others show that there are {shown}"
    elif count.number is not None and not count.is_inferred:
        number, ground = count.number, f"the topic has {count.number} partitions"
    else:
        number, ground = count.least, f"partition {count.least - 1} is there"
        if count.recorded - numbers:
            ground = "replication-offset-checkpoint lists it" if number - 1 not in numbers else ground
    return StatePartitionCoverage(tuple(missing_numbers(number, numbers)), ground)


def missing_numbers(end: int, present: Collection[int | None]) -> list[int]:
    """The first 1,000 numbers below `end` that are not present.

    A damaged file may name partition 2^31 - 1.
    """
    return list(islice((number for number in range(end) if number not in present), _MOST_MISSING))


def count_partitions(logs: Sequence[LogPartition], stated: int | None = None) -> PartitionCount:
    """How many partitions the state topic has, from what is stated and from the log partitions in the input."""
    numbers = [log.partition for log in logs if log.topic == STATE_TOPIC and log.partition is not None]
    recorded = recorded_partitions(logs).get(STATE_TOPIC, set())
    least = 1 + max([*numbers, *recorded], default=0)
    if stated is not None:
        return PartitionCount(stated, least, recorded=frozenset(recorded))
    inferred = infer_partition_count(logs, STATE_TOPIC) if recorded <= {*numbers} else None
    return PartitionCount(inferred, least, is_inferred=True, recorded=frozenset(recorded))


def infer_partition_count(logs: Sequence[LogPartition], topic: str) -> int | None:
    """Number of partitions of a topic; None if the logs do not run from 0 without a gap.

    Only folders of segments include partitions without records. Partition 0 of `__consumer_offsets` alone may
    be the first of many.

    Args:
        logs: all log partitions in the input; logs of other topics leave the number unknown.
        topic: STATE_TOPIC or GROUP_TOPIC.
    """
    numbers = sorted(log.partition for log in logs if log.partition is not None and log.topic == topic)
    least = 1 if topic == STATE_TOPIC else 2
    is_complete = all(log.source is None for log in logs) and numbers == list(range(len(logs)))
    return len(numbers) if len(numbers) >= least and is_complete else None


def infer_group_partition_count(
    logs: Sequence[LogPartition], places: Sequence[tuple[int | None, str]]
) -> int | None:
    """Number of partitions of `__consumer_offsets`; inferred like `infer_partition_count`.

    None if most groups are not in the partitions that this number implies: partitions are then missing.

    Args:
        logs: all log partitions in the input.
        places: (partition, group id) of every group in them.
    """
    count = infer_partition_count(logs, GROUP_TOPIC)
    matching = (
        sum(partition_for(group_id, count) == partition for partition, group_id in places) if count else 0
    )
    return count if 2 * matching > len(places) else None
