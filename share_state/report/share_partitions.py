"""Share-partitions across the tables of a warehouse: rows matched by key and grouped, and what the latest audit saw.

The name of a topic may become known late, so rows of different tables or audits belong to one share-partition
if they agree in IDENTITY_COLUMNS. Tables are read in pieces: memory grows with the share-partitions, not with
the rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.model import Acknowledged
from share_state.delta.committed import EVERY_ROW, CommittedTables
from share_state.errors import WarehouseError
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.history import HISTORY_TABLE, VERDICTS
from share_state.fold.limits import Limits
from share_state.fold.states import KEY, in_large_pieces
from share_state.kafka.delivery_states import DeliveryState, is_poison
from share_state.rules.breaches import OVER_LIMIT
from share_state.schema.declarations import table_schema

IDENTITY_COLUMNS = ("dialect", "group_id", "topic_key", "partition")
"""What identifies a share-partition; topic_key is the topic's id, or its name if it has none."""

DELIVERY_STATES = tuple(DeliveryState.__members__)
"""Delivery states in the order of their codes; columns of record counts have these names in lower case."""

STATE = "share_partition_state"

NO_BEGINNING = "the log's beginning is not in the input"
"""Said instead of that something never was: the records that could show it are not there."""

RULES_WITHOUT_STATE = ("ASSIGNED_UNINITIALIZED", "MISSING_INIT", "MISSING_SHARE_STATE", "STUCK_INITIALIZING")
"""Rules about share-partitions that have no state."""

_PENDING_ROWS = 1_000_000
_MOST_UNTHREADED = 100_000
"""Rows that one thread joins."""
JUST_WORSE_THAN_OK = VERDICTS.index("OK") - 0.5
IN_FLIGHT = {name: pa.int64() for name in (*(state.lower() for state in DELIVERY_STATES), "ranges")}


def ascending(*columns: str) -> list[tuple[str, str]]:
    """Sort keys of `pa.Table.sort_by`."""
    return [(name, "ascending") for name in columns]


def descending(*columns: str) -> list[tuple[str, str]]:
    """Sort keys of `pa.Table.sort_by`."""
    return [(name, "descending") for name in columns]


def first_rows(rows: pa.Table, by: Sequence[tuple[str, str]], most: int) -> pa.Table:
    """The first `most` rows in an order of unique rows; to sort all takes ten times as long."""
    found = pc.select_k_unstable(rows, min(most, len(rows)), by)
    return rows.take(found).combine_chunks()


def add_topic_key(rows: pa.Table) -> pa.Table:
    """Append the column topic_key."""
    return rows.append_column("topic_key", first_known(rows["topic_id"], rows["topic"]))


