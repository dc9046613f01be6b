"""`share-state repair`: a plan for share-partitions in trouble. It changes nothing.

Read `status` (which share-partitions are in trouble, from the tables of an audit), `rehearsal` (what an action would
do, on the state machine of the simulator), `options` (what can be done about each), `commands` (of Kafka's tools), and
`plan` (the plan as text).
"""
