"""The table `share_partition_history`: progress and verdict of each share-partition, one row per audit."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.durations import duration_texts
from share_state.fold.limits import Limits
from share_state.fold.log_stats import NO_PREVIOUS_START, Folded, piece_bounds
from share_state.fold.outcomes import COUNTS, NO_TIME
from share_state.fold.state_chains import Chains
from share_state.fold.states import (
    KEY,
    declared_table,
    key_texts,
    row_texts,
    slice_chains,
    to_timestamps,
    window_tiles,
)
from share_state.kafka.delivery_states import (
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    are_terminal,
    is_poison,
)
from share_state.sources.resume_point import KEPT_STATE

HISTORY_TABLE = "share_partition_history"
"""A table of audits. A fold leaves its rows incomplete: `add_verdicts` needs what all logs have shown."""

PREVIOUS_START = "previous_start"
FIRST_DELIVERY_AT = "first_delivery_at"
LOG_TIME = "log_time"
IS_KEPT, ONLY_FAILING = "is_kept", "only_failing"
REWOUND_FROM, REWOUND_TO = "rewound_from", "rewound_to"
ONLY_FOR_VERDICTS = pa.schema(
    [
        (PREVIOUS_START, pa.int64()),
        (FIRST_DELIVERY_AT, pa.timestamp("us", "UTC")),
        (LOG_TIME, pa.int64()),
        (IS_KEPT, pa.bool_()),
        (REWOUND_TO, pa.int64()),
        (ONLY_FAILING, pa.int64()),
    ]
)
"""Columns of incomplete rows of HISTORY_TABLE besides its own, which `add_verdicts` drops."""

OK = "OK"
NO_MEMBERS = "NO_MEMBERS"
GIVING_UP = "GIVING_UP"
STALL = "STALL"
STOP = "STOP"
REWIND = "REWIND"
VERDICTS = (REWIND, STOP, STALL, GIVING_UP, NO_MEMBERS, OK)
"""The worst first; readers count any other verdict as worse than OK."""

RECORD_TIMES = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("effective_start_offset", pa.int64()),
        ("time_ms", pa.int64()),
    ]
)
"""When the first record of a topic-partition at or after an offset was written."""

FROM_RECORD, FROM_DELIVERY = "record", "delivery"
"""What `oldest_unfinished_time` is the time of."""

OUTCOME_COLUMNS = {f"{name}_records": name for name in COUNTS}
"""Column -> field of OUTCOMES: what became of deliveries since the last audit."""

GROUP_OUTCOMES = "group_outcomes"
"""A table of audits: the sums of OUTCOME_COLUMNS by group over all of them."""

_MS_PER_MINUTE = 60_000


def history_pieces(folded: Folded) -> Iterator[pa.Table]:
    """The rows of one log partition without run, time, verdict and reason, which need all log partitions.

    Returns:
        The columns of schemas/tables/share_partition_history.yaml with these four null, and PREVIOUS_START
        (start offset at the last audit), FIRST_DELIVERY_AT (first delivery since the start offset moved),
        LOG_TIME (ms, `Folded.judged_at`), IS_KEPT (whether the input shows nothing new of the log), ONLY_FAILING
        (ms between the first and the last record given up or rejected since the last acknowledgement; -1 for
        none) and REWOUND_TO (SPSO after the reset that `rewound_from` is about; null without one); one row per
        live share-partition, in pieces.
    """
    pieces, limits = folded.state_pieces, folded.limits_of("delivery_count")
    # What became of the share-partitions of a log that is not in the input since then is not known.
    is_kept = folded.observations.resume_status in KEPT_STATE
    outcomes = None if is_kept else folded.outcomes
    for begin, end in piece_bounds(pieces.size):
        chains, before = slice_chains(folded.chains, begin, end), folded.previous_starts[begin:end]
        states = pieces.build(begin, end)
        resets = _resets(outcomes, begin, end, states)
        columns = _outcome_columns(outcomes, begin, end) | {REWOUND_FROM: resets[REWOUND_FROM]}
        rows = _history(folded, states, chains, before, limits[begin:end], columns)
        rows = rows.append_column(LOG_TIME, pa.array(np.full(len(rows), folded.judged_at)))
        rows = rows.append_column(IS_KEPT, pa.array(np.full(len(rows), is_kept)))
        rows = rows.append_column(REWOUND_TO, resets[REWOUND_TO])
        yield rows.append_column(ONLY_FAILING, pa.array(_only_failing(outcomes, begin, end)))


def _only_failing(outcomes: np.ndarray | None, begin: int, end: int) -> np.ndarray:
    if outcomes is None:
        return np.full(end - begin, -1)
    since, until = (outcomes[name][begin:end] for name in ("failing_since", "failing_until"))
    return np.where(since == NO_TIME, -1, until - since)


def _outcome_columns(outcomes: np.ndarray | None, begin: int, end: int) -> dict[str, pa.Array]:
    if outcomes is None:
        return dict.fromkeys(OUTCOME_COLUMNS, pa.nulls(end - begin, pa.int64()))
    return {column: pa.array(outcomes[name][begin:end].copy()) for column, name in OUTCOME_COLUMNS.items()}


def _resets(outcomes: np.ndarray | None, begin: int, end: int, states: pa.Table) -> dict[str, pa.Array]:
    """`rewound_from` and REWOUND_TO: null where no reset moved SPSO back, or consumers have come back since."""
    if outcomes is None:
        return dict.fromkeys((REWOUND_FROM, REWOUND_TO), pa.nulls(end - begin, pa.int64()))
    start, own = states["effective_start_offset"].fill_null(-1).to_numpy(), outcomes[begin:end]
    is_over = (start < 0) | (start >= own["rewound_from"])
    return {name: pa.array(own[name].copy(), mask=is_over) for name in (REWOUND_FROM, REWOUND_TO)}


def _history(
    folded: Folded,
    states: pa.Table,
    chains: Chains,
    before: np.ndarray,
    limits: np.ndarray,
    outcomes: dict[str, pa.Array],
) -> pa.Table:
    tile_ends, rows = window_tiles(chains)
    sizes = rows["last"] - rows["first"] + 1
    state = rows["state"]
    count = rows["count"]
    limit = np.repeat(limits, np.diff(tile_ends))
    effective = np.repeat(states["effective_start_offset"].to_numpy(), np.diff(tile_ends))
    left = np.clip(rows["last"] - np.maximum(rows["first"], effective) + 1, 0, None)
    waiting, terminal = (state == AVAILABLE) | (state == ACQUIRED), are_terminal(state)
    poison = is_poison(state, count, limit)

    def total(mask: np.ndarray, amounts: np.ndarray = left) -> pa.Array:
        sums = np.concatenate(([0], np.cumsum(np.where(mask, amounts, 0))))
        return pa.array(np.diff(sums[tile_ends]))

    finished = total(terminal)
    amounts = {
        "lag": folded.lags(states, finished),
        "waiting_records": total(waiting),
        "archiving_records": total(state == ARCHIVING),
        "finished_records": finished,
        "poison_records": total(poison, np.where(state == ARCHIVED, sizes, left)),
        "moved_time": _known_times(chains.chains["start_advanced_at"]),
        "active_time": _known_times(chains.chains["last_consumed_at"]),
    }
    kept = (
        *KEY,
        "state_partition",
        "start_offset",
        "effective_start_offset",
        "end_offset",
        "topic_end_offset",
    )
    table = declared_table(HISTORY_TABLE, {name: states[name] for name in kept} | amounts | outcomes)
    table = table.append_column(PREVIOUS_START, pa.array(before, mask=before == NO_PREVIOUS_START))
    return table.append_column(FIRST_DELIVERY_AT, _known_times(chains.chains["first_delivery_at"]))


def _known_times(milliseconds: np.ndarray) -> pa.Array:
    """Timestamps; null where no record has shown one (-1)."""
    return to_timestamps(np.maximum(milliseconds, 0))


def add_verdicts(
    rows: pa.Table,
    time: int,
    run_id: str,
    limits: Limits,
    misplaced: Sequence[str] = (),
    empty_groups: Sequence[str] = (),
    record_times: pa.Table | None = None,
    *,
    with_reasons: bool = True,
) -> pa.Table:
    """Add time, run and verdict to rows of `history_pieces`; the verdicts follow Burrow.

    - REWIND: SPSO is lower than at the last audit, or was reset since then and consumers have not come back to
      where it was. Once they stop or stall after a reset, that is the verdict.
    - STOP: records wait, and no consumer has changed the state for `stall_minutes`.
    - STALL: records wait, and SPSO has not moved for `stall_minutes` since the first delivery after its last
      move; the reason names the time since that move. The recorded SPSO is one write behind: if finished
      records lead, the last write has moved it.
    - GIVING_UP: for `giving_up_minutes` records were given up or rejected, and none was acknowledged.
    - NO_MEMBERS: records wait, and the group has no members.
    - OK: otherwise.

    Args:
        time: ms, for the column `time`; durations end here: at the newest record of the whole export, or at
            the time of the audit. Those of a log that is not in the input end at its own last record.
        run_id: for the column `run_id`.
        limits: limits of the cluster.
        misplaced: rows to drop, as `key_texts` with the state partition.
        empty_groups: the groups that have no members, as far as the group side is known.
        record_times: when records of topics were written, as RECORD_TIMES; None if no topic's log is in the
            export.
        with_reasons: whether the column reason is read; if not, it is null.
    Returns:
        Columns of schemas/tables/share_partition_history.yaml.
    """
    rows = without_misplaced(rows, misplaced)
    start, before = (rows[name].fill_null(-1).to_numpy() for name in ("start_offset", PREVIOUS_START))
    effective = rows["effective_start_offset"].fill_null(-1).to_numpy()
    unfinished = unfinished_records(rows)
    own_time = np.minimum(rows[LOG_TIME].fill_null(-1).to_numpy(), time)
    until = np.where(rows[IS_KEPT].fill_null(False).to_numpy(), own_time, time)
    idle = _milliseconds_since(rows["active_time"], until)
    delivered = _milliseconds_since(rows[FIRST_DELIVERY_AT], until)
    # A share-partition that was idle has not stalled; once it has, the time since the move is what people read.
    unmoved = _milliseconds_since(rows["moved_time"], until)
    is_active = (start >= 0) & (unfinished > 0)
    stalled_from = limits.stall_minutes * _MS_PER_MINUTE
    only_failing = rows[ONLY_FAILING].fill_null(-1).to_numpy()
    rewound_from, rewound_to = (rows[name].fill_null(-1).to_numpy() for name in (REWOUND_FROM, REWOUND_TO))
    is_lower = (start >= 0) & (start < before)
    was_reset = ~is_lower & (rewound_from >= 0)
    is_empty = pc.is_in(rows["group_id"], pa.array(empty_groups, pa.string())).to_numpy(zero_copy_only=False)
    failed = sum(rows[name].fill_null(0).to_numpy() for name in ("given_up_records", "rejected_records"))
    cases = [
        (REWIND, is_lower),
        (STOP, is_active & (idle >= stalled_from)),
        (STALL, is_active & (effective == start) & (delivered >= stalled_from)),
        (REWIND, was_reset),
        (GIVING_UP, (start >= 0) & (only_failing >= limits.giving_up_minutes * _MS_PER_MINUTE)),
        (NO_MEMBERS, is_active & is_empty),
    ]
    verdict = np.select(
        [is_meant for _, is_meant in cases],
        [VERDICTS.index(name) for name, _ in cases],
        VERDICTS.index(OK),
    )
    came_from, went_to = np.where(is_lower, before, rewound_from), np.where(is_lower, start, rewound_to)
    members = _Choice(is_empty, "; the group has no members", "")
    wait = (unfinished, _Choice(unfinished == 1, " record waits", " records wait"))
    reasons = {
        REWIND: (came_from - went_to, " offsets back: SPSO went from ", came_from, " to ", went_to),
        STOP: (*wait, ", and no consumer has changed the state for ", _Durations(idle), members),
        STALL: (*wait, ", and SPSO has stayed at ", start, " for ", _Durations(unmoved), members),
        GIVING_UP: (
            failed,
            " records were given up or rejected",
            _Choice(rows[PREVIOUS_START].is_valid().to_numpy(), " since the last audit", ""),
            ", and none was acknowledged for ",
            _Durations(only_failing),
        ),
        NO_MEMBERS: (*wait, ", and the group has no members"),
    }
    oldest, origin = _oldest_times(rows, is_active, record_times)
    kept = rows.drop_columns(ONLY_FOR_VERDICTS.names)
    columns: dict[str, Any] = dict(zip(kept.column_names, kept.columns, strict=True))
    columns |= {
        "run_id": pa.repeat(pa.scalar(run_id), len(rows)),
        "time": to_timestamps(np.full(len(rows), max(time, 0))),
        "verdict": pa.DictionaryArray.from_arrays(pa.array(verdict), list(VERDICTS)),
        "reason": _reason(verdict, reasons if with_reasons else {}),
        "oldest_unfinished_time": oldest,
        "oldest_unfinished_from": origin,
    }
    return declared_table(HISTORY_TABLE, columns)


def without_misplaced(rows: pa.Table, misplaced: Sequence[str]) -> pa.Table:
    """Rows with KEY and state_partition, without those of some share-partitions (`key_texts` with that partition)."""
    if not misplaced:
        return rows
    return rows.filter(pc.invert(pc.is_in(key_texts(rows, "state_partition"), pa.array(misplaced))))


def add_group_outcomes(before: pa.Table, rows: pa.Table) -> pa.Table:
    """The table `group_outcomes` after an audit.

    Args:
        before: the table after the audit before; empty before the first.
        rows: group_id and OUTCOME_COLUMNS of the rows of the audit; null where the log does not show it.
    """
    columns = ["group_id", *OUTCOME_COLUMNS]
    both = pa.concat_tables([before.select(columns), rows.select(columns).cast(before.schema)])
    sums = both.group_by("group_id", use_threads=False).aggregate([(name, "sum") for name in OUTCOME_COLUMNS])
    totals = {name: sums[f"{name}_sum"].fill_null(0) for name in OUTCOME_COLUMNS}
    return declared_table(GROUP_OUTCOMES, {"group_id": sums["group_id"]} | totals).sort_by("group_id")


def unfinished_records(rows: pa.Table) -> np.ndarray:
    """Records of each share-partition that are not finished, int64: its lag.

    Those in flight if that is unknown.
    """
    names = ("lag", "waiting_records", "archiving_records")
    lag, waiting, archiving = (rows[name].fill_null(-1).to_numpy() for name in names)
    return np.where(lag >= 0, lag, waiting + archiving)


def _oldest_times(
    rows: pa.Table, is_unfinished: np.ndarray, record_times: pa.Table | None
) -> tuple[pa.Array | pa.ChunkedArray, pa.Array]:
    """The columns oldest_unfinished_time and oldest_unfinished_from."""
    # A delivery shows that the first unfinished record existed only if no finished record lies before it.
    is_first = pc.equal(rows["effective_start_offset"], rows["start_offset"])
    shown = pc.if_else(is_first, rows[FIRST_DELIVERY_AT].cast(pa.int64()), pa.scalar(None, pa.int64()))
    if record_times is None:
        written = pa.nulls(len(rows), pa.int64())
    else:
        places, known = (
            row_texts([table[name] for name in RECORD_TIMES.names[:-1]]) for table in (rows, record_times)
        )
        written = record_times["time_ms"].combine_chunks().take(pc.index_in(places, known))
    written = pc.multiply(written, 1000)
    nothing = pa.scalar(None, pa.int64())
    times = pc.if_else(pa.array(is_unfinished), pc.coalesce(written, shown), nothing)
    origin = pc.if_else(pc.is_valid(written), FROM_RECORD, FROM_DELIVERY)
    return times.cast(pa.timestamp("us", "UTC")), pc.if_else(
        pc.is_valid(times), origin, pa.scalar(None, pa.string())
    )


class _Durations(NamedTuple):
    """A piece of a reason: milliseconds, one per row."""

    milliseconds: np.ndarray


class _Choice(NamedTuple):
    """A piece of a reason: one text where a condition holds (bool, one per row), else the other."""

    holds: np.ndarray
    text: str
    other: str


_Piece = str | np.ndarray | _Durations | _Choice


def _reason(verdict: np.ndarray, reasons: dict[str, tuple[_Piece, ...]]) -> pa.Array:
    """The reason for each verdict (an index of VERDICTS); null for none."""
    texts, place = [pa.array([None], pa.string())], np.zeros(len(verdict), np.int64)
    for name, pieces in reasons.items():
        at = np.flatnonzero(verdict == VERDICTS.index(name))
        if len(at):
            columns = [_texts_at(piece, at) for piece in pieces]
            place[at] = sum(map(len, texts)) + np.arange(len(at))
            texts.append(pc.call_function("binary_join_element_wise", [*columns, pa.scalar("")]))
    return pa.concat_arrays(texts).take(pa.array(place))


def _texts_at(piece: _Piece, rows: np.ndarray) -> pa.Scalar | pa.Array:
    """A piece of a text in some rows."""
    if isinstance(piece, str):
        return pa.scalar(piece)
    if isinstance(piece, _Durations):
        return duration_texts(piece.milliseconds[rows])
    if isinstance(piece, _Choice):
        return pc.if_else(pa.array(piece.holds[rows]), piece.text, piece.other)
    return pa.array([f"{number:,}" for number in piece[rows].tolist()], pa.string())


def _milliseconds_since(column: pa.ChunkedArray, until: np.ndarray) -> np.ndarray:
    """Milliseconds from each time to its entry in `until`; -1 if unknown."""
    milliseconds = column.cast(pa.int64()).fill_null(-1).to_numpy() // 1000
    return np.where(milliseconds < 0, -1, np.maximum(until - milliseconds, 0))
