"""Finds the log partitions in what a person names, of either dialect."""

from collections.abc import Sequence

from share_state.errors import InputError
from share_state.wire.log_folder import STATE_TOPIC, LogPartition, find_logs
from share_state.wire.topic_folders import find_topic_logs

AUTO = "auto"
DIALECTS = (AUTO, "share_group_state", "control_records")


def logs_of(inputs: Sequence[str], dialect: str) -> list[LogPartition]:
    """The state topic's logs where there are any; else those of ordinary topics, for the draft's control records.

    Args:
        inputs: folders, files or globs.
        dialect: one of DIALECTS.
    Raises:
        InputError: if an input is missing, unreadable or holds no such log.
    """
    if dialect == "control_records":
        return find_topic_logs(inputs)
    try:
        return find_logs(inputs)
    except InputError as no_state_topic:
        if dialect != AUTO:
            raise
        try:
            return find_topic_logs(inputs)
        except InputError:
            raise no_state_topic from None


def state_partitions_found(logs: Sequence[LogPartition]) -> int | None:
    """How many partitions the state topic has, where the logs run from 0 without a gap; None where they do not.

    Only folders of segments show a log partition that holds nothing: other forms do not tell.
    """
    if any(log.source is not None for log in logs):
        return None
    numbers = sorted(log.partition for log in logs if log.partition is not None and log.topic == STATE_TOPIC)
    return len(numbers) if numbers and numbers == list(range(len(logs))) else None
