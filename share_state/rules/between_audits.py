"""What became of a log partition since the last audit."""

import numpy as np

from share_state.fold.log import FoldedLog
from share_state.rules.registry import ERROR, INFO, NOTHING, WARNING, Broken, rule
from share_state.wire.resume import Fate


def _met(folded: FoldedLog, fate: Fate, text: str, *, settled: bool) -> Broken:
    if folded.observed.fate != fate:
        return NOTHING
    before = folded.observed.read_before
    return Broken(np.array([folded.first_offset if settled else before]), (text,), settled=np.array([settled]))


@rule(
    "LOG_MISSING",
    severity=WARNING,
    source="the last audit",
    statement="Every log partition that an audit has read is there for the next one.",
)
def log_missing(folded: FoldedLog) -> Broken:
    """Log partitions that are not in the input any more; what the last audit knew of them is kept."""
    return _met(
        folded, Fate.MISSING, "not in the input; its share-partitions stand as the last audit left them", settled=False
    )


@rule(
    "LOG_BEHIND",
    severity=INFO,
    source="the last audit",
    statement="A log partition reaches at least as far as the last audit read.",
)
def log_behind(folded: FoldedLog) -> Broken:
    """Copies of a replica that lags; nothing is taken back."""
    return _met(
        folded,
        Fate.BEHIND,
        "ends before what the last audit read: a replica that lags; nothing was taken back",
        settled=False,
    )


@rule(
    "LOG_BEGUN_AGAIN",
    severity=INFO,
    source="the last audit",
    statement="A log partition goes on where it ended.",
)
def log_begun_again(folded: FoldedLog) -> Broken:
    """Logs of a topic that was made anew: read from their start, what was known before is gone."""
    return _met(folded, Fate.BEGUN_AGAIN, "the topic was made anew; its log was read from its start", settled=True)


@rule(
    "LOG_DIVERGED",
    severity=ERROR,
    source="spec I41",
    statement="An offset that was read once holds the same bytes for good.",
)
def log_diverged(folded: FoldedLog) -> Broken:
    """Logs that hold other bytes where the last audit stopped, as an unclean leader election leaves them."""
    text = "holds other bytes where the last audit stopped; it was read anew from its start"
    return _met(folded, Fate.DIVERGED, text, settled=True)
