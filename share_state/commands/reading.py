"""The work that options describe: what is found in the inputs, up to which record, and how it is folded."""

import sys
from collections.abc import Sequence
from dataclasses import replace

from share_state.commands.options import LOCAL, Folding, GroupSide, Reading, Running, pairs
from share_state.early_session import early_session
from share_state.errors import InputError, ShareStateError
from share_state.fold.control_log import MODES, ControlOptions
from share_state.formats import Asked, find, find_groups
from share_state.group_input import GroupInput, group_logs
from share_state.group_side import read_groups
from share_state.inputs import DIALECTS, state_partitions_found
from share_state.live import ask_cluster
from share_state.live.address import live_input
from share_state.rules.groups_findings import listed
from share_state.topics_file import read_topics
from share_state.wire.as_of import milliseconds
from share_state.wire.group_logs import GROUP_TOPIC, partitions_shown
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
    until_time, state_partitions = _milliseconds(reading.as_of_time), folding.state_partitions
    topics = read_topics(reading.topics)
    asked = _asked(inputs, reading, running or Running())
    if (address := live_input(inputs, reading.format)) is not None:
        live = ask_cluster(address, reading.kafka_properties)
        logs, state_partitions = list(live.logs), live.state_partitions
        topics = topics if reading.topics else live.topics
        groups = GroupInput(live.groups, live.group_partitions) if live.groups else None
    else:
        found = find(asked, reading.format)
        logs = found.logs
        groups = GroupInput(found.groups) if found.groups else None
        for note in found.notes:
            sys.stderr.write(f"share-state: {' '.join(inputs)}: {note}\n")
    _check_as_of(logs, reading)
    cuts = _cuts(reading.as_of_offset, logs)
    return Work(
        logs=logs,
        windows={name: Window(until_offset=offset, until_time_ms=until_time) for name, offset in cuts.items()},
        window=Window(until_time_ms=until_time),
        topics=topics,
        state_partitions=state_partitions or state_partitions_found(logs),
        control=ControlOptions(mode=folding.mode),
        groups=groups,
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
    if side.groups:
        asked = _asked(side.groups, reading or Reading(), running or Running())
        groups = GroupInput(find_groups(asked), side.group_partitions)
    elif work.groups is not None:
        groups = replace(work.groups, partitions=side.group_partitions or work.groups.partitions)
    else:
        groups = GroupInput(group_logs(inputs, work.logs, ()), side.group_partitions)
    if groups.logs and groups.partitions is None and partitions_shown(groups.logs) is None:
        sys.stderr.write(
            f"share-state: {GROUP_TOPIC}: {_found(groups.logs)}, not how many there are: a group without a record is"
            " not taken for gone; say --group-partitions N\n"
        )
    return replace(work, groups=groups) if groups.logs else work


def named_by_groups(work: Work, inputs: Sequence[str]) -> Work:
    """Work with the topic names that the group side tells, as the tables have them.

    Raises:
        InputError: if a segment of it cannot be read.
    """
    if work.groups is None:
        logs = group_logs(inputs, work.logs, ())
        work = replace(work, groups=GroupInput(logs)) if logs else work
    return read_groups(work)[1]


def _asked(inputs: Sequence[str], reading: Reading, running: Running) -> Asked:
    conf, columns = pairs(running.spark_conf), Columns.named(pairs(reading.column, "--column"))
    return Asked(inputs, reading.dialect, columns, lambda: early_session(running.master or LOCAL, conf))


def _found(logs: Sequence[LogPartition]) -> str:
    numbers = listed(log.partition for log in logs if log.partition is not None)
    return f"found partition {numbers}" if numbers else "found records"


def _check_as_of(logs: Sequence[LogPartition], reading: Reading) -> None:
    """Refuse to cut where the form of the export does not tell where."""
    for log in logs:
        form = log.source.form if log.source else ""
        if reading.as_of_offset and not log.has_offsets:
            raise InputError(f"--as-of-offset: {form} holds no offsets; give segments or a table")
        if reading.as_of_time and not log.has_times:
            raise InputError(f"--as-of-time: this {form} holds no timestamps; give segments or a table that has them")


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