def first_known(column: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of texts, with those of another one where it is null; most have no null, or nothing else."""
    if not column.null_count:
        return column
    return other if column.null_count == len(column) else pc.coalesce(column, other)


def lacks_beginning(states: pa.Table) -> pa.ChunkedArray:
    """Whether each state rests on updates alone, because its snapshot is not in the input.

    Args:
        states: at least the columns suspect and snapshot_offset of share_partition_state.
    """
    return pc.and_(states["suspect"], pc.is_null(states["snapshot_offset"]))


def check_known(warehouses: Iterable[CommittedTables], selection: SharePartitionFilter) -> None:
    """Refuse a filter that matches nothing that has state in the warehouses or that a group lists.

    Raises:
        InputError: naming the nearest that are known.
    """
    columns = {"share_groups": KEY[1:2], "share_group_partitions": KEY[1:], STATE: KEY[1:]}
    known = [tables.read(name, columns=names) for tables in warehouses for name, names in columns.items()]
    selection.check(pa.concat_tables(known, promote_options="default"))


def plain_run(run: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `runs` as every command prints it with --json: maps as objects."""
    maps = ("progress", "findings", "table_versions", "options")
    return {**run, **{name: dict(run[name] or ()) for name in maps}, "notes": list(run["notes"] or ())}


def null_unknown(rows: pa.Table) -> pa.Table:
    """The rows with null in place of -1, which the tables hold for an unknown start offset or count."""
    for name in {"start_offset", "effective_start_offset", "delivery_complete_count"} & set(
        rows.column_names
    ):
        known = pc.if_else(pc.equal(rows[name], -1), pa.scalar(None, rows[name].type), rows[name])
        rows = rows.set_column(rows.schema.get_field_index(name), name, known)
    return rows


def left_join(rows: pa.Table, other: pa.Table | None, columns: dict[str, pa.DataType]) -> pa.Table:
    """Append columns of another table, matched by IDENTITY_COLUMNS.

    Args:
        rows: one row per share-partition.
        other: at most one row per share-partition, with `columns`; None, or no row, if nothing is known.
        columns: name -> type.
    Returns:
        The rows; null where the other table has no row.
    """
    if other is None or not other.num_rows:
        for name, kind in columns.items():
            rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
        return rows
    places = _places_among(rows, other)
    for name in columns:
        rows = rows.append_column(name, other[name].combine_chunks().take(places))
    return rows


def _places_among(rows: pa.Table, other: pa.Table) -> pa.Array:
    """The row of another table with equal IDENTITY_COLUMNS, or null; a join takes six times as long."""
    own, theirs = np.zeros(len(rows), np.int64), np.zeros(len(other), np.int64)
    for name in IDENTITY_COLUMNS:
        values = other[name].unique().drop_null()
        # The combinations of values so far, numbered: those of four columns may exceed an int64.
        own, theirs = (
            np.where((codes < 0) | (at < 0), -1, codes * len(values) + at)
            for codes, at in (
                (own, _places_in(rows[name], values)),
                (theirs, _places_in(other[name], values)),
            )
        )
        combined = pa.array(np.unique(theirs[theirs >= 0]))
        own, theirs = (_places_in(pa.array(codes), combined) for codes in (own, theirs))
    # Null is no value of the other table: it stays null.
    return pc.index_in(pa.array(own, mask=own < 0), pa.array(theirs))


def _places_in(column: pa.ChunkedArray | pa.Array, values: pa.Array) -> np.ndarray:
    """The place of each value among distinct ones, int64; -1 for none."""
    return pc.index_in(column, values).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)


