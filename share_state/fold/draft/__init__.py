"""The fold of the dialect of the KIP-932 draft, whose state is in control records of the topic-partitions themselves.

`control_log` reads, decodes and folds the log of one topic-partition; `control_chains` folds the checkpoints
and deltas of many share groups at once; `control_replay` gives the state after each record.
share_state.kafka.control_records decodes the records, and the modules `delta_links` and
`control_record_faults` of share_state.rules judge them.
"""
