"""An audit in words: the headline, and what to do first.

The audit on a terminal: a screenful whatever its size, or one JSON document.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from rich.console import Console

from share_state.report.audit_data import AuditReport, BrokenRule
from share_state.report.console import UNKNOWN, moment, name, number, print_table, printable, say, size, span
from share_state.rules.registry import ERROR, INFO, WARNING

OK = "ok"
"""The level of an audit that nobody needs to look at."""

_VERDICTS = {
    "REWIND": (
        ERROR,
        "the start offset is lower than an earlier audit saw, so finished records are delivered again",
        "Ask whether somebody reset the group's offsets or made the group anew; if nobody did, state was lost.",
    ),
    "STOP": (
        ERROR,
        "records wait, and no consumer has changed anything for a while",
        "Check that the group has members, and that they fetch and acknowledge.",
    ),
    "STALL": (
        WARNING,
        "consumers finish later records, but the start offset does not move",
        "Look at the first range in flight: a record that every delivery fails on, or that is renewed again and again.",
    ),
}
_SAID_BY_VERDICT = {"SPSO_STALL": "STALL", "POISON_RECORDS": None}
"""Rules that say what a verdict, or the poison records, say as well."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do.

    Attributes:
        severity: error, warning or info.
        what: what is wrong, in a sentence.
        then: what to do about it.
        command: that shows more, as typed in a shell; None where there is none.
    """

    severity: str
    what: str
    then: str
    command: str | None = None


def level(report: AuditReport) -> str:
    """How bad it is: error, warning or OK."""
    if report.is_healthy:
        return OK
    grave = report.by_severity[ERROR] or report.failing or any(one.now["suspect"] for one in report.troubled)
    stands = any(count for verdict, count in report.verdicts.items() if verdict not in ("OK", "STALL"))
    return ERROR if grave or stands else WARNING


def headline(report: AuditReport) -> str:
    """The audit in one line."""
    total = report.live
    troubled = len(report.troubled) + report.troubled_left_out
    wrong = [f"{counted(report.by_severity[one], one)}" for one in (ERROR, WARNING) if report.by_severity[one]]
    unsafe = sum(not row["safe"] for row in report.cutoffs)
    wrong += [counted(unsafe, "unsafe cutoff")] if unsafe else []
    if troubled:
        return ", ".join([f"{troubled:,} of {counted(total, 'share-partition')} {_need(troubled)} a look", *wrong])
    fine = f"all {counted(total, 'share-partition')} are OK" if total > 1 else f"{counted(total, 'share-partition')}"
    return ", ".join([fine, *(wrong or ["no errors, no warnings"])])


def advice(report: AuditReport, most: int = 6) -> tuple[Advice, ...]:
    """What to do, the most urgent first.

    Args:
        report: what `read_report` returned.
        most: things to say.
    """
    return tuple(islice(_all_advice(report), most))


def counted(count: int, noun: str) -> str:
    """A number and its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def show_command(warehouse: str, row: Mapping[str, Any]) -> str | None:
    """The command that shows a share-partition; None where a name cannot be typed.

    Args:
        warehouse: folder of the tables.
        row: with the key columns.
    """
    topic = row["topic"] or row["topic_id"]
    words = [warehouse, "--group", row["group_id"], "--topic", topic, "--partition", str(row["partition"])]
    if not all(word and word.isprintable() for word in words):
        return None
    return shlex.join(["share-state", "show", *words])


def _need(count: int) -> str:
    return "needs" if count == 1 else "need"


