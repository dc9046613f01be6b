"""What people read: text and JSON on the console, the page of an audit, metrics for Prometheus, charts.

`console` holds what all share. Commands with much to print have a module: `cutoff`, `show` (also `groups`), `explain`,
`diff`, `compare`; `repair` is a package. `audit_data` reads an audit with the help of `share_partitions`; `audit_text`,
`page` and `prometheus` show it. `plots` draws charts.
"""
