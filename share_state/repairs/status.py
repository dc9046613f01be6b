"""Which share-partitions are in trouble, and everything that the tables of an audit hold about them."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.sections import LimitSettings
from share_state.delta.commits import standing
from share_state.delta.committed import CommittedTables
from share_state.errors import NothingCommittedError
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.history import HISTORY_TABLE, NO_MEMBERS
from share_state.fold.limits import Limits
from share_state.fold.states import KEY, SHARE_GROUP_STATE
from share_state.kafka.delivery_states import DeliveryState
from share_state.kafka.releases import RELEASES, Release
from share_state.pipeline.audit import run_audit
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.result import WRITER
from share_state.pipeline.resume import COMMAND as AUDIT
from share_state.pipeline.stream_run import ARCHIVING_OPTION
from share_state.pipeline.stream_run import COMMAND as STREAM
from share_state.report.absent_states import unknown_states
from share_state.report.lags import lags_of
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
    rows_by_place,
    select_share_partitions,
    with_unreported_verdicts,
)
from share_state.report.troubles import (
    TROUBLES,
    WaitsFor,
    read_troubles,
    shown_limits,
    trouble_of_rule,
    troubles_of,
    waits_for,
)
from share_state.rules.breaches import ERROR, WARNING
from share_state.simulator.types import StateBatch
from share_state.sources.kafka_client import SCHEME
from share_state.stores.paths import to_path

_STATE_COLUMNS = (
    *KEY, "state_partition", "start_offset", "effective_start_offset", "end_offset", "topic_end_offset",
    "snapshot_epoch", "state_epoch", "leader_epoch", "delivery_complete_count", "snapshot_offset",
    "updates_since_snapshot", "write_time", "suspect", "unfinished_offsets",
)  # fmt: skip
_TIME = pa.timestamp("us", "UTC")
_HISTORY = {
    "verdict": pa.string(), "reason": pa.string(), "lag": pa.int64(), "moved_time": _TIME, "active_time": _TIME,
    "oldest_unfinished_time": _TIME, "rewound_from": pa.int64(),
}  # fmt: skip
_RANGE = ("first_offset", "last_offset", "delivery_state", "delivery_count", "gap")


NO_VERDICTS = "whether consumers work: a reconstruct gives no verdicts; run `share-state audit`"
_LEFT_TO_AUDITS = (
    "whether groups and topics still exist, whether records were deleted before they were finished, "
    "and whether state is in several state partitions: a stream leaves that to `share-state audit`"
)


@dataclass(frozen=True, slots=True)
class SharePartitionStatus:
    """A share-partition, and what is wrong with it.

    Attributes:
        row: its row of share_partition_state; verdict, reason, lag, moved_time, active_time,
            oldest_unfinished_time and rewound_from of the latest audit, null if unknown.
        ranges: in flight, ascending, from the start offset to the end; gaps are AVAILABLE with delivery count
            0.
        gaps: first offsets of the ranges that no batch covers.
        troubles: code of TROUBLES -> message of its finding, or reason of its verdict; the most severe first.
        archiving_ms: how long its first offset in ARCHIVING has waited; 0 if none has waited for long.
        cutoff: the row of `cutoff` of its log partition.
        previous_start: where a leader would have started before SPSO went back; None if it did not, or that
            is unknown.
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

    @property
    def waits_for(self) -> WaitsFor | None:
        """What SPSO waits for: the first unfinished offsets in flight; None if there are none."""
        start = self.row["effective_start_offset"]
        rows = (
            {"first_offset": one[0], "last_offset": one[1], "delivery_state": int(one[2]),
             "delivery_count": one[3], "gap": one[0] in self.gaps}
            for one in self.ranges
        )  # fmt: skip
        return waits_for(None if start is None or start < 0 else start, rows)


