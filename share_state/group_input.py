"""The group side of an input: the logs of `__consumer_offsets` that go with it, and how they are read."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from share_state.group_digest import digest_of_logs
from share_state.rules.groups_audited import GroupLimits
from share_state.wire.group_logs import GROUP_TOPIC, find_group_logs
from share_state.wire.log_folder import STATE_TOPIC, LogPartition
from share_state.wire.places import Place, place

HISTORY, LATEST = "history", "latest"
CLAIMS = (HISTORY, LATEST)
"""Which records of classic consumer groups are held against the rules: all that are left, or the latest of a group."""


@dataclass(frozen=True, slots=True)
class GroupInput:
    """The group side of an input, and how it is read.

    Attributes:
        logs: partitions of `__consumer_offsets`.
        partitions: how many the topic has, None where only the logs can tell.
        claims: one of CLAIMS.
        limits: what the groups are held against.
    """

    logs: tuple[LogPartition, ...]
    partitions: int | None = None
    claims: str = HISTORY
    limits: GroupLimits = field(default_factory=GroupLimits)

    def described(self) -> dict[str, str]:
        """What an audit compares to see whether anything is new: the same for the same bytes.

        Raises:
            InputError: if a file cannot be read.
        """
        return {"groups.digest": digest_of_logs(self.logs)}


def group_logs(inputs: Sequence[str], logs: Sequence[LogPartition]) -> tuple[LogPartition, ...]:
    """The partitions of `__consumer_offsets` that lie beside the logs of the state topic, as segments.

    They are taken only from folders that the inputs name or hold: who names a single
    `__share_group_state-N` gets that alone.

    Args:
        inputs: folders, files or globs, as the person named them.
        logs: what was found in them.
    Returns:
        By partition number; nothing where there is none.
    Raises:
        InputError: if one cannot be read.
    """
    paths = (segment.path for log in logs if log.topic == STATE_TOPIC for segment in log.segments)
    folders = {place(path).parent.parent for path in paths}
    beside = [
        found
        for folder in sorted(folders, key=str)
        if any(_is_in(folder, given) for given in inputs)
        for found in sorted(folder.glob(f"{GROUP_TOPIC}-*"))
        if any(found.glob("*.log"))
    ]
    return tuple(find_group_logs(beside)) if beside else ()


def _is_in(folder: Place, given: str) -> bool:
    """Whether a folder, or one above it, is what was named."""
    return folder.is_relative_to(given) or any(one.match(given) for one in (folder, *folder.parents))
