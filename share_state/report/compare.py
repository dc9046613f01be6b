"""`share-state compare`: what the log says beside what the broker answers, and the differences as findings."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.reader import CommittedTables
from share_state.fold.states import SHARE_GROUP_STATE
from share_state.kafka.codec import encode
from share_state.kafka.share_partition_keys import KeyTable, state_partitions_of
from share_state.report.console import print_table, say
from share_state.rules.registry import SEVERITIES
from share_state.schema.declarations import layout
from share_state.sources.topics import Topics

if TYPE_CHECKING:
    from share_state.sources.kafka_admin import Answer, Answers


SAME, MOVED_ON, DIFFERS = "same", "moved on", "differs"

STATEMENTS = {
    "BROKER_STATE_DIFFERS": "Where nothing was written since, the broker holds what the log folds to.",
    "BROKER_START_BEHIND": "A broker that went on is not behind the log.",
    "BROKER_STATE_MISSING": "The broker knows every live share-partition of the log.",
    "LOG_STATE_MISSING": "The log holds every share-partition that the broker knows.",
    "TOPIC_GONE": "The topic of a live share-partition exists.",
}
"""Finding -> what must hold."""

_ERROR, _WARNING, _INFO = SEVERITIES
_KEY_TYPE = 2  # bytes of the record type in front of a key
_NUMERIC = ("PARTITION", "LOG-START", "BROKER-START", "LOG-LAG", "BROKER-LAG")

Place = tuple[str, str, int]
"""(group_id, topic, partition)"""


def groups_of(warehouse: str) -> set[str]:
    """The share groups of a warehouse: a broker is asked for each of them.

    Raises:
        WarehouseError: if there is no warehouse.
    """
    states = CommittedTables(warehouse).read("share_partition_state", pc.field("dialect") == SHARE_GROUP_STATE)
    return set(states["group_id"].to_pylist())


def compare(warehouse: str, told: "Answers") -> dict[str, Any]:
    """Hold the tables of a warehouse against a broker's answers.

    A difference counts as one only where the log still ends where the run of the warehouse ended, before and after the
    question: a broker that went on since has other numbers, and that is no fault.

    Args:
        warehouse: folder of the tables.
        told: the broker's answers.
    Returns:
        `run`, `share_partitions` (a row each: key, verdict, numbers of both sides), `findings` (rule, severity, key,
        message, evidence) and the number of rows of each verdict.
    Raises:
        WarehouseError: if there is no warehouse.
    """
    tables = CommittedTables(warehouse)
    names = dict(zip(*(told.after.topics.names[name].to_pylist() for name in ("topic_id", "topic")), strict=True))
    states = tables.read("share_partition_state", pc.field("dialect") == SHARE_GROUP_STATE).to_pylist()
    logged = {(row["group_id"], _called(row, names), row["partition"]): row for row in states}
    answers = {(one.group_id, one.topic, one.partition): one for one in told.share_partitions}
    rest = _resting(tables.read("cutoff"), told)
    # A broker of 4.1 tells no lag at all.
    ends = _resting_ends(told) if any(answer.lag is not None for answer in answers.values()) else {}
    kept = _state_partitions([place for place in answers if place not in logged], names, len(told.after.logs))
    rows = []
    for place in sorted(logged.keys() | answers.keys()):
        row, answer = logged.get(place), answers.get(place)
        number = row["state_partition"] if row is not None else kept.get(place)
        rows.append(_beside(place, row, answer, number, number in rest, ends))
    findings = [_finding(row, set(names)) for row in rows if row["verdict"] != SAME]
    verdicts = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in (SAME, MOVED_ON, DIFFERS)}
    return {"run": tables.run["run_id"], "verdicts": verdicts, "share_partitions": rows, "findings": findings}


def counted(found: Mapping[str, Any]) -> dict[str, int]:
    """Severity -> number of findings of what `compare` found."""
    return dict(Counter(finding["severity"] for finding in found["findings"]))


def print_compared(found: Mapping[str, Any]) -> None:
    """Print what `compare` found: the share-partitions that are not the same, then the findings."""
    verdicts = found["verdicts"]
    counts = ", ".join(f"{verdicts[verdict]:,} {verdict}" for verdict in (SAME, MOVED_ON, DIFFERS))
    say(f"{len(found['share_partitions']):,} share-partitions (run {found['run']}): {counts}")
    unlike = [row for row in found["share_partitions"] if row["verdict"] != SAME]
    if unlike:
        columns = ["GROUP", "TOPIC", "PARTITION", "LOG-START", "BROKER-START", "LOG-LAG", "BROKER-LAG", "VERDICT"]
        names = ("group_id", "topic", "partition", "log_start_offset", "broker_start_offset", "log_lag", "broker_lag")
        print_table(columns, [[*(row[name] for name in names), row["verdict"]] for row in unlike], numeric=_NUMERIC)
    for finding in sorted(found["findings"], key=lambda one: SEVERITIES.index(one["severity"])):
        say(f"{finding['severity']}: {finding['rule']}: {finding['message']}")


def _called(row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """The topic's name now, or its last known one; its id where another topic has taken the name."""
    if row["topic_id"] in names:
        return names[row["topic_id"]]
    return row["topic_id"] if row["topic"] is None or row["topic"] in names.values() else row["topic"]


