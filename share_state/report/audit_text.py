"""An audit in words: its headline, advice on what to do first, a screenful for the console, and one JSON document."""

import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from operator import itemgetter
from typing import Any

from rich.console import Console

from share_state.delta.reader import REPORTED
from share_state.errors import pluralize
from share_state.fold.durations import duration_text
from share_state.fold.history import NO_MEMBERS
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
    print_header,
    print_line,
    print_sentence,
    print_table,
    table_lines,
)
from share_state.report.cutoff_text import log_name, unknown_cutoffs
from share_state.report.flagged import FlaggedSharePartition
from share_state.report.lags import lag_reason
from share_state.report.rule_text import advice_of, describe_rule
from share_state.report.share_partitions import RULES_WITHOUT_STATE
from share_state.report.troubles import VERDICT_TEXTS, cause, trouble_of_rule
from share_state.rules.breaches import ERROR, INFO, SEVERITIES, WARNING

OK = "ok"
"""The level of an audit that needs no attention."""

_POISON = "POISON_RECORDS"

_MAX_ROWS, _MAX_RULES = 5, 8
_MAX_NARROW_ROWS, _MAX_NARROW_RULES = 3, 3
"""Share-partitions and rules that are named, and how many on a narrow terminal, where they take more lines."""
_MAX_PATHS = 3
_MAX_FAILING = 3
_FILE_WIDTH, _WIDTH_OF_ROWS = 240, 110


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do.

    Attributes:
        severity: error, warning or info.
        what: what is wrong, in a sentence.
        then: what to do about it.
        command: a shell command that shows more; None if there is none.
        repair: the shell command that plans the repair; None if there is nothing to repair.
        trouble: code of the trouble, rule or verdict; None if it is about none.
    """

    severity: str
    what: str
    then: str
    command: str | None = None
    repair: str | None = None
    trouble: str | None = None


def audit_level(report: AuditReport) -> str:
    """The severity of the whole audit: error, warning or OK."""
    if report.is_healthy:
        return OK
    has_errors = (
        report.by_severity[ERROR] or report.failing or any(one.now["suspect"] for one in report.flagged)
    )
    mild = {VERDICT_OK, *(verdict for verdict, (severity, *_) in VERDICT_TEXTS.items() if severity != ERROR)}
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


def advice(report: AuditReport, most: int = 8) -> tuple[Advice, ...]:
    """At most `most` things to do, the most urgent first."""
    return tuple(islice(_all_advice(report), most))


def groups_command(warehouse: str, row: Mapping[str, Any]) -> str | None:
    """The command that shows the group of a row (key columns).

    None if its name cannot be typed in a shell.
    """
    if not all(word and word.isprintable() for word in (warehouse, row["group_id"])):
        return None
    return shlex.join(["share-state", "groups", warehouse, "--group", row["group_id"]])


def why_command(warehouse: str, row: Mapping[str, Any]) -> str | None:
    """The command that says what is wrong with the share-partition of a row (key columns).

    None if a name cannot be typed in a shell.
    """
    topic = row["topic"] or row["topic_id"]
    words = [row["group_id"], warehouse, "--topic", topic, "--partition", str(row["partition"])]
    return _command("why", words)


def repair_command(warehouse: str, group: str) -> str | None:
    """The command that plans the repair of a group; None if its name cannot be typed in a shell."""
    return _command("repair", [warehouse, "--group", group])


def _command(name: str, words: Sequence[str | None]) -> str | None:
    typed = [word for word in words if word and word.isprintable()]
    return shlex.join(["share-state", name, *typed]) if len(typed) == len(words) else None


def _all_advice(report: AuditReport) -> Iterator[Advice]:
    """What is wrong in the order of `AuditReport.flagged`, then what its share-partitions do not show."""
    of_troubles = list(_trouble_advice(report))
    told = {one.trouble for one in of_troubles if one.trouble}
    # Many groups without members are batch jobs.
    troubles = [one for one in of_troubles if one.trouble != NO_MEMBERS]
    yield from (one for one in troubles if one.severity == ERROR)
    for verdict in ("REWIND", "STOP"):
        yield from _verdict_advice(report, verdict, told)
    yield from islice(_rule_advice(report, ERROR, told), 3)
    yield from (one for one in troubles if one.severity != ERROR)
    for verdict in ("STALL", "GIVING_UP"):
        yield from _verdict_advice(report, verdict, told)
    yield from _poison_advice(report, told)
    unsafe = [row for row in report.cutoffs if not row["safe"]]
    if unsafe:
        why = unsafe[0]["reason"] or "no reason is given"
        first = log_name(unsafe[0])
        advice = f"{pluralize(len(unsafe), 'log partition')} must not be cleaned; {first}: {why}."
        yield Advice(
            WARNING, advice, "Fix what the findings of these log partitions report before deleting records."
        )
    yield from islice(_rule_advice(report, WARNING, told), 3)
    yield from (one for one in of_troubles if one.trouble == NO_MEMBERS)
    yield from _verdict_advice(report, NO_MEMBERS, told)
    yield from _pinned_advice(report)


def _trouble_advice(report: AuditReport) -> Iterator[Advice]:
    """What is wrong with the share-partitions that need attention, each under its worst trouble."""
    by_trouble: dict[str, list[FlaggedSharePartition]] = {}
    for one in report.flagged:
        if one.trouble is not None:
            by_trouble.setdefault(one.trouble, []).append(one)
    for code, affected in by_trouble.items():
        worst = affected[0]
        count = len(affected)
        if report.flagged_left_out:
            count = max(count, report.open_verdicts.get(code, 0))
        phrase = cause(code, worst.troubles[code], worst.waits_for, worst.limit)
        what = f"{pluralize(count, 'share-partition')} with {code}: {_worst(worst.now, count)}: {phrase}."
        command = why_command(report.warehouse, worst.now)
        repair = repair_command(report.warehouse, worst.now["group_id"])
        yield Advice(_severity(code, affected), what, _what_to_do(code, worst), command, repair, code)


def _severity(code: str, affected: Sequence[FlaggedSharePartition]) -> str:
    """The severity of a trouble: at least that of the verdicts of its share-partitions."""
    named = {code, *(one.now["verdict"] for one in affected if one.status.startswith(one.now["verdict"]))}
    severities = [str(describe_rule(name)["severity"]) for name in named if name != VERDICT_OK]
    return min(severities, key=SEVERITIES.index)


def _what_to_do(code: str, worst: FlaggedSharePartition) -> str:
    waits = worst.waits_for
    if code in ("STALL", "IN_FLIGHT_LIMIT") and waits is not None and waits.is_gap:
        return _GAP.format(waits.first, waits.last)
    return advice_of(code)


_GAP = (
    "It waits for a gap, offsets {} to {}: the log shows no delivery of them. Their first delivery may hold them; a "
    "leader that loads the state hands them out again."
)


def _poison_advice(report: AuditReport, told: Container[str]) -> Iterator[Advice]:
    is_open = any(
        finding.rule == _POISON and finding.open and finding.severity != INFO for finding in report.findings
    )
    if _POISON in told or not report.poison.records or not is_open:
        return
    worst = report.poison.worst[0]
    limit = report.limits.of_group("delivery_count", worst["group_id"])
    archived = report.poison.records - report.poison.waiting
    yield Advice(
        WARNING,
        f"{pluralize(archived, 'record')} used all deliveries that the limit of {limit} allows and "
        f"{'was' if archived == 1 else 'were'} given up, {report.poison.waiting:,} wait for their last one; the worst "
        f"begin at offset {worst['first_offset']:,} of {_name(worst)}.",
        advice_of(_POISON),
        why_command(report.warehouse, worst),
        trouble=_POISON,
    )


def _pinned_advice(report: AuditReport) -> Iterator[Advice]:
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


def _verdict_advice(report: AuditReport, verdict: str, told: Container[str]) -> Iterator[Advice]:
    """About a verdict that no share-partition of `AuditReport.flagged` has as its worst trouble."""
    severity, what, _ = VERDICT_TEXTS[verdict]
    worst = next((one for one in report.flagged if one.now["verdict"] == verdict), None)
    count = report.open_verdicts[verdict]
    # Those that are flagged for another trouble are told there.
    if not count or verdict in told or (worst is not None and worst.trouble not in (None, verdict)):
        return
    command = why_command(report.warehouse, worst.now) if worst else None
    example = f"; {_worst(worst.now, count)}: {worst.why}" if worst else ""
    text = f"{pluralize(count, 'share-partition')} with {verdict}: {what}{example}."
    yield Advice(severity, text, advice_of(verdict), command, trouble=verdict)


def _rule_advice(report: AuditReport, severity: str, told: Container[str]) -> Iterator[Advice]:
    """About the rules that the worst share-partitions break first."""
    broken = []
    for rule in report.findings:
        is_covered = (trouble_of_rule(rule.rule) or "") in told or (
            rule.rule == _POISON and report.poison.records
        )
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
        shows = groups_command if rule.rule in RULES_WITHOUT_STATE else why_command
        command = shows(report.warehouse, example)
    then = ""
    if rule.statement:
        known = advice_of(rule.rule)
        then = f"What should hold: {rule.statement}{' ' * bool(known)}{known}"
    return Advice(rule.severity, what, then, command, trouble=rule.rule)


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
    print_sentence(_shorten(headline(report), _longest(width)))
    statuses = ", ".join(f"{count:,} {status}" for status, count in report.statuses.items() if count)
    print_line(_shorten(f"status: {statuses or 'no share-partitions'}", width))
    if report.deliveries:
        print_line(_shorten(_deliveries_line(report), width))
    _print_flagged(report, width)
    _print_rules(report, width)
    print_line(_shorten(_cutoff_line(report), width))
    for first in advice(report, most=1):
        # A terminal has two lines for each.
        print_sentence(_shorten(f"next: {first.what}", _longest(width)), " " * 6)
        if first.then:
            print_sentence(_shorten(f"      {first.then}", _longest(width)), " " * 6)
        for typed in (first.command, first.repair):
            if typed is not None and len(typed) <= _FILE_WIDTH:
                print_line(f"      {typed}")
    for path in written[:_MAX_PATHS]:
        print_line(f"written: {path}")
    warehouse = report.warehouse
    print_line(f"tables are in {warehouse}: `share-state show {warehouse}`")


def _longest(width: int) -> int:
    """Characters that surely fit in two lines of a terminal, or one of a file."""
    return width if width == _FILE_WIDTH else 2 * width - 26


def _deliveries_line(report: AuditReport) -> str:
    """What became of deliveries: in all groups, and in those where most fail."""
    groups = report.deliveries
    totals = {name: sum(getattr(group, name) for group in groups) for name in OUTCOMES}
    line = f"{counted_where(report)}: {outcomes_text(totals)}"
    failing = [one for one in groups if one.failed][:_MAX_FAILING]
    shares = [f"{_shorten(format_name(one.group_id), 30)} {one.failed:,} of {one.total:,}" for one in failing]
    return line + (f"; failed deliveries: {', '.join(shares)}" if shares else "")


def counted_where(report: AuditReport) -> str:
    """Which deliveries an audit counts: the first one those of the whole log."""
    is_first = sum(run["command"] == report.run["command"] for run in report.runs) < 2
    return "in the whole log" if is_first else "since the last audit"


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
    numeric = ("PARTITION", "START-OFFSET", "LAG", "START-UNMOVED")
    is_narrow = width < _WIDTH_OF_ROWS
    shown = report.flagged[: _MAX_NARROW_ROWS if is_narrow else _MAX_ROWS]
    rows = []
    for one in shown:
        now = one.now
        names = [
            _shorten(format_name(text), width // 6)
            for text in (now["group_id"], now["topic"] or now["topic_id"])
        ]
        start = format_number(now["start_offset"]) if (now["start_offset"] or 0) >= 0 else UNKNOWN
        numbers = [start, format_number(now["lag"]), format_duration(now["moved_time"], now["time"])]
        rows.append([one.status, *names, str(now["partition"]), *numbers, one.why])
    columns = ["STATUS", "GROUP", "TOPIC", *numeric, "WHY"]
    if is_narrow:
        _print_stacked(columns, rows, width, numeric)
    else:
        _print_fitted(columns, rows, width, numeric)
    unknown = (lag_reason({"delivery_complete_count": None, **one.now}) for one in shown)
    if reason := next(filter(None, unknown), None):
        print_line(_shorten(f"LAG -: {reason}", width))
    if more := len(report.flagged) + report.flagged_left_out - len(rows):
        verb = "needs" if more == 1 else "need"
        print_line(f"... and {pluralize(more, 'more share-partition')} that {verb} attention")


def _print_rules(report: AuditReport, width: int) -> None:
    if not report.findings:
        print_line("no findings")
        return
    most = _MAX_NARROW_RULES if width < _WIDTH_OF_ROWS else _MAX_RULES
    rows = [
        [
            one.severity,
            one.rule,
            *map(format_number, (one.count, one.new, one.open)),
            one.examples[0]["message"],
        ]
        for one in report.findings[:most]
    ]
    numeric = ("COUNT", "NEW", "OPEN")
    _print_fitted(["SEVERITY", "RULE", *numeric, "FOR EXAMPLE"], rows, width, numeric)
    if len(report.findings) > most:
        print_line(f"... and {pluralize(len(report.findings) - most, 'more rule')}")


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


def _print_stacked(columns: list[str], rows: list[list[str]], width: int, numeric: Sequence[str]) -> None:
    """Print a table for a narrow terminal: the last column of each row is a line of its own.

    The column before it is left out if the row is too long with it.
    """
    header, *lines = table_lines(columns[:-1], [row[:-1] for row in rows], numeric)
    if max(map(len, (header, *lines))) > width:
        header, *lines = table_lines(columns[:-2], [row[:-2] for row in rows], numeric)
    print_header(header)
    for line, row in zip(lines, rows, strict=True):
        print_line(_shorten(line, width))
        print_line(_shorten(f"  {row[-1]}", width))


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
