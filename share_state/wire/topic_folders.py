"""Finds the logs of ordinary topics, amid whose user data the draft's control records lie."""

from collections.abc import Sequence

from share_state.errors import InputError
from share_state.wire.log_folder import LogPartition, Sought, log_partition, partition_of, segment_folders
from share_state.wire.places import Place

INTERNAL = "__"
"""Topics whose names begin so are Kafka's own: control records of type 5 and 6 mean other things there."""

_ORDINARY = Sought(lambda topic: not topic.startswith(INTERNAL), "an ordinary topic", "<topic>")


def find_topic_logs(inputs: Sequence[str]) -> list[LogPartition]:
    """The log partitions of ordinary topics that the inputs hold, by topic and partition.

    A folder that holds `<topic>-N` folders is read as one broker's log directory, as by `find_logs`; those of Kafka's
    own topics (`__cluster_metadata`, `__consumer_offsets`, ...) are passed over.

    Args:
        inputs: paths of files or folders, or glob patterns.
    Raises:
        InputError: if an input is missing, unreadable, empty, or holds no log of an ordinary topic.
    Source: Kafka LogManager (folder and file names), log-start-offset-checkpoint; spec C-02.
    """
    by_log: dict[tuple[str, int], list[tuple[Place, list[Place]]]] = {}
    for folder, files in segment_folders(inputs, _ORDINARY).items():
        named = partition_of(folder, _ORDINARY)
        if named is None:
            raise InputError(f"{folder}: its name tells no ordinary topic; keep segments in their <topic>-N folder")
        by_log.setdefault(named, []).append((folder, files))
    return [log_partition(*named, copies) for named, copies in sorted(by_log.items())]
