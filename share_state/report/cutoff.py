"""The cutoff for people and for kafka-delete-records.sh.

What a run found, in a few lines.

What `share-state simulate` made, in a few lines.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from share_state.errors import InputError, WarehouseError
from share_state.report.console import print_table, say
from share_state.rules.registry import SEVERITIES, registered
from share_state.sources.discovery import STATE_TOPIC, LogPartition

if TYPE_CHECKING:
    from share_state.simulator.simulation import Simulation


_NUMERIC = ("PARTITION", "CUTOFF", "LOG-START", "LOG-END", "REDUNDANT", "LIVE")


def print_cutoffs(rows: Sequence[Mapping[str, Any]]) -> None:
    """One line a log partition."""
    columns = ["TOPIC", "PARTITION", "CUTOFF", "LOG-START", "LOG-END", "REDUNDANT", "LIVE", "SAFE", "HELD BACK BY"]
    cells = []
    for row in rows:
        holder = None
        if row["limited_by_group"] is not None:
            topic = row["limited_by_topic_id"] or row["topic"]
            holder = f"{row['limited_by_group']} {topic} {row['limited_by_partition']}"
        safe = "yes" if row["safe"] else f"no: {row['reason']}"
        numbers = ("partition", "cutoff_offset", "log_start_offset", "log_end_offset", "redundant_records")
        cells.append([row["topic"], *(row[name] for name in numbers), row["live_share_partitions"], safe, holder])
    print_table(columns, cells, numeric=_NUMERIC)


def print_proof(compared: int | None, differing: Sequence[str]) -> None:
    """What folding again without the records before each cutoff showed."""
    if compared is None:
        say("nothing may be cleaned, so there is nothing to prove")
    elif not differing:
        say(f"proved: what is at or after the cutoff folds to the same state, for all {compared:,} share-partitions")
        say(
            "(compared: every column but max_leader_epoch and max_state_epoch, which a broker forgets with the records)"
        )
    else:
        say(f"NOT SAFE: {len(differing):,} of {compared:,} share-partitions change: {', '.join(differing[:5])}")


def check_deletable(path: str, logs: Sequence[LogPartition]) -> None:
    """Refuse to name logs whose records are not share-group state alone.

    Raises:
        InputError: if there is one: DeleteRecords would take the user data between the control records with them.
    """
    for log in logs:
        if log.topic != STATE_TOPIC:
            raise InputError(f"{path}: not written: deleting records of {log.name} would delete its user data too")


def write_delete_records(path: str, rows: Sequence[Mapping[str, Any]]) -> int:
    """Write what `kafka-delete-records.sh --offset-json-file` takes: the safe cutoffs beyond the log start.

    The file appears whole or not at all.

    Returns:
        How many log partitions it names.
    Raises:
        InputError: if a cutoff belongs to a log whose partition number is not known.
        WarehouseError: if the file cannot be written.
    """
    chosen = [row for row in rows if row["safe"] and (row["cutoff_offset"] or 0) > row["log_start_offset"]]
    if any(row["partition"] is None for row in chosen):
        raise InputError(
            f"{path}: not written: a log's number is not known; keep its folder name __share_group_state-N"
        )
    entries = [{"topic": row["topic"], "partition": row["partition"], "offset": row["cutoff_offset"]} for row in chosen]
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.write_text(json.dumps({"partitions": entries, "version": 1}, indent=2) + "\n", encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        raise WarehouseError(
            f"{path}: cannot be written ({error.strerror}); give a file in a folder that exists"
        ) from None
    return len(entries)


def print_summary(found: Mapping[str, Any]) -> None:
    """Print the outcome of `reconstruct`."""
    count = len(found["progress"])
    live = f"{found['share_partitions']:,} live share-partitions"
    say(f"{found['records']:,} records of {count} log partitions hold {live}")
    redundant = sum(row["redundant_records"] or 0 for row in found["cutoff"])
    say(f"{redundant:,} of the records lie before the cutoff: `share-state cutoff` says more")
    print_findings(found["findings"])
    say(f"tables are in {found['warehouse']} (run {found['run_id']}): `share-state show {found['warehouse']}`")


def print_findings(findings: Sequence[Mapping[str, Any]]) -> None:
    """Print the number of findings of each rule and the statement that they break, the gravest first."""
    if not findings:
        say("no findings")
        return
    rules = registered()
    for found in sorted(findings, key=lambda found: (SEVERITIES.index(found["severity"]), found["rule"])):
        say(f"{found['severity']}: {found['rule']} × {found['count']:,}: not true: {rules[found['rule']].statement}")


def simulation_json(made: "Simulation") -> dict[str, Any]:
    """The simulation as plain data."""
    return {
        "folder": str(made.folder),
        "events": made.events,
        "records": made.records,
        "share_partitions": made.share_partitions,
        "faults": [json.loads(planted.to_json()) for planted in made.planted],
    }


def print_simulation(made: "Simulation") -> None:
    """Print what was played and written, and the finding that each planted fault must cause."""
    say(f"{made.events:,} events left {made.records:,} records of {made.share_partitions:,} share-partitions")
    if made.planted:
        rows = [[one.fault, one.finding, f"{one.log[0]}-{one.log[1]}", one.offset, one.group] for one in made.planted]
        print_table(["FAULT", "CAUSES", "LOG", "OFFSET", "GROUP"], rows, numeric=("OFFSET",))
    say(f"logs, events and the truth are in {made.folder}: `share-state audit {made.folder} --out WAREHOUSE`")
