"""All live share-partitions looked over for those that need a look, some columns of a million at a time."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from share_state.committed import CommittedTables
from share_state.report.broken_rules import own_findings
from share_state.report.identity import KEY, among, identified, looked_up, placed
from share_state.report.share_partitions import HISTORY, of_latest_night, share_partitions_now

VERDICTS = ("REWIND", "STOP", "STALL", "OK")
"""The worst first. A verdict that is none of these counts as worse than OK."""

_JUST_WORSE_THAN_OK = VERDICTS.index("OK") - 0.5
_COLUMNS = (*KEY, "verdict", "poison_records", "waiting_records")
_OWN = {"errors": pa.int64(), "warnings": pa.int64()}
_ROWS_AT_A_TIME = 1_000_000


@dataclass(frozen=True, slots=True)
class Overview:
    """What the latest audit says of all live share-partitions.

    Attributes:
        live: how many there are.
        verdicts: verdict -> number of them, the worst first; the known ones are there even with 0.
        worst: those that need a look, the worst first, at most as many as were asked for: columns of
            `share_partitions_now`, suspect (boolean), errors and warnings: findings of its own.
        left_out: how many more need a look.
    """

    live: int
    verdicts: Mapping[str, int]
    worst: pa.Table
    left_out: int


def overview(tables: CommittedTables, digest: pa.Table, most: int) -> Overview:
    """Look over all live share-partitions.

    Args:
        tables: of the warehouse.
        digest: what `findings_digest` found.
        most: share-partitions to tell of.
    Raises:
        WarehouseError: if a table is gone.
    """
    suspects = identified(tables.read("share_partition_state", pc.field("suspect"), [*KEY, "suspect"]))
    own = own_findings(digest)
    night, counted, need, worst = of_latest_night(tables), Counter[str](), 0, list[pa.Table]()
    for piece in _together(tables.batches(HISTORY, _COLUMNS, night)):
        counted.update({row["values"]: row["counts"] for row in piece["verdict"].value_counts().to_pylist()})
        rows = looked_up(looked_up(identified(piece), suspects, {"suspect": pa.bool_()}), own, _OWN)
        found = _needing_a_look(rows)
        need += found.num_rows
        worst = [_worst_first(pa.concat_tables([*worst, found])).slice(0, most)]
    verdicts = dict.fromkeys(VERDICTS, 0) | dict(sorted(counted.items()))
    told = _told(tables, night, worst[0]) if need else pa.table({})
    return Overview(sum(counted.values()), verdicts, told, max(0, need - most))


def _together(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    waiting, count = list[pa.Table](), 0
    for piece in pieces:
        waiting.append(piece)
        count += piece.num_rows
        if count >= _ROWS_AT_A_TIME:
            yield pa.concat_tables(waiting)
            waiting, count = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _needing_a_look(rows: pa.Table) -> pa.Table:
    """A verdict other than OK, an error or warning of their own, or suspect."""
    for name, unknown in (("suspect", False), ("errors", 0), ("warnings", 0)):
        rows = rows.set_column(rows.column_names.index(name), name, pc.fill_null(rows[name], unknown))
    healthy = pc.equal(rows["verdict"], "OK")
    reported = pc.greater(pc.add(rows["errors"], rows["warnings"]), 0)
    return rows.filter(pc.or_(pc.or_(pc.invert(healthy), reported), rows["suspect"]))


def _worst_first(rows: pa.Table) -> pa.Table:
    rank = pc.fill_null(pc.cast(pc.index_in(rows["verdict"], pa.array(VERDICTS)), pa.float64()), _JUST_WORSE_THAN_OK)
    broken = pc.or_(pc.greater(rows["errors"], 0), rows["suspect"])
    ranked = rows.append_column("rank", rank).append_column("broken", pc.cast(broken, pa.int8()))
    down = [(name, "descending") for name in ("poison_records", "waiting_records")]
    ordered = ranked.sort_by([("rank", "ascending"), ("broken", "descending"), *down, *((n, "ascending") for n in KEY)])
    return ordered.drop_columns(["rank", "broken"])


def _told(tables: CommittedTables, night: pc.Expression, worst: pa.Table) -> pa.Table:
    """All that is known of them, in their order."""
    wanted = placed(worst)
    known = among(share_partitions_now(tables, night, wanted).drop_columns("topic_key"), wanted)
    rows = looked_up(known, worst, {"suspect": pa.bool_(), **_OWN})
    return rows.sort_by("place").drop_columns("place")
