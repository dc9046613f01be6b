"""What a fold gives."""

from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

RESULTS = ("share_partition_state", "in_flight", "findings", "cutoff")


@dataclass(frozen=True, slots=True, repr=False)
class Tables:
    """What a fold gives: Arrow tables, or Spark DataFrames where a session was given.

    Attributes:
        share_partition_state: one row a live share-partition.
        in_flight: one row a range of offsets between SPSO and SPEO; they tile it.
        findings: one row a broken rule.
        cutoff: one row a log partition.
        share_groups: one row a share group; None, as those below, where the input has no group side.
        share_group_members: one row a member.
        share_group_partitions: one row a share-partition that a group lists.
        sticky_claim: one row a partition that a member of a classic consumer group claims; None where none does.
        effective_previous_assignment: one row such a partition, with who had it; None where there is no claim.
    """

    share_partition_state: Any
    in_flight: Any
    findings: Any
    cutoff: Any
    share_groups: Any = None
    share_group_members: Any = None
    share_group_partitions: Any = None
    sticky_claim: Any = None
    effective_previous_assignment: Any = None

    def __repr__(self) -> str:
        tables = {one.name: getattr(self, one.name) for one in fields(self)}
        sizes = (
            f"{name}: {len(t):,} rows" if isinstance(t, pa.Table) else f"{name}: {t}"
            for name, t in tables.items()
            if t is not None
        )
        return f"Tables({', '.join(sizes)})"
