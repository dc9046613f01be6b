"""The registry of rules: how a rule is declared; `findings` evaluates them.

A rule over records or state batches (`record_rule`, `state_batch_rule`) is a predicate that is compiled into the fold
and a function that words what it finds. A rule over anything else (`rule`) is a function that returns what breaks it.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from share_state.errors import DeclarationError
from share_state.fold.interval_map import UNCOVERED
from share_state.fold.interval_merge import STATE_NAMES
from share_state.fold.record_context import BROKEN_BY_BATCH, BROKEN_RULES, ContextChunk
from share_state.fold.states import SHARE_GROUP_STATE
from share_state.jit.compile import first_class, inlined
from share_state.kafka.state_records import Kind

ERROR, WARNING, INFO, OFF = "error", "warning", "info", "off"
SEVERITIES = (ERROR, WARNING, INFO)
NO_KEY = -1

FINDINGS = "findings"
"""Evidence: how many findings a row stands for; 1 in rows without it."""

PLACE = "{place}"
"""In a message, before the offset of a record: becomes "offset", or "record" if the input form has no offsets and
records are counted instead."""


class Scope(StrEnum):
    """What a rule judges at a time."""

    RECORD = "record"  # of `__share_group_state`, with its context
    STATE_BATCH = "state batch"  # of such a record
    RECORD_BATCHES = "record batches"  # of a folded log partition of either dialect
    LOG = "log"  # a folded log partition of either dialect
    STATE_LOG = "state log"  # a folded partition of `__share_group_state`
    CONTROL_LOG = "control log"  # a folded log partition with control records of the draft
    STATES = "states"  # rows of share_partition_state of several state partitions
    GROUPS = "groups"  # share groups and the state of their share-partitions
    CLAIMS = "claims"  # claims and assignments of classic consumer groups
    DEAD_LETTERS = "dead letters"  # and the offsets that the state logs show in ARCHIVING
    GROUP_RECORDS = "group records"  # of `__consumer_offsets`, as far as they are faulty


COMPILED = (Scope.RECORD, Scope.STATE_BATCH)
"""Scopes of the rules that are evaluated by the fold of an audit."""

Column = str | np.ndarray | pa.Array | pa.ChunkedArray
"""One value per finding, or one text for all of them."""


@dataclass(frozen=True, slots=True)
class Breaches:
    """What breaks a rule, one row per finding.

    Attributes:
        offset: int64, offset in the log partition, -1 for none.
        message: pieces of one sentence; PLACE may stand in a text.
        key: int64, number of the share-partition, NO_KEY if the finding is about none.
        evidence: the values behind the finding: name -> column, or a map per row.
        severity: None entries for the rule's own severity.
        settled: bool: no later audit reads the records that the finding is about again; false by default.
        identity: columns of `findings` that say what a finding about groups is about; replaces `key`.
        written: int64, ms: when the record was written, if the finding only counts once it is known that 4.4 or a later
            release wrote it; -1 if it counts in any case. None if all count.
    """

    offset: np.ndarray
    message: tuple[Column, ...]
    key: np.ndarray | None = None
    evidence: Mapping[str, Column] | pa.MapArray = field(default_factory=dict)
    severity: np.ndarray | None = None
    settled: np.ndarray | None = None
    identity: Mapping[str, pa.Array] | None = None
    written: np.ndarray | None = None


NOTHING = Breaches(np.zeros(0, np.int64), ("",))


@dataclass(frozen=True, slots=True)
class GroupBreach:
    """One breach of a rule about groups.

    Attributes:
        message: what is wrong, in a sentence.
        group_id: None if unknown.
        topic_id: Kafka's text of the topic's uuid; None for groups that only name topics.
        topic: name of the topic; None if unknown.
        partition: of the topic.
        state_partition: partition of `__share_group_state`, if the breach is about state.
        offset: in `__consumer_offsets`, with a state partition in `__share_group_state`; None or -1 for none.
        evidence: the values behind it.
        severity: if it differs from the rule's own.
        dialect: share_group_state for share groups, None for groups without share-partitions.
    """

    message: str
    group_id: str | None = None
    topic_id: str | None = None
    topic: str | None = None
    partition: int | None = None
    state_partition: int | None = None
    offset: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    severity: str | None = None
    dialect: str | None = SHARE_GROUP_STATE


Check = Callable[[Any], "Breaches | list[GroupBreach]"]
"""Takes what its scope judges: FoldedLog, FoldedControlLog, AuditedGroups, FoldedSticky, or faults of group records."""


@dataclass(frozen=True, slots=True)
class Message:
    """How the records that break a rule are reported: pieces of a sentence and the evidence, one value per record.

    `needs_4_4` marks a rule about what 4.4 and later write that is also evaluated while the writer is unknown.
    """

    pieces: tuple[Column, ...]
    evidence: Mapping[str, Column]
    needs_4_4: bool = False


def message(*pieces: Column, **evidence: Column) -> Message:
    """What the message function of a rule over records or state batches returns."""
    return Message(pieces, evidence)


@dataclass(eq=False, slots=True)
class Predicate:
    """The condition of a rule over records or state batches, compiled into the fold.

    Attributes:
        condition: takes any of `record`, `context`, `limits`, and for state batches `batch` and `previous`, by name.
            A condition with `previous` is not evaluated for a record's first batch.
        describe: takes the STATE_RECORD rows that break the rule, their RECORD_CONTEXT rows (for state batches the
            first STATE_BATCH row of each that breaks it), and the ContextChunk.
    """

    condition: Any
    describe: Any = None

    def message(self, describe: Callable[[np.ndarray, np.ndarray, ContextChunk], Message]) -> None:
        """Register the function that words what the condition finds."""
        self.describe = describe


@dataclass(frozen=True, slots=True)
class Rule:
    """A registered rule.

    Attributes:
        severity: the default.
        statement: what must hold.
        source: where Kafka or a KIP says so.
        checks: how it is evaluated in each scope; most rules have one.
    """

    code: str
    severity: str
    statement: str
    source: str
    checks: Mapping[Scope, Check | Predicate]


_RULES: dict[str, Rule] = {}

_Checked = TypeVar("_Checked", bound=Check)


def rule(code: str, scope: Scope, *, severity: str, source: str, statement: str) -> Callable[[_Checked], _Checked]:
    """Register a function as a rule, or as the check of a registered rule in another scope.

    Raises:
        DeclarationError: if the code is taken in this scope, or has another severity in another.
    """

    def register(check: _Checked) -> _Checked:
        _register(code, scope, check, severity, source, statement)
        return check

    return register


def record_rule(code: str, *, severity: str, source: str, statement: str) -> Callable[[Any], Predicate]:
    """Register a condition over single records of `__share_group_state`; see `Predicate`."""
    return _compiled(code, Scope.RECORD, severity, source, statement)


def state_batch_rule(code: str, *, severity: str, source: str, statement: str) -> Callable[[Any], Predicate]:
    """Register a condition over single state batches of a record; see `Predicate`."""
    return _compiled(code, Scope.STATE_BATCH, severity, source, statement)


def _compiled(code: str, scope: Scope, severity: str, source: str, statement: str) -> Callable[[Any], Predicate]:
    def register(condition: Any) -> Predicate:
        predicate = Predicate(condition)
        _register(code, scope, predicate, severity, source, statement)
        return predicate

    return register


def _register(code: str, scope: Scope, check: Check | Predicate, severity: str, source: str, statement: str) -> None:
    known = _RULES.get(code, Rule(code, severity, statement, source, {}))
    if scope in known.checks:
        raise DeclarationError(f"rule {code} is registered twice for {scope}")
    if known.severity != severity:
        raise DeclarationError(f"rule {code} is {known.severity} and {severity}; a rule has one default severity")
    _RULES[code] = replace(
        known,
        statement=statement if statement in known.statement else f"{known.statement} {statement}",
        source=source if source in known.source else f"{known.source}; {source}",
        checks={**known.checks, scope: check},
    )


def unregister(code: str) -> None:
    """Remove a rule."""
    del _RULES[code]


def registered() -> dict[str, Rule]:
    """Every rule by code."""
    return dict(_RULES)


# Rules over records and state batches.


@dataclass(frozen=True, slots=True)
class ComposedRules:
    """The conditions of all rules over records and state batches, as two compiled functions."""

    rules: tuple[tuple[str, Scope, Predicate], ...]
    broken_rules: Any
    broken_by_batch: Any


def composed_rules() -> ComposedRules:
    """Compose the registered rules; compiled once per set of rules."""
    return _compose(
        tuple(
            (code, scope, check)
            for code, declared in _RULES.items()
            for scope, check in declared.checks.items()
            if isinstance(check, Predicate)
        )
    )


@lru_cache(maxsize=4)
def _compose(rules: tuple[tuple[str, Scope, Predicate], ...]) -> ComposedRules:
    """Compile the conditions of rules into the functions that BROKEN_RULES and BROKEN_BY_BATCH describe.

    A function is written and executed because numba cannot cache one that loops over functions or closes over them.
    """
    if len(rules) > _MOST_RULES:
        raise DeclarationError(f"{len(rules)} rules over records and state batches; at most {_MOST_RULES} are possible")
    per_record, per_batch, per_pair, names = [], [], [], {}
    digest = hashlib.blake2b(digest_size=8)
    for number, (code, scope, predicate) in enumerate(rules):
        if predicate.describe is None:
            raise DeclarationError(f"rule {code} has no message")
        names[code] = inlined(predicate.condition)
        needed = inspect.signature(predicate.condition).parameters
        lines = per_record if scope == Scope.RECORD else per_pair if "previous" in needed else per_batch
        lines.append(f"if {code}({', '.join(needed)}):\n        broken |= {1 << number}")
        written = predicate.condition.__code__
        digest.update(repr((lines[-1], written.co_code, written.co_names, str(written.co_consts))).encode())
    source = _SOURCE.format(*("\n    ".join(lines) for lines in (per_batch, per_pair, per_record)))
    # numba caches the functions as if they were in this folder; another set of rules has another name.
    file = Path(__file__).with_name(f"composed-{digest.hexdigest()}.py")
    names |= {"__name__": __name__, "inlined": inlined}
    exec(compile(source, str(file), "exec"), names)
    by_batch = first_class(names["broken_by_batch"].py_func, BROKEN_BY_BATCH)
    return ComposedRules(rules, first_class(names["broken_rules"], BROKEN_RULES), by_batch)


_MOST_RULES = 63
_SOURCE = """
@inlined
def broken_by_batch(record, context, batches, number, limits):
    broken = 0
    batch = batches[number]
    {}
    if number == record.batches:
        return broken
    previous = batches[number - 1]
    {}
    return broken

