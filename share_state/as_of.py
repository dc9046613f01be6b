"""`as_of=` over several log partitions: a moment for all of them, or an offset for each."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from share_state.errors import InputError, ShareStateError
from share_state.wire.as_of import as_of_window
from share_state.wire.log_folder import LogPartition, Window

AsOf = datetime | str | Mapping[int | str, int]
"""A moment or its ISO 8601 text (UTC unless it says), or log partition (number or name) -> first offset left out."""


def windows(as_of: AsOf | None, logs: Sequence[LogPartition]) -> tuple[Window, dict[str, Window]]:
    """Which records count as of a moment.

    Args:
        as_of: records stamped later, or from these offsets on, are left out; None for none.
        logs: the log partitions.
    Returns:
        The window of every log partition, and name -> window of those that have their own.
    Raises:
        ShareStateError: if it is neither a moment nor offsets.
        InputError: if a text is no moment, or it names a log partition that is not there.
    """
    if as_of is None or isinstance(as_of, datetime | str):
        return as_of_window(as_of), {}
    if not isinstance(as_of, Mapping):
        raise ShareStateError(f"as_of={as_of!r}: give a datetime, its text, or offsets as in {{3: 12000}}")
    cuts = {}
    for given, offset in as_of.items():
        if not isinstance(offset, int) or isinstance(offset, bool):
            raise ShareStateError(f"as_of={as_of!r}: give a log partition and an offset, as in {{3: 12000}}")
        named = [log.name for log in logs if str(given) in (log.name, str(log.partition))]
        if not named:
            raise InputError(f"as_of={as_of!r}: log partition {given} is not in the input")
        cuts |= dict.fromkeys(named, as_of_window(offset))
    return Window(), cuts
