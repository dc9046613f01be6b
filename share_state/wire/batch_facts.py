"""What is true of all batches of a chunk, looked up once: most chunks hold nothing but whole, plain batches."""

from typing import NamedTuple

import numpy as np

from share_state.wire.compiled import kernel
from share_state.wire.framing import Trust


class BatchFacts(NamedTuple):
    """About BATCH rows.

    Attributes:
        rows: how many there are.
        whole: those with trust WHOLE; what follows is told of them alone.
        last: the last of them, -1 for none.
        attributes: every bit that one of them has.
        least_last_offset, greatest_base_offset: over them, 2^63 - 1 and -1 for none.
        newest_time: ms, the latest of their latest stamps, -1 at least.
    """

    rows: int
    whole: int
    last: int
    attributes: int
    least_last_offset: int
    greatest_base_offset: int
    newest_time: int

    @property
    def all_whole(self) -> bool:
        """Whether there is no other row."""
        return self.whole == self.rows


def facts_of(batches: np.ndarray) -> BatchFacts:
    """The facts of BATCH rows."""
    return BatchFacts(len(batches), *_look_over(batches))


@kernel
def _look_over(batches):
    whole, last, attributes = np.int64(0), np.int64(-1), np.int16(0)
    least_last, greatest_base, newest = np.int64(2**63 - 1), np.int64(-1), np.int64(-1)
    for row in range(len(batches)):
        batch = batches[row]
        if batch.trust == Trust.WHOLE:
            whole += 1
            last = row
            attributes |= batch.attributes
            least_last = min(least_last, batch.last_offset)
            greatest_base = max(greatest_base, batch.base_offset)
            newest = max(newest, batch.max_timestamp)
    return whole, last, np.int64(attributes), least_last, greatest_base, newest