def broken_rules(record, context, batches, limits):
    broken = 0
    if not context.is_folded:
        return broken
    {}
    for number in range(record.batches, record.batches + record.batch_count):
        broken |= broken_by_batch(record, context, batches, number, limits)
    return broken
"""


@inlined
def continues(record, context):
    """Whether a record is a snapshot or an update that continues the state before it; no record between is missing."""
    return record.kind != Kind.TOMBSTONE and context.exists_before and not context.is_initial and not context.is_suspect


# Words for messages.


def span(batches: np.ndarray) -> tuple[Column, ...]:
    """The offsets of STATE_BATCH rows."""
    return batches["first"], "-", batches["last"]


def in_words(values: np.ndarray) -> pa.Array:
    """Delivery state and count of offsets.

    Args:
        values: int32 priorities (fold/interval_merge.py), UNCOVERED for none.
    """
    counts = (values.astype(np.int64) + 128) >> 8
    states = values - (counts << 8)
    return pa.array(
        [
            "no state" if value == UNCOVERED else f"{state_name(state)} at delivery count {count}"
            for value, state, count in zip(values.tolist(), states.tolist(), counts.tolist(), strict=True)
        ],
        pa.string(),
    )


def state_names(states: np.ndarray) -> pa.Array:
    """Delivery states by name."""
    return pa.array([state_name(state) for state in states.tolist()], pa.string())


def state_name(state: int) -> str:
    """A delivery state by name."""
    return STATE_NAMES.get(state, f"UNKNOWN({state})")


def listed(items: Iterable[object], most: int = 10) -> str:
    """The first few of many: "1, 2, 3 and 7 more"."""
    every = [str(item) for item in items]
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
