"""Warehouses made row by row, written as real Delta tables without Spark."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from share_state.schema.declarations import table_schema

TONIGHT = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
STATE_CODES = {"AVAILABLE": 0, "ACQUIRED": 1, "ACKNOWLEDGED": 2, "ARCHIVING": 3, "ARCHIVED": 4}

Row = dict[str, Any]


def share_partition(group: str = "orders-app", partition: int = 0, topic: str | None = "orders", **known: Any) -> Row:
    """A row of the history, healthy unless told otherwise; `ranges` are (first, last, state or "gap", count)."""
    ranges = known.pop("ranges", [])
    start = known.get("start_offset", 100)
    end = ranges[-1][1] + 1 if ranges else start
    flights = [_flight(*one) for one in ranges]
    of_state = Counter[str]()
    for flight in flights:
        of_state[flight["state"]] += flight["record_count"]
    row = {
        "dialect": "share_group_state",
        "group_id": group,
        "topic_id": known.pop("topic_id", f"id-of-{topic}"),
        "topic": topic,
        "partition": partition,
        "state_partition": 7,
        "verdict": "OK",
        "reason": None,
        "start_offset": start,
        "effective_start_offset": start,
        "end_offset": end if start >= 0 else None,
        "topic_end_offset": None,
        "lag": None,
        "waiting_records": of_state["AVAILABLE"] + of_state["ACQUIRED"],
        "archiving_records": of_state["ARCHIVING"],
        "finished_records": of_state["ACKNOWLEDGED"] + of_state["ARCHIVED"],
        "poison_records": 0,
        "moved_time": TONIGHT - timedelta(minutes=3),
        "active_time": TONIGHT - timedelta(minutes=1),
        "suspect": False,
        "flights": flights,
    }
    return row | known


def _flight(first: int, last: int, state: str, count: int = 1) -> Row:
    gap = state == "gap"
    name = "AVAILABLE" if gap else state
    return {
        "first_offset": first,
        "last_offset": last,
        "record_count": last - first + 1,
        "delivery_state": STATE_CODES.get(name, 9),
        "state": name,
        "delivery_count": 0 if gap else count,
        "terminal": name in ("ACKNOWLEDGED", "ARCHIVED"),
        "gap": gap,
    }


def finding(rule: str, severity: str, message: str, about: Row | None = None, **known: Any) -> Row:
    """A finding, about a share-partition or about none."""
    key = {name: about[name] for name in ("dialect", "group_id", "topic_id", "topic", "partition")} if about else {}
    row = {"rule": rule, "severity": severity, "message": message, "state_partition": 7, "offset": 41, "settled": False}
    return row | {"dialect": "share_group_state", "evidence": {"found": "1"}} | key | known


def cutoff(partition: int = 7, **known: Any) -> Row:
    """A state partition where everything before offset 500 may go."""
    row = {
        "dialect": "share_group_state",
        "topic": "__share_group_state",
        "partition": partition,
        "cutoff_offset": 500,
        "log_start_offset": 0,
        "log_end_offset": 900,
        "redundant_records": 500,
        "live_share_partitions": 3,
        "limited_by_group": "orders-app",
        "limited_by_topic_id": "id-of-orders",
        "limited_by_partition": 0,
        "safe": True,
        "reason": None,
        "redundant_bytes": 41_000,
        "next_cutoff_offset": 520,
        "pinned_records": 20,
        "pinned_bytes": 1_640,
    }
    return row | known


@dataclass
class MadeWarehouse:
    """Takes audits one after the other."""

    folder: Path
    versions: dict[str, int] = field(default_factory=dict)

    def audit(
        self,
        share_partitions: Sequence[Row],
        findings: Sequence[Row] = (),
        cutoffs: Sequence[Row] = (),
        *,
        run_id: str = "run-1",
        time: datetime = TONIGHT,
        **run: Any,
    ) -> Path:
        """Commit an audit; returns the folder of the warehouse."""
        history = [row | {"run_id": run_id, "time": time} for row in share_partitions]
        flights = [{name: row[name] for name in _KEY} | flight for row in share_partitions for flight in row["flights"]]
        states = [row | {"snapshot_epoch": 3, "leader_epoch": 5, "snapshot_offset": 30} for row in share_partitions]
        counted = Counter(row["severity"] for row in findings if row.get("run_id", run_id) == run_id)
        self._write("findings", [{"run_id": run_id} | row for row in findings], "overwrite")
        self._write("in_flight", flights, "overwrite")
        self._write("share_partition_state", states, "overwrite")
        self._write("share_partition_history", history, "append")
        self._write("cutoff", cutoffs, "overwrite")
        row = {
            "run_id": run_id,
            "started": time + timedelta(seconds=10),
            "finished": time + timedelta(seconds=14.5),
            "command": "audit",
            "version": "0.1.0",
            "inputs": ["/exports/broker-1"],
            "records": 2222,
            "state_partitions": max(1, len(cutoffs)),
            "progress": {"__share_group_state-7": 900},
            "findings": dict(counted),
            "status": "done",
            "table_versions": dict(self.versions),
            "options": {},
            "log_time": time,
            "notes": [],
        }
        self._write("runs", [row | run], "append")
        return self.folder

    def _write(self, table: str, rows: Sequence[Mapping[str, Any]], mode: Literal["append", "overwrite"]) -> None:
        schema = table_schema(table)
        known = [{name: row.get(name) for name in schema.names} for row in rows]
        path = str(self.folder / table)
        written = pa.Table.from_pylist(known, schema=schema)
        if mode == "append":
            write_deltalake(path, written, mode="append")
        else:
            write_deltalake(path, written, mode="overwrite")
        if table != "runs":
            self.versions[table] = DeltaTable(path).version()


_KEY = ("dialect", "group_id", "topic_id", "topic", "partition")


HOSTILE = [
    "<script>alert(1)</script>",
    "</style><b>",
    "quo\"te's",
    "new\nline",
    "carriage\rreturn",
    "back\\slash\\n",
    "{{ 7 * 7 }}",
    "ev\N{RIGHT-TO-LEFT OVERRIDE}il",
    "שלום",
    "$x_1$",
    "&amp;",
    "",
]
"""Names that Kafka allows a group to have, or that a broken writer may leave."""

IN_FLIGHT = [
    (100, 103, "AVAILABLE", 4),
    (104, 110, "ACKNOWLEDGED", 1),
    (111, 119, "gap", 0),
    (120, 130, "ARCHIVED", 5),
    (131, 150, "ACKNOWLEDGED", 2),
    (151, 170, "AVAILABLE", 1),
    (171, 172, "ARCHIVING", 5),
]


def troubled_warehouse(folder: Path) -> Path:
    """Nine audits; the last one found every kind of trouble, in groups of every name."""
    made = MadeWarehouse(folder)
    for night in range(9):
        last, time = night == 8, TONIGHT + timedelta(days=night)
        stalled = share_partition(
            "orders-app",
            start_offset=min(night, 5) * 20,
            lag=max(0, night - 4) * 250,
            topic_end_offset=1400,
            verdict="STALL" if night > 5 else "OK",
            reason="the start offset has not moved for 3 d while 38 later offsets finished" if night > 5 else None,
            ranges=IN_FLIGHT,
            poison_records=17,
            moved_time=TONIGHT + timedelta(days=min(night, 5)),
        )
        dense = [(n * 3, n * 3 + 2, ["AVAILABLE", "ACKNOWLEDGED", "ARCHIVED"][n % 3], 1 + n % 3) for n in range(900)]
        stopped = share_partition(
            "audit-trail-of-a-group-with-a-rather-long-name",
            17,
            "payments.settled.v2",
            start_offset=0,
            verdict="STOP" if night > 6 else "OK",
            reason="900 records wait, and nothing changed for 2 d" if night > 6 else None,
            ranges=dense,
            lag=900 + night,
        )
        rewound = share_partition(
            "billing",
            3,
            topic=None,
            topic_id="kT5v0sG1RCqQ0m7yq0nXaw",
            start_offset=54_000 if last else 80_000 + night * 500,
            verdict="REWIND" if last else "OK",
            reason="the start offset went from 83,500 back to 54,000" if last else None,
        )
        suspect = share_partition("inventory", 2, "stock", suspect=True, ranges=[(100, 100, "AVAILABLE")])
        named = [
            share_partition(one, 1, verdict="STALL", reason=one, ranges=[(100, 101, "AVAILABLE")]) for one in HOSTILE
        ]
        fresh = share_partition("fresh", 0, "new", start_offset=-1)
        fine = [share_partition(f"group-{number}", number) for number in range(20)]
        findings = [
            finding(
                "START_OFFSET_INVALID", "error", "the start offset falls from 83500 to 54000", rewound, offset=8812
            ),
            finding("OFFSET_GAP", "warning", "offsets 41 to 57 are missing"),
            finding("STATE_SUSPECT", "warning", "records since the snapshot at 12 are missing", suspect),
            *(finding("LONG_CHAIN", "warning", f"{n} updates follow", stopped, run_id="old") for n in range(500, 529)),
            finding("POISON_RECORDS", "warning", "17 offsets at the delivery limit of 5", stalled),
            *(
                finding("LAYOUT_MIXED", "warning", f"written by {one}", row)
                for one, row in zip(HOSTILE, named, strict=True)
            ),
            finding("UNKNOWN_TAG", "info", "tag 9 is not known", fine[0]),
        ]
        cutoffs = [cutoff(number) for number in range(4)]
        cutoffs[3] |= {"pinned_records": 48_000, "pinned_bytes": 5_200_000, "limited_by_group": "<i>pin</i>"}
        cutoffs[2] |= {"safe": False, "reason": "a state is suspect", "cutoff_offset": None, "limited_by_group": None}
        made.audit(
            [stalled, stopped, rewound, suspect, *named, fresh, *fine],
            findings if last else [],
            cutoffs,
            run_id=f"{night:016x}",
            time=time,
            notes=["the log of partition 4 <began> again"] if last else [],
        )
    return folder
