"""From a description of the input to committed tables; read the modules in this order.

`inputs` finds log partitions, `plan` turns an InputSpec into a FoldPlan, `task` folds and judges one log partition,
`executor` runs tasks in threads (share_state.spark.spark_executor in Spark), `across_logs` judges what needs several
logs, with `dead_letter_checks` for dead letters and `extents` for what the input lacks, `result` combines the tasks'
summaries. `reconstruct` and `audit` are the two runs; `resume` finds what an audit has left to read. `stream_fold`
folds the micro-batches of a stream, and `stream_tables` commits them.
"""
