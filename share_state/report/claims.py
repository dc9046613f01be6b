"""Claims of members of classic consumer groups (KIP-341), as `share-state groups --claims` prints them.

They need no log of the state topic: an export of `__consumer_offsets` alone has all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.committed import CommittedTables
from share_state.errors import InputError, pluralize
from share_state.fold.groups.group_tables import fold_groups
from share_state.fold.groups.sticky import fold_sticky
from share_state.kafka.classic_groups import read_generations
from share_state.report.console import print_line, print_table
from share_state.rules.breaches import SEVERITIES
from share_state.rules.findings import findings
from share_state.rules.registry import Scope, checks_of
from share_state.rules.share_groups import judge_sticky
from share_state.sources.formats import ExportPaths
from share_state.sources.input_detection import read_group_export
from share_state.sources.kafka_client import SCHEME

_PLACE = [(name, "ascending") for name in ("group_id", "record_offset", "topic", "partition")]


@dataclass(frozen=True, slots=True)
class Claims:
    """What members claimed, and what became of it.

    Attributes:
        claims: the table `sticky_claim`.
        owners: the table `effective_previous_assignment`.
        findings: of the rules over claims.
        is_read: whether a log of `__consumer_offsets` was read at all.
    """

    claims: pa.Table
    owners: pa.Table
    findings: pa.Table
    is_read: bool = True

    def of_group(self, group: str | None) -> "Claims":
        """Those of one group; all for None.

        Raises:
            InputError: if no member of the group claims anything.
        """
        if group is None:
            return self
        where = pc.field("group_id") == group
        if not len(owners := self.owners.filter(where)):
            known = sorted({*self.owners["group_id"].to_pylist()})
            there = f"there are {', '.join(known[:3])}" if known else "no group has any"
            read = " in the records that could be read" if self.findings["group_id"].null_count else ""
            raise InputError(f"group {group}: no member claims a partition{read}; {there}")
        # A record that cannot be read may be one of the group.
        broken = self.findings.filter(where | pc.field("group_id").is_null())
        return Claims(self.claims.filter(where), owners, broken, self.is_read)


def claims_of_run(tables: CommittedTables) -> Claims:
    """The claims that the run of a warehouse read, and the records of groups that it could not read.

    Raises:
        WarehouseError: if a table is gone.
    """
    codes = [code for scope in (Scope.GROUP_RECORDS, Scope.CLAIMS) for code, _ in checks_of(scope)]
    broken = tables.read("findings", pc.field("rule").isin(codes))
    claims, owners = (tables.read(name) for name in ("sticky_claim", "effective_previous_assignment"))
    return Claims(claims, owners, broken, tables.holds("share_groups"))


def claims_of_export(place: str) -> Claims:
    """The claims in an export of `__consumer_offsets`, of any form; the number of partitions of topics is not known.

    Raises:
        InputError: if it is a cluster, holds no log of the topic, or cannot be read.
    """
    if place.startswith(SCHEME):
        raise InputError(
            f"{place}: claims are read from a warehouse or an export; give the warehouse of "
            f"`share-state reconstruct {place} --out WAREHOUSE`"
        )
    folded = fold_groups(read_group_export(ExportPaths((place,))))
    generations, unreadable = read_generations(folded.classic, folded.sticky)
    sticky = fold_sticky(generations, unreadable, None, history=True)
    unread = findings(Scope.GROUP_RECORDS, folded.faults)
    found = pa.concat_tables([unread, judge_sticky(sticky)])
    return Claims(sticky.sticky_claim, sticky.effective_previous_assignment, found)


def describe_claims(claims: Claims) -> dict[str, Any]:
    """Claims as plain data: `read`, `claims`, `owners` and `findings`, each a list of rows."""
    return {
        "read": claims.is_read,
        "claims": claims.claims.sort_by(_PLACE).to_pylist(),
        "owners": claims.owners.sort_by(_PLACE).to_pylist(),
        "findings": [
            row | {"evidence": dict(row["evidence"] or ())}
            for row in claims.findings.sort_by([("group_id", "ascending"), ("rule", "ascending")]).to_pylist()
        ],
    }


def print_claims(described: Mapping[str, Any], *, group: str | None) -> None:
    """Print who owned each claimed partition, and what the claims break.

    Args:
        described: the result of `describe_claims`.
        group: the group whose earlier generations are printed, too; of all groups only the latest is.
    """
    if not described["read"]:
        print_line("the input has no logs of __consumer_offsets, so claims of members are unknown")
        return
    owners: Sequence[Mapping[str, Any]] = described["owners"]
    latest = {row["group_id"]: row["record_offset"] for row in owners}
    shown = [row for row in owners if group is not None or latest[row["group_id"]] == row["record_offset"]]
    columns = ("GROUP", "GENERATION", "PARTITION", "OWNER", "SINCE", "STATUS", "OTHER-CLAIMS")
    print_table(
        columns,
        map(_cells, shown),
        numeric=("GENERATION", "SINCE"),
        otherwise="in the records that were read, no member of a group with a sticky assignor claims a partition",
    )
    if earlier := len({(row["group_id"], row["record_offset"]) for row in owners}) - len(latest):
        print_line()
        where = "above" if group is not None else "with --group GROUP or --json"
        print_line(f"{pluralize(earlier, 'earlier generation')} {where}")
    generations = {(row["group_id"], row["record_offset"]): row["group_generation"] for row in owners}
    left_out = generations.keys() - {(row["group_id"], row["record_offset"]) for row in shown}
    broken = [row for row in described["findings"] if (row["group_id"], row["offset"]) not in left_out]
    if broken:
        print_line()
    for row in sorted(broken, key=_rank):
        generation = generations.get((row["group_id"], row["offset"]))
        of_group = "" if row["group_id"] is None else f", group {row['group_id']}"
        place = f"record {row['offset']}" if generation is None else f"generation {generation}"
        print_line(f"{row['severity']}: {row['rule']}{of_group}, {place}: {row['message']}")


def _rank(finding: Mapping[str, Any]) -> tuple[str, int, int]:
    """Findings by group and record, the most severe first."""
    return finding["group_id"] or "", finding["offset"] or 0, SEVERITIES.index(finding["severity"])


def _cells(row: Mapping[str, Any]) -> list[Any]:
    others = [f"{claim['member_id']} ({claim['claim_generation']})" for claim in row["other_claims"] or ()]
    return [
        row["group_id"],
        row["group_generation"],
        f"{row['topic']}-{row['partition']}",
        row["owner"],
        row["owner_generation"],
        row["status"],
        ", ".join(others) or None,
    ]
