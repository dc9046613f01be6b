"""From a description of the input to committed tables; read the modules in this order.

`planning` turns an InputSpec into a FoldPlan (`plan`), with `facts` about the cluster. `task` folds and
judges one log partition, and `local_executor` runs tasks in threads (share_state.spark.spark_executor in
Spark): both are an `executor`, whose rows go to a `sink` (`deltalake_sink`). `driver_side` reads groups and
dead letters, `across_logs` judges what needs several logs, with `dead_letter_checks` for dead letters and
`extents` for what the input lacks; `result` combines the tasks' summaries. `reconstruct` and `audit` are the
two runs; `resume` finds what an audit has left to read, and `pruning` whether brokers prune. `stream_fold`
folds the micro-batches of a stream, and `stream_tables` commits them as the run of `stream_run`. `progress`
times all.
"""