def _beside(
    place: Place,
    row: Mapping[str, Any] | None,
    answer: "Answer | None",
    state_partition: int | None,
    rests: bool,
    ends: Mapping[tuple[str, int], int],
) -> dict[str, Any]:
    """One share-partition, both sides of it."""
    group, topic, partition = place
    start = row["start_offset"] if row is not None and row["start_offset"] >= 0 else None
    end, lag = ends.get((topic, partition)), None
    if row is not None and start is not None and end is not None and row["delivery_complete_count"] >= 0:
        behind = end - start - row["delivery_complete_count"]
        lag = behind if behind >= 0 else None  # what a broker computes below 0 its client does not show
    ours = {
        "start_offset": start,
        "leader_epoch": row["leader_epoch"] if start is not None and row else None,
        "lag": lag,
    }
    theirs = {name: None if answer is None else getattr(answer, name) for name in ours}
    compared = [name for name in ours if name != "lag" or end is not None]
    unlike = [name for name in compared if ours[name] != theirs[name]]
    return {
        "group_id": group,
        "topic": topic,
        "topic_id": row["topic_id"] if row is not None else None,
        "partition": partition,
        "state_partition": state_partition,
        "verdict": SAME if not unlike else DIFFERS if rests else MOVED_ON,
        "unlike": unlike,
        **{f"log_{name}": value for name, value in ours.items()},
        **{f"broker_{name}": value for name, value in theirs.items()},
    }


def _finding(row: Mapping[str, Any], topic_ids: set[str]) -> dict[str, Any]:
    """What a difference means."""
    where = f"{row['group_id']} {row['topic']}-{row['partition']}"
    log, broker = row["log_start_offset"], row["broker_start_offset"]
    is_fault = row["verdict"] == DIFFERS
    grave = _ERROR if is_fault else _INFO
    since = "" if is_fault else " (records were written since the run)"
    if broker is None and row["topic_id"] is not None and row["topic_id"] not in topic_ids:
        code, severity, message = "TOPIC_GONE", _WARNING, "the log has its state, the cluster has no such topic"
    elif broker is None:
        code, severity, message = (
            "BROKER_STATE_MISSING",
            grave,
            f"the log starts at {log}, the broker knows none{since}",
        )
    elif log is None:
        code, severity, message = "LOG_STATE_MISSING", grave, f"the broker starts at {broker}, the log has none{since}"
    elif not is_fault and broker < log:
        code, severity = "BROKER_START_BEHIND", _WARNING
        message = f"the broker starts at {broker}, the log was at {log} already; were its offsets reset?"
    else:
        code, severity = "BROKER_STATE_DIFFERS", grave
        told = (
            f"{name} {row[f'log_{name}']} in the log, {row[f'broker_{name}']} at the broker" for name in row["unlike"]
        )
        message = f"{'; '.join(told)}{since}"
    evidence = {
        f"{side}_{name}": str(row[f"{side}_{name}"])
        for side in ("log", "broker")
        for name in ("start_offset", "leader_epoch", "lag")
    }
    key = {name: row[name] for name in ("group_id", "topic", "topic_id", "partition", "state_partition")}
    return {"rule": code, "severity": severity, **key, "message": f"{where}: {message}", "evidence": evidence}


def _resting(cutoffs: pa.Table, told: "Answers") -> set[int]:
    """The state partitions that ended, before and after the question, where the run of the warehouse ended."""
    ended = {
        row["partition"]: row["log_end_offset"] for row in cutoffs.to_pylist() if row["dialect"] == SHARE_GROUP_STATE
    }
    before, after = ({log.partition: log.end_offset for log in look.logs} for look in (told.before, told.after))
    return {
        number for number, end in ended.items() if end is not None and before.get(number) == end == after.get(number)
    }


def _resting_ends(told: "Answers") -> dict[tuple[str, int], int]:
    """(topic, partition) -> end offset, of those to which nothing was written between the two looks."""
    before, after = (_ends(look.topics) for look in (told.before, told.after))
    return {place: end for place, end in after.items() if before.get(place) == end}


def _ends(topics: Topics) -> dict[tuple[str, int], int]:
    names = topics.name_of(topics.ends["topic_id"].combine_chunks()).to_pylist()
    numbers, ends = (topics.ends[name].to_pylist() for name in ("partition", "end_offset"))
    return {(name, number): end for name, number, end in zip(names, numbers, ends, strict=True)}


def _state_partitions(places: Sequence[Place], names: Mapping[str, str], count: int) -> dict[Place, int]:
    """Where the coordinator keeps share-partitions that the log does not have."""
    ids = {name: topic_id for topic_id, name in names.items()}
    known = [place for place in places if place[1] in ids]
    if not known:
        return {}
    fields = [{"group_id": group, "topic_id": ids[topic], "partition": number} for group, topic, number in known]
    keys = [encode(layout("share_snapshot_key", "4.1+"), key)[_KEY_TYPE:] for key in fields]
    numbers = state_partitions_of(KeyTable.of(pa.chunked_array([keys], pa.binary())), count)
    return dict(zip(known, numbers.tolist(), strict=True))
