"""An export as commands, audits and Python calls read it: its logs, and the group side that goes with it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from share_state.errors import InputError
from share_state.fold.topics import Topics
from share_state.formats import AUTO, Asked, find, find_groups
from share_state.group_input import GroupInput, group_logs
from share_state.inputs import state_partitions_found
from share_state.live import ask_cluster
from share_state.live.address import is_live, live_input
from share_state.rules.groups_findings import listed
from share_state.wire.group_logs import GROUP_TOPIC, partitions_shown
from share_state.wire.log_folder import LogPartition
from share_state.work import Work


@dataclass(frozen=True, slots=True)
class Export:
    """What one export holds, files or a running cluster.

    Attributes:
        logs: log partitions of the state topic, or of the topics of control records.
        groups: partitions of `__consumer_offsets` that came with them.
        topics: names and end offsets, None where the export does not tell them.
        state_partitions: how many partitions the state topic has, None where the export does not say.
        group_partitions: the same of `__consumer_offsets`.
        notes: what a person should know, a line each.
    """

    logs: list[LogPartition]
    groups: tuple[LogPartition, ...] = ()
    topics: Topics | None = None
    state_partitions: int | None = None
    group_partitions: int | None = None
    notes: tuple[str, ...] = ()

    def work(self, topics: Topics | None = None, state_partitions: int | None = None) -> Work:
        """Every record of it, to be folded with the group side that came with it.

        Args:
            topics: names and end offsets that a person gave; they win over those that the export tells.
            state_partitions: how many partitions the state topic has, where the export does not say.
        """
        return Work(
            logs=self.logs,
            topics=topics or self.topics or Topics(),
            state_partitions=self.state_partitions or state_partitions or state_partitions_found(self.logs),
            groups=GroupInput(self.groups, self.group_partitions) if self.groups else None,
        )


def read_export(asked: Asked, form: str = AUTO, kafka_properties: str | None = None) -> Export:
    """Find what there is to fold.

    Args:
        asked: what is meant.
        form: one of FORMATS, kafka, or AUTO to look at the content.
        kafka_properties: of a cluster: path of a properties file, as Kafka's own tools take it with --command-config.
    Raises:
        InputError: if an input cannot be used, or is not of this form.
        ShareStateError: if there is no such form.
    """
    address = live_input(asked.inputs, form)
    if address is None:
        found = find(asked, form)
        return Export(found.logs, found.groups, notes=found.notes)
    live = ask_cluster(address, kafka_properties)
    return Export(list(live.logs), live.groups, live.topics, live.state_partitions, live.group_partitions)


def named_group_logs(asked: Asked, form: str = AUTO) -> tuple[LogPartition, ...]:
    """The partitions of `__consumer_offsets` in what a person named as the group side.

    Raises:
        InputError: if it is a cluster, cannot be read, holds no such log, or is not of this form.
    """
    for given in asked.inputs:
        if is_live(given):
            raise InputError(
                f"{given}: the groups of a cluster are read with its state, or they would be of a later time; "
                "give the cluster as the input"
            )
    return find_groups(asked, form)


def with_group_side(
    work: Work, inputs: Sequence[str], named: Asked | None = None, partitions: int | None = None
) -> Work:
    """Work with the group side that is named, that came with its logs, or that lies beside them.

    Args:
        work: the state side; what came with it is its group side already.
        inputs: as the person named them.
        named: where the group side is, None where nobody said.
        partitions: how many `__consumer_offsets` has, None where nobody said.
    Raises:
        InputError: if what is named cannot be used.
    """
    if named is not None:
        groups = GroupInput(named_group_logs(named), partitions)
    elif work.groups is not None:
        groups = replace(work.groups, partitions=partitions or work.groups.partitions)
    else:
        groups = GroupInput(group_logs(inputs, work.logs), partitions)
    return replace(work, groups=groups) if groups.logs else work


def told_of_partitions(groups: GroupInput | None) -> str | None:
    """What is left unsaid where nothing shows how many partitions `__consumer_offsets` has; None where all is well."""
    if groups is None or groups.partitions is not None or partitions_shown(groups.logs) is not None:
        return None
    numbers = listed(log.partition for log in groups.logs if log.partition is not None)
    found = f"found partition {numbers}" if numbers else "found records"
    return f"{GROUP_TOPIC}: {found}, not how many there are: a group without a record is not taken for gone"


def check_cut(logs: Sequence[LogPartition], by_offset: str | None = None, by_time: str | None = None) -> None:
    """Refuse to cut an export whose form does not tell where.

    Args:
        logs: the log partitions.
        by_offset: what the person calls a cut at offsets, None where none is asked for.
        by_time: the same of a cut at a time.
    Raises:
        InputError: if one is asked for and the form holds no offsets, or no timestamps.
    """
    for log in logs:
        form = log.source.form if log.source else ""
        if by_offset is not None and not log.has_offsets:
            raise InputError(f"{by_offset}: {form} holds no offsets; give segments or a table")
        if by_time is not None and not log.has_times:
            raise InputError(f"{by_time}: this {form} holds no timestamps; give segments or a table that has them")