@dataclass(frozen=True, slots=True)
class Survey:
    """The share-partitions in trouble.

    Attributes:
        found: the most severe first; the healthy ones, which `survey` adds if it is asked for them, last.
        left_out: how many more there are.
        limits: the limits of the cluster and its groups.
        observed: groups whose delivery limit is at least that of `limits`: their log exceeds the configured
            one.
        releases: the releases that may have written the log, ascending.
        time: the time up to which durations are measured: that of the newest record, or of the audit.
        inputs: what was read.
        without_state: what findings say of share-partitions that have no state, one line each.
        other_rules: rule -> findings of errors and warnings that mean no trouble of a share-partition; and
            NO_MEMBERS -> share-partitions that are left out because only that is wrong with them.
    """

    found: tuple[SharePartitionStatus, ...]
    left_out: int
    limits: Limits
    observed: frozenset[str]
    releases: tuple[str, ...]
    time: datetime | None
    inputs: tuple[str, ...]
    without_state: tuple[str, ...] = ()
    other_rules: Mapping[str, int] = field(default_factory=dict)


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
    if len(inputs) != 1 or inputs[0].startswith(SCHEME):
        return None
    # Most inputs are logs; nothing else has a folder of this name.
    if "://" in inputs[0] or to_path(f"{inputs[0]}/runs").is_dir():
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
    most: int = 50, selection: SharePartitionFilter | None = None, dialect: str = SHARE_GROUP_STATE,
) -> Survey:  # fmt: skip
    """Find the share-partitions in trouble.

    Args:
        tables: the tables of an audit or a reconstruct; without an audit, verdicts are unknown.
        groups: only these; all if there are none.
        limits: by default those of the run.
        release: the release that wrote the log; by default inferred.
        most: maximum number of share-partitions.
        selection: only these, in place of `groups`; the healthy ones are added.
        dialect: of the share-partitions.
    Raises:
        InputError: if a group is unknown, or nothing matches the selection.
        WarehouseError: if a table is gone.
    """
    for wanted in map(SharePartitionFilter, groups) if selection is None else (selection,):
        check_known([tables], wanted)
    where = pc.field("dialect") == dialect
    states = tables.read(STATE, where, _STATE_COLUMNS)
    releases = releases_of(tables, states) if release is None else (release,)
    if dialect != SHARE_GROUP_STATE:
        releases = ()
    if groups:
        is_wanted = pc.field("group_id").isin(list(groups))
        states, where = states.filter(is_wanted), where & is_wanted
    if selection is not None and selection.of_rows is not None:
        states, where = states.filter(selection.of_rows), where & selection.of_rows
    verdicts = _verdicts(tables, where)
    rows = left_join(add_topic_key(states), verdicts, _HISTORY)
    # A reconstruct has no verdicts, and its states show the lag.
    lag = rows.column_names.index("lag")
    rows = rows.set_column(lag, "lag", pc.coalesce(rows["lag"], lags_of(rows)))
    limits, observed = shown_limits(
        tables, tables.in_flight_counts(where), limits or limits_of_run(dict(tables.run["options"]))
    )
    findings = read_troubles(tables, where, states, limits)
    rows = left_join(
        rows, group_rows(findings, IDENTITY_COLUMNS, {"trouble": "min"}), {"trouble": pa.int32()}
    )
    verdict = pc.index_in(rows["verdict"], pa.array(TROUBLES))
    suspect = pc.if_else(rows["suspect"], pa.scalar(0, pa.int32()), pa.scalar(None, pa.int32()))
    rows = rows.append_column("rank", pc.min_element_wise(verdict, rows["trouble"], suspect))
    others = _other_rules(tables, where)
    if selection is None:
        rows = rows.filter(pc.is_valid(rows["rank"]))
    if selection is None and not groups:
        # Many groups without members are batch jobs: who asks about one gives it.
        is_idle = pc.equal(rows["rank"], TROUBLES.index(NO_MEMBERS))
        others = {NO_MEMBERS: pc.sum(is_idle).as_py() or 0, **others}
        rows = rows.filter(pc.invert(is_idle))
    # Nulls come last: the healthy ones.
    rows = rows.sort_by([*ascending("rank"), *ascending(*KEY)])
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
        {rule: count for rule, count in others.items() if count},
    )


