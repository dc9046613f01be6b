"""Composes the rules over records and state batches into two compiled functions."""

import hashlib
import inspect
import linecache
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from share_state.errors import DeclarationError
from share_state.fold.record_context import BROKEN_BY_BATCH, BROKEN_RULES
from share_state.jit.compile import first_class, inlined
from share_state.kafka.state_records import Kind
from share_state.rules.registry import REGISTERED, Predicate, Scope

# Rules over records and state batches.


@dataclass(frozen=True, slots=True)
class ComposedRules:
    """The conditions of all rules over records and state batches, as two compiled functions."""

    rules: tuple[tuple[str, Scope, Predicate], ...]
    broken_rules: Any
    broken_by_batch: Any


def composed_rules() -> ComposedRules:
    """Compose the registered rules; compiled once per set of rules."""
    checks = [
        (code, scope, check)
        for code, declared in REGISTERED.items()
        for scope, check in declared.checks.items()
    ]
    return _compose(
        tuple((code, scope, check) for code, scope, check in checks if isinstance(check, Predicate))
    )


@lru_cache(maxsize=4)
def _compose(rules: tuple[tuple[str, Scope, Predicate], ...]) -> ComposedRules:
    """Compile the conditions of rules into the functions that BROKEN_RULES and BROKEN_BY_BATCH describe.

    Generates source code, because numba cannot cache a function that loops over functions or closes over
    them.
    """
    if len(rules) > _MAX_RULES:
        raise DeclarationError(
            f"{len(rules)} rules over records and state batches; at most {_MAX_RULES} are possible"
        )
    per_record = []
    per_batch = []
    per_pair = []
    names = {}
    digest = hashlib.blake2b(digest_size=8)
    for number, (code, scope, predicate) in enumerate(rules):
        if predicate.describe is None:
            raise DeclarationError(f"rule {code} has no message")
        names[code] = inlined(predicate.condition)
        parameters = inspect.signature(predicate.condition).parameters
        lines = per_record if scope == Scope.RECORD else per_pair if "previous" in parameters else per_batch
        lines.append(f"if {code}({', '.join(parameters)}):\n        broken |= {1 << number}")
        code_object = predicate.condition.__code__
        digest.update(
            repr((lines[-1], code_object.co_code, code_object.co_names, str(code_object.co_consts))).encode()
        )
    source = _SOURCE.format(*("\n    ".join(lines) for lines in (per_batch, per_pair, per_record)))
    # For numba's cache the functions are in a file of this folder, named after the set of rules.
    file = Path(__file__).with_name(f"composed-{digest.hexdigest()}.py")
    names |= {"__name__": __name__, "inlined": inlined}
    # numba reads the source of what it compiles; nothing but `linecache` has it, and "no time" keeps it
    # there.
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
    return (
        record.kind != Kind.TOMBSTONE
        and context.exists_before
        and not context.is_initial
        and not context.is_suspect
    )
