"""The registry of rules, and the decorators that register them; `findings` evaluates rules.

A rule over records or state batches (`record_rule`, `state_batch_rule`) is a predicate that is compiled into the fold,
and a function that builds the messages of findings. Any other rule (`rule`) is a function that returns the breaches.
"""

import hashlib
import inspect
import linecache
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from share_state.errors import DeclarationError
from share_state.fold.interval_map import UNCOVERED
from share_state.fold.log_stats import Folded
from share_state.fold.record_context import BROKEN_BY_BATCH, BROKEN_RULES, ContextChunk
from share_state.fold.states import SHARE_GROUP_STATE
from share_state.jit.compile import first_class, inlined
from share_state.kafka.delivery_states import state_name
from share_state.kafka.state_records import Kind

ERROR, WARNING, INFO, OFF = "error", "warning", "info", "off"
SEVERITIES = (ERROR, WARNING, INFO)


def at_or_above(severity: str) -> tuple[str, ...]:
    """The given severity and those above it; none for OFF."""
    return () if severity == OFF else SEVERITIES[: SEVERITIES.index(severity) + 1]


NO_KEY = -1

FINDINGS = "findings"
"""Name of evidence: how many findings a row represents; 1 in rows without it."""

WAITED = "{waited}"
"""Placeholder in messages for the duration since `Breaches.since`."""

PLACE = "{place}"
"""Placeholder in messages, before the offset of a record: becomes "offset", or "record" if the input has no offsets and
records are numbered instead."""


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
    RETENTION = "retention"  # the first unfinished records of share-partitions, and the retention of their topics
    STATES = "states"  # rows of share_partition_state of several state partitions
    PRUNING = "pruning"  # log starts of state partitions, and their cutoffs some time ago
    GROUPS = "groups"  # share groups and the state of their share-partitions
    CLAIMS = "claims"  # claims and assignments of classic consumer groups
    DEAD_LETTERS = "dead letters"  # dead letters, and the offsets that the state logs show in ARCHIVING
    CLUSTER_FACTS = "cluster facts"  # what is known of the cluster: sources that disagree, settings
    GROUP_RECORDS = "group records"  # faulty records of `__consumer_offsets`


Column = str | np.ndarray | pa.Array | pa.ChunkedArray
"""One value per finding, or one text for all of them."""


@dataclass(frozen=True, slots=True)
class Breaches:
    """Breaches of a rule, one row per finding.

    Attributes:
        offset: int64, offset in the log partition, -1 for none.
        message: pieces of one sentence; texts may contain PLACE.
        key: int64, number of the share-partition, or NO_KEY.
        evidence: the values behind the finding: name -> column, or a map per row.
        severity: severity of each finding; None for the rule's own severity.
        settled: bool, whether no later audit reads the records of the finding again; default: false.
        identity: columns of `findings` that identify the subject of a finding about groups; replaces `key`.
        written: int64, ms: timestamp of the record if the finding counts only if 4.4 or later wrote the record; -1 if
            it always counts. None if all findings count.
        since: int64, ms: when the duration began that WAITED stands for in the message and that the evidence
            "milliseconds" has; -1 for none. It ends at the newest record of the export, which a task does not know.
        due: int64, ms: the finding counts only if the export goes on until then; -1 if it always counts.
    """

    offset: np.ndarray
    message: tuple[Column, ...]
    key: np.ndarray | None = None
    evidence: Mapping[str, Column] | pa.MapArray = field(default_factory=dict)
    severity: np.ndarray | None = None
    settled: np.ndarray | None = None
    identity: Mapping[str, pa.Array] | None = None
    written: np.ndarray | None = None
    since: np.ndarray | None = None
    due: np.ndarray | None = None


NOTHING = Breaches(np.zeros(0, np.int64), ("",))


def at_share_partitions(
    folded: Folded,
    rows: np.ndarray,
    *pieces: Column,
    offset: np.ndarray | None = None,
    severity: np.ndarray | None = None,
    **evidence: Column,
) -> Breaches:
    """One breach per live share-partition.

    Args:
        folded: the folded log partition.
        rows: rows of `folded.chains.chains`.
        offset: by default that of the last record of each share-partition.
        pieces, severity, evidence: as in Breaches.
    """
    offset = folded.chains.chains["last_offset"][rows] if offset is None else offset
    return Breaches(offset, pieces, key=folded.numbers[rows], evidence=evidence, severity=severity)


