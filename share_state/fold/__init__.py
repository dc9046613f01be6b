"""Folds decoded records into the state of share-partitions and of groups.

Read `dialect` first: it defines the two dialects and what each provides, and verifies cutoffs.
`__share_group_state` has `state_log` (read, decode and fold a log partition), `state_chains` and
`interval_merge` (the fold), `state_replay` and `interval_map` (the state after each record) and
`record_context` (input of rules over records), which `context_fold` computes, first on bits (`bit_fold`,
`offset_bits`). Control records have the package `draft`. `timeline` and
`offset_history` work for both dialects; `fold_group` folds the rows of one share-partition; `states`,
`cutoff` and `history` build tables; audits resume from a `checkpoint`; `limits`, `fold_options` and
`log_stats` are shared. The package `groups` folds `__consumer_offsets`, and `dead_letters` matches dead
letters with the offsets that were in ARCHIVING.
"""
