"""Simulates share-partitions, their leaders and share coordinators, and writes their logs.

`share_partition` is the state machine of one share-partition on its leader; its parts are `window`,
`acquisition` and `durability`. `player` plays `events` on leaders. `coordinator` and `log_writer` write
`__share_group_state`, `control_record_writer` writes control records, `group_coordinator` and `group_side` write
`__consumer_offsets`, with assignments by `assignor`. `workload` generates events for a
`cluster`, `faults` damages its logs, `requests` replays a broker's request log on one, and `simulation` runs
it all for `share-state simulate`.
"""
