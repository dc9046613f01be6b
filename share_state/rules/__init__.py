"""The rules of an audit. `registry` registers rules, `findings` evaluates them; the other modules define rules.

`records` and `record_batches` have rules over records and batches of `__share_group_state`; `epochs`, `state_batches`
and `chains` over records with their context; `operations` over the folded state; `coverage` over what the input is and
lacks; `topics` compares the state with topics. `control_chains` and `control_records` have the rules for control
records of the KIP-932 draft. `groups` and `group_members` have the rules over share groups, with the input that
`group_context` defines; `sticky` the rules over classic consumer groups, and `dead_letters` those over dead-letter
topics. `cluster_facts` has those over what is known of the cluster, `retention` that over the age of unfinished
records.
"""

from share_state.rules import (  # noqa: F401  importing them registers their rules
    chains,
    cluster_facts,
    control_chains,
    control_records,
    coverage,
    dead_letters,
    epochs,
    group_members,
    groups,
    operations,
    record_batches,
    records,
    retention,
    state_batches,
    sticky,
    topics,
)
