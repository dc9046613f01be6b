"""Where records come from: each source yields the chunks of a log partition in offset order.

Read `input_detection` first (the format of an input, and its logs), `discovery` (`LogPartition`, and logs in
folders), then `segments` (reading them) and `resume_point` (what is new since an earlier run). Other formats:
`record_tables` and `table_plan` (Parquet), `dump_text` and `console_text` (output of Kafka's tools),
`kafka_cluster` with `kafka_client` and `kafka_admin` (a running cluster; `jars` has its Java client),
`dead_letter_topics`. `as_of` has the time windows, `topics` and `share_snapshots` files that accompany an
input, and `cluster_facts` what a broker's data folder says.
"""
