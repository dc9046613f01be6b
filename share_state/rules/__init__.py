"""The rules of an audit. `registry` registers rules, `findings` evaluates them; most modules define rules.

`records` and `batches` have rules over records and batches of `__share_group_state`; `epochs`,
`state_batches` and `chains` over records with their context; `operations` over the folded state; `coverage`
over what the input is and lacks; `topic_offsets` compares the state with topics. `delta_links` and
`control_record_faults` have the rules for control records of the KIP-932 draft. `share_groups` and
`group_members` have the rules over share groups, with the input that `group_context` defines;
`sticky_assignments` the rules over classic consumer groups, and `dead_letter_losses` those over dead-letter
topics. `cluster_settings` has those over what is known of the cluster, `retention` that over the age of
unfinished records. `breaches` defines what a rule returns, and `compiled` composes the rules that the fold
evaluates.
"""

from share_state.rules import (  # noqa: F401  importing them registers their rules
    batches,
    chains,
    cluster_settings,
    control_record_faults,
    coverage,
    dead_letter_losses,
    delta_links,
    epochs,
    group_members,
    operations,
    records,
    retention,
    share_groups,
    state_batches,
    sticky_assignments,
    topic_offsets,
)
