"""The work that options describe: what is found in the inputs, up to which record, and how it is folded."""

import sys
from collections.abc import Sequence
from dataclasses import replace

from share_state.commands.options import Folding, GroupSide, Reading, Running, pairs
from share_state.early_session import early_session
from share_state.errors import InputError, ShareStateError
from share_state.exports import check_cut, read_export, told_of_partitions, with_group_side
from share_state.fold.control_log import MODES, ControlOptions
from share_state.formats import Asked
from share_state.group_side import read_groups
from share_state.inputs import DIALECTS
from share_state.topics_file import read_topics
from share_state.wire.as_of import milliseconds
from share_state.wire.log_folder import LogPartition, Window
from share_state.wire.table_rows import Columns
from share_state.work import Work


def work_of(
    inputs: Sequence[str], reading: Reading, folding: Folding | None = None, running: Running | None = None
) -> Work:
    """The work that the options describe; says on stderr what a person should know of the inputs.

    Args:
        inputs: as the person named them.
        reading: what they are, and which of their records count.
        folding: how they are folded; as by default where a command does not ask.
        running: of a session that puts tables in order which need it.
    Raises:
        ShareStateError: if an option or an input cannot be used.
    """
    folding = folding or Folding()
    if reading.dialect not in DIALECTS:
        raise ShareStateError(f"--dialect {reading.dialect}: give one of {', '.join(DIALECTS)}")
    if folding.mode not in MODES:
        raise ShareStateError(f"--mode {folding.mode}: give one of {', '.join(MODES)}")
    until_time = _milliseconds(reading.as_of_time)
    topics = None if reading.topics is None else read_topics(reading.topics)
    export = read_export(_asked(inputs, reading, running or Running()), reading.format, reading.kafka_properties)
    for note in export.notes:
        sys.stderr.write(f"share-state: {' '.join(inputs)}: {note}\n")
    logs = export.logs
    check_cut(
        logs,
        by_offset="--as-of-offset" if reading.as_of_offset else None,
        by_time=None if reading.as_of_time is None else "--as-of-time",
    )
    cuts = _cuts(reading.as_of_offset, logs)
    return replace(
        export.work(topics, folding.state_partitions),
        windows={name: Window(until_offset=offset, until_time_ms=until_time) for name, offset in cuts.items()},
        window=Window(until_time_ms=until_time),
        control=ControlOptions(mode=folding.mode),
    )


def with_groups(
    work: Work, inputs: Sequence[str], side: GroupSide, reading: Reading | None = None, running: Running | None = None
) -> Work:
    """Work with the group side that is named, that came with its logs, or that lies beside them.

    Says on stderr where it does not show how many partitions `__consumer_offsets` has.

    Args:
        work: the state side.
        inputs: as the person named them.
        side: where the groups are told.
        reading: what the columns of tables that are named are called.
        running: of a session that puts tables in order which are named and need it.
    Raises:
        InputError: if what is named cannot be used.
    """
    named = _asked(side.groups, reading or Reading(), running or Running()) if side.groups else None
    work = with_group_side(work, inputs, named, side.group_partitions)
    if (told := told_of_partitions(work.groups)) is not None:
        sys.stderr.write(f"share-state: {told}; say --group-partitions N\n")
    return work


def named_by_groups(work: Work, inputs: Sequence[str]) -> Work:
    """Work with the topic names that the group side tells, as the tables have them.

    Raises:
        InputError: if a segment of it cannot be read.
    """
    return read_groups(with_group_side(work, inputs))[1]


def _asked(inputs: Sequence[str], reading: Reading, running: Running) -> Asked:
    columns, where = Columns.named(pairs(reading.column, "--column")), running.where
    return Asked(inputs, reading.dialect, columns, lambda: early_session(where))


def _cuts(as_of_offset: Sequence[str] | None, logs: Sequence[LogPartition]) -> dict[str, int]:
    """Name of a log partition -> offset; a bare number names every log partition of that number."""
    cuts = {}
    for given, offset in pairs(as_of_offset, "--as-of-offset").items():
        named = [log.name for log in logs if given in (log.name, str(log.partition))]
        if not offset.isdecimal():
            raise ShareStateError(f"--as-of-offset {given}={offset}: give a partition and an offset, as in 3=12000")
        if not named:
            raise InputError(f"--as-of-offset {given}={offset}: partition {given} is not in the input")
        cuts |= dict.fromkeys(named, int(offset))
    return cuts


def _milliseconds(as_of_time: str | None) -> int | None:
    try:
        return None if as_of_time is None else milliseconds(as_of_time)
    except InputError:
        raise ShareStateError(f"--as-of-time {as_of_time}: give a time as in 2026-11-21T02:10:00Z") from None
