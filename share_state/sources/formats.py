"""The formats of exports. Each is a module of this package, named after it: `table_format` has the format `table`.

Such a module has `FORMAT`, a `Format`. Its name is enough for `--format`: modules are imported when a format is used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Protocol

import share_state.sources as package
from share_state.sources.log_partition import GROUP_TOPIC, STATE_TOPIC, Export, LogPartition

if TYPE_CHECKING:
    from share_state.sources.record_tables import Columns

AUTO, SEGMENTS = "auto", "segments"

SortedLogs = tuple[list[LogPartition], set[str]]
"""Log partitions, and the topics whose rows are left out."""


class RowSorter(Protocol):
    """Sorts rows by log partition and offset. Spark does this; it is passed in, so that this package needs no Spark."""

    def sort_tables(
        self, tables: Sequence[tuple[str, str]], columns: "Columns", name: str, topics: Sequence[str]
    ) -> SortedLogs:
        """Sort tables as one, given by format (parquet, delta or json) and path; messages call them `name`."""
        ...

    def sort_frame(self, frame: Any, columns: "Columns", topics: Sequence[str]) -> SortedLogs:
        """Sort the rows of a DataFrame of Spark."""
        ...


@dataclass(frozen=True, slots=True)
class ExportPaths:
    """Paths that are read as one export.

    Attributes:
        paths: files, folders and globs.
        dialect: the dialect of segments.
        columns: for tables: name in Spark's Kafka source -> name in the table.
        sorter: None if Spark must not be started.
    """

    paths: Sequence[str]
    dialect: str = AUTO
    columns: Mapping[Any, str] = field(default_factory=dict)
    sorter: RowSorter | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """A format of exports.

    Attributes:
        label: its name in messages.
        matches: whether a file that begins with these bytes has it.
        find: finds the log partitions of paths of this format.
        find_groups: finds the partitions of `__consumer_offsets` alone.
    """

    label: str
    matches: Callable[[bytes], bool]
    find: Callable[[ExportPaths], Export]
    find_groups: Callable[[ExportPaths], list[LogPartition]]


_SUFFIX = "_format"


@cache
def format_names() -> tuple[str, ...]:
    """The names of all formats, as `--format` takes them."""
    modules = (module.name for module in iter_modules(package.__path__))
    return tuple(name.removesuffix(_SUFFIX).replace("_", "-") for name in modules if name.endswith(_SUFFIX))


@cache
def format_of(name: str) -> Format:
    """The format of this name."""
    return import_module(f"{package.__name__}.{name.replace('-', '_')}{_SUFFIX}").FORMAT


def recognize(head: bytes) -> str | None:
    """The first format that a file which begins with these bytes may have; None if there is none.

    Segments begin with numbers, so that other files may look like them: they are tried last.
    """
    names = sorted(format_names(), key=lambda name: name == SEGMENTS)
    return next((name for name in names if format_of(name).matches(head)), None)


def split_topics(logs: Sequence[LogPartition], notes: tuple[str, ...] = ()) -> Export:
    """Logs of both topics as an export."""
    groups = [log for log in logs if log.topic == GROUP_TOPIC]
    return Export([log for log in logs if log.topic != GROUP_TOPIC], tuple(groups), notes)


def find_by_topic(
    find: Callable[[ExportPaths, Sequence[str]], SortedLogs], what: str, given: ExportPaths
) -> Export:
    """The logs of both topics; a note names the other topics, whose `what` are skipped."""
    logs, others = find(given, (STATE_TOPIC, GROUP_TOPIC))
    names = ", ".join(sorted(others)[:5])
    return split_topics(logs, (f"{what} of other topics are skipped: {names}",) if others else ())
