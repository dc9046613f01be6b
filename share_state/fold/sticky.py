"""Folds classic consumer groups into what their members claim and what those claims amount to (KIP-341)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from share_state.declarations import table_schema
from share_state.fold.groups import FoldedGroups
from share_state.fold.groups_met import Generation, GroupFault
from share_state.fold.sticky_claims import GroupGeneration, read_generation
from share_state.fold.sticky_resolution import Resolved, resolve
from share_state.wire.group_records import GroupRecordError
from share_state.wire.subscription import ABSENT


@dataclass(frozen=True, slots=True)
class FoldedSticky:
    """The generations of classic consumer groups, read.

    Attributes:
        generations: by group and offset; of groups of a sticky assignor every record that was kept, in history mode,
            else the latest one a group; of other groups the latest.
        resolved: of each generation of a sticky assignor, by (group, offset of the record), who had which partition.
        sizes: topic -> number of partitions, as far as known; None for not at all.
        is_history: whether earlier records of a group are among them.
        faults: records that cannot be read.
    """

    generations: tuple[GroupGeneration, ...]
    resolved: dict[tuple[str, int], list[Resolved]]
    sizes: Mapping[str, int] | None
    is_history: bool
    faults: tuple[GroupFault, ...]

    @property
    def sticky(self) -> list[GroupGeneration]:
        """Those whose assignor is a sticky one."""
        return [generation for generation in self.generations if generation.is_sticky]

    @property
    def sticky_claim(self) -> pa.Table:
        """The table of that name."""
        return _table("sticky_claim", (row for generation in self.sticky for row in _claims(generation)))

    @property
    def effective_previous_assignment(self) -> pa.Table:
        """The table of that name."""
        return _table("effective_previous_assignment", (
            {
                "group_id": generation.group_id,
                "record_offset": generation.offset,
                "group_generation": generation.generation,
                "topic": one.topic,
                "partition": one.partition,
                "owner": one.owner,
                "owner_generation": one.generation,
                "status": one.status,
                "other_claims": [
                    {"member_id": claim.member_id, "claim_generation": told(claim.generation)}
                    for claim in one.losing
                ],
                "kafka_order_dependent": one.is_order_dependent,
                "group_partition": generation.partition,
            }
            for generation in self.sticky
            for one in self.resolved[generation.group_id, generation.offset]
        ))  # fmt: skip


def fold_sticky(folded: FoldedGroups, sizes: Mapping[str, int] | None = None, *, history: bool = False) -> FoldedSticky:
    """Read the classic groups that `fold_groups` kept, and resolve the claims of their members.

    Args:
        folded: with its classic groups.
        sizes: topic name -> number of partitions, where known.
        history: read every record of sticky groups instead of the latest one a group.
    Source: KIP-341.
    """
    records = {(one.group_id, one.partition, one.offset): one for one in folded.classic.values()}
    if history:
        records |= {(one.group_id, one.partition, one.offset): one for one in folded.sticky}
    generations: list[GroupGeneration] = []
    faults: list[GroupFault] = []
    for _, record in sorted(records.items(), key=lambda item: (item[0][0], item[0][2])):
        read = _read(record, faults)
        if read and read.members and (read.is_sticky or record is folded.classic.get(record.group_id)):
            generations.append(read)
    resolved = {
        (generation.group_id, generation.offset): resolve(generation, sizes)
        for generation in generations
        if generation.is_sticky
    }
    return FoldedSticky(tuple(generations), resolved, sizes, history, tuple(faults))


def _read(record: Generation, faults: list[GroupFault]) -> GroupGeneration | None:
    try:
        return read_generation(record)
    except GroupRecordError as error:
        faults.append(GroupFault(error.code, record.partition, record.offset, str(error), record.group_id))
        return None


def _claims(generation: GroupGeneration) -> Iterable[dict[str, Any]]:
    for member in generation.members:
        for topic, partition in member.told.claims:
            yield {
                "group_id": generation.group_id,
                "record_offset": generation.offset,
                "group_generation": generation.generation,
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "subscription_version": member.subscription.version if member.subscription else None,
                "subscription_generation": member.subscription_generation,
                "userdata_version": member.told.version,
                "claim_generation": told(member.generation),
                "topic": topic,
                "partition": partition,
                "group_partition": generation.partition,
                "protocol": generation.protocol,
            }


def told(generation: int) -> int | None:
    """A generation, None where it is absent."""
    return None if generation == ABSENT else generation


def _table(name: str, rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=table_schema(name))
