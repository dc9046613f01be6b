"""An export as the product reads it, and what it would say of a damaged copy that differs from the whole one."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from share_state.config.input_spec import JUDGE_ALL, OPTIONS, input_spec
from share_state.fold.dialect import verify_cutoff
from share_state.pipeline.across_logs import judge_input, settle_tables
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.planning import build_plan
from share_state.pipeline.result import summarize
from share_state.pipeline.task import CUTOFF, FINDINGS, RESULTS, STATE, OutputSpec
from share_state.sources.as_of import Window
from tests.damage.exports import Export

COMPARED = ("state_partition", "start_offset", "end_offset", "snapshot_epoch", "state_epoch", "leader_epoch",
            "delivery_complete_count", "state_batches")  # fmt: skip
"""Columns of a state as the coordinator holds it."""

Key = tuple[str, str | None, str | None, int]
"""Group, topic id, topic (control records) and partition."""


@dataclass
class Judged:
    """An export that is folded and judged as `reconstruct` and `cutoff` do.

    Attributes:
        plan: how it was read.
        states: rows of share_partition_state by key; several if a key is in several logs.
        cutoffs: rows of cutoff by name of the log partition.
        findings: how many of each rule there are about a place: warnings, errors, and gaps of any severity.
        notes: what the commands note, one text each.
    """

    plan: FoldPlan
    states: dict[Key, list[dict[str, Any]]]
    cutoffs: dict[str, dict[str, Any]]
    findings: Counter[tuple[str, Any]]
    notes: list[str]


def _key(row: Mapping[str, Any]) -> Key:
    topic = row["topic"] if row["dialect"] == "control_records" else None
    return row["group_id"], row["topic_id"], topic, row["partition"]


def judge_export(paths: list[str], dialect: str) -> Judged:
    """Fold and judge an export."""
    spec = input_spec(OPTIONS, sources=[{"path": path, "dialect": dialect} for path in paths], judge=JUDGE_ALL)
    plan = build_plan(spec, OPTIONS)
    executor = LocalExecutor()
    rows = executor.fold(plan, OutputSpec(RESULTS))
    result = judge_input(plan, summarize(rows, (), {}))
    tables = settle_tables(None, plan, rows, executor.returned_tables(rows, (*RESULTS, CUTOFF)))
    states = dict[Key, list[dict[str, Any]]]()
    for row in tables[STATE].to_pylist():
        states.setdefault(_key(row), []).append(row)
    cutoffs = {f"{row['topic']}-{row['partition']}": row for row in result.cutoff.to_pylist()}
    findings = Counter[tuple[str, Any]]()
    for row in tables[FINDINGS].to_pylist():
        if row["severity"] != "info" or row["rule"] == "OFFSET_GAP":
            findings.update((row["rule"], place) for place in _places(row))
    return Judged(plan, states, cutoffs, findings, [*plan.notes, *result.notes])


def _places(finding: Mapping[str, Any]) -> Iterator[Any]:
    """What a finding names: a share-partition, a state partition, a log partition."""
    if finding["group_id"] is not None:
        yield _key(finding)
    if finding["state_partition"] is not None:
        yield f"__share_group_state-{finding['state_partition']}"
    elif finding["topic"] is not None:
        yield f"{finding['topic']}-{finding['partition']}"


def log_of(key: Key, row: Mapping[str, Any]) -> str:
    """The name of the log partition that holds a state."""
    if row["state_partition"] is not None:
        return f"__share_group_state-{row['state_partition']}"
    return f"{key[2]}-{key[3]}"


def losses_by_cutoffs(whole: Judged, damaged: Judged, figures: Counter[str]) -> list[str]:
    """What the cutoffs that are called safe would change if they were carried out on the whole logs.

    Args:
        figures: counts the cutoffs.
    """
    changed = list[str]()
    figures["cutoffs"] += len(damaged.cutoffs)
    for log in whole.plan.logs:
        row = damaged.cutoffs.get(log.name)
        if row is None or not row["safe"] or row["cutoff_offset"] is None:
            continue
        figures["cutoffs called safe, carried out on the whole log"] += 1
        folded = whole.plan.fold(log)
        carried_out = folded.cutoff.to_pylist()[0] | {"cutoff_offset": row["cutoff_offset"]}
        proof = verify_cutoff(
            replace(folded, cutoff=pa.Table.from_pylist([carried_out], schema=folded.cutoff.schema)),
            Window(),
            whole.plan.fold_options(log),
        )
        assert proof is not None
        changed += [f"{log.name} before {row['cutoff_offset']}: {name}" for name in proof.differing]
    return changed


def unnamed_differences(whole: Judged, damaged: Judged, figures: Counter[str]) -> dict[str, set[str]]:
    """The share-partitions whose state differs and that nothing names: a text each -> names of their log partitions.

    Args:
        figures: counts the states, and those that differ by what names them.
    """
    named = {place for (rule, place), count in damaged.findings.items() if count > whole.findings[rule, place]}
    noted = {
        log for log in {*whole.cutoffs, *damaged.cutoffs} if any(re.search(rf"{log}\b", note) for note in damaged.notes)
    }
    silent = dict[str, set[str]]()
    for key in sorted({*whole.states, *damaged.states}, key=str):
        rows = damaged.states.get(key, [])
        (truth,) = whole.states.get(key, [None])
        figures["states"] += 1
        if len(rows) == 1 and truth is not None and not _changes(truth, rows[0]):
            continue
        figures["states that differ"] += 1
        logs = {log_of(key, row) for row in (*rows, *([truth] if truth else []))}
        ways = {
            "suspect": bool(rows) and all(row["suspect"] for row in rows),
            "a finding names the share-partition": key in named,
            "a finding names its log partition": bool(logs & named),
            "a note names its log partition": bool(logs & noted),
        }
        way = next((way for way, is_so in ways.items() if is_so), None)
        if way is not None:
            figures[f"states that differ: {way}"] += 1
            continue
        silent[f"{key}: {_changes(truth, rows[0]) if truth and rows else (truth, rows)}"] = logs
    return silent


def _changes(truth: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (truth[name], row[name]) for name in COMPARED if truth[name] != row[name]}


def write_and_judge(export: Export, place: Path, dialect: str) -> Judged:
    """Write an export to a folder, and judge what is read from there."""
    return judge_export(export.write(place), dialect)
