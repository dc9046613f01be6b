"""An audit in words: its headline, advice on what to do first, a screenful for the console, and one JSON document."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from operator import itemgetter
from typing import Any

from rich.console import Console

from share_state.delta.reader import REPORTED
from share_state.errors import pluralize
from share_state.fold.durations import duration_text
from share_state.fold.history import OK as VERDICT_OK
from share_state.report.audit_data import AuditReport
from share_state.report.broken_rules import BrokenRule
from share_state.report.console import (
    UNKNOWN,
    escape_unprintable,
    format_duration,
    format_name,
    format_number,
    format_size,
    format_time,
    print_line,
    print_table,
)
from share_state.report.cutoff_text import log_name, unknown_cutoffs
from share_state.report.flagged import FlaggedSharePartition
from share_state.report.lags import lag_reason
from share_state.report.share_partitions import RULES_WITHOUT_STATE
from share_state.rules.breaches import ERROR, INFO, WARNING

OK = "ok"
"""The level of an audit that needs no attention."""

_VERDICTS = {
    "REWIND": (
        ERROR,
        "the start offset is lower than an earlier audit saw, so finished records are delivered again",
        "Check whether the group's offsets were reset or the group was recreated; if not, state was lost.",
    ),
    "STOP": (
        ERROR,
        "records wait, and no consumer has changed anything for a while",
        "Check that the group has members, and that they fetch and acknowledge.",
    ),
    "STALL": (
        WARNING,
        "consumers finish later records, but the start offset does not move",
        "Look at the first range in flight: every delivery of its records fails or, from Kafka 4.2 on, their locks are "
        "renewed forever.",
    ),
    "GIVING_UP": (
        WARNING,
        "records are given up or rejected, and none is acknowledged",
        "Read the first of these records, and find out why the consumers reject or release each.",
    ),
    "NO_MEMBERS": (
        WARNING,
        "records wait, and the group has no members",
        "Start its consumers; if it is a batch job that runs at other times, acknowledge the verdict.",
    ),
}
_COVERED_RULES = {"SPSO_STALL": "STALL", "POISON_RECORDS": None}
"""Rule -> the verdict that says the same; None for what the poison records say."""

_MAX_ROWS = 5
_MAX_RULES = 8
_MAX_PATHS = 3
_MAX_FAILING = 3
_FILE_WIDTH, _WIDTH_FOR_NUMBERS = 240, 110


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do.

    Attributes:
        severity: error, warning or info.
        what: what is wrong, in a sentence.
        then: what to do about it.
        command: a shell command that shows more; None if there is none.
    """

    severity: str
    what: str
    then: str
    command: str | None = None


def audit_level(report: AuditReport) -> str:
    """The severity of the whole audit: error, warning or OK."""
    if report.is_healthy:
        return OK
    has_errors = (
        report.by_severity[ERROR] or report.failing or any(one.now["suspect"] for one in report.flagged)
    )
    mild = {VERDICT_OK, *(verdict for verdict, (severity, *_) in _VERDICTS.items() if severity != ERROR)}
    is_stopped = any(count for verdict, count in report.open_verdicts.items() if verdict not in mild)
    return ERROR if has_errors or is_stopped else WARNING


def headline(report: AuditReport) -> str:
    """The audit in one line, with the age of the newest record when it began."""
    age = (
        "" if report.export_age is None else f"; the newest record was {duration_text(report.export_age)} old"
    )
    return f"{_state_in_one_line(report)}{age}"


def _state_in_one_line(report: AuditReport) -> str:
    total = pluralize(report.live, "share-partition")
    flagged = len(report.flagged) + report.flagged_left_out
    wrong = [pluralize(report.by_severity[one], one) for one in (ERROR, WARNING) if report.by_severity[one]]
    if unsafe := sum(not row["safe"] for row in report.cutoffs):
        wrong.append(pluralize(unsafe, "unsafe cutoff"))
    if flagged:
        return ", ".join([f"{flagged:,} of {total} {'needs' if flagged == 1 else 'need'} attention", *wrong])
    fine = f"all {total} are OK" if report.live > 1 else total
    return ", ".join([fine, *(wrong or ["no errors, no warnings"])])


def advice(report: AuditReport, most: int = 6) -> tuple[Advice, ...]:
    """At most `most` things to do, the most urgent first."""
    return tuple(islice(_all_advice(report), most))


def show_command(warehouse: str, row: Mapping[str, Any]) -> str | None:
    """The command that shows the share-partition of a row (key columns).

    None if a name cannot be typed in a shell.
    """
    topic = row["topic"] or row["topic_id"]
    words = [warehouse, "--group", row["group_id"], "--topic", topic, "--partition", str(row["partition"])]
    if not all(word and word.isprintable() for word in words):
        return None
    return shlex.join(["share-state", "show", *words])


