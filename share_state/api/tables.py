"""What a fold gives."""

from dataclasses import dataclass
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
    """

    share_partition_state: Any
    in_flight: Any
    findings: Any
    cutoff: Any

    def __repr__(self) -> str:
        tables = {name: getattr(self, name) for name in RESULTS}
        sizes = (
            f"{name}: {len(t):,} rows" if isinstance(t, pa.Table) else f"{name}: {t}" for name, t in tables.items()
        )
        return f"Tables({', '.join(sizes)})"
