"""Where records come from: each source yields the chunks of a log partition in offset order.

Read `discovery` first (`LogPartition` and how logs are found), then `segments` (reading them) and `resume_point` (what
is new since an earlier run). Other formats: `record_tables` and `table_plan` (Parquet), `dump_text` and `console_text`
(output of Kafka's tools), `kafka_cluster` with `kafka_client` and `kafka_admin` (a running cluster; `jars` has its Java
client). `object_stores` has the paths, `as_of` the time windows, `topics` and `share_snapshots` files that accompany an
input.
"""