def groups_command(warehouse: str, row: Mapping[str, Any]) -> str | None:
    """The command that shows the group of a row (key columns).

    None if its name cannot be typed in a shell.
    """
    if not all(word and word.isprintable() for word in (warehouse, row["group_id"])):
        return None
    return shlex.join(["share-state", "groups", warehouse, "--group", row["group_id"]])


def _all_advice(report: AuditReport) -> Iterator[Advice]:
    """In the order of `AuditReport.flagged`: an error is more severe than STALL."""
    yield from _verdict_advice(report, "REWIND")
    yield from _verdict_advice(report, "STOP")
    yield from islice(_rule_advice(report, ERROR), 3)
    yield from _verdict_advice(report, "STALL")
    yield from _verdict_advice(report, "GIVING_UP")
    if report.poison.records and any(
        finding.rule == "POISON_RECORDS" and finding.open and finding.severity != INFO
        for finding in report.findings
    ):
        worst = report.poison.worst[0]
        limit = report.limits.of_group("delivery_count", worst["group_id"])
        yield Advice(
            WARNING,
            f"{pluralize(report.poison.records, 'record')} failed on (nearly) every delivery that the limit of "
            f"{limit} allows; the worst begin at offset {worst['first_offset']:,} of {_name(worst)}.",
            "Read these records of the topic, and find out why the consumers reject or release them.",
            show_command(report.warehouse, worst),
        )
    unsafe = [row for row in report.cutoffs if not row["safe"]]
    if unsafe:
        why = unsafe[0]["reason"] or "no reason is given"
        first = log_name(unsafe[0])
        advice = f"{pluralize(len(unsafe), 'log partition')} must not be cleaned; {first}: {why}."
        yield Advice(
            WARNING, advice, "Fix what the findings of these log partitions report before deleting records."
        )
    yield from islice(_rule_advice(report, WARNING), 3)
    yield from _verdict_advice(report, "NO_MEMBERS")
    pinned = max(report.cutoffs, key=lambda row: row["pinned_records"] or 0, default=None)
    if pinned is not None and (pinned["pinned_records"] or 0) >= report.limits.pinned_records:
        columns = {
            "topic": "limited_by_topic",
            "topic_id": "limited_by_topic_id",
            "partition": "limited_by_partition",
        }
        who = _name(
            {
                "group_id": pinned["limited_by_group"],
                **{name: pinned[column] for name, column in columns.items()},
            }
        )
        kept = f"{pluralize(pinned['pinned_records'], 'record')} of {log_name(pinned)}"
        advice = f"{who} alone holds back {kept}."
        yield Advice(INFO, advice, "Nothing is lost; if the group is no longer used, delete it.")


def _verdict_advice(report: AuditReport, verdict: str) -> Iterator[Advice]:
    severity, what, then = _VERDICTS[verdict]
    worst = next((one for one in report.flagged if one.now["verdict"] == verdict), None)
    if count := report.open_verdicts[verdict]:
        command = show_command(report.warehouse, worst.now) if worst else None
        example = f"; {_worst(worst.now, count)}: {worst.why}" if worst else ""
        if verdict == "STALL" and worst and (gap := _gap_at_start(worst)) is not None:
            then = _GAP.format(*gap)
        yield Advice(
            severity, f"{pluralize(count, 'share-partition')} with {verdict}: {what}{example}.", then, command
        )


_GAP = (
    "It waits for a gap, offsets {} to {}: the log shows no delivery of them. Their first delivery may hold them; a "
    "leader that loads the state hands them out again."
)


def _gap_at_start(flagged: FlaggedSharePartition) -> tuple[int, int] | None:
    """First and last offset of the gap that a share-partition waits for.

    None if it waits for something else.
    """
    open_ranges = (one for one in flagged.ranges if one["state"] not in ("ACKNOWLEDGED", "ARCHIVED"))
    first = next(open_ranges, None)
    return (first["first_offset"], first["last_offset"]) if first is not None and first["gap"] else None


def _rule_advice(report: AuditReport, severity: str) -> Iterator[Advice]:
    """About the rules that the worst share-partitions break first."""
    broken = []
    for rule in report.findings:
        verdict = _COVERED_RULES.get(rule.rule, "")
        is_covered = report.poison.records if verdict is None else report.open_verdicts.get(verdict, 0)
        if rule.severity == severity and rule.open and not is_covered:
            examples = (
                (place, {**one.now, **found})
                for place, one in enumerate(report.flagged)
                for found in one.findings
                if (found["rule"], found["severity"]) == (rule.rule, severity) and found["open"]
            )
            broken.append((rule, *next(examples, (len(report.flagged), rule.examples[0]))))
    for rule, _, example in sorted(broken, key=itemgetter(1)):
        yield _advise_on_rule(report, rule, example)


