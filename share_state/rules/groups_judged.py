"""Every rule over groups at once: share groups beside their state, classic consumer groups beside their claims."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from share_state.fold.groups_met import GroupFault
from share_state.fold.sticky import FoldedSticky
from share_state.rules.groups import GROUP_RULES
from share_state.rules.groups_assignment import ASSIGNMENT_RULES
from share_state.rules.groups_audited import AuditedGroups
from share_state.rules.groups_findings import RuleText, judged
from share_state.rules.groups_records import RECORD_RULES
from share_state.rules.sticky import CLAIM_RULES
from share_state.rules.sticky_bytes import BYTES_RULES
from share_state.rules.sticky_outcome import OUTCOME_RULES


def rule_texts() -> dict[str, RuleText]:
    """Every rule over groups by code; those over records and batches have the codes of the same rules over state."""
    rules = (*GROUP_RULES, *ASSIGNMENT_RULES, *CLAIM_RULES, *OUTCOME_RULES, *BYTES_RULES, *RECORD_RULES)
    return {text.code: text for text, _ in rules}


def judge_group_records(faults: Sequence[GroupFault], severities: Mapping[str, str] | None = None) -> pa.Table:
    """Run the rules over records and batches alone, where nothing is known of the state side.

    Args:
        faults: what `fold_groups` met.
        severities: code -> severity, or OFF, in place of the rule's own.
    Returns:
        The table `findings`, its run_id still null.
    """
    return judged(RECORD_RULES, tuple(faults), severities)


def judge_groups(audited: AuditedGroups, severities: Mapping[str, str] | None = None) -> pa.Table:
    """Run every rule over share groups and over the records that tell of them.

    Args:
        audited: the group side and the state side.
        severities: code -> severity, or OFF, in place of the rule's own.
    Returns:
        The table `findings`, its run_id still null.
    """
    over_records = judge_group_records(audited.folded.faults, severities)
    over_groups = judged((*GROUP_RULES, *ASSIGNMENT_RULES), audited, severities)
    return pa.concat_tables([over_records, over_groups])


def judge_sticky(sticky: FoldedSticky, severities: Mapping[str, str] | None = None) -> pa.Table:
    """Run every rule over the claims and assignments of classic consumer groups.

    Args:
        sticky: of `fold_sticky`.
        severities: code -> severity, or OFF, in place of the rule's own.
    Returns:
        The table `findings`, its run_id still null.
    """
    over_records = judged(RECORD_RULES, sticky.faults, severities)
    over_claims = judged((*CLAIM_RULES, *OUTCOME_RULES, *BYTES_RULES), sticky, severities)
    return pa.concat_tables([over_records, over_claims])
