"""What a run found, in a few lines."""

from collections.abc import Mapping, Sequence
from typing import Any

from share_state.report.console import say
from share_state.rules import SEVERITIES, registered


def print_summary(found: Mapping[str, Any]) -> None:
    """Print the outcome of `reconstruct`."""
    count = len(found["progress"])
    live = f"{found['share_partitions']:,} live share-partitions"
    say(f"{found['records']:,} records of {count} log partitions hold {live}")
    redundant = sum(row["redundant_records"] or 0 for row in found["cutoff"])
    say(f"{redundant:,} of the records lie before the cutoff: `share-state cutoff` says more")
    print_findings(found["findings"])
    say(f"tables are in {found['warehouse']} (run {found['run_id']}): `share-state show {found['warehouse']}`")


def print_findings(findings: Sequence[Mapping[str, Any]]) -> None:
    """Print the number of findings of each rule and the statement that they break, the gravest first."""
    if not findings:
        say("no findings")
        return
    rules = registered()
    for found in sorted(findings, key=lambda found: (SEVERITIES.index(found["severity"]), found["rule"])):
        say(f"{found['severity']}: {found['rule']} × {found['count']:,}: not true: {rules[found['rule']].statement}")
