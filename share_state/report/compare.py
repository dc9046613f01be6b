"""`share-state compare`: the state in the log against what the broker answers, with the differences as findings.

Equality is only required of share-partitions whose log partition is idle: it ends where the run of the
warehouse ended, both before and after the broker answered. A broker that has written since then has newer
state, which is no error; one whose log ends earlier has lost state.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.committed import CommittedTables
from share_state.errors import pluralize
from share_state.fold.states import SHARE_GROUP_STATE, compute_lags
from share_state.kafka.primitives import partition_for
from share_state.report.console import print_line, print_table
from share_state.report.share_partitions import plain_run
from share_state.rules.breaches import ERROR, INFO, SEVERITIES, WARNING
from share_state.sources.log_partition import STATE_TOPIC
from share_state.sources.topics import Topics

if TYPE_CHECKING:
    from share_state.sources.kafka_admin import BrokerOffsets, ShareGroupOffset


SAME = "same"
MOVED_ON = "moved on"
DIFFERS = "differs"

_COMPARED = ("start_offset", "leader_epoch", "lag")
_NUMERIC = ("PARTITION", "LOG-START", "BROKER-START", "LOG-LAG", "BROKER-LAG")

ShareKey = tuple[str, str, int]
"""(group_id, topic, partition)"""


def list_groups(tables: CommittedTables) -> set[str]:
    """The share groups that have state."""
    states = tables.read("share_partition_state", pc.field("dialect") == SHARE_GROUP_STATE, ["group_id"])
    return set(states["group_id"].to_pylist())


def compare(tables: CommittedTables, answers: "BrokerOffsets") -> dict[str, Any]:
    """Compare tables with a broker's answers.

    Returns:
        `run`, `verdicts` (verdict -> number), `share_partitions` (one row each: key, verdict, values of both
        sides) and `findings` (rule, severity, key, message, evidence).
    """
    names = dict(
        zip(*(answers.after.topics.names[name].to_pylist() for name in ("topic_id", "topic")), strict=True)
    )
    states = tables.read("share_partition_state", pc.field("dialect") == SHARE_GROUP_STATE).to_pylist()
    logged = {(row["group_id"], _current_topic(row, names), row["partition"]): row for row in states}
    answered = {(one.group_id, one.topic, one.partition): one for one in answers.share_partitions}
    idle, shorter = _idle_and_shorter_logs(tables.read("cutoff"), answers)
    # A broker of 4.1 reports no lag.
    ends = _idle_ends(answers) if any(answer.lag is not None for answer in answered.values()) else {}
    homes = _state_partitions([key for key in answered if key not in logged], names, len(answers.after.logs))
    rows = []
    for key in sorted(logged.keys() | answered.keys()):
        row, answer = logged.get(key), answered.get(key)
        state_partition = row["state_partition"] if row is not None else homes.get(key)
        must_agree = state_partition in idle or state_partition in shorter
        rows.append(_compare_share_partition(key, row, answer, state_partition, ends, must_agree=must_agree))
    findings = [_shorter_log(number, *found) for number, found in sorted(shorter.items())]
    findings += [_finding(row, set(names)) for row in rows if row["verdict"] != SAME]
    verdicts = {
        verdict: sum(row["verdict"] == verdict for row in rows) for verdict in (SAME, MOVED_ON, DIFFERS)
    }
    return {
        "run": plain_run(tables.run),
        "verdicts": verdicts,
        "share_partitions": rows,
        "findings": findings,
    }


def print_comparison(comparison: Mapping[str, Any]) -> None:
    """Print a result of `compare`: the share-partitions that are not the same, then the findings."""
    verdicts = comparison["verdicts"]
    counts = ", ".join(f"{verdicts[verdict]:,} {verdict}" for verdict in (SAME, MOVED_ON, DIFFERS))
    compared = pluralize(len(comparison["share_partitions"]), "share-partition")
    print_line(f"{compared} (run {comparison['run']['run_id']}): {counts}")
    unlike = [row for row in comparison["share_partitions"] if row["verdict"] != SAME]
    if unlike:
        columns = [
            "GROUP",
            "TOPIC",
            "PARTITION",
            "LOG-START",
            "BROKER-START",
            "LOG-LAG",
            "BROKER-LAG",
            "VERDICT",
        ]
        names = (
            "group_id",
            "topic",
            "partition",
            "log_start_offset",
            "broker_start_offset",
            "log_lag",
            "broker_lag",
        )
        print_table(
            columns, [[*(row[name] for name in names), row["verdict"]] for row in unlike], numeric=_NUMERIC
        )
    for finding in sorted(comparison["findings"], key=lambda one: SEVERITIES.index(one["severity"])):
        print_line(f"{finding['severity']}: {finding['rule']}: {finding['message']}")


def _current_topic(row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """The topic's current or last known name; its id if another topic has taken the name."""
    if row["topic_id"] in names:
        return names[row["topic_id"]]
    return row["topic_id"] if row["topic"] is None or row["topic"] in names.values() else row["topic"]


