"""The audit as metrics: a file for the textfile collector of Prometheus' node exporter."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from share_state.report.audit_data import AuditReport
from share_state.report.console import write_report
from share_state.report.share_partitions import (
    DELIVERY_STATES,
    latest_audit_filter,
    latest_share_partitions,
    number_rows,
)

Labels = dict[str, str]

_SHARE_PARTITION_METRICS = {
    "start_offset": "Share-partition start offset (SPSO) as recorded; absent before it is initialised.",
    "end_offset": "Share-partition end offset (SPEO): first offset after the last in-flight range.",
    "topic_end_offset": "Next offset of the topic-partition; absent if it is not known.",
    "lag": "Records behind, as kafka-share-groups.sh counts them; absent if unknown.",
    "poison_records": "Offsets at or one below the delivery limit, or archived by it.",
}
_LOG_PARTITION_METRICS = {
    "cutoff_offset": "Records of the log partition before this offset are redundant; absent if none are.",
    "redundant_records": "Records before the cutoff.",
    "redundant_bytes": "Bytes of batches before the cutoff.",
    "pinned_records": "Records that one share-partition alone keeps from being cleaned.",
    "pinned_bytes": "Bytes that one share-partition alone keeps from being cleaned.",
}


def write_metrics(path: str, report: AuditReport) -> None:
    """Write the metrics of the latest audit; share-partitions that are gone vanish from the file.

    Args:
        path: of the file; node exporter reads files that end in .prom.
        report: from `read_report`.
    Raises:
        ReportError: if the file cannot be written; an existing file stays.
    """
    registry = CollectorRegistry()
    registry.register(_Metrics(report))
    write_report(path, generate_latest(registry).decode())


class _Metrics(Collector):
    """Makes one metric family at a time, to hold little more than the text of a large cluster's metrics."""

    def __init__(self, report: AuditReport) -> None:
        self._report = report
        self._cluster = {"cluster": report.cluster} if report.cluster else {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from self._share_partitions()
        yield from self._log_partitions()
        yield from self._run()
        yield from self._dead_letters()

    def _share_partitions(self) -> Iterator[GaugeMetricFamily]:
        rows = latest_share_partitions(self._report.tables, latest_audit_filter(self._report.tables))
        columns = (rows["group_id"], rows["partition"].cast(pa.string()), _topic_names(rows))
        labels = [
            {**self._cluster, "group_id": group, "partition_id": partition, "topic_name": topic}
            for group, partition, topic in zip(*(column.to_pylist() for column in columns), strict=True)
        ]
        for name, help_text in _SHARE_PARTITION_METRICS.items():
            # -1 is a start offset that is not initialised.
            known = pc.if_else(pc.less(rows[name], 0), None, rows[name])
            yield _family(name, help_text, _present(labels, known.to_pylist()))
        unmoved = pc.divide(pc.cast(pc.subtract(rows["time"], rows["moved_time"]), pa.int64()), 1e6)
        yield _family(
            "start_offset_unmoved_seconds",
            "Time by the log's own clock since the start offset reached its value; absent if unknown.",
            _present(labels, unmoved.to_pylist()),
        )
        counts = {state: rows[state.lower()] for state in DELIVERY_STATES}
        yield _family(
            "in_flight_records",
            "Records between start and end by delivery state, gaps as available; states without records are absent.",
            _labelled("state", labels, {state: count for state, count in counts.items() if pc.sum(count).as_py()}),
        )
        is_verdict = {one: pc.cast(pc.equal(rows["verdict"], one), pa.int8()) for one in self._report.verdicts}
        yield _family(
            "verdict",
            "1 for the verdict of the share-partition, 0 for the others.",
            _labelled("verdict", labels, is_verdict),
        )

    def _log_partitions(self) -> Iterator[GaugeMetricFamily]:
        rows = self._report.cutoffs
        labels = [{**self._cluster, "topic_name": row["topic"], "partition_id": str(row["partition"])} for row in rows]
        for name, help_text in _LOG_PARTITION_METRICS.items():
            yield _family(name, help_text, _present(labels, [row[name] for row in rows]))

    def _dead_letters(self) -> Iterator[GaugeMetricFamily]:
        """Only of audits with dead-letter topics."""
        for table, name, help_text, by, value in (
            ("dead_letters", "dead_letters_total", "Dead letters.", ["group_id", "reason"], ("offset", "count")),
            ("lost_dead_letters", "dead_letters_lost", "Archived records without a dead letter.", ["group_id"],
             ("record_count", "sum")),
        ):  # fmt: skip
            if self._report.tables.holds(table):
                rows = self._report.tables.read(table, columns=[*by, value[0]]).group_by(by).aggregate([value])
                samples = [
                    ({**self._cluster, "group": row["group_id"], **({"reason": row["reason"] or ""} if "reason" in row
                      else {})}, row["_".join(value)])
                    for row in rows.to_pylist()
                ]  # fmt: skip
                yield _family(name, help_text, samples)

    def _run(self) -> Iterator[GaugeMetricFamily]:
        report, run = self._report, self._report.run
        yield _family(
            "findings",
            "Findings by severity and rule; rules without findings are absent.",
            (({**self._cluster, "severity": one.severity, "rule": one.rule}, one.count) for one in report.findings),
        )
        for name, help_text, value in (
            ("last_success_timestamp_seconds", "When the latest audit committed.", _seconds(run["finished"])),
            ("run_duration_seconds", "How long it took.", (run["finished"] - run["started"]).total_seconds()),
            ("log_timestamp_seconds", "Timestamp of the newest record of its input.", _seconds(report.log_time)),
            ("records_read", "Data records that it read.", run["records"]),
        ):
            yield _family(name, help_text, _present([self._cluster], [value]))


def _family(name: str, help_text: str, samples: Iterable[tuple[Labels, float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"share_state_{name}", help_text)
    # add_metric would need the labels as lists of values in one order.
    family.samples = [Sample(family.name, labels, value) for labels, value in samples]
    return family


def _present(labels: Sequence[Labels], values: Sequence[float | None]) -> Iterator[tuple[Labels, float]]:
    return ((of, value) for of, value in zip(labels, values, strict=True) if value is not None)


def _labelled(
    name: str, labels: Sequence[Labels], columns: dict[str, pa.ChunkedArray]
) -> Iterator[tuple[Labels, float]]:
    for label, column in columns.items():
        for of, value in _present(labels, column.to_pylist()):
            yield {**of, name: label}, value


def _seconds(time: datetime | None) -> float | None:
    return time.astimezone(UTC).timestamp() if time is not None else None


def _topic_names(rows: pa.Table) -> pa.ChunkedArray:
    """Topic names; the id if the name is unknown or has belonged to two topics, so that no series occurs twice."""
    named = rows.select(["group_id", "partition"]).append_column("name", pc.coalesce(rows["topic"], rows["topic_key"]))
    key = ["group_id", "name", "partition"]
    counts = named.group_by(key).aggregate([([], "count_all")])
    numbered = number_rows(named)
    twice = numbered.join(counts.filter(pc.field("count_all") > 1), key, join_type="inner")
    is_ambiguous = pc.is_in(numbered["place"], twice["place"].combine_chunks())
    return pc.if_else(is_ambiguous, rows["topic_key"], named["name"])