def _advise_on_rule(report: AuditReport, rule: BrokenRule, example: Mapping[str, Any]) -> Advice:
    new = f", {rule.new:,} of them new" if rule.new and rule.new < rule.open else ""
    about = "" if example["group_id"] is None else f" {_worst(example, rule.open)}:"
    what = f"{pluralize(rule.open, 'finding')} of {rule.rule}{new}:{about} {example['message']}"
    command = None
    if example["group_id"] is not None:
        shows = groups_command if rule.rule in RULES_WITHOUT_STATE else show_command
        command = shows(report.warehouse, example)
    return Advice(
        rule.severity, what, f"What should hold: {rule.statement}" if rule.statement else "", command
    )


def _worst(row: Mapping[str, Any], count: int) -> str:
    """Name a share-partition as the worst of many, or as the only one."""
    return f"{'the worst is ' if count > 1 else ''}{_name(row)}"


def _name(row: Mapping[str, Any]) -> str:
    return f"{format_name(row['group_id'])} {format_name(row['topic'] or row['topic_id'])}-{row['partition']}"


def print_audit(report: AuditReport, written: Sequence[str] = ()) -> None:
    """Print the result of an audit in at most 30 lines.

    Args:
        report: from `read_report`.
        written: paths of the report files.
    """
    run, console = report.run, Console()
    width = console.width if console.is_terminal else _FILE_WIDTH
    cluster = f" of {format_name(report.cluster)}" if report.cluster else ""
    read = f"{pluralize(run['records'], 'record')} of {pluralize(run['state_partitions'], 'log partition')}"
    took = f"read in {format_duration(run['started'], run['finished'])}; newest record: {format_time(report.log_time)}"
    print_line(_shorten(f"audit{cluster}, run {run['run_id']}: {read} {took}", width))
    if run["notes"]:
        more = f" (and {pluralize(len(run['notes']) - 1, 'more note')})" if len(run["notes"]) > 1 else ""
        print_line(f"note: {_shorten(run['notes'][0], 2 * width - 6 - len(more))}{more}")
    print_line(_shorten(headline(report), width))
    statuses = ", ".join(f"{count:,} {status}" for status, count in report.statuses.items() if count)
    print_line(_shorten(f"status: {statuses or 'no share-partitions'}", width))
    if report.deliveries:
        print_line(_shorten(_deliveries_line(report), width))
    _print_flagged(report, width)
    _print_rules(report, width)
    print_line(_shorten(_cutoff_line(report), width))
    for first in advice(report, most=1):
        print_line(_shorten(f"next: {first.what}", width))
        if first.then:
            print_line(_shorten(f"      {first.then}", width))
        if first.command is not None and len(first.command) <= _FILE_WIDTH:
            print_line(f"      {first.command}")
    for path in written[:_MAX_PATHS]:
        print_line(f"written: {path}")
    warehouse = report.warehouse
    print_line(f"tables are in {warehouse}: `share-state show {warehouse}`")


def _deliveries_line(report: AuditReport) -> str:
    """What became of deliveries since the last audit: in all groups, and in those where most fail."""
    groups = report.deliveries
    totals = {name: sum(getattr(group, name) for group in groups) for name in OUTCOMES}
    line = f"since the last audit: {outcomes_text(totals)}"
    failing = [one for one in groups if one.failed][:_MAX_FAILING]
    shares = [f"{_shorten(format_name(one.group_id), 30)} {one.failed:,} of {one.total:,}" for one in failing]
    return line + (f"; failed deliveries: {', '.join(shares)}" if shares else "")


OUTCOMES = {
    "acknowledged": "acknowledged",
    "given_up": "given up",
    "rejected": "rejected",
    "released": "released",
    "dead_lettered": "sent to dead letters",
}
"""What may become of a delivery -> in words."""


def outcomes_text(counts: Mapping[str, int]) -> str:
    """Counts of OUTCOMES in words; those with 0 are left out, but for the acknowledged ones."""
    shown = {name: counts[name] for name in OUTCOMES if counts[name] or name == "acknowledged"}
    return ", ".join(f"{count:,} {OUTCOMES[name]}" for name, count in shown.items())