def unknown_of(tables: CommittedTables, groups: Sequence[str] = ()) -> tuple[str, ...]:
    """What tables cannot show about share-partitions of groups, one line each.

    Args:
        tables, groups: as for `survey`.
    """
    lines = unknown_states(tables, groups)
    command = tables.run["command"]
    if command == STREAM:
        lines.append(_LEFT_TO_AUDITS)
    elif command != AUDIT:
        lines.append(NO_VERDICTS)
    return tuple(lines)


def _other_rules(tables: CommittedTables, where: pc.Expression) -> dict[str, int]:
    """Rule -> errors and warnings about a group that mean no trouble of a share-partition."""
    is_counted = pc.field("severity").isin([ERROR, WARNING]) & pc.field("group_id").is_valid()
    rules = tables.read("findings", where & is_counted, ("rule",))["rule"].to_pylist()
    others = [one for one in rules if trouble_of_rule(one) is None and one not in RULES_WITHOUT_STATE]
    return dict(sorted(Counter(others).items()))


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


def _statuses(
    tables: CommittedTables, selected: pa.Table, findings: pa.Table
) -> Iterator[SharePartitionStatus]:
    if not len(selected):
        return
    in_flight = tables.of(selected).read("in_flight", columns=(*KEY, *_RANGE))
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
            troubles=troubles_of(reported.get(place, ()), row),
            archiving_ms=int(of_rules.get("ARCHIVING_STUCK", {}).get("milliseconds") or 0),
            cutoff=cutoffs.get(row["state_partition"], {}),
            previous_start=row["rewound_from"] or previous.get(place),
        )


def _previous_starts(tables: CommittedTables, selected: pa.Table) -> dict[int, int]:
    """Place -> effective start offset at the previous audit, for share-partitions that were rewound."""
    rewound = selected.filter(pc.equal(selected["verdict"], "REWIND"))
    if not len(rewound):
        return {}
    earlier = ~latest_audit_filter(tables)
    rows = tables.of(rewound).read(HISTORY_TABLE, earlier, (*KEY, "time", "effective_start_offset"))
    found = select_share_partitions(rows, rewound).sort_by("time").to_pylist()
    return {row["place"]: row["effective_start_offset"] for row in found}


def _state(code: int) -> DeliveryState:
    # A code that no release writes remains a number, which no leader loads.
    return DeliveryState(code) if code in set(DeliveryState) else code  # type: ignore[return-value]


def releases_of(tables: CommittedTables, states: pa.Table) -> tuple[str, ...]:
    """The releases that may have written the log: as configured, or as far as the state shows."""
    options = dict(tables.run["options"])
    configured = options.get("limits.writer_version")
    if configured is not None:
        return (configured,)
    notes = tables.run["notes"] or ()
    archives = ARCHIVING_OPTION in options or any(note.startswith(WRITER) for note in notes)
    archiving = pc.field("delivery_state") == int(DeliveryState.ARCHIVING)
    if archives or next(tables.batches("in_flight", ["partition"], archiving), None) is not None:
        return _with(lambda release: release.dead_letters)
    if pc.any(pc.greater_equal(states["delivery_complete_count"], 0)).as_py():
        return _with(lambda release: release.counts_completed)
    if pc.any(pc.is_valid(states["write_time"])).as_py():
        # From 4.2 on, every start offset that is set comes with its delivery complete count.
        is_set = pc.any(pc.greater_equal(states["start_offset"], 0)).as_py()
        return _with(lambda release: release.has_times and not (is_set and release.counts_completed))
    return _with(lambda release: not release.has_times or not len(states))


def _with(has: Callable[[Release], bool]) -> tuple[str, ...]:
    return tuple(name for name, release in RELEASES.items() if has(release))


_NOT_UTF8 = re.compile(r"�|\\x[0-9a-f]{2}|[\0\ud800-\udfff]")


def can_be_named(text: str | None) -> bool:
    """Whether a group id or topic name is known exactly: bytes that are not UTF-8 are shown escaped."""
    return bool(text) and not _NOT_UTF8.search(text or "")
