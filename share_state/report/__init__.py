"""What people read: text and JSON on the console, the page of an audit, metrics for Prometheus, charts.

`console` holds what all share. Commands with much to print have a module: `cutoff_text`, `show` (also
`groups`), `explain`, `diff`, `compare`, `cluster_use`. `audit_data` reads an audit with the help of
`broken_rules`, `flagged` and `share_partitions`; `audit_text`, `page` and `prometheus` show it. `plots` draws
charts.
"""