def _all_advice(report: AuditReport) -> Iterator[Advice]:
    yield from (_of_rule(report, rule) for rule in islice(_rules(report, ERROR), 3))
    for verdict, (severity, what, then) in _VERDICTS.items():
        count = report.verdicts[verdict]
        worst = next((one.now for one in report.troubled if one.now["verdict"] == verdict), None)
        if count:
            who = f"{verdict}, {counted(count, 'share-partition')}"
            command = show_command(report.warehouse, worst) if worst else None
            yield Advice(severity, f"{who}: {what}.", then, command)
    if report.poison.records:
        worst = report.poison.worst[0]
        yield Advice(
            WARNING,
            f"{counted(report.poison.records, 'record')} failed on (nearly) every delivery that the limit of "
            f"{report.limits.delivery_count} allows; the worst begin at offset {worst['first_offset']:,}.",
            "Read these records of the topic, and see why the consumers reject or drop them.",
            show_command(report.warehouse, worst),
        )
    unsafe = [row for row in report.cutoffs if not row["safe"]]
    if unsafe:
        why = unsafe[0]["reason"] or "no reason is given"
        what = f"{counted(len(unsafe), 'log partition')} must not be cleaned: {why}."
        yield Advice(WARNING, what, "Mend what the findings of these log partitions name before deleting records.")
    yield from (_of_rule(report, rule) for rule in islice(_rules(report, WARNING), 3))
    pinned = max(report.cutoffs, key=lambda row: row["pinned_records"] or 0, default=None)
    if pinned is not None and (pinned["pinned_records"] or 0) >= report.limits.pinned_records:
        who = f"group {pinned['limited_by_group']} alone keeps {counted(pinned['pinned_records'], 'record')}"
        what = f"{who} of {pinned['topic']}-{pinned['partition']} from being cleaned."
        yield Advice(INFO, what, "Nothing is lost; if the group is no longer used, delete it.")


def _rules(report: AuditReport, severity: str) -> Iterator[BrokenRule]:
    for rule in report.findings:
        verdict = _SAID_BY_VERDICT.get(rule.rule, "")
        said = report.poison.records if verdict is None else report.verdicts.get(verdict, 0)
        if rule.severity == severity and not said:
            yield rule


def _of_rule(report: AuditReport, rule: BrokenRule) -> Advice:
    new = f", {rule.new:,} of them new" if rule.new and rule.new < rule.count else ""
    example = rule.examples[0]
    what = f"{rule.rule}, {counted(rule.count, 'finding')}{new}: {example['message']}"
    command = show_command(report.warehouse, example) if example["group_id"] is not None else None
    return Advice(rule.severity, what, f"What should hold: {rule.statement}" if rule.statement else "", command)


_WORST, _RULES, _WRITTEN = 5, 8, 3
_WIDEST, _ROOM_IN_A_FILE, _ROOM_FOR_NUMBERS = 100, 240, 110


def print_audit(report: AuditReport, written: Sequence[str] = ()) -> None:
    """Print the outcome of an audit, at most 30 lines.

    Args:
        report: what `read_report` returned.
        written: files that were made of it.
    """
    run, room = report.run, _room()
    cluster = f" of {name(report.cluster)}" if report.cluster else ""
    read = f"{counted(run['records'], 'record')} of {counted(run['state_partitions'], 'log partition')}"
    took = f"in {span(run['started'], run['finished'])}, up to {moment(report.log_time)}"
    say(_short(f"audit{cluster}, run {run['run_id']}: {read} {took}", room))
    if run["notes"]:
        more = f" (and {counted(len(run['notes']) - 1, 'note')} more)" if len(run["notes"]) > 1 else ""
        say(f"note: {_short(run['notes'][0], min(_WIDEST, room - 6 - len(more)))}{more}")
    say(_short(headline(report), room))
    verdicts = ", ".join(f"{count:,} {verdict}" for verdict, count in report.verdicts.items())
    say(_short(f"verdicts: {verdicts}", room))
    _print_worst(report)
    _print_rules(report)
    say(_short(_cutoff_line(report), room))
    first = next(iter(advice(report, most=1)), None)
    if first is not None:
        say(_short(f"next: {first.what}", room))
        if first.command is not None and len(first.command) <= _WIDEST * 2:
            say(f"      {first.command}")
    for path in written[:_WRITTEN]:
        say(f"written: {printable(path)}")
    say(f"tables are in {printable(report.warehouse)}: `share-state show {printable(report.warehouse)}`")


