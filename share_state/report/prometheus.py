"""The metrics of an audit, as a file for node exporter; and of a stream, served live.

Groups and the cluster are counted in full; series of single share-partitions are limited to the worst. Names
follow kminion's (`kminion_kafka_consumer_group_topic_partition_lag` is
`share_state_group_topic_partition_lag` here).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

import pyarrow as pa
import pyarrow.compute as pc
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from share_state.fold.history import GROUP_OUTCOMES, HISTORY_TABLE, OUTCOME_COLUMNS
from share_state.fold.states import KEY
from share_state.report.audit_data import AuditReport
from share_state.report.audit_text import OUTCOMES
from share_state.report.console import write_report
from share_state.report.metric_families import ColumnFamily, Encode, Series, family_text
from share_state.report.share_partitions import (
    DELIVERY_STATES,
    acknowledged_verdicts,
    ascending,
    descending,
    first_known,
    first_rows,
    group_pieces,
    group_rows,
    in_million_rows,
    joined,
    latest_audit_filter,
    latest_share_partitions,
    number_rows,
    verdict_rank,
    with_open_verdicts,
    with_unreported_verdicts,
)

Labels = dict[str, str]

_SHARE_PARTITION_METRICS = {
    "start_offset": "Share-partition start offset (SPSO) as recorded; absent before it is initialized.",
    "end_offset": "Share-partition end offset (SPEO): first offset after the last in-flight range.",
    "lag": "Records behind, as kafka-share-groups.sh counts them; absent if unknown.",
    "poison_records": "Offsets at or one below the delivery limit, or archived by it.",
    "start_offset_unmoved_seconds": "Time from when the start offset reached its value to the newest record; "
    "absent if unknown.",
    "oldest_unfinished_seconds": "Age of the first unfinished record at the newest record; at least that, if only its "
    "delivery is known; absent if unknown.",
    "window_used_ratio": "Share of the in-flight limit that the window from start to end has used.",
}
_IN_FLIGHT_TEXT = (
    "Records between start and end by delivery state; gaps are available; states without records are absent."
)
_MOST_DELIVERIES = 10
_LOG_PARTITION_METRICS = {
    "cutoff_offset": "Records of the log partition before this offset are redundant; absent if none are.",
    "redundant_records": "Records before the cutoff.",
    "redundant_bytes": "Bytes of batches before the cutoff.",
    "pinned_records": "Records that one share-partition alone keeps from being cleaned.",
    "pinned_bytes": "Bytes that one share-partition alone keeps from being cleaned.",
    "safe": "1 if records before the cutoff can be deleted safely, else 0.",
}
_LABELS = {"group_id": "group_id", "name": "topic_name", "partition": "partition_id"}
"""Column -> label, as kminion names it."""


def write_metrics(path: str, report: AuditReport, most: int) -> None:
    """Write the metrics of the latest audit; groups and share-partitions that are gone vanish from the file.

    Args:
        path: the file to write; node exporter reads files that end in .prom.
        report: from `read_report`.
        most: share-partitions that have series, the worst first.
    Raises:
        ReportError: if the file cannot be written; an existing file stays.
    """
    write_report(path, b"".join(Metrics(report, most).texts(generate_latest)).decode())


class Metrics(Collector):
    """Makes one metric family at a time, to hold in memory little more than the text of a large cluster's metrics."""

    def __init__(self, report: AuditReport, most: int) -> None:
        self._report = report
        self._tables = report.tables
        self._most = most
        self._cluster = {"cluster": report.cluster} if report.cluster else {}
        self._latest = latest_audit_filter(report.tables)
        self._worst: pa.Table | None = None

    def collect(self) -> Iterator[Metric]:
        """All metrics of the report."""
        for one in self._families():
            yield one.metric() if isinstance(one, ColumnFamily) else one

    def texts(self, encode: Encode) -> Iterator[bytes]:
        """The lines of all metrics, family by family."""
        for one in self._families():
            yield one.lines(encode) if isinstance(one, ColumnFamily) else family_text(encode, one)

    def _families(self) -> Iterator[Metric | ColumnFamily]:
        yield from self._groups()
        yield from self._share_partitions()
        yield from self._log_partitions()
        yield from self._run()
        yield from self._dead_letters()

    def _groups(self) -> Iterator[Metric | ColumnFamily]:
        sums = {
            "share_partitions": "sum",
            "lag": "sum",
            "poison_records": "sum",
            "oldest_unfinished_seconds": "max",
            "window_used_ratio": "max",
        }
        topics = group_pieces(self._survey(), ["group_id", "name", "verdict"], sums)
        if topics is None:
            return
        verdicts = group_rows(topics, ["group_id", "verdict"], {"share_partitions": "sum"}).to_pylist()
        found = {(row["group_id"], row["verdict"]): row["share_partitions"] for row in verdicts}
        text = (
            "Live share-partitions of the group by verdict of the audit; OK includes acknowledged verdicts."
        )
        pairs = product(dict.fromkeys(group for group, _ in found), self._report.verdicts)
        counts = (({"group_id": group, "verdict": one}, found.get((group, one), 0)) for group, one in pairs)
        yield self._family("group_share_partitions", text, counts)
        lags = group_rows(topics, ["group_id", "name"], {"lag": "sum"})
        yield self._column(
            "group_topic_lag", "Records behind, of partitions whose lag is known.", lags, "lag"
        )
        poison = group_rows(topics, ["group_id"], {"poison_records": "sum"})
        help_text = _SHARE_PARTITION_METRICS["poison_records"]
        yield self._column("group_poison_records", help_text, poison, "poison_records")
        oldest = group_rows(topics, ["group_id"], {"oldest_unfinished_seconds": "max"})
        help_text = "Age of the group's oldest unfinished record, as far as it is known."
        yield self._column("group_oldest_unfinished_seconds", help_text, oldest, "oldest_unfinished_seconds")
        troubles = Counter((one.now["group_id"], one.trouble) for one in self._report.flagged if one.trouble)
        text = "Share-partitions among the worst of the audit, by their worst trouble, as repair and why name it."
        yield self._family(
            "group_troubled_share_partitions",
            text,
            (({"group_id": group, "trouble": code}, count) for (group, code), count in troubles.items()),
        )
        yield from self._group_records()
        text = "Largest share of its in-flight limit that a window from start to end of the group has used."
        windows = group_rows(topics, ["group_id"], {"window_used_ratio": "max"})
        yield self._column("group_window_used_ratio", text, windows, "window_used_ratio")
        counts = (
            ({"group_id": one.group_id, "outcome": outcome}, getattr(one, outcome))
            for one in self._report.deliveries
            for outcome in OUTCOMES
        )
        text = "What became of records, or of deliveries (released), since the audit before; absent if not known."
        yield self._family("group_outcome_records", text, counts)
        yield from self._outcome_totals()
        if self._tables.holds("share_groups"):
            members = self._tables.read("share_groups", columns=["group_id", "members"])
            yield self._column("group_members", "Members of the group.", members, "members")

    def _group_records(self) -> Iterator[ColumnFamily]:
        """Records in flight by delivery state and by deliveries."""
        states, deliveries = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for row in self._report.in_flight.to_pylist():
            group, records = row["group_id"], row["record_count"]
            states[group, row["state"]] += records
            deliveries[group, str(min(row["delivery_count"], _MOST_DELIVERIES))] += records
        samples = (({"group_id": group, "state": state}, count) for (group, state), count in states.items())
        yield self._family("group_in_flight_records", _IN_FLIGHT_TEXT, samples)
        text = f"Records between start and end by how often they were delivered; {_MOST_DELIVERIES} is that or more."
        samples = (
            ({"group_id": group, "deliveries": times}, count) for (group, times), count in deliveries.items()
        )
        yield self._family("group_delivered_records", text, samples)

    def _outcome_totals(self) -> Iterator[CounterMetricFamily]:
        """Counters of what became of deliveries."""
        if not self._tables.holds(GROUP_OUTCOMES):
            return
        text = "What became of records, or of deliveries (released), since the first audit of the warehouse."
        family = CounterMetricFamily("share_state_group_outcomes", text)
        family.samples = [
            Sample(
                "share_state_group_outcomes_total",
                {**self._cluster, "group_id": row["group_id"], "outcome": outcome},
                row[column],
            )
            for row in self._tables.read(GROUP_OUTCOMES).to_pylist()
            for column, outcome in OUTCOME_COLUMNS.items()
        ]
        yield family

    def _survey(self) -> Iterator[pa.Table]:
        """All live share-partitions in pieces: group_id, name, verdict, lag, ...; collects the worst."""
        columns = (
            *KEY,
            "verdict",
            "poison_records",
            "waiting_records",
            "lag",
            "time",
            "oldest_unfinished_time",
            "effective_start_offset",
            "end_offset",
        )
        by = [*ascending("rank"), *descending("poison_records", "waiting_records", "lag"), *ascending(*KEY)]
        worst = list[pa.Table]()
        for piece in in_million_rows(self._tables.batches(HISTORY_TABLE, columns, self._latest)):
            rows = self._with_open_verdicts(with_unreported_verdicts(self._tables, piece))
            ranked = pa.concat_tables([*worst, rows.append_column("rank", verdict_rank(rows))])
            worst = [first_rows(ranked, by, self._most)]
            self._worst = worst[0]
            rows = rows.append_column("name", first_known(rows["topic"], rows["topic_key"]))
            rows = rows.append_column(
                "oldest_unfinished_seconds", _seconds_since(rows, "oldest_unfinished_time")
            )
            rows = rows.append_column("window_used_ratio", self._window_use(rows))
            yield rows.append_column("share_partitions", pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows))

    def _window_use(self, rows: pa.Table) -> pa.Array:
        """The share of its limit that each window has used, as IN_FLIGHT_LIMIT counts it; null if unknown."""
        limits = pa.array(self._report.limits.of_groups("record_locks", rows["group_id"]).astype(float))
        width = pc.subtract(rows["end_offset"], rows["effective_start_offset"])
        return pc.divide(pc.max_element_wise(width, 0, skip_nulls=False).cast(pa.float64()), limits)

    def _with_open_verdicts(self, rows: pa.Table) -> pa.Table:
        """Rows in which an acknowledged verdict is OK, so that no alert fires on it."""
        started = self._report.run["started"]
        is_settled = acknowledged_verdicts(rows, self._report.acknowledged, started)
        return with_open_verdicts(rows, is_settled)

    def _share_partitions(self) -> Iterator[ColumnFamily]:
        live = self._report.live
        counts = (({"verdict": verdict}, count) for verdict, count in self._report.open_verdicts.items())
        text = "Live share-partitions by verdict of the audit; OK includes acknowledged verdicts."
        yield self._family("share_partitions", text, counts)
        text = "Live share-partitions that have no series of their own: more than report.prometheus_share_partitions."
        yield self._family("share_partitions_without_series", text, [({}, max(0, live - self._most))])
        if self._worst is None or not self._worst.num_rows:
            return
        rows = latest_share_partitions(self._tables, self._latest, self._worst).sort_by("place")
        rows = self._with_open_verdicts(rows)
        rows = rows.append_column("name", _topic_names(rows))
        rows = rows.append_column("start_offset_unmoved_seconds", _seconds_since(rows, "moved_time"))
        rows = rows.append_column("oldest_unfinished_seconds", _seconds_since(rows, "oldest_unfinished_time"))
        rows = rows.append_column("window_used_ratio", self._window_use(rows))
        for name, help_text in _SHARE_PARTITION_METRICS.items():
            yield self._column(f"group_topic_partition_{name}", help_text, rows, name)
        yield self._in_flight(rows)
        is_verdict = {
            one: pc.cast(pc.equal(rows["verdict"], one), pa.int8()) for one in self._report.verdicts
        }
        text = "1 for the verdict of the share-partition, 0 for the others."
        yield self._by_label("group_topic_partition_verdict", text, rows, "verdict", is_verdict)
        ends = group_rows(rows, ["name", "partition"], {"topic_end_offset": "max"})
        text = "Next offset of the topic-partition; absent if it is not known."
        yield self._column("topic_partition_high_water_mark", text, ends, "topic_end_offset")

    def _log_partitions(self) -> Iterator[ColumnFamily]:
        rows = self._report.cutoffs
        labels = [{"topic_name": row["topic"], "partition_id": str(row["partition"])} for row in rows]
        for name, help_text in _LOG_PARTITION_METRICS.items():
            yield self._family(
                f"log_partition_{name}", help_text, _present(labels, [row[name] for row in rows])
            )

    def _dead_letters(self) -> Iterator[ColumnFamily]:
        """Metrics of dead letters, if the audit had dead-letter topics."""
        for table, name, help_text, by, value in (
            ("dead_letters", "group_dead_letters", "Dead letters.", ["group_id", "reason"], ("offset", "count")),
            ("lost_dead_letters", "group_lost_dead_letters", "Archived records without a dead letter.", ["group_id"],
             ("record_count", "sum")),
        ):  # fmt: skip
            if self._tables.holds(table):
                rows = self._tables.read(table, columns=[*by, value[0]]).group_by(by).aggregate([value])
                samples = [
                    ({label: row[label] or "" for label in by}, row["_".join(value)])
                    for row in rows.to_pylist()
                ]
                yield self._family(name, help_text, samples)

    def _run(self) -> Iterator[ColumnFamily]:
        report, run = self._report, self._report.run
        newest = report.log_time.timestamp() if report.log_time is not None else None
        for name, help_text in (("count", "Findings"), ("open", "Open findings")):
            counts = (
                ({"severity": one.severity, "rule": one.rule}, getattr(one, name)) for one in report.findings
            )
            text = f"{help_text} by severity and rule; rules without findings are absent."
            yield self._family("findings" if name == "count" else "open_findings", text, counts)
        for name, help_text, value in (
            (
                "last_success_timestamp_seconds",
                "When the latest audit committed.",
                run["finished"].timestamp(),
            ),
            ("run_duration_seconds", "How long it took.", (run["finished"] - run["started"]).total_seconds()),
            ("log_timestamp_seconds", "Timestamp of the newest record of its input.", newest),
            (
                "newest_record_age_seconds",
                "Age of that record when the audit began.",
                None if report.export_age is None else report.export_age / 1000,
            ),
            ("records_read", "Data records that it read.", run["records"]),
        ):
            yield self._family(name, help_text, _present([{}], [value]))

    def _in_flight(self, rows: pa.Table) -> ColumnFamily:
        counts = {state: rows[state.lower()] for state in DELIVERY_STATES}
        counts = {state: count for state, count in counts.items() if pc.sum(count).as_py()}
        return self._by_label(
            "group_topic_partition_in_flight_records", _IN_FLIGHT_TEXT, rows, "state", counts
        )

    def _column(self, name: str, help_text: str, rows: pa.Table, column: str) -> ColumnFamily:
        # A start offset of -1 is not initialized, and 4.0 wrote no group sizes.
        known = pc.if_else(pc.less(rows[column], 0), None, rows[column])
        return self._columns(name, help_text, [Series(_labels(rows), _in_one_piece(known))])

    def _by_label(
        self, name: str, help_text: str, rows: pa.Table, label: str, columns: Mapping[str, pa.ChunkedArray]
    ) -> ColumnFamily:
        labels = _labels(rows)
        parts = [
            Series({**labels, label: pa.repeat(value, rows.num_rows)}, _in_one_piece(column))
            for value, column in columns.items()
        ]
        return self._columns(name, help_text, parts)

    def _columns(self, name: str, help_text: str, parts: Sequence[Series]) -> ColumnFamily:
        return ColumnFamily(f"share_state_{name}", help_text, parts, self._cluster)

    def _family(self, name: str, help_text: str, samples: Iterable[tuple[Labels, float]]) -> ColumnFamily:
        """A family of samples that all have the same labels."""
        rows = [*samples]
        names = rows[0][0] if rows else {}
        labels = {one: pa.array([of[one] for of, _ in rows], pa.string()) for one in names}
        values = pa.array([value for _, value in rows], pa.float64())
        return self._columns(name, help_text, [Series(labels, values)])


