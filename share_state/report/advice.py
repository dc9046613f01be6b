"""An audit in words: the headline, and what to do first."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from share_state.report.audit_data import AuditReport
from share_state.report.broken_rules import BrokenRule
from share_state.rules import ERROR, INFO, WARNING

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
