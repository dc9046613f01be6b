"""The forms of export that are read, each recognised by what its files hold."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from share_state.errors import InputError, ShareStateError
from share_state.inputs import logs_of
from share_state.table_input import HEAD, OpenSpark, data_files, is_table, table_logs
from share_state.wire.console_json import console_log, is_console_json
from share_state.wire.dump_text import dump_logs, is_dump_text
from share_state.wire.group_logs import GROUP_TOPIC, find_group_logs
from share_state.wire.log_folder import STATE_TOPIC, LogPartition
from share_state.wire.places import Place, head_of, places
from share_state.wire.table_rows import Columns

AUTO, SEGMENTS = "auto", "segments"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person named, and how.

    Attributes:
        inputs: paths and globs.
        dialect: of segments.
        columns: of tables.
        open_spark: gives a session where a form needs one to be found.
    """

    inputs: Sequence[str]
    dialect: str
    columns: Columns
    open_spark: OpenSpark


@dataclass(frozen=True, slots=True)
class Found:
    """What was found there.

    Attributes:
        logs: the log partitions.
        notes: what a person should know of them, a line each.
        groups: partitions of `__consumer_offsets` that are in the same tables or texts.
    """

    logs: list[LogPartition]
    notes: tuple[str, ...] = ()
    groups: tuple[LogPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """A form of export.

    Attributes:
        called: as a message calls it.
        begins: whether a file that begins with these bytes is of it.
        find: the log partitions of inputs of this form.
        find_groups: the partitions of `__consumer_offsets` of inputs of this form that hold them.
    """

    called: str
    begins: Callable[[bytes], bool]
    find: Callable[[Asked], Found]
    find_groups: Callable[[Asked], list[LogPartition]]


def _segments(asked: Asked) -> Found:
    return Found(logs_of(asked.inputs, asked.dialect))


def _groups_in_segments(asked: Asked) -> list[LogPartition]:
    return find_group_logs(asked.inputs)


def _table(asked: Asked) -> Found:
    logs, others = table_logs(asked.inputs, asked.columns, asked.open_spark, (STATE_TOPIC, GROUP_TOPIC))
    return _with_groups(logs, _passed_over(others, "rows"))


def _groups_in_table(asked: Asked) -> list[LogPartition]:
    return table_logs(asked.inputs, asked.columns, asked.open_spark, (GROUP_TOPIC,))[0]


def _with_groups(logs: Sequence[LogPartition], notes: tuple[str, ...]) -> Found:
    of_groups = [log for log in logs if log.topic == GROUP_TOPIC]
    return Found([log for log in logs if log.topic != GROUP_TOPIC], notes, tuple(of_groups))


def _console_json(asked: Asked) -> Found:
    note = (
        "this form holds no offsets, partitions or timestamps: columns that need them are null, and no cutoff is told"
    )
    return Found([console_log(_files(asked.inputs, is_console_json))], (note,))


def _groups_in_console_json(asked: Asked) -> list[LogPartition]:
    return [console_log(_files(asked.inputs, is_console_json), GROUP_TOPIC)]


def _dump_log(asked: Asked) -> Found:
    logs, others = dump_logs(_files(asked.inputs, is_dump_text), (STATE_TOPIC, GROUP_TOPIC))
    return _with_groups(logs, _passed_over(others, "dumps"))


def _groups_in_dump(asked: Asked) -> list[LogPartition]:
    return dump_logs(_files(asked.inputs, is_dump_text), (GROUP_TOPIC,))[0]


def _passed_over(others: set[str], what: str) -> tuple[str, ...]:
    names = ", ".join(sorted(others)[:5])
    return (f"{what} of other topics are passed over: {names}",) if others else ()


FORMATS: Mapping[str, Format] = {
    "table": Format("a table of keys and values", is_table, _table, _groups_in_table),
    "dump-log": Format("the text of kafka-dump-log", is_dump_text, _dump_log, _groups_in_dump),
    "console-json": Format("the JSON of the console consumer", is_console_json, _console_json, _groups_in_console_json),
    SEGMENTS: Format(
        "segments of a log", lambda head: len(head) > 16 and head[16] in (0, 1, 2), _segments, _groups_in_segments
    ),
}
"""Every form by the name that `--format` takes; a file is of the first that knows its beginning."""


def find(asked: Asked, form: str) -> Found:
    """The log partitions that the inputs hold.

    Args:
        asked: what is meant.
        form: one of FORMATS, or AUTO to look at the content.
    Raises:
        InputError: if an input is not of this form, or AUTO sees several.
        ShareStateError: if there is no such form.
    """
    chosen = _chosen(asked.inputs, form)
    found = FORMATS[chosen].find(asked)
    if form == AUTO and chosen != SEGMENTS:
        told = f"taken for {FORMATS[chosen].called} (--format {chosen})"
        return replace(found, notes=(told, *found.notes))
    return found


def find_groups(asked: Asked, form: str = AUTO) -> tuple[LogPartition, ...]:
    """The partitions of `__consumer_offsets` that the inputs hold.

    Args:
        asked: what is meant.
        form: one of FORMATS, or AUTO to look at the content.
    Raises:
        InputError: if an input cannot be read, holds no such log, or is of another form.
        ShareStateError: if there is no such form.
    """
    return tuple(FORMATS[_chosen(asked.inputs, form)].find_groups(asked))


def _chosen(inputs: Sequence[str], form: str) -> str:
    if form not in (AUTO, *FORMATS):
        raise ShareStateError(f"--format {form}: give one of {', '.join((AUTO, *FORMATS))}")
    return recognised(inputs) if form == AUTO else form


def recognised(inputs: Sequence[str]) -> str:
    """The form of the inputs, by their content; SEGMENTS where nothing is known, so that its reader says what is wrong.

    Raises:
        InputError: if two of them are of different forms.
    """
    seen: dict[str, str] = {}
    for given in inputs:
        for path in _places(given):
            form = _form_of(path)
            if form is not None:
                seen.setdefault(form, str(path))
    if len(seen) > 1:
        (one, of_one), (other, of_other) = list(seen.items())[:2]
        raise InputError(f"{of_one} is {FORMATS[one].called}, {of_other} is {FORMATS[other].called}; give one form")
    return next(iter(seen), SEGMENTS)


def _files(inputs: Sequence[str], begins: Callable[[bytes], bool]) -> list[Place]:
    """The files that the inputs name, and those of this form in folders.

    Raises:
        InputError: if there are none.
    """
    found = []
    for given in inputs:
        named = _places(given)
        if not named:
            raise InputError(f"{given}: no such file or folder; give a text, or a folder of texts")
        for one in named:
            found += [one] if one.is_file() else [file for file in data_files(one) if begins(head_of(file, HEAD))]
    if not found:
        raise InputError(f"{inputs[0]}: no text of this form in this folder; give the files")
    return found


def _places(given: str) -> list[Place]:
    try:
        return places(given)
    except OSError:
        return []


def _form_of(path: Place) -> str | None:
    try:
        if path.is_dir():
            if (path / "_delta_log").is_dir():
                return "table"
            if next(path.rglob("*.log"), None) is not None:
                return SEGMENTS
        for file in data_files(path):
            head = head_of(file, HEAD)
            for name, form in FORMATS.items():
                if form.begins(head):
                    return name
            break
    except OSError:
        return None
    return None
