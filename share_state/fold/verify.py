"""Proof that a cutoff is safe: fold again without the records before it, and compare the states."""

from dataclasses import dataclass, replace

import pyarrow as pa

from share_state.fold.dialect import Folded, dialect_of
from share_state.fold.options import FoldOptions
from share_state.sources.as_of import Window

FORGOTTEN = ("max_leader_epoch", "max_state_epoch")
"""Columns that may differ: a broker that loads the shorter log knows only the epochs of the remaining records."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Result of the comparison.

    Attributes:
        compared: number of share-partitions in the full fold.
        differing: "group:topic_id:partition" of those whose state differs; the topic's name if it has no id.
    """

    compared: int
    differing: tuple[str, ...]


def verify_cutoff(folded: Folded, window: Window, options: FoldOptions) -> Proof | None:
    """Fold only the records at or after the cutoff and compare the states with those of the full fold.

    Groups without a subscription are not compared if their state may be deleted (control records).

    Args:
        folded: the full fold of a log.
        window: the window of the full fold.
        options: the options of the full fold.
    Returns:
        None if the log has no cutoff.
    """
    offset = folded.cutoff["cutoff_offset"][0].as_py()
    if offset is None:
        return None
    dialect = dialect_of(folded.log)
    options = replace(options, restore=None, resume_status=None, judge=None)
    shorter = dialect.fold(folded.log, replace(window, from_offset=offset), options)
    full, left = (_sorted(dialect.comparable(folded, one.states)) for one in (folded, shorter))
    if full.equals(left):
        return Proof(len(full), ())
    # Only a failed proof pays for naming what differs.
    states = [{_name(row): row for row in table.to_pylist()} for table in (full, left)]
    differing = sorted(name for name in {*states[0], *states[1]} if states[0].get(name) != states[1].get(name))
    return Proof(len(full), tuple(differing))


def _sorted(states: pa.Table) -> pa.Table:
    by_key = [(name, "ascending") for name in ("group_id", "topic_id", "partition")]
    return states.drop_columns(list(FORGOTTEN)).sort_by(by_key).combine_chunks()


def _name(row: dict[str, object]) -> str:
    return f"{row['group_id']}:{row['topic_id'] or row['topic']}:{row['partition']}"
