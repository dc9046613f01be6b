"""Finds the logs of `__consumer_offsets`, where the group coordinator keeps its groups."""

from collections.abc import Sequence

from share_state.wire.log_folder import LogPartition, Sought, log_partition, partition_of, segment_folders
from share_state.wire.places import Place

GROUP_TOPIC = "__consumer_offsets"

_GROUPS = Sought(lambda topic: topic == GROUP_TOPIC, GROUP_TOPIC, GROUP_TOPIC)


def find_group_logs(inputs: Sequence[str | Place]) -> list[LogPartition]:
    """The log partitions of `__consumer_offsets` that the inputs hold, by partition number.

    A folder that holds `__consumer_offsets-N` folders is read as one broker's log directory, as by `find_logs`.

    Args:
        inputs: paths of files or folders, or glob patterns; or places that were found already.
    Raises:
        InputError: if an input is missing, unreadable, empty, or holds no log of that topic.
    Source: Kafka LogManager (folder and file names), GroupCoordinatorService.
    """
    by_log: dict[tuple[int, str], list[tuple[Place, list[Place]]]] = {}
    for folder, files in segment_folders(inputs, _GROUPS).items():
        named = partition_of(folder, _GROUPS)
        identity = (named[1], "") if named else (-1, str(folder))
        by_log.setdefault(identity, []).append((folder, files))
    return [
        log_partition(GROUP_TOPIC, partition if partition >= 0 else None, copies)
        for (partition, _), copies in sorted(by_log.items())
    ]


def partitions_shown(logs: Sequence[LogPartition]) -> int | None:
    """How many partitions the topic seems to have, where the logs run from 0 without a gap; None where they do not.

    Only folders of segments show a partition that holds nothing: other forms do not tell. Nor does partition 0 alone,
    be it one of one or the first of 50.

    Args:
        logs: all that were found.
    """
    if any(log.source is not None for log in logs):
        return None
    numbers = sorted({log.partition for log in logs if log.partition is not None})
    return len(numbers) if len(numbers) > 1 and numbers == list(range(len(numbers))) else None


def group_partition_of(group_id: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that a group's records belong to.

    Args:
        group_id: the group.
        partitions: how many partitions the topic has.
    Source: Kafka GroupCoordinatorService.partitionFor; java.lang.String.hashCode, Utils.abs.
    """
    # Java hashes UTF-16 units: a character beyond U+FFFF counts as two.
    units = group_id.encode("utf-16-be")
    code = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    signed = code - 2**32 if code >= 2**31 else code
    return (0 if signed == -(2**31) else abs(signed)) % partitions
