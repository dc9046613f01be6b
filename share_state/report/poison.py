"""Poison records: offsets that every delivery fails on."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.committed import CommittedTables
from share_state.fold.limits import Limits
from share_state.fold.ranges import ARCHIVED
from share_state.report.identity import KEY

_COLUMNS = (*KEY, "first_offset", "last_offset", "record_count", "state", "delivery_count")
_ORDER = [("delivery_count", "descending"), *((name, "ascending") for name in (*KEY, "first_offset"))]


@dataclass(frozen=True, slots=True)
class PoisonRecords:
    """Offsets at or one below the delivery limit, or archived by it.

    Attributes:
        records: how many in all.
        ranges: how many ranges they make.
        worst: some of these, delivered most often first: key columns, first_offset, last_offset, record_count,
            state, delivery_count.
    """

    records: int
    ranges: int
    worst: tuple[dict[str, Any], ...]


def poison_records(tables: CommittedTables, limits: Limits, most: int) -> PoisonRecords:
    """Look for poison records in all in-flight ranges.

    Args:
        tables: of the warehouse.
        limits: for the delivery count limit.
        most: ranges to name.
    Returns:
        The number of all of them, and the worst.
    Raises:
        WarehouseError: if the table is gone.
    """
    records = ranges = 0
    worst: pa.Table | None = None
    for piece in tables.batches("in_flight", _COLUMNS, is_poison(limits)):
        records += pc.sum(piece["record_count"]).as_py()
        ranges += piece.num_rows
        together = piece if worst is None else pa.concat_tables([worst, piece])
        worst = together.sort_by(_ORDER).slice(0, most).combine_chunks()
    return PoisonRecords(records, ranges, tuple(worst.to_pylist()) if worst is not None else ())


def is_poison(limits: Limits) -> pc.Expression:
    """Which rows of `in_flight` hold poison records.

    Source: KIP-932, group.share.delivery.count.limit.
    """
    count = pc.field("delivery_count")
    waits_once_more = ~pc.field("terminal") & (count >= max(1, limits.delivery_count - 1))
    return waits_once_more | ((pc.field("delivery_state") == ARCHIVED) & (count >= limits.delivery_count))
