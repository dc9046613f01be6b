"""The findings of an audit, summed up: by rule for everybody, by share-partition for whoever looks closer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.committed import CommittedTables
from share_state.report.grouped_rows import grouped
from share_state.report.identity import IDENTITY, KEY, identified
from share_state.rules import ERROR, SEVERITIES, WARNING, registered

_COLUMNS = ("rule", "severity", *KEY, "state_partition", "offset", "message", "run_id")
_FIRST = ("topic_id", "topic", "state_partition", "offset", "message")
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule that the log breaks.

    Attributes:
        rule: its code.
        severity: error, warning or info; a rule that is milder in some cases is there once a severity.
        count: findings.
        new: those of them that the latest run was the first to see.
        statement: what should hold; empty where this version does not know the rule.
        examples: a few findings, each about another share-partition, new ones first.
    """

    rule: str
    severity: str
    count: int
    new: int
    statement: str
    examples: tuple[dict[str, Any], ...]


def findings_digest(tables: CommittedTables) -> pa.Table:
    """One row a share-partition, rule and severity; the first finding stands for all of them.

    Args:
        tables: of the warehouse, its findings possibly many: they are read in pieces.
    Returns:
        Columns of IDENTITY, rule, severity, topic_id, topic, state_partition, offset, message of the first finding,
        count and new (bigint), gravest and newest first.
    """
    by = [*IDENTITY, "rule", "severity"]
    found = grouped(_pieces(tables), by, dict.fromkeys(_FIRST, "first") | {"count": "sum", "new": "sum"})
    if found is None:
        return pa.schema([(name, pa.string()) for name in by]).empty_table()
    gravity = pc.index_in(found["severity"], pa.array(SEVERITIES))
    order = [("gravity", "ascending"), ("new", "descending"), ("count", "descending"), ("rule", "ascending")]
    return found.append_column("gravity", gravity).sort_by([*order, *((name, "ascending") for name in IDENTITY)])


def _pieces(tables: CommittedTables) -> Iterator[pa.Table]:
    run_id = tables.run["run_id"]
    for piece in tables.batches("findings", _COLUMNS):
        new = pc.cast(pc.fill_null(pc.equal(piece["run_id"], run_id), False), pa.int64())
        counted = piece.append_column("count", pa.repeat(pa.scalar(1, pa.int64()), piece.num_rows))
        yield identified(counted.append_column("new", new))


def broken_rules(digest: pa.Table) -> tuple[BrokenRule, ...]:
    """What `findings_digest` found, by rule: the gravest first, then the newest, then the most frequent."""
    if not digest.num_rows:
        return ()
    known = registered()
    summed = digest.group_by(["rule", "severity"]).aggregate([("count", "sum"), ("new", "sum"), ("gravity", "min")])
    order = [("gravity_min", "ascending"), ("new_sum", "descending"), ("count_sum", "descending")]
    broken = []
    for row in summed.sort_by([*order, ("rule", "ascending")]).to_pylist():
        code, severity = row["rule"], row["severity"]
        of_rule = digest.filter((pc.field("rule") == code) & (pc.field("severity") == severity))
        examples = of_rule.slice(0, _EXAMPLES).drop_columns(["gravity", "topic_key"]).to_pylist()
        statement = known[code].statement if code in known else ""
        broken.append(BrokenRule(code, severity, row["count_sum"], row["new_sum"], statement, tuple(examples)))
    return tuple(broken)


def own_findings(digest: pa.Table) -> pa.Table | None:
    """Number of errors and warnings of each share-partition that has any.

    Returns:
        Columns of IDENTITY, errors and warnings (bigint); None where there is no finding.
    """
    if not digest.num_rows:
        return None
    counted = digest
    for name, severity in (("errors", ERROR), ("warnings", WARNING)):
        of_severity = pc.if_else(pc.equal(digest["severity"], severity), digest["count"], pa.scalar(0, pa.int64()))
        counted = counted.append_column(name, of_severity)
    summed = counted.group_by(list(IDENTITY)).aggregate([("errors", "sum"), ("warnings", "sum")])
    return summed.select([*IDENTITY, "errors_sum", "warnings_sum"]).rename_columns([*IDENTITY, "errors", "warnings"])
