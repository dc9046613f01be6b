"""The compiled conditions find what their Python code finds record by record, whatever the chunks and the limits."""

import sys
from collections.abc import Callable
from inspect import getsource, signature
from itertools import pairwise
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.core.dispatcher import Dispatcher

from share_state.fold.context_fold import ContextFold
from share_state.fold.limits import Limits
from share_state.fold.record_context import ContextChunk
from share_state.fold.state_chains import Chains
from share_state.kafka.releases import RELEASES
from share_state.kafka.state_records import StateRecords
from share_state.rules import findings as findings_module
from share_state.rules.breaches import Breaches
from share_state.rules.compiled import composed_rules
from share_state.rules.findings import RecordRules
from share_state.rules.registry import Predicate, Scope, registered
from tests.fold.decoded_logs import damaged, decoded, drawn_records
from tests.fold.model import Written
from tests.fold.random_logs import logs
from tests.fold.record_context_model import EVERY_RECORD, chunks
from tests.present import present
from tests.profiles import some_of
from tests.truth import DATA

LIMITS = [Limits(writer_version=version, delivery_count=count) for version in (None, *RELEASES) for count in (1, 5)]

Found = list[tuple[str, int, int | None]]
"""(code, offset, number of state batches) of every finding."""


def _plain(condition: Any) -> Callable[..., bool]:
    """A condition that calls no compiled function."""
    known = {
        name: value.py_func if isinstance(value, Dispatcher) else value for name, value in condition.__globals__.items()
    }
    return FunctionType(condition.__code__, known)


CONDITIONS = [
    (code, scope, _plain(check.condition), set(signature(check.condition).parameters))
    for code, declared in registered().items()
    for scope, check in declared.checks.items()
    if isinstance(check, Predicate)
]


def _rows(rows: np.ndarray) -> list[SimpleNamespace]:
    return [SimpleNamespace(**dict(zip(present(rows.dtype.names), row, strict=True))) for row in rows.tolist()]


def _expected(chunk: ContextChunk) -> Found:
    """Evaluate every condition over every record of a chunk."""
    found, batches, (limits,) = [], _rows(chunk.batches), _rows(chunk.rule_limits)
    for record, context in zip(_rows(chunk.records), _rows(chunk.contexts), strict=True):
        own = batches[record.batches : record.batches + record.batch_count]
        for code, scope, condition, needed in CONDITIONS:
            known = {"record": record, "context": context, "limits": limits}
            known = {name: value for name, value in known.items() if name in needed}
            if not context.is_folded:
                continue
            if scope == Scope.RECORD:
                if condition(**known):
                    found.append((code, record.offset, None))
            elif "previous" in needed:
                count = sum(bool(condition(batch=batch, previous=before, **known)) for before, batch in pairwise(own))
                found += [(code, record.offset, count)] if count else []
            else:
                count = sum(bool(condition(batch=batch, **known)) for batch in own)
                found += [(code, record.offset, count)] if count else []
    return found


def _counts(breaches: Breaches) -> list[int | None]:
    """The number of batches of each breach; None for rules over records."""
    counts = breaches.evidence.get("batches")
    return counts.tolist() if isinstance(counts, np.ndarray) else [None] * len(breaches.offset)


def _compiled(chunk: ContextChunk) -> Found:
    every = patch.object(findings_module, "FINDINGS_KEPT", sys.maxsize)
    with every, patch.object(findings_module, "_greatest", lambda breaches, *_: breaches):
        found = RecordRules()(chunk)
    return [
        (code, offset, counts)
        for code, breaches in found
        for offset, counts in zip(
            breaches.offset.tolist(),
            _counts(breaches),
            strict=True,
        )
    ]


def _agree(records: StateRecords, keys: int, cuts: list[int], limits: Limits, log_start_offset: int) -> int:
    """Returns how many records break a rule."""
    options: dict[str, Any] = {"limits": limits, "log_start_offset": log_start_offset}
    every, some = ContextFold(EVERY_RECORD, **options), ContextFold(RecordRules().broken_rules, **options)
    chains, same, broken = Chains(), Chains(), 0
    for chunk in chunks(records, cuts):
        expected = _expected(every.apply(chunk, chains, keys))
        selected = some.apply(chunk, same, keys)
        assert sorted(_compiled(selected), key=str) == sorted(expected, key=str)
        assert selected.records["offset"].tolist() == sorted({offset for _, offset, _ in expected})
        broken += len(selected.records)
    return broken


@pytest.mark.parametrize("limits", LIMITS[::3], ids=lambda limits: f"{limits.writer_version}-{limits.delivery_count}")
@pytest.mark.parametrize("name", some_of(["4.1.2/fuzz", "4.3.1/fuzz", "4.4.0/dlq"], 2))
def test_a_broker_s_log_breaks_the_same_rules(name: str, limits: Limits):
    records, keys = decoded(DATA / name / "__share_group_state-0")
    _agree(records, keys, [len(records.rows) // 2], limits, 0)


@given(logs(), st.data())
def test_a_damaged_log_breaks_the_same_rules(
    tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]], data: st.DataObject
):
    records, keys = drawn_records(log, tmp_path_factory.mktemp("log"))
    records = damaged(data, records)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records.rows)), max_size=3)))
    _agree(records, keys, cuts, data.draw(st.sampled_from(LIMITS)), data.draw(st.sampled_from([0, 5])))


@pytest.mark.parametrize("release", ["4.0.2", "4.1.2", "4.2.1", "4.3.1", "4.4.0"])
def test_few_records_of_a_real_workload_break_a_rule(release: str):
    records, keys = decoded(DATA / release / "chaos" / "__share_group_state-0")
    assert _agree(records, keys, [], Limits(), 0) < 0.1 * len(records.rows)


def test_the_source_of_the_composed_rules_can_be_read():
    """numba reads it to cache what it compiles; from Python 3.13, a wrong text ends that with an error."""
    composed = composed_rules()
    assert getsource(composed.broken_rules.__wrapped__).startswith("def broken_rules(record, context, ")
    assert "broken_by_batch(record, " in getsource(composed.broken_by_batch.__wrapped__)
