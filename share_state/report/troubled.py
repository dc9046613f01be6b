"""The share-partitions that need a look, each with everything that the tables say of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from share_state.committed import CommittedTables
from share_state.declarations import table_schema
from share_state.report.identity import IDENTITY, KEY, among, may_be_among, placed

_RANGES = 2000
_FINDINGS = 12
_NIGHTS = 200
_RANGE = ("first_offset", "last_offset", "record_count", "state", "delivery_count", "gap")
_NIGHT = ("run_id", "time", "start_offset", "lag", "verdict")
_FINDING = ("rule", "severity", "count", "new", "offset", "message")


@dataclass(frozen=True, slots=True)
class TroubledSharePartition:
    """One share-partition.

    Attributes:
        now: as the audit saw it; the columns of `Overview.worst`.
        state: its row of share_partition_state, without state_batches; None where it has none.
        ranges: in flight, from the start on, at most 2000; now["ranges"] says how many there are.
        findings: of its own, summed up by rule, the gravest first, at most 12: rule, severity, count, new,
            offset and message of the first.
        history: over the kept runs, the oldest first, at most the last 200: run_id, time, start_offset, lag, verdict.
    """

    now: dict[str, Any]
    state: dict[str, Any] | None
    ranges: tuple[dict[str, Any], ...]
    findings: tuple[dict[str, Any], ...]
    history: tuple[dict[str, Any], ...]


def troubled_share_partitions(
    tables: CommittedTables, chosen: pa.Table, digest: pa.Table
) -> tuple[TroubledSharePartition, ...]:
    """Read what the tables say of a few share-partitions.

    Args:
        tables: of the warehouse.
        chosen: of `Overview.worst`, some dozens.
        digest: what `findings_digest` found.
    Returns:
        One a row, in their order.
    Raises:
        WarehouseError: if a table is gone.
    """
    if not chosen.num_rows:
        return ()
    wanted = placed(chosen)
    columns = [name for name in table_schema("share_partition_state").names if name != "state_batches"]
    states = _kept(tables, "share_partition_state", columns, wanted, [("last_offset", "descending")], 1)
    ranges = _kept(tables, "in_flight", [*KEY, *_RANGE], wanted, [("first_offset", "ascending")], _RANGES)
    nights = _kept(tables, "share_partition_history", [*KEY, *_NIGHT], wanted, [("time", "descending")], _NIGHTS)
    findings = _own(digest, wanted)
    return tuple(
        TroubledSharePartition(
            now=now,
            state=next((_only(row, columns) for row in states.get(place, ())), None),
            ranges=tuple(_only(row, _RANGE) for row in ranges.get(place, ())),
            findings=tuple(_only(row, _FINDING) for row in findings.get(place, ())),
            history=tuple(_only(row, _NIGHT) for row in reversed(nights.get(place, ()))),
        )
        for place, now in enumerate(chosen.to_pylist())
    )


def _kept(
    tables: CommittedTables,
    table: str,
    columns: Sequence[str],
    wanted: pa.Table,
    order: Sequence[tuple[str, str]],
    most: int,
) -> dict[int, list[dict[str, Any]]]:
    """The first rows, in an order, of each wanted share-partition, by its place."""
    kept: pa.Table | None = None
    for piece in tables.batches(table, columns, may_be_among(wanted)):
        rows = among(piece, wanted)
        if rows.num_rows:
            together = rows if kept is None else pa.concat_tables([kept, rows])
            kept = _first_of_each(together.sort_by([("place", "ascending"), *order]), most)
    return _by_place(kept)


def _own(digest: pa.Table, wanted: pa.Table) -> dict[int, list[dict[str, Any]]]:
    if not digest.num_rows:
        return {}
    rows = digest.join(wanted.select([*IDENTITY, "place"]), keys=list(IDENTITY), join_type="inner")
    order = [("gravity", "ascending"), ("new", "descending"), ("count", "descending"), ("rule", "ascending")]
    return _by_place(_first_of_each(rows.sort_by([("place", "ascending"), *order]), _FINDINGS))


def _first_of_each(rows: pa.Table, most: int) -> pa.Table:
    """Of rows sorted by place, the first ones of each place."""
    place = rows["place"].to_numpy()
    rank = np.arange(len(place)) - np.searchsorted(place, place)
    return rows.filter(pa.array(rank < most)).combine_chunks()


def _by_place(rows: pa.Table | None) -> dict[int, list[dict[str, Any]]]:
    placed: dict[int, list[dict[str, Any]]] = {}
    for row in rows.to_pylist() if rows is not None else ():
        placed.setdefault(row["place"], []).append(row)
    return placed


def _only(row: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: row[name] for name in names}
