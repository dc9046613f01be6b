"""Rules over groups beside the state that the tasks folded: judged in the driver, written with all other findings."""

import hashlib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame

from share_state.group_side import GroupSide
from share_state.rules.groups_audited import STATE_COLUMNS
from share_state.spark.plan import digest_of, result_table
from share_state.work import Work

if TYPE_CHECKING:
    from share_state.spark.reconstruct import Outcome


def judged_groups(
    results: DataFrame, side: GroupSide | None, work: Work, outcome: "Outcome", now_ms: int | None = None
) -> "tuple[Outcome, pa.Table | None]":
    """Hold the group side against the folded state.

    Args:
        results: of `fold_all`; of every share-partition a few columns come to the driver.
        side: None where the input has no group side; then nothing changes.
        work: what was folded.
        outcome: what the state side alone gave.
        now_ms: the time that ages are counted to.
    Returns:
        The outcome with the groups' findings counted, its run_id that of both sides; those findings.
    """
    if side is None:
        return outcome, None
    states = result_table(results, "share_partition_state").select(*STATE_COLUMNS).toArrow()
    findings = side.judge(states, work, now_ms)
    own = Counter(zip(findings["severity"].to_pylist(), findings["rule"].to_pylist(), strict=True))
    digest = digest_of(*side.tables().values(), findings)
    run_id = hashlib.sha256(f"{outcome.run_id} {digest}".encode()).hexdigest()[:16]
    both = dict(sorted((Counter(outcome.findings) + own).items()))
    return replace(outcome, findings=both, run_id=run_id), findings


def with_findings(rows: DataFrame, findings: pa.Table | None) -> DataFrame:
    """Findings of the tasks and those that the driver made."""
    if findings is None or not len(findings):
        return rows
    # Where the first chunk of a table is empty, createDataFrame takes all of it for empty.
    return rows.unionByName(rows.sparkSession.createDataFrame(findings.combine_chunks()))