def joined(rows: pa.Table, other: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Rows of two tables with equal keys.

    Args:
        rows, other: the tables; small ones.
        keys: names of columns of both.
    Returns:
        The rows in any order.
    """
    # Each thread of a join keeps some megabytes, which an exporter has no use for.
    return rows.join(other, list(keys), join_type="inner", use_threads=len(rows) > _MOST_UNTHREADED)


def number_rows(rows: pa.Table) -> pa.Table:
    """Append the column place: row numbers from 0."""
    return rows.append_column("place", pa.array(np.arange(rows.num_rows)))


def select_share_partitions(rows: pa.Table, selected: pa.Table) -> pa.Table:
    """The rows of some share-partitions.

    Args:
        rows: rows with KEY.
        selected: rows with IDENTITY_COLUMNS and place, a number.
    Returns:
        Their rows with the column place, in any order.
    """
    places = selected.select([*IDENTITY_COLUMNS, "place"])
    return joined(add_topic_key(rows), places, IDENTITY_COLUMNS)


def rows_by_place(rows: pa.Table, columns: Sequence[str]) -> dict[int, list[dict[str, Any]]]:
    """The rows of each place of `select_share_partitions`, with some columns, in their order."""
    by_place: dict[int, list[dict[str, Any]]] = {}
    for place, row in zip(rows["place"].to_pylist(), rows.select(list(columns)).to_pylist(), strict=True):
        by_place.setdefault(place, []).append(row)
    return by_place


def group_pieces(
    pieces: Iterable[pa.Table], by: Sequence[str], aggregates: Mapping[str, str]
) -> pa.Table | None:
    """Group rows that come in pieces; holds the groups and a few pieces in memory.

    Args:
        pieces: tables with the columns of `by` and `aggregates`.
        by: columns that make a group; null is a value like any other.
        aggregates: column -> sum, min, max or first.
    Returns:
        One row per group, with the columns of `by` and `aggregates`; None if there is no piece.
    """
    pending: list[pa.Table] = []
    rows = groups = 0
    for piece in pieces:
        pending.append(group_rows(piece, by, aggregates))
        rows += pending[-1].num_rows
        if rows > 2 * groups + _PENDING_ROWS:
            pending = [group_rows(pa.concat_tables(pending), by, aggregates)]
            rows = groups = pending[0].num_rows
    if not pending:
        return None
    return pending[0] if not pending[1:] else group_rows(pa.concat_tables(pending), by, aggregates)


def in_million_rows(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join small pieces: each joined piece but the last has at least a million rows."""
    return in_large_pieces(pieces, _PENDING_ROWS)


def verdict_rank(rows: pa.Table) -> pa.ChunkedArray:
    """0 for the worst verdict; one that is not in VERDICTS ranks just before OK."""
    rank = pc.index_in(rows["verdict"], pa.array(VERDICTS))
    return pc.fill_null(pc.cast(rank, pa.float64()), JUST_WORSE_THAN_OK)


def group_rows(rows: pa.Table, by: Sequence[str], aggregates: Mapping[str, str]) -> pa.Table:
    """Group the rows of a table, as `group_pieces` does."""
    # The first value of a group counts even if it is null.
    options = {"first": pc.ScalarAggregateOptions(skip_nulls=False)}
    requests = [(column, how, options.get(how)) for column, how in aggregates.items()]
    grouped = rows.group_by(list(by), use_threads=False).aggregate(requests)
    names = [f"{column}_{how}" for column, how in aggregates.items()]
    return grouped.select([*by, *names]).rename_columns([*by, *aggregates])


def latest_share_partitions(tables: CommittedTables, latest: pc.Expression, selected: pa.Table) -> pa.Table:
    """Some live share-partitions, as the latest audit saw them.

    Args:
        tables: the tables of the warehouse.
        latest: from `latest_audit_filter`.
        selected: IDENTITY_COLUMNS, one row per share-partition.
    Returns:
        Columns of schemas/tables/share_partition_history.yaml, then available, acquired, acknowledged,
        archiving and
        archived: records in flight (gaps are available); ranges: how many; topic_key; place: the row in
            `selected`.
        Columns of in-flight records are null if the start offset is not initialized. In any order.
    Raises:
        WarehouseError: if a table is gone.
    """
    numbered = number_rows(selected)
    of_selected = tables.of(numbered)
    found = of_selected.read(HISTORY_TABLE, latest, table_schema(HISTORY_TABLE).names)
    rows = select_share_partitions(
        with_unreported_verdicts(of_selected, found).drop_columns("topic_key"), numbered
    )
    in_flight = group_pieces(records_by_state(of_selected), IDENTITY_COLUMNS, dict.fromkeys(IN_FLIGHT, "sum"))
    rows = left_join(rows, in_flight, IN_FLIGHT)
    is_uninitialized = pc.less(rows["start_offset"], 0)
    for name in IN_FLIGHT:
        known = pc.if_else(is_uninitialized, pa.scalar(None, pa.int64()), pc.fill_null(rows[name], 0))
        rows = rows.set_column(rows.column_names.index(name), name, known)
    return null_unknown(rows)


def latest_audit_filter(tables: CommittedTables) -> pc.Expression:
    """A filter for the rows of HISTORY_TABLE that the latest audit wrote.

    An audit of unchanged input writes none.

    Raises:
        WarehouseError: if the latest run is not an audit.
    """
    if not tables.holds(HISTORY_TABLE):
        raise WarehouseError(
            "the latest run wrote no history; run `share-state audit` on this warehouse first"
        )
    latest = tables.run["run_id"]
    if next(tables.batches("share_partition_state", ["partition"]), None) is None:
        return pc.field("run_id") == latest
    written = tables.run_ids(HISTORY_TABLE)
    if written == {latest}:
        return EVERY_ROW
    return pc.field("run_id") == next(
        (run for run in tables.runs["run_id"].to_pylist() if run in written), latest
    )


def with_unreported_verdicts(tables: CommittedTables, rows: pa.Table) -> pa.Table:
    """Rows of HISTORY_TABLE with topic_key, in any order.

    Each has the worst verdict since the last reported audit.
    """
    rows = add_topic_key(rows)
    skipped = [one.run["run_id"] for one in tables.unreported()[0]]
    columns = [name for name in (*KEY, "verdict", "reason") if name in rows.schema.names]
    is_skipped = pc.field("run_id").isin(skipped) & (pc.field("verdict") != VERDICTS[-1])
    if not skipped or not len(missed := add_topic_key(tables.read(HISTORY_TABLE, is_skipped, columns))):
        return rows
    order = rows.schema.names
    missed = missed.append_column("rank", pc.index_in(missed["verdict"], pa.array(VERDICTS))).sort_by("rank")
    texts = {f"missed_{name}": pa.string() for name in columns[len(KEY) :]}
    first = group_rows(missed, IDENTITY_COLUMNS, dict.fromkeys(("rank", *columns[len(KEY) :]), "first"))
    first = first.rename_columns([*IDENTITY_COLUMNS, "rank", *texts])
    rows = left_join(rows, first, {"rank": pa.int32(), **texts})
    is_worse = pc.fill_null(pc.less(rows["rank"], pc.index_in(rows["verdict"], pa.array(VERDICTS))), False)
    for name, missed_name in zip(columns[len(KEY) :], texts, strict=True):
        worst = pc.if_else(is_worse, rows[missed_name], rows[name])
        rows = rows.set_column(rows.schema.get_field_index(name), name, worst)
    return rows.select(order)


def latest_has_rows(tables: CommittedTables) -> bool:
    """Whether the latest audit wrote rows of HISTORY_TABLE: it had something new to read."""
    return tables.run["run_id"] in tables.run_ids(HISTORY_TABLE)


def with_open_verdicts(rows: pa.Table, is_settled: pa.Array) -> pa.Table:
    """Rows in which an acknowledged verdict is OK: it needs no attention.

    Args:
        rows: with the column verdict.
        is_settled: from `acknowledged_verdicts`.
    """
    if not pc.any(is_settled).as_py():
        return rows
    verdicts = pc.if_else(is_settled, VERDICTS[-1], rows["verdict"].cast(pa.string()))
    return rows.set_column(rows.column_names.index("verdict"), "verdict", verdicts)


def acknowledged_verdicts(rows: pa.Table, acknowledged: Sequence[Acknowledged], at: datetime) -> pa.Array:
    """Whether a person has acknowledged the verdict of each row of HISTORY_TABLE.

    Args:
        rows: key columns and verdict.
        acknowledged: as in the audit's configuration; those of findings are ignored.
        at: time of the audit.
    """
    of_verdicts = [one for one in acknowledged if one.verdict is not None]
    return is_acknowledged(rows, of_verdicts, at, {"verdict": "verdict"})


def is_acknowledged(
    rows: pa.Table, acknowledged: Sequence[Acknowledged], at: datetime, fields: Mapping[str, str]
) -> pa.Array:
    """Whether an acknowledgement that is in force at a time matches each row.

    Args:
        rows: key columns, and those of `fields`.
        acknowledged: as in the audit's configuration.
        at: time of the audit.
        fields: further columns -> attribute of Acknowledged that they must equal, if it is set.
    """
    found = pa.array(np.zeros(len(rows), bool))
    for one in acknowledged:
        if not one.is_in_force(at):
            continue
        wanted = {"group_id": one.group, "partition": one.partition}
        wanted |= {column: getattr(one, name) for column, name in fields.items()}
        conditions = [pc.equal(rows[name], value) for name, value in wanted.items() if value is not None]
        if one.topic is not None:
            conditions.append(
                pc.or_kleene(pc.equal(rows["topic"], one.topic), pc.equal(rows["topic_id"], one.topic))
            )
        matches = pc.fill_null(reduce(pc.and_kleene, conditions), False)
        found = pc.or_(found, matches.combine_chunks())
    return found


def records_by_state(tables: CommittedTables, where: pc.Expression | None = None) -> Iterator[pa.Table]:
    """The table `in_flight` in pieces: IDENTITY_COLUMNS, and columns of IN_FLIGHT to be summed."""
    zero, one = pa.scalar(0, pa.int64()), pa.scalar(1, pa.int64())
    for piece in tables.batches("in_flight", [*KEY, "delivery_state", "record_count"], where):
        rows = add_topic_key(piece)
        for state in DeliveryState:
            records = pc.if_else(pc.equal(rows["delivery_state"], int(state)), rows["record_count"], zero)
            rows = rows.append_column(state.name.lower(), records)
        yield rows.append_column("ranges", pa.repeat(one, rows.num_rows))


@dataclass(frozen=True, slots=True)
class PoisonRecords:
    """Offsets at or one below the delivery limit, or archived by it.

    Attributes:
        records: how many there are.
        waiting: how many of them are not archived.
        ranges: how many ranges they make.
        worst: some of these ranges, those delivered most often first, then the longest: key columns,
            first_offset, last_offset, record_count, state, delivery_count.
    """

    records: int
    waiting: int
    ranges: int
    worst: tuple[dict[str, Any], ...]


def with_shown_deliveries(tables: CommittedTables, limits: Limits) -> Limits:
    """The limits with at least the deliveries of groups whose logs show more than these allow.

    Raises:
        WarehouseError: if the table `findings` is gone.
    """
    rows = tables.read("findings", pc.field("rule") == OVER_LIMIT, ["group_id", "evidence"])
    counts = pc.map_lookup(rows["evidence"], pa.scalar("delivery_count"), "first").cast(pa.int64())
    shown = dict[str, int]()
    for group, count in zip(rows["group_id"].to_pylist(), counts.to_pylist(), strict=True):
        if group is not None and count is not None:
            shown[group] = max(count, shown.get(group, 0))
    return limits.at_least(shown)


def find_poison_records(tables: CommittedTables, limits: Limits, most: int) -> PoisonRecords:
    """Find the poison records in all in-flight ranges, and list at most `most` ranges of them.

    Raises:
        WarehouseError: if the table is gone.
    """
    columns = (*KEY, "first_offset", "last_offset", "record_count", "state", "delivery_count", "terminal")
    order = [*descending("delivery_count", "record_count"), *ascending(*KEY, "first_offset")]
    waiting = 0
    records = ranges = 0
    worst = list[pa.Table]()
    for piece in tables.batches("in_flight", columns, poison_filter(limits)):
        records += pc.sum(piece["record_count"]).as_py()
        waiting += pc.sum(piece["record_count"].filter(pc.invert(piece["terminal"]))).as_py() or 0
        ranges += piece.num_rows
        worst = [
            pa.concat_tables([*worst, piece.drop_columns("terminal")])
            .sort_by(order)
            .slice(0, most)
            .combine_chunks()
        ]
    return PoisonRecords(records, waiting, ranges, tuple(row for rows in worst for row in rows.to_pylist()))


def poison_filter(limits: Limits) -> pc.Expression:
    """A filter for the rows of `in_flight` that hold poison records.

    Source: KIP-932, group.share.delivery.count.limit.
    """
    own = {
        name: group["delivery_count"] for name, group in limits.groups.items() if "delivery_count" in group
    }
    found = _poison(limits.delivery_count)
    if own:
        found &= ~pc.field("group_id").isin(list(own))
    for limit in sorted(set(own.values())):
        found |= _poison(limit) & pc.field("group_id").isin([name for name in own if own[name] == limit])
    return found


def _poison(limit: int) -> pc.Expression:
    return is_poison(pc.field("delivery_state"), pc.field("delivery_count"), limit)
