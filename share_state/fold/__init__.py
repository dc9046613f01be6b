"""Folds decoded records into the state of share-partitions and of groups.

Read `dialect` first: it defines the two dialects and what each provides, and verifies cutoffs. `__share_group_state`
has `state_log` (read, decode and fold a log partition), `state_chains` and `interval_merge` (the fold), `state_replay`
and `interval_map` (the state after each record) and `record_context` (input of rules over records). Control records
have `control_log`, `control_chains` and `control_replay`. `timeline` and `explain` work for both dialects; `fold_group`
folds the rows of one share-partition; `states`, `cutoff` and `history` build tables; audits resume from a `checkpoint`;
`limits`, `options` and `log_stats` are shared. `group_replay`, `groups` and `sticky` fold `__consumer_offsets`.
"""