def _seconds_since(rows: pa.Table, column: str) -> pa.ChunkedArray:
    """Seconds from the times of a column to the time of each row; null if unknown."""
    return pc.divide(pc.cast(pc.subtract(rows["time"], rows[column]), pa.int64()), 1e6)


def _labels(rows: pa.Table) -> dict[str, pa.Array]:
    """The labels of each row, from the columns of _LABELS that the rows have."""
    columns = [name for name in _LABELS if name in rows.column_names]
    return {_LABELS[name]: _in_one_piece(rows[name].cast(pa.string())) for name in columns}


def _in_one_piece(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _present(labels: Sequence[Labels], values: Sequence[float | None]) -> Iterator[tuple[Labels, float]]:
    return ((of, value) for of, value in zip(labels, values, strict=True) if value is not None)


def _topic_names(rows: pa.Table) -> pa.ChunkedArray:
    """Topic names.

    The id if the name is unknown or has belonged to two topics, so that no series occurs twice.
    """
    named = rows.select(["group_id", "partition"]).append_column(
        "name", first_known(rows["topic"], rows["topic_key"])
    )
    key = ["group_id", "name", "partition"]
    counts = named.group_by(key, use_threads=False).aggregate([([], "count_all")])
    numbered = number_rows(named)
    twice = joined(numbered, counts.filter(pc.field("count_all") > 1), key)
    is_ambiguous = pc.is_in(numbered["place"], twice["place"].combine_chunks())
    return pc.if_else(is_ambiguous, rows["topic_key"], named["name"])
