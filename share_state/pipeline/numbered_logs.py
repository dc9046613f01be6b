"""State partitions whose folder is not named after them: their numbers, where the keys show them.

`numbered_logs` is the one place that finds them. What goes on from one run to the next knows a log by its number,
and refuses one without (`check_numbered`); every other command reads it without a number.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from share_state.errors import InputError
from share_state.fold.state_log import decode_log
from share_state.kafka.share_partition_keys import KeyTable
from share_state.sources.as_of import Window
from share_state.sources.discovery import is_segment_name
from share_state.sources.log_partition import STATE_TOPIC, LogPartition, join_copies
from share_state.sources.partition_count import PartitionCount
from share_state.sources.segments import without_obsolete_copies
from share_state.stores.paths import to_path


def numbered_logs(logs: Sequence[LogPartition], count: PartitionCount) -> list[LogPartition]:
    """The logs, those without a number with the one that all their keys hash to, if they do.

    Args:
        logs: the log partitions in the input.
        count: how many state partitions there are.
    Raises:
        InputError: if a segment cannot be read.
    Source: Kafka SharePartitionKey, ShareCoordinatorService.partitionFor.
    """
    if all(log.partition is not None for log in logs) or count.number is None or count.is_inferred:
        return [*logs]
    numbered = dict[str, LogPartition]()
    for log in logs:
        copy = log
        if _is_unnumbered(log):
            keys = next((keys for _, keys in decode_log(log, Window()) if len(keys)), KeyTable())
            numbers = np.unique(keys.coordinator_hashes() % count.number)
            copy = replace(log, partition=int(numbers[0])) if len(numbers) == 1 else log
        same = numbered.get(copy.name)
        numbered[copy.name] = copy if same is None else without_obsolete_copies(join_copies(same, copy))
    return list(numbered.values())


def check_numbered(logs: Sequence[LogPartition], count: PartitionCount) -> None:
    """Refuse a log of segments without a number.

    Args:
        logs, count: as for `numbered_logs`, which has numbered them.
    Raises:
        InputError: naming the first.
    """
    for log in filter(_is_unnumbered, logs):
        is_known = count.number is not None and not count.is_inferred
        why = "--state-partitions is not given"
        if is_known:
            why = f"its keys do not belong to one of {count.number}"
        file = to_path(log.segments[0].path)
        name = log.name if is_segment_name(file.name) else file
        raise InputError(
            f"{name}: the name does not show which partition it is, and {why}; "
            f"name the folder {STATE_TOPIC}-N"
        )


def _is_unnumbered(log: LogPartition) -> bool:
    return log.partition is None and log.source is None and log.topic == STATE_TOPIC