def _print_worst(report: AuditReport) -> None:
    if not report.troubled:
        return
    room, rows = _room(), []
    columns = ["VERDICT", "GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG", "UNMOVED", "WHY"]
    if room < _ROOM_FOR_NUMBERS:
        columns = ["VERDICT", "GROUP", "TOPIC", "PARTITION", "WHY"]
    for one in report.troubled[:_WORST]:
        now = one.now
        names = [_short(name(text), room // 6) for text in (now["group_id"], now["topic"] or now["topic_id"])]
        start = number(now["start_offset"]) if (now["start_offset"] or 0) >= 0 else UNKNOWN
        numbers = [start, number(now["lag"]), span(now["moved_time"], now["time"])]
        why = _why(now, one.findings)
        rows.append(
            [now["verdict"], *names, str(now["partition"]), *(numbers if room >= _ROOM_FOR_NUMBERS else []), why]
        )
    _print_fitted(columns, rows, room, ("PARTITION", "START-OFFSET", "LAG", "UNMOVED"))
    more = len(report.troubled) + report.troubled_left_out - len(rows)
    if more:
        say(f"... and {counted(more, 'share-partition')} more that need a look")


def _why(now: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> str:
    if now["reason"]:
        return now["reason"]
    if findings:
        return f"{findings[0]['rule']}: {findings[0]['message']}"
    return "records since its latest snapshot are missing or unreadable"


def _print_rules(report: AuditReport) -> None:
    if not report.findings:
        say("no findings")
        return
    rows = [
        [one.severity, one.rule, number(one.count), number(one.new), one.examples[0]["message"]]
        for one in report.findings[:_RULES]
    ]
    _print_fitted(["SEVERITY", "RULE", "COUNT", "NEW", "FOR EXAMPLE"], rows, _room(), ("COUNT", "NEW"))
    if len(report.findings) > _RULES:
        say(f"... and {counted(len(report.findings) - _RULES, 'rule')} more")


def _cutoff_line(report: AuditReport) -> str:
    rows = report.cutoffs
    if not rows:
        return "cutoff: no log partition"
    redundant = sum(row["redundant_records"] or 0 for row in rows)
    octets = [row["redundant_bytes"] for row in rows if row["redundant_bytes"] is not None]
    line = f"cutoff: {counted(redundant, 'redundant record')}{f' ({size(sum(octets))})' if octets else ''}"
    line += f" in {counted(len(rows), 'log partition')}"
    unsafe = sum(not row["safe"] for row in rows)
    if unsafe:
        line += f", {unsafe:,} of them unsafe to clean"
    pinned = max(rows, key=lambda row: row["pinned_records"] or 0)
    if pinned["pinned_records"] and pinned["limited_by_group"] is not None:
        holder = _short(name(pinned["limited_by_group"]), 40)
        line += f"; group {holder} alone keeps {counted(pinned['pinned_records'], 'record')} more"
    return line


def _room() -> int:
    """Columns of the terminal; a fixed number where there is none."""
    console = Console()
    return console.width if console.is_terminal else _ROOM_IN_A_FILE


def _print_fitted(columns: list[str], rows: list[list[str]], room: int, numeric: Sequence[str]) -> None:
    """Print a table with its last column cut to what the others leave, so that none of these is."""
    widths = [max(len(printable(line[place])) for line in (columns, *rows)) for place in range(len(columns) - 1)]
    left = max(10, room - sum(widths) - 2 * len(columns))
    print_table(columns, [[*row[:-1], _short(row[-1], min(left, _WIDEST))] for row in rows], numeric=numeric)


def _short(text: str, widest: int = _WIDEST) -> str:
    """In one line and no longer than that."""
    text = printable(text)
    return text if len(text) <= widest else f"{text[: widest - 3]}..."


def audit_json(report: AuditReport) -> dict[str, Any]:
    """The audit as plain data, for programs: what `print_audit` prints, in full.

    Args:
        report: what `read_report` returned.
    Returns:
        cluster, warehouse, run, verdicts, findings_by_severity, failing, healthy, headline, advice, share_partitions
        (how many), troubled (each with now, state, ranges, findings, history), troubled_left_out, findings (by rule),
        cutoff, poison.
    """
    return {
        "cluster": report.cluster,
        "warehouse": report.warehouse,
        "run": dict(report.run),
        "headline": headline(report),
        "healthy": report.is_healthy,
        "failing": report.failing,
        "share_partitions": report.live,
        "verdicts": dict(report.verdicts),
        "findings_by_severity": report.by_severity,
        "advice": [asdict(one) for one in advice(report)],
        "troubled": [asdict(one) for one in report.troubled],
        "troubled_left_out": report.troubled_left_out,
        "findings": [asdict(one) for one in report.findings],
        "cutoff": [dict(row) for row in report.cutoffs],
        "poison": asdict(report.poison),
    }