def _print_flagged(report: AuditReport, width: int) -> None:
    if not report.flagged:
        return
    numeric = ("START-OFFSET", "LAG", "START-UNMOVED") if width >= _WIDTH_FOR_NUMBERS else ()
    rows = []
    for one in report.flagged[:_MAX_ROWS]:
        now = one.now
        names = [
            _shorten(format_name(text), width // 6)
            for text in (now["group_id"], now["topic"] or now["topic_id"])
        ]
        start = format_number(now["start_offset"]) if (now["start_offset"] or 0) >= 0 else UNKNOWN
        numbers = [start, format_number(now["lag"]), format_duration(now["moved_time"], now["time"])]
        rows.append([one.status, *names, str(now["partition"]), *(numbers if numeric else []), one.why])
    columns = ["STATUS", "GROUP", "TOPIC", "PARTITION", *numeric, "WHY"]
    _print_fitted(columns, rows, width, ("PARTITION", *numeric))
    unknown = (lag_reason({"delivery_complete_count": None, **one.now}) for one in report.flagged[:_MAX_ROWS])
    if numeric and (reason := next(filter(None, unknown), None)):
        print_line(_shorten(f"LAG -: {reason}", width))
    if more := len(report.flagged) + report.flagged_left_out - len(rows):
        verb = "needs" if more == 1 else "need"
        print_line(f"... and {pluralize(more, 'more share-partition')} that {verb} attention")


def _print_rules(report: AuditReport, width: int) -> None:
    if not report.findings:
        print_line("no findings")
        return
    rows = [
        [
            one.severity,
            one.rule,
            *map(format_number, (one.count, one.new, one.open)),
            one.examples[0]["message"],
        ]
        for one in report.findings[:_MAX_RULES]
    ]
    numeric = ("COUNT", "NEW", "OPEN")
    _print_fitted(["SEVERITY", "RULE", *numeric, "FOR EXAMPLE"], rows, width, numeric)
    if len(report.findings) > _MAX_RULES:
        print_line(f"... and {pluralize(len(report.findings) - _MAX_RULES, 'more rule')}")


def _cutoff_line(report: AuditReport) -> str:
    rows = report.cutoffs
    if not rows:
        return "cutoff: no log partitions"
    if (unknown := unknown_cutoffs(rows)) is not None:
        return f"cutoff: {unknown}"
    redundant = sum(row["redundant_records"] or 0 for row in rows)
    octets = [row["redundant_bytes"] for row in rows if row["redundant_bytes"] is not None]
    line = f"cutoff: {pluralize(redundant, 'redundant record')}{f' ({format_size(sum(octets))})' if octets else ''}"
    line += f" in {pluralize(len(rows), 'log partition')}"
    if unsafe := sum(not row["safe"] for row in rows):
        line += f", {unsafe:,} of them unsafe to clean"
    pinned = max(rows, key=lambda row: row["pinned_records"] or 0)
    if pinned["pinned_records"] and pinned["limited_by_group"] is not None:
        holder = _shorten(format_name(pinned["limited_by_group"]), 40)
        line += f"; group {holder} alone holds back {pluralize(pinned['pinned_records'], 'more record')}"
    return line


def _print_fitted(columns: list[str], rows: list[list[str]], width: int, numeric: Sequence[str]) -> None:
    """Print a table whose last column is cut to the width that the others leave."""
    others = list(zip(columns, *rows, strict=True))[:-1]
    widths = [max(len(escape_unprintable(text)) for text in column) for column in others]
    left = max(10, width - sum(widths) - 2 * len(columns))
    print_table(columns, [[*row[:-1], _shorten(row[-1], left)] for row in rows], numeric=numeric)


def _shorten(text: str, most: int) -> str:
    """One line of at most `most` characters."""
    text = escape_unprintable(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def audit_json(report: AuditReport) -> dict[str, Any]:
    """The audit as plain data: what `print_audit` prints, in full.

    Returns:
        cluster, warehouse, run, export_age_seconds, verdicts, open_verdicts, statuses, findings_by_severity,
        failing, healthy, headline, advice,
        share_partitions (how many), troubled (those that need attention, each with status, why, now, state,
        ranges, findings, history),
        troubled_left_out, deliveries (by group, since the last audit), findings (by rule), cutoff, poison.
    """
    return {
        "cluster": report.cluster,
        "warehouse": report.warehouse,
        # Once this is printed, the run is marked so.
        "run": dict(report.run) | {"status": REPORTED},
        "headline": headline(report),
        "export_age_seconds": None if report.export_age is None else report.export_age / 1000,
        "healthy": report.is_healthy,
        "failing": report.failing,
        "failing_verdicts": report.failing_verdicts,
        "share_partitions": report.live,
        "verdicts": dict(report.verdicts),
        "open_verdicts": dict(report.open_verdicts),
        "statuses": dict(report.statuses),
        "findings_by_severity": report.by_severity,
        "advice": [asdict(one) for one in advice(report)],
        "troubled": [asdict(one) | {"status": one.status, "why": one.why} for one in report.flagged],
        "troubled_left_out": report.flagged_left_out,
        "deliveries": [asdict(one) for one in report.deliveries],
        "findings": [asdict(one) for one in report.findings],
        "cutoff": [dict(row) for row in report.cutoffs],
        "poison": asdict(report.poison),
    }
