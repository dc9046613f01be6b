"""What the audit finds in the brokers' logs, counted; `python -m tests.golden.counted_findings` writes the files anew.

Random requests wrote these logs, so starts go back, terminal states are left and counts disagree: docs/rules/README.md
says which kinds are in them. Nobody but a person can say whether a changed number is right.
"""

import sys
from collections import defaultdict
from pathlib import Path
from unittest.mock import patch

import yaml

from share_state.fold.fold_options import FoldOptions
from share_state.fold.limits import Limits
from share_state.fold.state_log import fold_log
from share_state.rules import findings as findings_module
from share_state.rules.findings import judge, judge_records
from share_state.sources.discovery import find_logs
from share_state.sources.partition_count import PartitionCount
from tests.truth import DATA

FOLDER = Path(__file__).parent / "findings"
RANDOM = ("fifty", "fuzz", "codec-gzip", "codec-lz4", "codec-snappy", "codec-zstd", "crash", "pruneraw")


def random_scenarios() -> list[str]:
    """`<release>/<scenario>` of the logs that random requests wrote."""
    return sorted(f"{path.parent.name}/{path.name}" for name in RANDOM for path in DATA.glob(f"*/{name}"))


def findings_of(folder: Path, limits: Limits = Limits()) -> list[dict]:  # noqa: B008  frozen
    """The findings over all log partitions of a folder."""
    logs, found = find_logs([str(folder)]), []
    # Each one, not the first thousand.
    with patch.object(findings_module, "FINDINGS_KEPT", sys.maxsize):
        for log in logs:
            folded = fold_log(
                log, options=FoldOptions(limits=limits, partition_count=PartitionCount(len(logs)), judge=judge_records)
            )
            found += judge(folded, records=folded.record_breaches).to_pylist()
    return found


def counted(found: list[dict]) -> dict[str, dict]:
    """Rule -> how often it is broken, by how many share-partitions, and where first and last."""
    by_rule = defaultdict(list)
    for row in found:
        by_rule[row["rule"]].append(row)
    return {
        rule: {
            "severity": rows[0]["severity"],
            "findings": len(rows),
            "share_partitions": len({(row["group_id"], row["topic_id"], row["partition"]) for row in rows}),
            "first": _place(min(rows, key=_order)),
            "last": _place(max(rows, key=_order)),
        }
        for rule, rows in sorted(by_rule.items())
    }


def file_of(scenario: str) -> Path:
    """The file with the expected counts of a scenario."""
    return FOLDER / f"{scenario.replace('/', '-')}.yaml"


def _order(row: dict) -> tuple[int, int]:
    return row["state_partition"], row["offset"]


def _place(row: dict) -> str:
    return f"state partition {row['state_partition']}, offset {row['offset']}"


if __name__ == "__main__":
    for name in random_scenarios():
        file_of(name).write_text(yaml.safe_dump(counted(findings_of(DATA / name)), sort_keys=False))
