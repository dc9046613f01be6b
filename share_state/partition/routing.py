"""Which partition of `__share_group_state` keeps a share-partition, for one key at a time."""

import struct

from share_state.partition.state_records import StateKey


def state_partition_of(key: StateKey, state_partitions: int) -> int:
    """The partition of the state topic that the records of a key go to.

    Args:
        key: of the share-partition.
        state_partitions: how many partitions the state topic has.
    Source: Kafka StateKey.asCoordinatorKey, Utils.abs, ShareCoordinatorService.partitionFor.
    """
    code = java_hash(f"{key.group_id}:{key.topic_id}:{key.partition}")
    return (0 if code == -(2**31) else abs(code)) % state_partitions


def java_hash(text: str) -> int:
    """Java's String.hashCode: an int32 over the UTF-16 units."""
    data = text.encode("utf-16-be")
    code = 0
    for unit in struct.unpack(f">{len(data) // 2}H", data):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - 2**32 if code >= 2**31 else code
