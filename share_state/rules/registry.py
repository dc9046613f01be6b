"""How a rule is declared, kept and run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.declarations import table_schema
from share_state.errors import DeclarationError
from share_state.fold.log import FoldedLog
from share_state.fold.states import DIALECT, key_columns
from share_state.fold.topics import Topics

ERROR, WARNING, INFO, OFF = "error", "warning", "info", "off"
SEVERITIES = (ERROR, WARNING, INFO)
NO_KEY = -1

Column = str | np.ndarray | pa.Array | pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class Broken:
    """The rows that break a rule.

    Attributes:
        offset: int64, offset in the log partition, one a row.
        message: pieces of one sentence: plain text, or a column with a value a row.
        key: int64, number of the share-partition, NO_KEY where the row is about none.
        evidence: name -> column, for whoever looks closer.
        severity: one a row, where a rule is milder in some cases; the rule's own otherwise.
    """

    offset: np.ndarray
    message: tuple[Column, ...]
    key: np.ndarray | None = None
    evidence: Mapping[str, Column] = field(default_factory=dict)
    severity: np.ndarray | None = None


NOTHING = Broken(np.zeros(0, np.int64), ("",))


@dataclass(frozen=True, slots=True)
class Rule:
    """A registered rule: its code, default severity, the statement that must hold, where it comes from, its check."""

    code: str
    severity: str
    statement: str
    source: str
    check: Callable[[FoldedLog], Broken]


_RULES: dict[str, Rule] = {}


def rule(
    code: str, *, severity: str, source: str, statement: str
) -> Callable[[Callable[[FoldedLog], Broken]], Callable[[FoldedLog], Broken]]:
    """Register a function over a folded log as a rule.

    Raises:
        DeclarationError: if the code is taken.
    """

    def register(check: Callable[[FoldedLog], Broken]) -> Callable[[FoldedLog], Broken]:
        if code in _RULES:
            raise DeclarationError(f"rule {code} is registered twice")
        _RULES[code] = Rule(code, severity, statement, source, check)
        return check

    return register


def registered() -> dict[str, Rule]:
    """Every rule by code."""
    return dict(_RULES)


def judge(folded: FoldedLog, severities: Mapping[str, str] | None = None, topics: Topics | None = None) -> pa.Table:
    """Run every rule over a folded log partition.

    Args:
        folded: the log partition.
        severities: code -> severity, or OFF, in place of the rule's own.
        topics: names that are known.
    Returns:
        The table `findings`, its run_id still null.
    """
    chosen = severities or {}
    tables = [table_schema("findings").empty_table()]
    for declared in _RULES.values():
        severity = chosen.get(declared.code, declared.severity)
        if severity == OFF:
            continue
        broken = declared.check(folded)
        if len(broken.offset):
            tables.append(_findings(declared, broken, severity, declared.code in chosen, folded, topics or Topics()))
    return pa.concat_tables(tables)


def _findings(
    declared: Rule, broken: Broken, severity: str, overridden: bool, folded: FoldedLog, topics: Topics
) -> pa.Table:
    count = len(broken.offset)
    key = np.full(count, NO_KEY, np.int64) if broken.key is None else broken.key
    known = key != NO_KEY
    # Row n of the distinct keys, or null, for every finding.
    distinct, place = np.unique(key[known], return_inverse=True)
    owner = np.zeros(count, np.int64)
    owner[known] = place
    columns = {
        name: column.take(pa.array(owner, mask=~known))
        for name, column in key_columns(folded.keys, distinct, topics).items()
    }
    severities = np.full(count, severity, object) if broken.severity is None or overridden else broken.severity
    columns |= {
        "dialect": pa.array([DIALECT] * count),
        "rule": pa.array([declared.code] * count),
        "severity": pa.array(severities.tolist()),
        "state_partition": pa.array([folded.log.partition] * count, pa.int32()),
        "offset": pa.array(broken.offset.astype(np.int64), mask=broken.offset < 0),
        "message": _texts(broken.message, count),
        "evidence": _maps(broken.evidence, count),
        "run_id": pa.nulls(count, pa.string()),
    }
    schema = table_schema("findings")
    return pa.table([columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema)


def _text(piece: Column, count: int) -> pa.Array:
    if isinstance(piece, str):
        return pa.array([piece] * count, pa.string())
    column = pa.array(piece) if isinstance(piece, np.ndarray) else piece
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return column.cast(pa.string())


def _texts(pieces: tuple[Column, ...], count: int) -> pa.Array:
    return pc.call_function("binary_join_element_wise", [*(_text(piece, count) for piece in pieces), pa.scalar("")])


def _maps(evidence: Mapping[str, Column], count: int) -> pa.Array:
    names, width = list(evidence), len(evidence)
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * width)
    if not width:
        return pa.MapArray.from_arrays(offsets, pa.array([], pa.string()), pa.array([], pa.string()))
    stacked = pa.concat_arrays([_text(evidence[name], count) for name in names])
    by_row = np.arange(width * count).reshape(width, count).T.ravel()
    return pa.MapArray.from_arrays(offsets, pa.array(names * count), stacked.take(pa.array(by_row)))
