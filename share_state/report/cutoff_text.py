"""Prints cutoffs, and writes offsets for kafka-delete-records.sh."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from share_state.errors import InputError, ShareStateError, pluralize
from share_state.report.console import (
    format_time,
    print_line,
    print_sentence,
    print_table,
    write_report,
)
from share_state.rules.breaches import listed
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.sources.log_partition import STATE_TOPIC, LogPartition

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
        elif row.get("last_stable_offset") is not None:
            holder = "an open transaction"
        safe = "yes" if row["safe"] else "no"
        since = format_time(row["limited_since"]) if row["limited_since"] else None
        numbers = ("partition", "cutoff_offset", "log_start_offset", "log_end_offset", "redundant_records")
        known = [row["topic"], *(row[name] for name in numbers), row["live_share_partitions"]]
        cells.append([*known, safe, holder, since])
    print_table(_COLUMNS, cells, numeric=_NUMERIC)
    _print_reasons(rows)
    for row in rows:
        log = log_name(row)
        if row["ignored"]:
            names = [
                f"{one['group_id']} (would lose {one['lost_records']:,} records)" for one in row["ignored"]
            ]
            print_sentence(f"{log}: ignored, without a subscription: {listed(names)}")
        if row["skipped_records"] or row["unflagged_records"]:
            print_sentence(
                f"{log}: skipped {row['skipped_records']:,} control records of other types, and "
                f"{row['unflagged_records']:,} records that look like share state but lack the control flag "
                "(compressed batches are not read)"
            )


def log_name(row: Mapping[str, Any]) -> str:
    """The log partition of a row of the table `cutoff`; the topic alone if its number is not known."""
    return row["topic"] if row["partition"] is None else f"{row['topic']}-{row['partition']}"


def unknown_cutoffs(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Why no cutoff is known; None if one is, or there is none because nothing lives in the logs."""
    unknown = [row for row in rows if row["log_end_offset"] is None]
    if not rows or len(unknown) < len(rows):
        return None
    return f"not known in {pluralize(len(rows), 'log partition')}: {unknown[0]['reason'] or 'no offsets are known'}"


