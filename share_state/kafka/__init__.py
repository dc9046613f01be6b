"""Kafka's binary formats and the text that its tools print, independent of where the bytes come from.

Read `record_batches` first (batches and the records in them), then `state_records` and `share_partition_keys`
(records of `__share_group_state`), `control_records` (the KIP-932 draft), `group_records` and
`classic_groups` (`__consumer_offsets`) and `dead_letter_headers`. `delivery_states` and `releases` list what
they can hold and who writes them.
`compression`, `primitives` and `buffers` serve these; `codec` reads and writes any declared record, and
`text_records` encodes printed records.
"""
