"""The records of a chunk that count: found, and held against the log start, the last audit and the window."""

from dataclasses import dataclass

import numpy as np

from share_state.wire.batch_facts import BatchFacts, facts_of
from share_state.wire.chunk import Chunk
from share_state.wire.framing import Trust
from share_state.wire.log_folder import Window
from share_state.wire.records import located_records

_ALL = Window()


@dataclass(frozen=True, slots=True)
class Located:
    """A chunk whose records were found.

    Attributes:
        part: the chunk without the batches that lie outside.
        facts: about the batches that are left, those whose records cannot be found being MALFORMED by now.
        records: RECORD rows that count.
        had_whole: whether any batch could be trusted before, outside or not.
    """

    part: Chunk
    facts: BatchFacts
    records: np.ndarray
    had_whole: bool


def located(part: Chunk, begin: int, window: Window) -> Located:
    """Find the records of a chunk that count; nothing of the chunks before it is needed for that.

    Args:
        part: of `read_chunks`; the `trust` of its batches is lowered in place.
        begin: whole batches that end before this offset are gone, or were read already.
        window: which records count.
    """
    facts = facts_of(part.batches)
    within = _within(part, facts, begin, window.until_offset)
    records, lowered = within.records, False
    if records is None:
        records, lowered = located_records(within.data, within.batches)
    left = facts_of(within.batches) if lowered or within is not part else facts
    return Located(within, left, records if window == _ALL else records[window.counts(records)], facts.whole > 0)


def _within(part: Chunk, facts: BatchFacts, begin: int, until: int | None) -> Chunk:
    """Without batches that end before `begin` (the one that holds it is loaded whole) or begin too late."""
    if facts.least_last_offset >= begin and (until is None or (facts.all_whole and facts.greatest_base_offset < until)):
        return part
    batches = part.batches
    outside = (batches["trust"] == Trust.WHOLE) & (batches["last_offset"] < begin)
    if until is not None:
        outside |= batches["base_offset"] >= until
    if not outside.any():
        return part
    places = np.cumsum(~outside) - 1
    why = {int(places[row]): reason for row, reason in part.why.items() if not outside[row]}
    records = part.records
    if records is not None:
        records = records[~outside[records["batch"]]]
        records["batch"] = places[records["batch"]]
    return Chunk(part.data, batches[~outside], why, part.repeated, records, part.faults)
