"""What is wrong with a share-partition, worst first: the one place that audit, page, metrics, repair and why ask.

A trouble is a verdict of an audit, or what some rules report. `read_troubles` finds those of a warehouse,
`shown_limits` the limits that hold for it, and `waits_for` what SPSO waits for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.committed import CommittedTables
from share_state.errors import pluralize
from share_state.fold.history import NO_MEMBERS, VERDICTS
from share_state.fold.limits import Limits
from share_state.fold.states import KEY
from share_state.kafka.delivery_states import TERMINAL, DeliveryState
from share_state.report.share_partitions import (
    IDENTITY_COLUMNS,
    STATE,
    add_topic_key,
    ascending,
    group_rows,
    left_join,
    poison_filter,
    with_shown_deliveries,
)
from share_state.rules.breaches import ERROR, WARNING
from share_state.schema.declarations import table_schema

TROUBLES = (
    "STATE_SUSPECT",
    "UNLOADABLE",
    "ORPHAN_SHARE_STATE",
    "TOPIC_GONE",
    "REWIND",
    "ARCHIVING_STUCK",
    "POISON_RECORDS",
    "IN_FLIGHT_LIMIT",
    "STALL",
    "STOP",
    "GIVING_UP",
    "DLQ_UNUSABLE",
    "DELETE_INCOMPLETE",
    NO_MEMBERS,
    "CUTOFF_PINNED",
)
"""Verdicts and rules that mean trouble, the most severe first. SPSO_STALL counts as STALL, its verdict."""

VERDICT_TEXTS = {
    "REWIND": (
        ERROR,
        "the start offset went back, by a reset or since the last audit, so finished records are delivered again",
        "check whether the group's offsets were reset or the group was recreated; if not, state was lost.",
    ),
    "STOP": (
        ERROR,
        "records wait, and no consumer has changed anything for a while",
        "start the consumers of the group, or find out why they do not fetch and acknowledge.",
    ),
    "STALL": (
        WARNING,
        "consumers finish later records, but the start offset does not move",
        "look at the first range in flight: every delivery of its records fails or, from Kafka 4.2 on, their locks are "
        "renewed forever.",
    ),
    "GIVING_UP": (
        WARNING,
        "records are given up or rejected, and none is acknowledged",
        "read the first of these records, and find out why the consumers reject or release each.",
    ),
    NO_MEMBERS: (
        WARNING,
        "records wait, and the group has no members",
        "start its consumers; if it is a batch job that runs at other times, acknowledge the verdict.",
    ),
}
"""Verdict -> its severity, what is wrong, and what to do."""

LACKS_RECORDS = "records since its latest snapshot are missing or unreadable"
"""What a suspect state means, if no finding says more."""

_OF_STATE = ("POISON_RECORDS", "UNLOADABLE")
"""Troubles that the state shows. Archived poison records need no action, so only those that wait are looked up."""

_BROKEN_CHAIN = ("ORPHAN_UPDATE", "BASE_LOST", "SPLIT_KEY", "SNAPSHOT_EPOCH_GAP", "UPDATE_EPOCH_MISMATCH")
"""Rules that make a state suspect, unless a later snapshot replaced what they are about."""

_RULES = {
    **{code: code for code in TROUBLES if code not in (*VERDICTS, *_OF_STATE)},
    "SPSO_STALL": "STALL",
    **dict.fromkeys(_BROKEN_CHAIN, "STATE_SUSPECT"),
}
"""Rule -> trouble."""


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """The first offsets that are not finished: SPSO waits for them.

    Attributes:
        first, last: offsets, inclusive.
        state: delivery state, as its code.
        count: deliveries so far.
        is_gap: whether no batch covers them: the log shows no delivery.
    """

    first: int
    last: int
    state: int
    count: int
    is_gap: bool


def trouble_of_rule(rule: str) -> str | None:
    """The trouble that findings of a rule mean; None if they mean none."""
    return rule if rule in _OF_STATE else _RULES.get(rule)


def waits_for(start: int | None, ranges: Iterable[Mapping[str, Any]]) -> WaitsFor | None:
    """The first unfinished range from the start offset on; None if nothing in flight is unfinished.

    Args:
        start: where a leader starts; None if there is no start offset.
        ranges: first_offset, last_offset, delivery_state, delivery_count and gap, ascending.
    """
    for row in ranges:
        if start is not None and row["last_offset"] >= start and row["delivery_state"] not in TERMINAL:
            first = max(row["first_offset"], start)
            return WaitsFor(
                first, row["last_offset"], row["delivery_state"], row["delivery_count"], bool(row["gap"])
            )
    return None


def troubles_of(reported: Iterable[Mapping[str, Any]], row: Mapping[str, Any]) -> dict[str, str]:
    """The troubles of a share-partition: code of TROUBLES -> message, the most severe first.

    Args:
        reported: its rows of `read_troubles`.
        row: its verdict and reason of an audit, and whether its state is suspect.
    """
    messages = {TROUBLES[one["trouble"]]: one["message"] for one in reported}
    if row["verdict"] in TROUBLES:
        messages[row["verdict"]] = row["reason"]
    if row["suspect"]:
        messages.setdefault(TROUBLES[0], LACKS_RECORDS)
    return {code: messages[code] for code in TROUBLES if code in messages}


def worst_trouble(
    troubles: Mapping[str, str], findings: Sequence[Mapping[str, Any]]
) -> tuple[str, str] | None:
    """The code of what is wrong with a share-partition, and its message; None if nothing is.

    Args:
        troubles: code of TROUBLES -> message, the most severe first.
        findings: rule, severity, open and message of its findings by rule, the most severe first.
    """
    broken = next((one for one in findings if one["open"] and one["severity"] in (ERROR, WARNING)), None)
    code = next(iter(troubles), None)
    if broken is not None and code is not None and troubles[code] == LACKS_RECORDS:
        return code, _message(broken)
    # Many groups without members are batch jobs, so that anything else about them comes first.
    if code is not None and (code != NO_MEMBERS or broken is None):
        return code, troubles[code]
    return None if broken is None else (broken["rule"], _message(broken))


def _message(finding: Mapping[str, Any]) -> str:
    """The message of the worst finding of a rule, and of how many it is one unless it says so."""
    has_number = finding["open"] == 1 or finding["message"][:1].isdigit()
    return (
        finding["message"] if has_number else f"{finding['open']:,} findings, the worst: {finding['message']}"
    )


def cause(trouble: str, message: str, waits: WaitsFor | None, limit: int) -> str:
    """What is wrong with a share-partition, in one phrase, which `why` goes on with what the log shows.

    Args:
        trouble: code of TROUBLES, or another rule or verdict.
        message: of its finding, or reason of its verdict.
        waits: what SPSO waits for.
        limit: the delivery limit of the group.
    """
    span = _span(waits)
    if trouble == "ARCHIVING_STUCK" and waits is not None and waits.state == DeliveryState.ARCHIVING:
        return f"the dead-letter write of {span} does not finish (ARCHIVING), and SPSO cannot pass it"
    if trouble == "POISON_RECORDS" and waits is not None and waits.count >= max(limit - 1, 1):
        return f"{span} failed {waits.count} of {limit} deliveries: poison"
    if trouble in ("IN_FLIGHT_LIMIT", "STALL") and waits is not None:
        full = "the in-flight window is full, and" if trouble == "IN_FLIGHT_LIMIT" else "SPSO does not move:"
        if waits.is_gap:
            return f"{full} it waits at a gap, {span}: the log shows no delivery of it"
        return f"{full} it waits for {span} after {pluralize(waits.count, 'failed delivery', 'failed deliveries')}"
    return message


def _span(waits: WaitsFor | None) -> str:
    if waits is None:
        return "nothing in flight"
    if waits.first == waits.last:
        return f"record {waits.first:,}"
    return f"records {waits.first:,} to {waits.last:,}"


def read_troubles(
    tables: CommittedTables, where: pc.Expression, states: pa.Table, limits: Limits
) -> pa.Table:
    """What findings and state say of share-partitions in trouble; not their verdicts.

    Args:
        tables: the tables of a run.
        where: which share-partitions.
        states: KEY and snapshot_offset of those.
        limits: from `shown_limits`.
    Returns:
        Key columns, topic_key, trouble (index in TROUBLES), message, and milliseconds (text) of findings
        that have a duration.
    """
    known = pc.field("delivery_state").isin([int(state) for state in DeliveryState])
    waits = where & poison_filter(limits) & ~pc.field("terminal")
    found = [
        _findings(tables, where, states),
        _with_ranges(tables, waits, "POISON_RECORDS", "at the delivery limit or one below it"),
        _with_ranges(tables, where & ~known, "UNLOADABLE", "in a state that no release knows"),
        _below_start(tables, where),
    ]
    return pa.concat_tables(found, promote_options="default")


def _findings(tables: CommittedTables, where: pc.Expression, states: pa.Table) -> pa.Table:
    """Findings that mean trouble, with the columns topic_key and trouble (index in TROUBLES).

    The first share-partition of `states` stands for a group that a finding is about.
    """
    columns = (*KEY, "rule", "message", "evidence", "offset")
    rows = tables.read("findings", where & pc.field("rule").isin(list(_RULES)), columns)
    of_groups, first = rows.filter(pc.field("partition").is_null()), states.sort_by(ascending(*KEY))
    if len(of_groups):
        first = first.take(pc.index_in(of_groups["group_id"], first["group_id"].combine_chunks()).drop_null())
        of_groups = of_groups.filter(pc.is_in(of_groups["group_id"], first["group_id"].combine_chunks()))
        of_groups = pa.table({name: (first if name in KEY else of_groups)[name] for name in columns})
        rows = pa.concat_tables([rows.filter(pc.field("partition").is_valid()), of_groups.cast(rows.schema)])
    rows = add_topic_key(rows)
    milliseconds = pc.map_lookup(rows["evidence"], pa.scalar("milliseconds"), "first")
    rows = rows.drop_columns("evidence").append_column("milliseconds", milliseconds)
    snapshots = add_topic_key(states).select([*IDENTITY_COLUMNS, "snapshot_offset"])
    rows = left_join(rows, snapshots, {"snapshot_offset": pa.int64()})
    is_replaced = pc.is_in(rows["rule"], pa.array(_BROKEN_CHAIN))
    is_replaced = pc.and_(is_replaced, pc.fill_null(pc.less(rows["offset"], rows["snapshot_offset"]), False))
    rows = rows.filter(pc.invert(is_replaced)).drop_columns(["offset", "snapshot_offset"])
    index = {rule: TROUBLES.index(code) for rule, code in _RULES.items()}
    return rows.append_column(
        "trouble", pa.array([index[rule] for rule in rows["rule"].to_pylist()], pa.int32())
    )


def shown_limits(tables: CommittedTables, counts: pa.Table, limits: Limits) -> tuple[Limits, frozenset[str]]:
    """The limits with at least the delivery limit that each group shows, and the groups that show more than configured.

    Args:
        tables: the tables of a run.
        counts: from `in_flight_counts` of these.
        limits: those of the configuration.

    A record that is AVAILABLE after some deliveries has one left. Source: Kafka InFlightState.tryUpdateState.
    """
    shown = with_shown_deliveries(tables, limits)
    near = _with_limit(counts.filter(poison_filter(shown)))
    most = group_rows(near, ["group_id"], {"limit": "max"}).to_pylist()
    shown = shown.at_least({row["group_id"]: row["limit"] for row in most})
    groups = {*shown.groups, *(row["group_id"] for row in most)}
    more = [
        group
        for group in groups
        if shown.of_group("delivery_count", group) > limits.of_group("delivery_count", group)
    ]
    return shown, frozenset(more)


def _with_limit(rows: pa.Table) -> pa.Table:
    """Append the delivery limit that a range in flight shows at least."""
    count, is_open = rows["delivery_count"], pc.equal(rows["delivery_state"], int(DeliveryState.AVAILABLE))
    return rows.append_column("limit", pc.add(count, is_open.cast(count.type)))


def _with_ranges(tables: CommittedTables, where: pc.Expression, trouble: str, text: str) -> pa.Table:
    """Share-partitions with matching ranges in flight: key columns, topic_key, trouble and message, as `_findings`."""
    rows = tables.read("in_flight", where, (*KEY, "record_count"))
    found = add_topic_key(group_rows(rows, KEY, {"record_count": "sum"}))
    texts = (f"{pluralize(one, 'offset')} {text}" for one in found["record_count"].to_pylist())
    found = found.append_column(
        "trouble", pa.repeat(pa.scalar(TROUBLES.index(trouble), pa.int32()), len(found))
    )
    return found.append_column("message", pa.array(texts, pa.string())).drop_columns("record_count")


def _below_start(tables: CommittedTables, where: pc.Expression) -> pa.Table:
    """Share-partitions with a batch that begins before their start offset; columns as `_with_ranges`.

    Source: Kafka SharePartition.maybeInitialize, which refuses them.
    """
    found = [table_schema(STATE).empty_table().select([*KEY, "start_offset"])]
    columns, is_set = (*KEY, "start_offset", "state_batches"), pc.field("start_offset") >= 0
    for states in tables.batches(STATE, columns, where & is_set):
        rows = states.filter(pc.greater(pc.list_value_length(states["state_batches"]), 0))
        first = pc.struct_field(pc.list_element(rows["state_batches"], 0), "first_offset")
        found.append(rows.filter(pc.less(first, rows["start_offset"])).drop_columns("state_batches"))
    rows = add_topic_key(pa.concat_tables(found, promote_options="permissive"))
    texts = (
        f"a persisted batch begins before the start offset {start}"
        for start in rows["start_offset"].to_pylist()
    )
    rows = rows.append_column(
        "trouble", pa.repeat(pa.scalar(TROUBLES.index("UNLOADABLE"), pa.int32()), len(rows))
    )
    return rows.append_column("message", pa.array(texts, pa.string())).drop_columns("start_offset")
