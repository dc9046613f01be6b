"""How far share-partitions are behind."""

from typing import Any

import numpy as np
import pyarrow as pa


def lags(end_offsets: Any, start_offsets: Any, complete_counts: Any) -> pa.Array:
    """Records behind, as Kafka computes it: end offset - start offset - delivery complete count.

    Args:
        end_offsets: int64 column, the next offset to be written to each topic-partition; null where unknown.
        start_offsets: int64 column, SPSO; -1 where it is not initialised.
        complete_counts: int32 column; -1 where unknown.
    Returns:
        int64, null where one of them is unknown or they contradict each other.
    Source: Kafka GroupCoordinatorService.computeShareGroupLagAndBuildResponse.
    """
    ends, starts, complete = (_numbers(column) for column in (end_offsets, start_offsets, complete_counts))
    behind = ends - starts - complete
    known = (ends >= 0) & (starts >= 0) & (complete >= 0) & (behind >= 0)
    return pa.array(behind, mask=~known)


def _numbers(column: Any) -> np.ndarray:
    """int64, -1 for null: none of the three is negative where it is known."""
    return column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
