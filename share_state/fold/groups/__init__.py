"""The fold of `__consumer_offsets`: share groups, their members, and the claims of classic groups.

`group_tables` folds the logs and builds the tables; `group_replay` replays the records of one partition;
`sticky` resolves previous assignments of classic groups. share_state.kafka.group_records decodes the records;
share_state.rules.share_groups and group_members judge groups.
"""
