"""`share-state repair`: plans for share-partitions in trouble; `share_state.repair` is the call.

Nothing is changed.

Read `status` (which share-partitions are in trouble, from the tables of an audit), `rehearsal` (what an
action would do, on the state machine of the simulator), `subject` (what an option is, and on what it is
rehearsed), `consumer_options` and `state_options` (each option), `remedies` (which of them each trouble has),
`commands` (of Kafka's tools), and `repair_plan` (the plan as text). `unprocessed` finds the records that groups gave
up, rejected or lost, and `redrive` plans how they are delivered again; `plan_files` writes both plans.
"""
