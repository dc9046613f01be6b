"""What the draft's control records say of one offset: each one that touched it, and where it stood after that."""

from functools import cache
from itertools import pairwise

import numpy as np

from share_state.fold.chains import NOWHERE
from share_state.fold.chosen import Chosen
from share_state.fold.control_chains import fold_control
from share_state.fold.control_log import STRICT, decode_control_log, fold_control_log
from share_state.fold.explain import Explanation, Place, Standing, Touch
from share_state.wire.control_records import UNREADABLE, ControlKind, ControlRecords, joined
from share_state.wire.log_folder import LogPartition, Window


def explain_control(
    log: LogPartition, window: Window, chosen: Chosen, offset: int, mode: str = STRICT
) -> Explanation | None:
    """What the control records of one topic-partition say of an offset.

    Args:
        log: of `find_topic_logs`.
        window: which records count.
        chosen: the share-partition; its group is named.
        offset: of the topic-partition.
        mode: as in ControlOptions.
    Returns:
        The explanation; None where no control record tells of the group, or another topic-partition is meant.
    Raises:
        InputError: if a segment cannot be read.
    """
    if chosen.topic not in (None, log.topic) or chosen.partition not in (None, log.partition):
        return None
    records = _records_of(log, window, chosen.group_id)
    if not len(records.rows):
        return None
    told = Explanation(chosen.group_id or "", None, log.topic, log.partition or 0, offset, log.name)
    _tell(told, records, strict=mode == STRICT)
    folded = fold_control_log(log, window, mode=mode)
    for number, state in zip(folded.numbers.tolist(), folded.states.to_pylist(), strict=True):
        if state["group_id"] == chosen.group_id:
            told.effective_start, told.is_suspect = state["effective_start_offset"], bool(folded.suspect[number])
    if told.standing.place == Place.GAP:
        told.gap = next(
            (row["first_offset"], row["last_offset"])
            for row in folded.in_flight.to_pylist()
            if row["group_id"] == chosen.group_id and row["first_offset"] <= offset <= row["last_offset"]
        )
    return told


def _records_of(log: LogPartition, window: Window, group_id: str | None) -> ControlRecords:
    """The records of one group, all of it."""
    parts = []
    for records, groups in decode_control_log(log, window):
        names = groups.names().to_pylist()
        if group_id in names:
            parts.append(records.only(records.rows["group"] == names.index(group_id)))
    found = joined(parts)
    found.rows["group"] = 0
    return found


def _tell(told: Explanation, records: ControlRecords, *, strict: bool) -> None:
    """Fold only as far as records that touch the offset.

    Between two checkpoints start and end only grow, and no tuple but one that covers an offset gives it another value:
    where it stands alike at both ends of a stretch without such tuples, it did so all along.
    """
    rows, tuples, offset = records.rows, records.tuples, told.offset
    readable = rows["fault"] & UNREADABLE == 0
    is_base = readable & (rows["kind"] == ControlKind.CHECKPOINT)
    bases = np.maximum.accumulate(np.where(is_base, np.arange(len(rows)), NOWHERE))

    @cache
    def after(place: int) -> tuple[Standing, int | None, int | None, int | None]:
        base = int(bases[place])
        if base == NOWHERE:
            return Standing(Place.UNKNOWN), None, None, None
        part = records.only((np.arange(len(rows)) >= base) & (np.arange(len(rows)) <= place))
        chains = fold_control(part, 1, strict=strict)
        (chain,) = chains.chains
        start, end = int(chain["start_offset"]), int(chain["end_offset"])
        return _standing(chains.batches, start, end, offset), start, end, int(chain["epoch"])

    owner = np.repeat(np.arange(len(rows)), rows["tuple_count"])
    covering = set(owner[(tuples["first"] <= offset) & (offset <= tuples["last"])].tolist())
    turns = sorted({0, len(rows) - 1, *covering, *np.flatnonzero(is_base | ~readable).tolist()})
    looked_at = sorted({place for turn in turns for place in (turn - 1, turn) if place >= 0})
    seen = set(looked_at)

    def look_between(first: int, last: int) -> None:
        if last - first > 1 and after(first)[0] != after(last)[0]:
            middle = (first + last) // 2
            seen.add(middle)
            look_between(first, middle)
            look_between(middle, last)

    for first, last in pairwise(looked_at):
        look_between(first, last)
    before = Standing(Place.UNKNOWN)
    for place in sorted(seen):
        standing, start, end, epoch = after(place)
        row = rows[place]
        if place in covering or standing != before or not readable[place]:
            own = tuples[row["tuples"] : row["tuples"] + row["tuple_count"]]
            own = own[(own["first"] <= offset) & (offset <= own["last"])]
            told.touches.append(
                Touch(
                    offset=int(row["offset"]),
                    timestamp=int(row["timestamp"]),
                    kind=ControlKind(row["kind"]).name.lower(),
                    is_cold=False,
                    is_readable=bool(readable[place]),
                    ranges=tuple((first, last, state, count) for first, last, count, state in own.tolist()),
                    start_said=int(row["start_offset"]) if is_base[place] else NOWHERE,
                    before=before,
                    after=standing,
                    start_before=after(place - 1)[1] if place else None,
                    start_offset=start,
                    end_offset=end,
                    snapshot_epoch=epoch,
                )
            )
        before = standing
    told.standing, told.start_offset, told.end_offset, _ = after(len(rows) - 1)
    told.effective_start, told.records = told.start_offset, len(rows)
    told.last_offset, told.last_timestamp = int(rows[-1]["offset"]), int(rows[-1]["timestamp"])


def _standing(ranges: np.ndarray, start: int, end: int, offset: int) -> Standing:
    if offset < start:
        return Standing(Place.BELOW_START)
    covering = ranges[(ranges["first"] <= offset) & (offset <= ranges["last"])]
    if len(covering):
        return Standing(Place.IN_FLIGHT, int(covering[0]["state"]), int(covering[0]["count"]))
    return Standing(Place.GAP if offset < end else Place.BEYOND_END)
