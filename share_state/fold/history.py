"""What operators watch from audit to audit: one row a share-partition, and the verdict on it."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.chains import Chains
from share_state.fold.interval_merge import ACQUIRED, ARCHIVED, ARCHIVING, AVAILABLE, tiles
from share_state.fold.log import UNKNOWN_BEFORE, FoldedLog
from share_state.fold.log_stats import stretches
from share_state.fold.options import Limits
from share_state.fold.states import KEY, declared, lags, part, times

TABLE = "share_partition_history"
START_BEFORE, HELD_TIME = "start_before", "held_time"
OK, STALL, STOP, REWIND = "OK", "STALL", "STOP", "REWIND"
VERDICTS = (OK, STALL, STOP, REWIND)

_MS_A_MINUTE = 60_000


def watched(folded: FoldedLog) -> Iterator[pa.Table]:
    """What one log partition says of its share-partitions; run, time, verdict and reason need all of them.

    Returns:
        The columns of schemas/tables/share_partition_history.yaml, those four null, and START_BEFORE and HELD_TIME: the
        start offset at the last audit, the first delivery since; one row a live share-partition, in pieces.
    """
    pieces = folded.state_pieces
    for begin, end in stretches(pieces.size):
        before = folded.starts_before[begin:end]
        yield _watched(pieces.made(begin, end), part(folded.chains, begin, end), before, folded.limits.delivery_count)


def _watched(states: pa.Table, chains: Chains, before: np.ndarray, limit: int) -> pa.Table:
    tile_ends, rows = tiles(chains.chains["start_offset"].copy(), chains.ends, chains.batches)
    sizes, state, count = rows["last"] - rows["first"] + 1, rows["state"], rows["count"]
    effective = states["effective_start_offset"].to_numpy()
    ahead = rows["first"] >= np.repeat(effective, np.diff(tile_ends))
    waits, finished = (state == AVAILABLE) | (state == ACQUIRED), (state != ARCHIVING) & (state > ACQUIRED)
    poison = ((waits | (state == ARCHIVING)) & (count >= limit - 1)) | ((state == ARCHIVED) & (count >= limit))

    def total(chosen: np.ndarray) -> pa.Array:
        sums = np.concatenate(([0], np.cumsum(np.where(chosen, sizes, 0))))
        return pa.array(np.diff(sums[tile_ends]))

    counted = {
        "lag": lags(*(states[name] for name in ("topic_end_offset", "start_offset", "delivery_complete_count"))),
        "waiting_records": total(waits),
        "archiving_records": total(state == ARCHIVING),
        "finished_records": total(finished & ahead),
        "poison_records": total(poison),
        "moved_time": times(chains.chains["moved_time"]),
        "active_time": times(chains.chains["active_time"]),
    }
    kept = (*KEY, "state_partition", "start_offset", "effective_start_offset", "end_offset", "topic_end_offset")
    table = declared(TABLE, {name: states[name] for name in kept} | counted)
    table = table.append_column(START_BEFORE, pa.array(before, mask=before == UNKNOWN_BEFORE))
    return table.append_column(HELD_TIME, times(np.maximum(chains.chains["held_time"], 0)))


def with_verdicts(rows: pa.Table, now: int, run_id: str, limits: Limits) -> pa.Table:
    """Rows of `watched` with time, run and verdict: the words of Burrow, for share groups.

    - REWIND: SPSO is before where it was at the last audit.
    - STOP: records wait, and no consumer has changed anything for `stall_minutes`.
    - STALL: records wait, consumers work, and SPSO has not moved in `stall_minutes` since the first delivery behind it.
    - OK: anything else.

    Args:
        rows: of `watched`.
        now: ms, what "for so long" is counted to: stamp of the newest record of the whole input, or the audit's time.
        run_id: of this audit.
        limits: the stall time.
    Returns:
        Columns of schemas/tables/share_partition_history.yaml.
    """
    start, before = _numbers(rows["start_offset"]), _numbers(rows[START_BEFORE])
    lag, waiting = _numbers(rows["lag"]), _numbers(rows["waiting_records"]) + _numbers(rows["archiving_records"])
    behind = np.where(lag >= 0, lag, waiting)
    idle = _minutes_since(rows["active_time"], now)
    still = _minutes_since(rows[HELD_TIME], now)
    works = (start >= 0) & (behind > 0)
    cases = {
        REWIND: (start >= 0) & (start < before),
        STOP: works & (idle >= limits.stall_minutes),
        STALL: works & (still >= limits.stall_minutes),
    }
    verdict = np.select(list(cases.values()), [VERDICTS.index(name) for name in cases], VERDICTS.index(OK))
    reasons = {
        REWIND: ("SPSO went back from ", before, " to ", start),
        STOP: ("nothing acknowledged for ", idle.astype(np.int64), " min while ", behind, " records wait"),
        STALL: ("SPSO unmoved at ", start, " for ", still.astype(np.int64), " min while ", behind, " records wait"),
    }
    columns = {name: rows[name] for name in rows.schema.names if name not in (START_BEFORE, HELD_TIME)}
    columns |= {
        "run_id": pa.repeat(pa.scalar(run_id), len(rows)),
        "time": times(np.full(len(rows), max(now, 0))),
        "verdict": pa.DictionaryArray.from_arrays(pa.array(verdict), list(VERDICTS)),
        "reason": _reason(verdict, reasons),
    }
    return declared(TABLE, columns)


def _reason(verdict: np.ndarray, reasons: dict[str, tuple[str | np.ndarray, ...]]) -> pa.Array:
    """The sentence of each row's verdict, a number of VERDICTS; null where it has none."""
    texts, place = [pa.array([None], pa.string())], np.zeros(len(verdict), np.int64)
    for name, pieces in reasons.items():
        at = np.flatnonzero(verdict == VERDICTS.index(name))
        if len(at):
            columns = [
                pa.scalar(piece) if isinstance(piece, str) else pa.array(piece[at]).cast(pa.string())
                for piece in pieces
            ]
            place[at] = sum(map(len, texts)) + np.arange(len(at))
            texts.append(pc.call_function("binary_join_element_wise", [*columns, pa.scalar("")]))
    return pa.concat_arrays(texts).take(pa.array(place))


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    return column.fill_null(-1).to_numpy()


def _minutes_since(column: pa.ChunkedArray, now: int) -> np.ndarray:
    """Minutes from each time to the log's newest; -1 where it is unknown."""
    milliseconds = column.cast(pa.int64()).fill_null(-1).to_numpy() // 1000
    return np.where(milliseconds < 0, -1.0, (now - milliseconds) / _MS_A_MINUTE)
