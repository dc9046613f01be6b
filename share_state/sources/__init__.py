"""Where records come from: each source yields the chunks of a log partition in offset order.

Read `input_contents` first: one call reads all that a plan needs. `input_detection` finds the format of an input, and
its logs, with `formats`: each format is a module named after it, such as `table_format`, and `export_files` lists
their files. `log_partition` has `LogPartition`, which `discovery` finds in folders; `segment_frames` and `segments`
read it, `resume_point` finds what is new since an earlier run. `record_tables` and `table_plan` read Parquet,
`dump_text` and `console_text` the output of Kafka's tools, `kafka_source` with `kafka_cluster`, `kafka_client` and
`kafka_admin` a running cluster (`jars` has its Java client), `dead_letter_topics` dead letters. `as_of` has the time
windows, `topics` and `share_snapshots` files that accompany an input, `cluster_facts` with `metadata_log` what a
broker's data folder says.
"""