def _print_reasons(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print why cutoffs are not safe, and what else is to be said of them, one line per log partition."""
    explained = [row for row in rows if row["reason"]]
    for row in explained[:_REASONS_SHOWN]:
        label = "" if row["safe"] else "not safe: "
        print_sentence(f"{label}{log_name(row)}: {row['reason']}")
    if len(explained) > _REASONS_SHOWN:
        more = pluralize(len(explained) - _REASONS_SHOWN, "more log partition")
        print_sentence(f"and {more}: --json lists them")


def refused(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of the table `cutoff` whose records before the cutoff must not be deleted."""
    return [
        row
        for row in rows
        if not row["safe"] and (row["cutoff_offset"] or 0) > (row["log_start_offset"] or 0)
    ]


_INTERVAL = "share.coordinator.state.topic.prune.interval.ms"
_FREED_BY = (
    "to free what is held back: let the group consume, wait for a cold snapshot (4.1 or later, after 5 minutes), or "
    "kafka-share-groups.sh --delete-offsets (--delete for the group)"
)


def print_pruning(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print what the brokers delete by themselves, and what frees the records that they keep."""
    own = [row for row in rows if row["topic"] == STATE_TOPIC]
    due = [row for row in own if (row["cutoff_offset"] or 0) > (row["log_start_offset"] or 0)]
    if due:
        records = pluralize(sum(row["redundant_records"] or 0 for row in due), "record")
        print_sentence(
            f"due for the broker's own pruning: {records} of {pluralize(len(due), 'state partition')} "
            f"({_INTERVAL}, by default 5 minutes)"
        )
    if any(row["pinned_records"] for row in own):
        print_sentence(_FREED_BY)


def print_verification(
    rows: Sequence[Mapping[str, Any]], compared: int | None, differing: Sequence[str]
) -> None:
    """Print whether folding again, without the records before each cutoff, gives the same state.

    Args:
        rows: rows of the table `cutoff`.
        compared, differing: as in RunResult.
    """
    if not_proven := len(refused(rows)):
        print_sentence(f"not verified: {pluralize(not_proven, 'log partition')} whose cutoff is not safe")
    if compared is None:
        if not not_proven:
            print_sentence("no log has a cutoff, so there is nothing to verify")
    elif not differing:
        print_sentence(
            f"verified: the records at or after the cutoff fold to the same state for all {compared:,} share-partitions"
        )
        print_sentence(
            "(compared: all columns except max_leader_epoch and max_state_epoch, which depend on deleted records)"
        )
    else:
        print_sentence(
            f"NOT SAFE: {len(differing):,} of {compared:,} share-partitions change: {', '.join(differing[:5])}"
        )


def check_deletable(path: str, logs: Sequence[LogPartition]) -> None:
    """Refuse logs that hold more than share-group state, and the state topic of a running cluster.

    Raises:
        InputError: if there is one: DeleteRecords would delete the user data between control records, and
            brokers refuse it for an internal topic.
    """
    for log in logs:
        if log.source is not None and log.source.form == KAFKA_FORM:
            raise InputError(
                f"{path}: not written: brokers refuse DeleteRecords on {STATE_TOPIC}, which only their own pruner "
                "cuts; leave --delete-records out to see what it will cut and who holds it back"
            )
        if log.topic != STATE_TOPIC:
            raise InputError(
                f"{path}: not written: deleting records of {log.name} would delete its user data too"
            )


def check_topic_name(name: str) -> None:
    """Refuse what Kafka does not take as the name of a topic.

    Raises:
        ShareStateError: if it is none.
    Source: Kafka Topic.validate.
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name) or name in (".", ".."):
        raise ShareStateError(
            f"--copy-topic {name!r}: not a topic name; give that of the copy of {STATE_TOPIC}"
        )


def write_delete_records(path: str, rows: Sequence[Mapping[str, Any]], topic: str | None = None) -> int:
    """Write the safe cutoffs beyond the log start as JSON for `kafka-delete-records.sh --offset-json-file`.

    Args:
        path: the file.
        rows: rows of the table `cutoff`.
        topic: the topic that the file names; by default that of the log, which brokers refuse.
    Returns:
        The number of log partitions in it.
    Raises:
        InputError: if a cutoff belongs to a log whose partition number is not known.
        ReportError: if the file cannot be written.
    """
    redundant = [row for row in rows if (row["cutoff_offset"] or 0) > (row["log_start_offset"] or 0)]
    deletable = [row for row in redundant if row["safe"]]
    if any(row["partition"] is None for row in redundant):
        raise InputError(
            f"{path}: not written: a log's number is not known; keep its folder name __share_group_state-N"
        )
    entries = [
        {"topic": topic or row["topic"], "partition": row["partition"], "offset": row["cutoff_offset"]}
        for row in deletable
    ]
    write_report(path, json.dumps({"partitions": entries, "version": 1}, indent=2) + "\n")
    return len(entries)


def print_delete_records(path: str, count: int | None, topic: str | None) -> None:
    """Print what was written, and for which topic it is.

    Args:
        path: the file of --delete-records.
        count: number of log partitions in it; None if it was not written.
        topic: the topic of --copy-topic.
    """
    if count is None:
        print_line("nothing was written")
        return
    text = f"{path}: names {pluralize(count, 'state partition')}"
    if topic is not None and count:
        command = f"kafka-delete-records.sh --offset-json-file {shlex.quote(path)}"
        text = f"{text} of {topic}, which must have the offsets of this log; run {command}"
    elif count:
        text = (
            f"{text} of {STATE_TOPIC}, on which brokers refuse DeleteRecords (an internal topic: their own pruner cuts "
            "it); it is for a log cleaner, and with --copy-topic NAME for a copy of the log under another name"
        )
    print_line(text)
