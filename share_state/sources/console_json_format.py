"""The format `console-json`: JSON of the console consumer, which `console_text` reads."""

from share_state.sources.console_text import console_log, is_console_json
from share_state.sources.export_files import text_files
from share_state.sources.formats import ExportPaths, Format
from share_state.sources.log_partition import GROUP_TOPIC, Export


def _find_console_json(given: ExportPaths) -> Export:
    note = (
        "this format has no offsets, partitions or timestamps: columns that need them are null, and no cutoff"
    )
    return Export([console_log(text_files(given.paths, is_console_json))], notes=(note,))


FORMAT = Format(
    "the JSON of the console consumer",
    is_console_json,
    _find_console_json,
    lambda export: [console_log(text_files(export.paths, is_console_json), GROUP_TOPIC)],
)
