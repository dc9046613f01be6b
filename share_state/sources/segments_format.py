"""The format `segments`: folders and `.log` files of brokers, which `segments` reads."""

from share_state.sources.discovery import find_group_logs, find_logs_of_dialect
from share_state.sources.formats import ExportPaths, Format
from share_state.sources.log_partition import Export, LogPartition, Segment
from share_state.sources.segments import check_loose_segments, without_obsolete_copies
from share_state.stores.paths import to_path


def _find_segments(given: ExportPaths) -> Export:
    found = find_logs_of_dialect(given.paths, given.dialect)
    for log in found:
        check_loose_segments(log)
    logs = [without_obsolete_copies(log) for log in found]
    left_out = [
        str(to_path(segment.path).parent)
        for log, kept in zip(found, logs, strict=True)
        if kept is not log
        for segment in _segments_without(log, kept)
    ]
    folders = list(dict.fromkeys(left_out))
    more = f" and {len(folders) - 1} more" if len(folders) > 1 else ""
    note = "obsolete copies are left out, as they end before the log start of another copy"
    return Export(logs, notes=(f"{note}: {folders[0]}{more}",) if folders else ())


def _segments_without(log: LogPartition, kept: LogPartition) -> list[Segment]:
    """The segments of a log that another form of it lacks."""
    remaining = set(kept.segments)
    return [segment for segment in log.segments if segment not in remaining]


FORMAT = Format(
    "segments of a log",
    lambda head: len(head) > 16 and head[16] in (0, 1, 2),
    _find_segments,
    lambda export: find_group_logs(export.paths),
)