def _compare_share_partition(
    key: ShareKey,
    row: Mapping[str, Any] | None,
    answer: "ShareGroupOffset | None",
    state_partition: int | None,
    ends: Mapping[tuple[str, int], int],
    *,
    must_agree: bool,
) -> dict[str, Any]:
    group, topic, partition = key
    end, ours = ends.get((topic, partition)), dict.fromkeys(_COMPARED)
    if row is not None and row["start_offset"] >= 0:
        lag_of = (
            pa.array([one], pa.int64()) for one in (end, row["start_offset"], row["delivery_complete_count"])
        )
        lag = compute_lags(*lag_of)[0].as_py()
        ours = {"start_offset": row["start_offset"], "leader_epoch": row["leader_epoch"], "lag": lag}
    theirs = {name: None if answer is None else getattr(answer, name) for name in _COMPARED}
    unlike = [name for name in _COMPARED if (name != "lag" or end is not None) and ours[name] != theirs[name]]
    return {
        "group_id": group,
        "topic": topic,
        "topic_id": row["topic_id"] if row is not None else None,
        "partition": partition,
        "state_partition": state_partition,
        "verdict": SAME if not unlike else DIFFERS if must_agree else MOVED_ON,
        "unlike": unlike,
        **{f"log_{name}": value for name, value in ours.items()},
        **{f"broker_{name}": value for name, value in theirs.items()},
    }


def _finding(row: Mapping[str, Any], topic_ids: set[str]) -> dict[str, Any]:
    log, broker = row["log_start_offset"], row["broker_start_offset"]
    differs = row["verdict"] == DIFFERS
    severity = ERROR if differs else INFO
    since = "" if differs else " (records were written since the run)"
    if broker is None and row["topic_id"] is not None and row["topic_id"] not in topic_ids:
        rule = "TOPIC_GONE"
        severity = WARNING
        message = "the log has its state, the cluster has no such topic"
    elif broker is None:
        rule, message = "BROKER_STATE_MISSING", f"the log starts at {log}, the broker knows none{since}"
    elif log is None:
        rule, message = "LOG_STATE_MISSING", f"the broker starts at {broker}, the log has none{since}"
    elif not differs and broker < log:
        rule, severity = "BROKER_START_BEHIND", WARNING
        message = f"the broker starts at {broker}, the log was at {log} already; were its offsets reset?"
    else:
        pairs = ((name, row[f"log_{name}"], row[f"broker_{name}"]) for name in row["unlike"])
        values = "; ".join(
            f"{name} {ours} in the log, {theirs} at the broker" for name, ours, theirs in pairs
        )
        rule, message = "BROKER_STATE_DIFFERS", f"{values}{since}"
    columns = [f"{side}_{name}" for side in ("log", "broker") for name in _COMPARED]
    return {
        "rule": rule,
        "severity": severity,
        **{name: row[name] for name in ("group_id", "topic", "topic_id", "partition", "state_partition")},
        "message": f"{row['group_id']} {row['topic']}-{row['partition']}: {message}",
        "evidence": {column: str(row[column]) for column in columns},
    }


def _shorter_log(number: int, ended: int, ends: int) -> dict[str, Any]:
    """The finding for a state partition that ended at an offset in the run and ends before it now."""
    what = f"{STATE_TOPIC}-{number}: ended at {ended} in the run, ends at {ends} at the broker"
    return {
        "rule": "BROKER_LOG_SHORTER",
        "severity": ERROR,
        **dict.fromkeys(("group_id", "topic", "topic_id", "partition")),
        "state_partition": number,
        "message": f"{what}; it lost records or was created again, or this is another cluster",
        "evidence": {"log_end_offset": str(ended), "broker_end_offset": str(ends)},
    }


def _idle_and_shorter_logs(
    cutoffs: pa.Table, answers: "BrokerOffsets"
) -> tuple[set[int], dict[int, tuple[int, int]]]:
    """The state partitions that ended, before and after the broker answered, where the run of the warehouse ended.

    Returns:
        Their numbers; and number -> end in the run and at the broker, for those that end earlier at the
        broker.
    """
    before, after = (
        {log.partition: log.end_offset for log in look.logs} for look in (answers.before, answers.after)
    )
    where = (pc.field("dialect") == SHARE_GROUP_STATE) & pc.field("partition").is_valid()
    rows = cutoffs.filter(where & pc.field("log_end_offset").is_valid()).to_pylist()
    ended = {row["partition"]: row["log_end_offset"] for row in rows}
    # A partition without a leader has no end offset; one beyond the number of partitions does not exist.
    ends = {
        number: after.get(number, end if number < answers.after.partitions else 0)
        for number, end in ended.items()
    }
    shorter = {number: (end, ends[number]) for number, end in ended.items() if ends[number] < end}
    return {
        number for number, end in ended.items() if before.get(number) == end == after.get(number)
    }, shorter


def _idle_ends(answers: "BrokerOffsets") -> dict[tuple[str, int], int]:
    """(topic, partition) -> end offset, if it was the same before and after the broker answered."""
    before, after = (_end_offsets(look.topics) for look in (answers.before, answers.after))
    return {key: end for key, end in after.items() if before.get(key) == end}


def _end_offsets(topics: Topics) -> dict[tuple[str, int], int]:
    names = topics.name_of(topics.ends["topic_id"].combine_chunks()).to_pylist()
    numbers, ends = (topics.ends[name].to_pylist() for name in ("partition", "end_offset"))
    return {(name, number): end for name, number, end in zip(names, numbers, ends, strict=True)}


def _state_partitions(keys: Sequence[ShareKey], names: Mapping[str, str], count: int) -> dict[ShareKey, int]:
    """Where the coordinator keeps share-partitions that the log does not have."""
    ids = {name: topic_id for topic_id, name in names.items()}
    return {
        (group, topic, number): partition_for(f"{group}:{ids[topic]}:{number}", count)
        for group, topic, number in keys
        if topic in ids
    }
