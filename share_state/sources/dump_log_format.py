"""The format `dump-log`: text of kafka-dump-log, which `dump_text` reads."""

from collections.abc import Sequence

from share_state.sources.dump_text import dump_logs, is_dump_text
from share_state.sources.export_files import text_files
from share_state.sources.formats import ExportPaths, Format, SortedLogs, find_by_topic
from share_state.sources.log_partition import GROUP_TOPIC


def _find_dump_logs(given: ExportPaths, topics: Sequence[str]) -> SortedLogs:
    return dump_logs(text_files(given.paths, is_dump_text), topics)


FORMAT = Format(
    "the text of kafka-dump-log",
    is_dump_text,
    lambda export: find_by_topic(_find_dump_logs, "dumps", export),
    lambda export: _find_dump_logs(export, (GROUP_TOPIC,))[0],
)
