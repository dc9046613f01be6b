"""Which share-partitions are in trouble, and everything that the tables of an audit hold about them."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.sections import LimitSettings
from share_state.delta.commits import standing
from share_state.delta.reader import CommittedTables
from share_state.errors import NothingCommittedError, pluralize
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.history import HISTORY_TABLE, VERDICTS
from share_state.fold.limits import Limits
from share_state.fold.states import KEY, SHARE_GROUP_STATE
from share_state.kafka.delivery_states import DeliveryState
from share_state.kafka.releases import RELEASES, Release
from share_state.pipeline.audit import run_audit
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.result import WRITER
from share_state.report.share_partitions import (
    IDENTITY_COLUMNS,
    RULES_WITHOUT_STATE,
    STATE,
    add_topic_key,
    ascending,
    check_known,
    group_rows,
    latest_audit_filter,
    left_join,
    number_rows,
    poison_filter,
    prefilter,
    rows_by_place,
    select_share_partitions,
    with_unreported_verdicts,
)
from share_state.schema.declarations import table_schema
from share_state.simulator.types import StateBatch
from share_state.sources.kafka_client import SCHEME

TROUBLES = (
    "STATE_SUSPECT",
    "UNLOADABLE",
    "ORPHAN_SHARE_STATE",
    "REWIND",
    "ARCHIVING_STUCK",
    "POISON_RECORDS",
    "IN_FLIGHT_LIMIT",
    "STALL",
    "STOP",
    "DLQ_UNUSABLE",
    "DELETE_INCOMPLETE",
    "CUTOFF_PINNED",
)
"""Verdicts and rules that mean trouble, the most severe first. SPSO_STALL counts as STALL, its verdict."""

_RULES = {code: code for code in TROUBLES if code not in (*VERDICTS, "POISON_RECORDS", "UNLOADABLE")} | {
    "SPSO_STALL": "STALL"
}
"""Rule -> trouble. Archived poison records need no action, so only those that wait are looked up."""

_BROKEN_CHAIN = ("ORPHAN_UPDATE", "BASE_LOST", "SPLIT_KEY", "SNAPSHOT_EPOCH_GAP", "UPDATE_EPOCH_MISMATCH")
"""Rules that make a state suspect, unless a later snapshot replaced what they are about."""
_RULES |= dict.fromkeys(_BROKEN_CHAIN, "STATE_SUSPECT")

_STATE_COLUMNS = (
    *KEY, "state_partition", "start_offset", "effective_start_offset", "end_offset", "topic_end_offset",
    "snapshot_epoch", "state_epoch", "leader_epoch", "delivery_complete_count", "snapshot_offset",
    "updates_since_snapshot", "write_time", "suspect",
)  # fmt: skip
_HISTORY = {"verdict": pa.string(), "reason": pa.string(), "moved_time": pa.timestamp("us", "UTC")}
_RANGE = ("first_offset", "last_offset", "delivery_state", "delivery_count", "gap")


@dataclass(frozen=True, slots=True)
class SharePartitionStatus:
    """A share-partition in trouble.

    Attributes:
        row: its row of share_partition_state; verdict, reason and moved_time of the latest audit, null if
            unknown.
        ranges: in flight, ascending, from the start offset to the end; gaps are AVAILABLE with delivery count
            0.
        gaps: first offsets of the ranges that no batch covers.
        troubles: code of TROUBLES -> message of its finding, or reason of its verdict; the most severe first.
        archiving_ms: how long its first offset in ARCHIVING has waited; 0 if none has waited for long.
        cutoff: the row of `cutoff` of its log partition.
        previous_start: where a leader would have started at the previous audit; None if it is unknown.
    """

    row: Mapping[str, Any]
    ranges: tuple[StateBatch, ...]
    gaps: frozenset[int]
    troubles: Mapping[str, str]
    archiving_ms: int
    cutoff: Mapping[str, Any]
    previous_start: int | None

    @property
    def name(self) -> str:
        """The topic: its name, or its id if that is unknown."""
        return self.row["topic"] or self.row["topic_id"]


@dataclass(frozen=True, slots=True)
class Survey:
    """The share-partitions in trouble.

    Attributes:
        found: the most severe first.
        left_out: how many more there are.
        limits: the limits of the cluster and its groups.
        observed: groups whose delivery limit is at least that of `limits`: their log exceeds the configured
            one.
        releases: the releases that may have written the log, ascending.
        time: the time up to which durations are measured: that of the newest record, or of the audit.
        inputs: what was read.
        without_state: what findings say of share-partitions that have no state, one line each.
    """

    found: tuple[SharePartitionStatus, ...]
    left_out: int
    limits: Limits
    observed: frozenset[str]
    releases: tuple[str, ...]
    time: datetime | None
    inputs: tuple[str, ...]
    without_state: tuple[str, ...] = ()


@contextmanager
def audited(plan: FoldPlan, inputs: Sequence[str], *, is_live: bool = False) -> Iterator[CommittedTables]:
    """Yield the tables of a first audit of some logs, which threads of this process write to a temporary folder.

    Args:
        plan: the log partitions.
        inputs: as given.
        is_live: whether they belong to a running cluster, so that durations last until now.
    Raises:
        InputError: if a segment cannot be read, or the input holds no valid batch.
    """
    log = logging.getLogger("share_state")
    with TemporaryDirectory(prefix="share-state-repair-") as folder:
        level = log.level
        threads = nullcontext(LocalExecutor())
        tables = f"{folder}/tables"
        # Notes on the tables of that folder would only confuse.
        log.setLevel(logging.WARNING)
        try:
            run_audit(lambda _: threads, plan, tables, inputs=tuple(inputs), by_wall_clock=is_live)
        finally:
            log.setLevel(level)
            standing.pop(tables, None)
        yield CommittedTables(tables)


def open_warehouse(inputs: Sequence[str]) -> CommittedTables | None:
    """The tables of a warehouse if that is what the inputs are, else None.

    Raises:
        WarehouseError: if it cannot be read.
    """
    if len(inputs) == 1 and not inputs[0].startswith(SCHEME):
        with suppress(NothingCommittedError):
            return CommittedTables(inputs[0])
    return None


def limits_of_run(options: Mapping[str, str]) -> Limits:
    """The limits that an audit had, from the options in its row of `runs`."""
    given: dict[str, Any] = {"groups": {}}
    # What the cluster shows is used where the call does not set it.
    of_cluster = "limits.of_cluster."
    shown = {
        name.removeprefix(of_cluster): value for name, value in options.items() if name.startswith(of_cluster)
    }
    for key, value in options.items():
        section, _, name = key.partition(".")
        if name.startswith("of_cluster."):
            continue
        if section == "limits" and not name.startswith("groups."):
            given[name] = value
        elif section == "limits":
            group, _, limit = name.removeprefix("groups.").rpartition(".")
            given["groups"].setdefault(group, {})[limit] = value
    return LimitSettings.model_validate(given | shown).to_limits()


def survey(
    tables: CommittedTables, groups: Sequence[str], limits: Limits | None = None, release: str | None = None,
    most: int = 50,
) -> Survey:  # fmt: skip
    """Find the share-partitions in trouble.

    Args:
        tables: the tables of an audit or a reconstruct; without an audit, verdicts are unknown.
        groups: only these; all if there are none.
        limits: by default those of the run.
        release: the release that wrote the log; by default inferred.
        most: maximum number of share-partitions.
    Raises:
        InputError: if a group is unknown.
        WarehouseError: if a table is gone.
    """
    for group in groups:
        check_known([tables], SharePartitionFilter(group))
    where = pc.field("dialect") == SHARE_GROUP_STATE
    states = tables.read(STATE, where, _STATE_COLUMNS)
    releases = _releases(tables, states) if release is None else (release,)
    if groups:
        is_wanted = pc.field("group_id").isin(list(groups))
        states, where = states.filter(is_wanted), where & is_wanted
    verdicts = _verdicts(tables, where)
    rows = left_join(add_topic_key(states), verdicts, _HISTORY)
    limits, observed = _with_observed(tables, where, limits or limits_of_run(dict(tables.run["options"])))
    waits = where & poison_filter(limits) & ~pc.field("terminal")
    known = pc.field("delivery_state").isin([int(state) for state in DeliveryState])
    found = [
        _findings(tables, where, states),
        _with_ranges(tables, waits, "POISON_RECORDS", "at the delivery limit or one below it"),
        _with_ranges(tables, where & ~known, "UNLOADABLE", "in a state that no release knows"),
        _below_start(tables, where),
    ]
    findings = pa.concat_tables(found, promote_options="default")
    rows = left_join(
        rows, group_rows(findings, IDENTITY_COLUMNS, {"trouble": "min"}), {"trouble": pa.int32()}
    )
    verdict = pc.index_in(rows["verdict"], pa.array(TROUBLES))
    suspect = pc.if_else(rows["suspect"], pa.scalar(0, pa.int32()), pa.scalar(None, pa.int32()))
    rows = rows.append_column("rank", pc.min_element_wise(verdict, rows["trouble"], suspect))
    rows = rows.filter(pc.is_valid(rows["rank"])).sort_by([*ascending("rank"), *ascending(*KEY)])
    selected = number_rows(rows.slice(0, most)).combine_chunks()
    return Survey(
        tuple(_statuses(tables, selected, findings)),
        max(0, len(rows) - most),
        limits,
        observed,
        releases,
        verdicts["time"][0].as_py() if verdicts is not None and len(verdicts) else tables.run["log_time"],
        tuple(tables.run["inputs"]),
        _without_state(tables, where),
    )


def _without_state(tables: CommittedTables, where: pc.Expression) -> tuple[str, ...]:
    """What findings say of share-partitions that have no state, one line each."""
    is_about = pc.field("rule").isin(list(RULES_WITHOUT_STATE))
    rows = tables.read("findings", where & is_about, [*KEY, "message"]).sort_by(ascending(*KEY[1:]))
    return tuple(
        f"{row['group_id']} {row['topic'] or row['topic_id']}-{row['partition']}: {row['message']}"
        for row in rows.to_pylist()
    )


def _verdicts(tables: CommittedTables, where: pc.Expression) -> pa.Table | None:
    if not tables.holds(HISTORY_TABLE):
        return None
    columns = (*KEY, *_HISTORY, "time")
    return with_unreported_verdicts(
        tables, tables.read(HISTORY_TABLE, where & latest_audit_filter(tables), columns)
    )


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


def _with_observed(
    tables: CommittedTables, where: pc.Expression, limits: Limits
) -> tuple[Limits, frozenset[str]]:
    """The limits with at least the delivery limit that each group shows, and the groups that show more than configured.

    A record that is AVAILABLE after some deliveries has one left. Source: Kafka InFlightState.tryUpdateState.
    """
    rows = tables.read(
        "in_flight", where & poison_filter(limits), ("group_id", "delivery_state", "delivery_count")
    )
    left = pc.equal(rows["delivery_state"], int(DeliveryState.AVAILABLE)).cast(rows["delivery_count"].type)
    rows = rows.append_column("limit", pc.add(rows["delivery_count"], left))
    found = rows.group_by("group_id").aggregate([("limit", "max")]).to_pylist()
    shown = {row["group_id"]: row["limit_max"] for row in found}
    more = {
        group: count for group, count in shown.items() if count > limits.of_group("delivery_count", group)
    }
    own = {group: {**limits.groups.get(group, {}), "delivery_count": count} for group, count in more.items()}
    return replace(limits, groups={**limits.groups, **own}), frozenset(more)


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


def _statuses(
    tables: CommittedTables, selected: pa.Table, findings: pa.Table
) -> Iterator[SharePartitionStatus]:
    if not len(selected):
        return
    in_flight = tables.read("in_flight", prefilter(selected), (*KEY, *_RANGE))
    ranges = rows_by_place(select_share_partitions(in_flight, selected), _RANGE)
    found = select_share_partitions(findings.drop_columns("topic_key"), selected)
    reported = rows_by_place(found, ("trouble", "message", "milliseconds"))
    cutoffs = {
        row["partition"]: row
        for row in tables.read("cutoff").to_pylist()
        if row["dialect"] == SHARE_GROUP_STATE
    }
    previous = _previous_starts(tables, selected)
    for place, row in enumerate(selected.to_pylist()):
        own = sorted(ranges.get(place, ()), key=lambda one: one["first_offset"])
        of_rules = {TROUBLES[one["trouble"]]: one for one in reported.get(place, ())}
        troubles = {code: one["message"] for code, one in of_rules.items()}
        if row["verdict"] in TROUBLES:
            troubles[row["verdict"]] = row["reason"]
        if row["suspect"]:
            troubles.setdefault(TROUBLES[0], "records since its latest snapshot are missing or unreadable")
        yield SharePartitionStatus(
            row=row,
            ranges=tuple(
                StateBatch(
                    one["first_offset"],
                    one["last_offset"],
                    _state(one["delivery_state"]),
                    one["delivery_count"],
                )
                for one in own
            ),
            gaps=frozenset(one["first_offset"] for one in own if one["gap"]),
            troubles={code: troubles[code] for code in TROUBLES if code in troubles},
            archiving_ms=int(of_rules.get("ARCHIVING_STUCK", {}).get("milliseconds") or 0),
            cutoff=cutoffs.get(row["state_partition"], {}),
            previous_start=previous.get(place),
        )


def _previous_starts(tables: CommittedTables, selected: pa.Table) -> dict[int, int]:
    """Place -> effective start offset at the previous audit, for share-partitions that were rewound."""
    rewound = selected.filter(pc.equal(selected["verdict"], "REWIND"))
    if not len(rewound):
        return {}
    earlier = prefilter(rewound) & ~latest_audit_filter(tables)
    rows = tables.read(HISTORY_TABLE, earlier, (*KEY, "time", "effective_start_offset"))
    found = select_share_partitions(rows, rewound).sort_by("time").to_pylist()
    return {row["place"]: row["effective_start_offset"] for row in found}


def _state(code: int) -> DeliveryState:
    # A code that no release writes remains a number, which no leader loads.
    return DeliveryState(code) if code in set(DeliveryState) else code  # type: ignore[return-value]


def _releases(tables: CommittedTables, states: pa.Table) -> tuple[str, ...]:
    """The releases that may have written the log: as configured, or as far as the state shows."""
    configured = dict(tables.run["options"]).get("limits.writer_version")
    if configured is not None:
        return (configured,)
    archives = any(note.startswith(WRITER) for note in tables.run["notes"] or ())
    archiving = pc.field("delivery_state") == int(DeliveryState.ARCHIVING)
    if archives or next(tables.batches("in_flight", ["partition"], archiving), None) is not None:
        return _with(lambda release: release.dead_letters)
    if pc.any(pc.greater_equal(states["delivery_complete_count"], 0)).as_py():
        return _with(lambda release: release.counts_completed)
    if pc.any(pc.is_valid(states["write_time"])).as_py():
        # From 4.2 on, every start offset that is set comes with its delivery complete count.
        is_set = pc.any(pc.greater_equal(states["start_offset"], 0)).as_py()
        return _with(lambda release: release.layout != "4.0" and not (is_set and release.counts_completed))
    return _with(lambda release: release.layout == "4.0" or not len(states))


def _with(has: Callable[[Release], bool]) -> tuple[str, ...]:
    return tuple(name for name, release in RELEASES.items() if has(release))


_NOT_UTF8 = re.compile(r"�|\\x[0-9a-f]{2}|[\0\ud800-\udfff]")


def can_be_named(text: str | None) -> bool:
    """Whether a group id or topic name is known exactly: bytes that are not UTF-8 are shown escaped."""
    return bool(text) and not _NOT_UTF8.search(text or "")
