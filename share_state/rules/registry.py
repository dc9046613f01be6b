"""The registry of rules, and the decorators that register them; `findings` evaluates rules.

A rule over records or state batches (`record_rule`, `state_batch_rule`) is a predicate that is compiled into
the fold (`compiled`), and a function that builds the messages of findings. Any other rule (`rule`) is a
function that returns the breaches.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np

from share_state.errors import DeclarationError
from share_state.fold.record_context import ContextChunk
from share_state.rules.breaches import Breaches, GroupBreach, Message


class Scope(StrEnum):
    """The subject of a rule."""

    RECORD = "record"  # a record of `__share_group_state`, with its context
    STATE_BATCH = "state batch"  # a state batch of such a record
    RECORD_BATCHES = "record batches"  # batches of a folded log partition of either dialect
    LOG = "log"  # a folded log partition of either dialect
    STATE_LOG = "state log"  # a folded partition of `__share_group_state`
    CONTROL_LOG = "control log"  # a folded log partition with control records of the draft
    TOPICS = "topics"  # the share-partitions of a state log, and what is known of their topics
    INPUT = "input"  # the state partitions that are in the input
    EXPORT = "export"  # the newest record of an export, and the time of the audit
    RETENTION = (
        "retention"  # the first unfinished records of share-partitions, and the retention of their topics
    )
    STATES = "states"  # rows of share_partition_state of several state partitions
    PRUNING = "pruning"  # log starts of state partitions, and their cutoffs some time ago
    GROUPS = "groups"  # share groups and the state of their share-partitions
    CLAIMS = "claims"  # claims and assignments of classic consumer groups
    DEAD_LETTERS = "dead letters"  # dead letters, and the offsets that the state logs show in ARCHIVING
    CLUSTER_FACTS = "cluster facts"  # what is known of the cluster: sources that disagree, settings
    GROUP_RECORDS = "group records"  # faulty records of `__consumer_offsets`


Check = Callable[[Any], "Breaches | Iterable[GroupBreach]"]
"""Takes the subject of its scope: FoldedLog, FoldedControlLog, AuditedGroups, FoldedSticky, or faults of
records."""


@dataclass(eq=False, slots=True)
class Predicate:
    """The condition of a rule over records or state batches, compiled into the fold.

    Attributes:
        condition: takes any of `record`, `context`, `limits`, and for state batches `batch` and `previous`,
            by name. A condition with `previous` is not evaluated for a record's first batch.
        describe: takes the STATE_RECORD rows that break the rule, their RECORD_CONTEXT rows (for state
            batches the first STATE_BATCH row of each that breaks it), and the ContextChunk.
        greatest: name of evidence; if set, the rule has one finding per group and log partition, with the
            greatest.
    """

    condition: Any
    describe: Any = None
    greatest: str | None = None

    def message(self, describe: Callable[[np.ndarray, np.ndarray, ContextChunk], Message]) -> None:
        """Register the function that builds the messages."""
        self.describe = describe


@dataclass(frozen=True, slots=True)
class Rule:
    """A registered rule.

    Attributes:
        severity: default severity.
        statement: what must hold.
        source: the Kafka class, config or KIP behind it.
        checks: the check for each scope; most rules have one.
        do: what to do about a finding, in a sentence or two; empty if the rule does not say.
    """

    code: str
    severity: str
    statement: str
    source: str
    checks: Mapping[Scope, Check | Predicate]
    do: str = ""


REGISTERED: dict[str, Rule] = {}


_Checked = TypeVar("_Checked", bound=Check)


def rule(code: str, scope: Scope, severity: str, source: str) -> Callable[[_Checked], _Checked]:
    """Register a function as a rule, or as the check of a registered rule in another scope.

    The first paragraph of its docstring is the statement, and one that begins with `Do:` what to do about a
    finding.

    Raises:
        DeclarationError: if the code is registered in this scope, or with another severity in another scope,
            or there is no docstring.
    """

    def decorate(check: _Checked) -> _Checked:
        register(code, scope, check, severity, source, *_statement_and_advice(code, check))
        return check

    return decorate


def _compiled_rule(scope: Scope, code: str, severity: str, source: str) -> Callable[[Any], Predicate]:
    """Register a condition over single records, or over single state batches of records; see `Predicate` and `rule`."""

    def decorate(condition: Any) -> Predicate:
        predicate = Predicate(condition)
        register(code, scope, predicate, severity, source, *_statement_and_advice(code, condition))
        return predicate

    return decorate


record_rule = partial(_compiled_rule, Scope.RECORD)
state_batch_rule = partial(_compiled_rule, Scope.STATE_BATCH)


_DO = "Do: "


def _statement_and_advice(code: str, function: Any) -> tuple[str, str]:
    """The statement of a rule, and what to do about a finding, from its docstring."""
    doc = inspect.getdoc(function)
    # With -OO, Python drops all docstrings.
    if doc is None and sys.flags.optimize < 2:
        raise DeclarationError(f"rule {code} has no statement: its function has no docstring")
    statement, *paragraphs = (doc or "").split("\n\n")
    advice = next((one.removeprefix(_DO) for one in paragraphs if one.startswith(_DO)), "")
    return statement, " ".join(advice.split())


def register(
    code: str,
    scope: Scope,
    check: Check | Predicate,
    severity: str,
    source: str,
    statement: str,
    do: str = "",
) -> None:
    """Register a check without a docstring of its own; otherwise like `rule`."""
    existing = REGISTERED.get(code, Rule(code, severity, statement, source, {}))
    if scope in existing.checks:
        raise DeclarationError(f"rule {code} is registered twice for {scope}")
    if existing.severity != severity:
        raise DeclarationError(
            f"rule {code} is {existing.severity} and {severity}; a rule has one default severity"
        )
    checks_of.cache_clear()
    REGISTERED[code] = replace(
        existing,
        statement=statement if statement in existing.statement else f"{existing.statement} {statement}",
        source=source if source in existing.source else f"{existing.source}; {source}",
        checks={**existing.checks, scope: check},
        do=existing.do or do,
    )


def unregister(code: str) -> None:
    """Remove a rule."""
    del REGISTERED[code]
    checks_of.cache_clear()


def registered() -> dict[str, Rule]:
    """Every rule by code."""
    return dict(REGISTERED)


@cache
def checks_of(scope: Scope) -> tuple[tuple[str, Check | Predicate], ...]:
    """Code and check of every rule of a scope."""
    return tuple((code, one.checks[scope]) for code, one in REGISTERED.items() if scope in one.checks)
