"""Prints cutoffs, and writes offsets for kafka-delete-records.sh."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from share_state.errors import InputError, pluralize
from share_state.report.console import (
    escape_unprintable,
    format_time,
    print_line,
    print_table,
    write_report,
)
from share_state.rules.registry import listed
from share_state.sources.discovery import STATE_TOPIC, LogPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from share_state.sources.topics import Topics

_NUMERIC = ("PARTITION", "CUTOFF", "LOG-START", "LOG-END", "REDUNDANT", "LIVE")
_REASONS_SHOWN = 10
_COLUMNS = ("TOPIC", *_NUMERIC, "SAFE", "HELD BACK BY", "ITS SNAPSHOT")


def name_holders(cutoff: "pa.Table", topics: "Topics") -> "pa.Table":
    """The table `cutoff` with the column limited_by_topic, null where the name is not known."""
    names = topics.name_of(cutoff["limited_by_topic_id"].combine_chunks())
    return cutoff.append_column("limited_by_topic", names)


def print_cutoffs(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one line per log partition; rows of the table `cutoff`, and limited_by_topic."""
    cells = []
    for row in rows:
        holder = None
        if row["limited_by_group"] is not None:
            topic = row["limited_by_topic"] or row["limited_by_topic_id"] or row["topic"]
            holder = f"{row['limited_by_group']} {topic} {row['limited_by_partition']}"
        safe = "yes" if row["safe"] else "no"
        since = format_time(row["limited_since"]) if row["limited_since"] else None
        numbers = ("partition", "cutoff_offset", "log_start_offset", "log_end_offset", "redundant_records")
        known = [row["topic"], *(row[name] for name in numbers), row["live_share_partitions"]]
        cells.append([*known, safe, holder, since])
    print_table(_COLUMNS, cells, numeric=_NUMERIC)
    _print_reasons(rows)
    for row in rows:
        log = f"{row['topic']}-{row['partition']}"
        if row["ignored"]:
            names = [f"{one['group_id']} (would lose {one['lost_records']:,} records)" for one in row["ignored"]]
            print_line(escape_unprintable(f"{log}: ignored, without a subscription: {listed(names)}"))
        if row["skipped_records"] or row["unflagged_records"]:
            print_line(
                f"{log}: skipped {row['skipped_records']:,} control records of other types, and "
                f"{row['unflagged_records']:,} records that look like share state but lack the control flag "
                "(compressed batches are not read)"
            )


def _print_reasons(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print why cutoffs are not safe, and what else is to be said of them, one line per log partition."""
    explained = [row for row in rows if row["reason"]]
    for row in explained[:_REASONS_SHOWN]:
        label = "" if row["safe"] else "not safe: "
        log = row["topic"] if row["partition"] is None else f"{row['topic']}-{row['partition']}"
        print_line(escape_unprintable(f"{label}{log}: {row['reason']}"))
    if len(explained) > _REASONS_SHOWN:
        more = pluralize(len(explained) - _REASONS_SHOWN, "more log partition")
        print_line(f"and {more}: --json lists them")


def refused(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of the table `cutoff` whose records before the cutoff must not be deleted."""
    return [row for row in rows if not row["safe"] and (row["cutoff_offset"] or 0) > row["log_start_offset"]]


def print_verification(rows: Sequence[Mapping[str, Any]], compared: int | None, differing: Sequence[str]) -> None:
    """Print whether folding again, without the records before each cutoff, gives the same state.

    Args:
        rows: rows of the table `cutoff`.
        compared, differing: as in RunResult.
    """
    if not_proven := len(refused(rows)):
        print_line(f"not verified: {pluralize(not_proven, 'log partition')} whose cutoff is not safe")
    if compared is None:
        if not not_proven:
            print_line("no log has a cutoff, so there is nothing to verify")
    elif not differing:
        print_line(
            f"verified: the records at or after the cutoff fold to the same state for all {compared:,} share-partitions"
        )
        print_line(
            "(compared: all columns except max_leader_epoch and max_state_epoch, which depend on deleted records)"
        )
    else:
        print_line(f"NOT SAFE: {len(differing):,} of {compared:,} share-partitions change: {', '.join(differing[:5])}")


def check_deletable(path: str, logs: Sequence[LogPartition]) -> None:
    """Refuse logs that hold more than share-group state.

    Raises:
        InputError: if there is one: DeleteRecords would delete the user data between its control records.
    """
    for log in logs:
        if log.topic != STATE_TOPIC:
            raise InputError(f"{path}: not written: deleting records of {log.name} would delete its user data too")


def write_delete_records(path: str, rows: Sequence[Mapping[str, Any]]) -> int:
    """Write the safe cutoffs beyond the log start as JSON for `kafka-delete-records.sh --offset-json-file`.

    Returns:
        The number of log partitions in it.
    Raises:
        InputError: if a cutoff belongs to a log whose partition number is not known.
        ReportError: if the file cannot be written.
    """
    deletable = [row for row in rows if row["safe"] and (row["cutoff_offset"] or 0) > row["log_start_offset"]]
    if any(row["partition"] is None for row in deletable):
        raise InputError(
            f"{path}: not written: a log's number is not known; keep its folder name __share_group_state-N"
        )
    entries = [
        {"topic": row["topic"], "partition": row["partition"], "offset": row["cutoff_offset"]} for row in deletable
    ]
    write_report(path, json.dumps({"partitions": entries, "version": 1}, indent=2) + "\n")
    return len(entries)
