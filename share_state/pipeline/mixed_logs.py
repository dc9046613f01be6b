"""Whether a state partition holds records of another, which only the keys of all logs together may show.

A log alone shows it where the number of state partitions is known, or where its own keys fit no number.
"""

from collections.abc import Mapping
from math import gcd

import pyarrow as pa

from share_state.fold.log_stats import Folded
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.result import mark_unsafe
from share_state.sources.log_partition import STATE_TOPIC

MIXED = "the keys of the logs fit no number of state partitions, so one holds records of another"
"""Reason why no cutoff is safe."""

PlacedKeys = tuple[int, int]
"""`key_modulus` of a log, and the least possible number of state partitions; both 0 if that number is known."""


def settle_cutoffs(plan: FoldPlan, cutoffs: pa.Table, modulus: int) -> pa.Table:
    """The table `cutoff`, in which no state partition is safe if the logs hold records of each other.

    Args:
        plan: what was folded.
        cutoffs: the table of the folds.
        modulus: `key_modulus` of all logs.
    """
    if plan.state_partitions is not None:
        return cutoffs
    names = (log.name for log in plan.logs if log.topic == STATE_TOPIC)
    return mark_unsafe(
        cutoffs, mixed_reasons(dict.fromkeys(names, (modulus, plan.options.partition_count.least)))
    )


def placed_keys(folded: Folded) -> PlacedKeys:
    """What the keys of a log partition show, for `mixed_reasons`."""
    count = folded.observations.count
    if count is None or count.number is not None:
        return 0, 0
    return folded.observations.key_modulus, count.least


def mixed_reasons(placed: Mapping[str, PlacedKeys]) -> dict[str, str]:
    """Why no cutoff of some logs is safe, by name of the log; empty if none is known to be mixed.

    Args:
        placed: log partition -> the result of `placed_keys`.
    """
    modulus = gcd(*(modulus for modulus, _ in placed.values()))
    least = max((least for _, least in placed.values()), default=0)
    return dict.fromkeys(placed, MIXED) if 0 < modulus < least else {}
