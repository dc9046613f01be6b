"""The lag of share-partitions, and in words why it is not known."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import pluralize
from share_state.fold.states import compute_lags
from share_state.report.console import print_line, print_sentence
from share_state.sources.topics import TOPICS_HINT

_KAFKA_LAG = ("topic_end_offset", "start_offset", "delivery_complete_count")
LAG_COLUMNS = (*_KAFKA_LAG, "unfinished_offsets")
"""Columns of share_partition_state from which the lag is computed."""

NO_START = (
    "they have no start offset yet: their group is initializing them, or its first member has not fetched"
)
NO_END = f"the ends of their topics are not known: {TOPICS_HINT}"
NO_COUNT = (
    "their log does not record how many of the records after the start offset are finished (Kafka before 4.2)"
)
STALE = (
    "the ends of their topics are before their own offsets: what is known of the topics is older than the log, or they "
    f"were created again; {TOPICS_HINT}"
)
WITHOUT_STATE = "their group lists them, but the input holds no state of them"


def lags_of(states: pa.Table) -> pa.ChunkedArray:
    """The lag of each share-partition, from LAG_COLUMNS of its state; null if it is not known."""
    # Only rows of the draft's control records have unfinished_offsets.
    return pc.coalesce(states["unfinished_offsets"], compute_lags(*(states[name] for name in _KAFKA_LAG)))


def lag_reason(row: Mapping[str, Any]) -> str | None:
    """Why the lag of a share-partition is not known; None if it is.

    Args:
        row: lag, start_offset, topic_end_offset and delivery_complete_count; null or -1 for unknown.
    """
    if row["lag"] is not None:
        return None
    start, end, complete = (
        -1 if row[name] is None else row[name]
        for name in ("start_offset", "topic_end_offset", "delivery_complete_count")
    )
    if start < 0:
        return NO_START
    if end < 0:
        return NO_END
    return NO_COUNT if complete < 0 and end >= start else STALE


def print_lag_reasons(reasons: Iterable[str | None]) -> None:
    """Print for how many share-partitions the lag is not known, and why; nothing if all are known."""
    counts = Counter(reason for reason in reasons if reason is not None)
    if counts:
        print_line()
    for line in _lines(counts):
        print_sentence(line)


def _lines(counts: Counter[str]) -> Iterator[str]:
    for reason, count in counts.most_common():
        yield f"the lag of {pluralize(count, 'share-partition')} is not known: {reason}"