@dataclass(frozen=True, slots=True)
class GroupBreach:
    """One breach of a rule about groups.

    Attributes:
        message: the message, a sentence.
        group_id: None if unknown.
        topic_id: id of the topic as Kafka prints it; None for groups that only name topics.
        topic: name of the topic; None if unknown.
        partition: partition of the topic.
        state_partition: partition of `__share_group_state`, if the breach is about state.
        offset: offset in `__share_group_state` if there is a state partition, else in `__consumer_offsets`; None or -1
            for none.
        evidence: the values behind it.
        severity: None for the rule's own severity.
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


Check = Callable[[Any], "Breaches | Iterable[GroupBreach]"]
"""Takes the subject of its scope: FoldedLog, FoldedControlLog, AuditedGroups, FoldedSticky, or faults of records."""


@dataclass(frozen=True, slots=True)
class Message:
    """How to report the records that break a rule.

    Attributes:
        pieces: pieces of a sentence, one value per record.
        evidence: name -> one value per record.
        needs_4_4: whether a finding counts only if 4.4 or later wrote the record; such a rule is also evaluated while
            the writer is unknown.
    """

    pieces: tuple[Column, ...]
    evidence: Mapping[str, Column]
    needs_4_4: bool = False


def message(*pieces: Column, **evidence: Column) -> Message:
    """Build the result of the message function of a rule over records or state batches."""
    return Message(pieces, evidence)


@dataclass(eq=False, slots=True)
class Predicate:
    """The condition of a rule over records or state batches, compiled into the fold.

    Attributes:
        condition: takes any of `record`, `context`, `limits`, and for state batches `batch` and `previous`, by name.
            A condition with `previous` is not evaluated for a record's first batch.
        describe: takes the STATE_RECORD rows that break the rule, their RECORD_CONTEXT rows (for state batches the
            first STATE_BATCH row of each that breaks it), and the ContextChunk.
        greatest: name of evidence; if set, the rule has one finding per group and log partition, with the greatest.
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
    """

    code: str
    severity: str
    statement: str
    source: str
    checks: Mapping[Scope, Check | Predicate]


_RULES: dict[str, Rule] = {}

_Checked = TypeVar("_Checked", bound=Check)


def rule(code: str, scope: Scope, severity: str, source: str) -> Callable[[_Checked], _Checked]:
    """Register a function as a rule, or as the check of a registered rule in another scope.

    The first paragraph of its docstring is the statement.

    Raises:
        DeclarationError: if the code is registered in this scope, or with another severity in another scope, or there
            is no docstring.
    """

    def decorate(check: _Checked) -> _Checked:
        register(code, scope, check, severity, source, _statement(code, check))
        return check

    return decorate


def _compiled_rule(scope: Scope, code: str, severity: str, source: str) -> Callable[[Any], Predicate]:
    """Register a condition over single records, or over single state batches of records; see `Predicate` and `rule`."""

    def decorate(condition: Any) -> Predicate:
        predicate = Predicate(condition)
        register(code, scope, predicate, severity, source, _statement(code, condition))
        return predicate

    return decorate


record_rule, state_batch_rule = partial(_compiled_rule, Scope.RECORD), partial(_compiled_rule, Scope.STATE_BATCH)


def _statement(code: str, function: Any) -> str:
    doc = inspect.getdoc(function)
    # With -OO, Python drops all docstrings.
    if doc is None and sys.flags.optimize < 2:
        raise DeclarationError(f"rule {code} has no statement: its function has no docstring")
    return (doc or "").partition("\n\n")[0]


def register(code: str, scope: Scope, check: Check | Predicate, severity: str, source: str, statement: str) -> None:
    """Register a check without a docstring of its own; otherwise like `rule`."""
    existing = _RULES.get(code, Rule(code, severity, statement, source, {}))
    if scope in existing.checks:
        raise DeclarationError(f"rule {code} is registered twice for {scope}")
    if existing.severity != severity:
        raise DeclarationError(f"rule {code} is {existing.severity} and {severity}; a rule has one default severity")
    checks_of.cache_clear()
    _RULES[code] = replace(
        existing,
        statement=statement if statement in existing.statement else f"{existing.statement} {statement}",
        source=source if source in existing.source else f"{existing.source}; {source}",
        checks={**existing.checks, scope: check},
    )


def unregister(code: str) -> None:
    """Remove a rule."""
    del _RULES[code]
    checks_of.cache_clear()


def registered() -> dict[str, Rule]:
    """Every rule by code."""
    return dict(_RULES)


@cache
def checks_of(scope: Scope) -> tuple[tuple[str, Check | Predicate], ...]:
    """Code and check of every rule of a scope."""
    return tuple((code, one.checks[scope]) for code, one in _RULES.items() if scope in one.checks)


# Rules over records and state batches.


@dataclass(frozen=True, slots=True)
class ComposedRules:
    """The conditions of all rules over records and state batches, as two compiled functions."""

    rules: tuple[tuple[str, Scope, Predicate], ...]
    broken_rules: Any
    broken_by_batch: Any


def composed_rules() -> ComposedRules:
    """Compose the registered rules; compiled once per set of rules."""
    checks = [(code, scope, check) for code, declared in _RULES.items() for scope, check in declared.checks.items()]
    return _compose(tuple((code, scope, check) for code, scope, check in checks if isinstance(check, Predicate)))


@lru_cache(maxsize=4)
def _compose(rules: tuple[tuple[str, Scope, Predicate], ...]) -> ComposedRules:
    """Compile the conditions of rules into the functions that BROKEN_RULES and BROKEN_BY_BATCH describe.

    Generates source code, because numba cannot cache a function that loops over functions or closes over them.
    """
    if len(rules) > _MAX_RULES:
        raise DeclarationError(f"{len(rules)} rules over records and state batches; at most {_MAX_RULES} are possible")
    per_record, per_batch, per_pair, names = [], [], [], {}
    digest = hashlib.blake2b(digest_size=8)
    for number, (code, scope, predicate) in enumerate(rules):
        if predicate.describe is None:
            raise DeclarationError(f"rule {code} has no message")
        names[code] = inlined(predicate.condition)
        parameters = inspect.signature(predicate.condition).parameters
        lines = per_record if scope == Scope.RECORD else per_pair if "previous" in parameters else per_batch
        lines.append(f"if {code}({', '.join(parameters)}):\n        broken |= {1 << number}")
        code_object = predicate.condition.__code__
        digest.update(repr((lines[-1], code_object.co_code, code_object.co_names, str(code_object.co_consts))).encode())
    source = _SOURCE.format(*("\n    ".join(lines) for lines in (per_batch, per_pair, per_record)))
    # For numba's cache the functions are in a file of this folder, named after the set of rules.
    file = Path(__file__).with_name(f"composed-{digest.hexdigest()}.py")
    names |= {"__name__": __name__, "inlined": inlined}
    # numba reads the source of what it compiles; nothing but `linecache` has it, and "no time" keeps it there.
    linecache.cache[str(file)] = (len(source), None, source.splitlines(keepends=True), str(file))
    exec(compile(source, str(file), "exec"), names)
    by_batch = first_class(names["broken_by_batch"].py_func, BROKEN_BY_BATCH)
    return ComposedRules(rules, first_class(names["broken_rules"], BROKEN_RULES), by_batch)


_MAX_RULES = 63
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
    """Whether a record is a snapshot or update that continues the state before it, with no record missing between."""
    return record.kind != Kind.TOMBSTONE and context.exists_before and not context.is_initial and not context.is_suspect


# Texts for messages.


def span(batches: np.ndarray) -> tuple[Column, ...]:
    """The offsets of STATE_BATCH rows, as pieces of a message."""
    return batches["first"], "-", batches["last"]


def in_words(values: np.ndarray) -> pa.Array:
    """Delivery state and count of offsets, as text.

    Args:
        values: int32 priorities (`fold.interval_merge.priority`), or UNCOVERED.
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
    """Names of delivery states."""
    return pa.array([state_name(state) for state in states.tolist()], pa.string())


def listed(items: Iterable[object], most: int = 10) -> str:
    """The first few items as text, such as "1, 2, 3 and 7 more"."""
    texts = [str(item) for item in items]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more
