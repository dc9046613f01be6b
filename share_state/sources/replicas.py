"""One batch an offset where several copies of a log (replicas, overlapping exports) hold it more than once."""

import numpy as np

from share_state.jit.compile import kernel
from share_state.kafka.record_batches import Trust


def one_of_each_offset(table: np.ndarray) -> np.ndarray:
    """Choose among batches that cover the same offsets.

    Equal bytes (same offsets, same CRC) are one batch. Of different bytes the higher leader epoch is the log that
    survived, so it is kept; the other stays in the result with trust CONFLICT, to be reported.

    Args:
        table: BATCH rows of every copy, any order.
    Returns:
        BATCH rows in offset order; no two of trust WHOLE share an offset.
    """
    # What cannot be trusted comes before the copy that can: then nothing is missing behind it.
    is_whole = table["trust"] == Trust.WHOLE
    order = np.lexsort((table["segment"], -table["leader_epoch"].astype("i8"), is_whole, table["base_offset"]))
    table = table[order]
    keep = np.ones(len(table), np.bool_)
    _mark_repeats(table, keep)
    return table[keep]


@kernel
def _mark_repeats(table, keep):
    holder = -1
    for row in range(len(table)):
        if table[row].trust != Trust.WHOLE:
            continue
        if holder < 0 or table[row].base_offset > table[holder].last_offset:
            holder = row
        elif (
            table[row].base_offset == table[holder].base_offset
            and table[row].last_offset == table[holder].last_offset
            and table[row].crc == table[holder].crc
        ):
            keep[row] = False
        else:
            table[row].trust = np.int8(Trust.CONFLICT)
