"""The audit as a file for the textfile collector of Prometheus' node exporter."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from share_state.report.audit_data import AuditReport
from share_state.report.console import written_to
from share_state.report.share_partitions import STATES, of_latest_night, placed, share_partitions_now

Labels = dict[str, str]

_OF_SHARE_PARTITIONS = {
    "start_offset": "Share-partition start offset (SPSO) as recorded; absent before it is initialised.",
    "end_offset": "Share-partition end offset (SPEO): first offset after the last in-flight range.",
    "topic_end_offset": "Next offset of the topic-partition; absent where it was not told.",
    "lag": "Records behind, as kafka-share-groups.sh counts them; absent where unknown.",
    "poison_records": "Offsets at or one below the delivery limit, or archived by it.",
}

_OF_STATE_PARTITIONS = {
    "cutoff_offset": "Records of the state partition before this offset are redundant; absent where none may go.",
    "redundant_records": "Records before the cutoff.",
    "redundant_bytes": "Bytes of batches before the cutoff.",
    "pinned_records": "Records that one share-partition alone keeps from being cleaned.",
    "pinned_bytes": "Bytes that one share-partition alone keeps from being cleaned.",
}


def write_metrics(path: str, report: AuditReport) -> None:
    """Write the metrics of the latest audit; share-partitions that are gone vanish from the file.

    Args:
        path: of the file; node exporter reads those that end in .prom.
        report: what `read_report` returned.
    Raises:
        ReportError: if the file cannot be written; what was there before stays.
    """
    registry = CollectorRegistry()
    registry.register(_Metrics(report))
    with written_to(path):
        write_to_textfile(path, registry)


class _Metrics(Collector):
    """Makes one family at a time, so that only the text of a large cluster is ever held whole."""

    def __init__(self, report: AuditReport) -> None:
        self._report = report
        self._cluster = {"cluster": report.cluster} if report.cluster else {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        rows = share_partitions_now(self._report.tables, of_latest_night(self._report.tables))
        labels = self._labels(rows["group_id"].to_pylist(), _topic_names(rows).to_pylist(), rows["partition"])
        for name, meaning in _OF_SHARE_PARTITIONS.items():
            # Below 0 stands for a start that is not initialised; Prometheus says so by absence.
            known = pc.if_else(pc.less(rows[name], 0), None, rows[name])
            yield _family(name, meaning, _known(labels, known.to_pylist()))
        yield _family(
            "start_offset_unmoved_seconds",
            "Time by the log's own clock since the start offset came to where it is; absent where unknown.",
            _known(
                labels, pc.divide(pc.cast(pc.subtract(rows["time"], rows["moved_time"]), pa.int64()), 1e6).to_pylist()
            ),
        )
        yield _family(
            "in_flight_records",
            "Records between start and end by delivery state, gaps as available; states without records are absent.",
            _each_of("state", self._by_state(labels, rows)),
        )
        verdicts = rows["verdict"]
        yield _family(
            "verdict",
            "1 for the verdict of the share-partition, 0 for the others.",
            _each_of("verdict", ((one, labels, _is(verdicts, one)) for one in self._report.verdicts)),
        )
        yield from self._of_state_partitions()
        yield from self._of_the_run()

    def _labels(self, groups: Sequence[str], topics: Sequence[str], partitions: pa.ChunkedArray) -> list[Labels]:
        cluster, texts = self._cluster, partitions.cast(pa.string()).to_pylist()
        return [
            {**cluster, "group_id": group, "partition_id": partition, "topic_name": topic}
            for group, topic, partition in zip(groups, topics, texts, strict=True)
        ]

    def _by_state(self, labels: list[Labels], rows: pa.Table) -> Iterator[tuple[str, list[Labels], list[int | None]]]:
        for state in STATES:
            records = rows[state.lower()]
            if pc.sum(records).as_py():
                yield state, labels, records.to_pylist()

    def _of_state_partitions(self) -> Iterator[GaugeMetricFamily]:
        rows = self._report.cutoffs
        labels = [{**self._cluster, "topic_name": row["topic"], "partition_id": str(row["partition"])} for row in rows]
        for name, meaning in _OF_STATE_PARTITIONS.items():
            yield _family(name, meaning, _known(labels, [row[name] for row in rows]))

    def _of_the_run(self) -> Iterator[GaugeMetricFamily]:
        report, run = self._report, self._report.run
        yield _family(
            "findings",
            "Findings by severity and rule; rules that nothing breaks are absent.",
            (({**self._cluster, "severity": one.severity, "rule": one.rule}, one.count) for one in report.findings),
        )
        for name, meaning, value in (
            ("last_success_timestamp_seconds", "When the latest audit committed.", _seconds(run["finished"])),
            ("run_duration_seconds", "How long it took.", (run["finished"] - run["started"]).total_seconds()),
            ("log_timestamp_seconds", "Stamp of the newest record of its input.", _seconds(report.log_time)),
            ("records_read", "Data records that it read.", run["records"]),
        ):
            yield _family(name, meaning, _known([self._cluster], [value]))


def _family(name: str, meaning: str, samples: Iterable[tuple[Labels, float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"share_state_{name}", meaning)
    full_name = family.name
    family.samples = [Sample(full_name, labels, value) for labels, value in samples]
    return family


def _known(labels: Sequence[Labels], values: Sequence[float | None]) -> Iterator[tuple[Labels, float]]:
    return ((of, value) for of, value in zip(labels, values, strict=True) if value is not None)


def _each_of(
    name: str, parts: Iterable[tuple[str, list[Labels], Sequence[float | None]]]
) -> Iterator[tuple[Labels, float]]:
    for value, labels, numbers in parts:
        for of, number in _known(labels, numbers):
            yield {**of, name: value}, number


def _is(verdicts: pa.ChunkedArray, one: str) -> list[int]:
    return pc.cast(pc.equal(verdicts, one), pa.int8()).to_pylist()


def _seconds(time: datetime | None) -> float | None:
    return time.astimezone(UTC).timestamp() if time is not None else None


def _topic_names(rows: pa.Table) -> pa.ChunkedArray:
    """The topic's name, or its id where the name is unknown or two topics have had it: no series may be there twice."""
    named = rows.select(["group_id", "partition"]).append_column("name", pc.coalesce(rows["topic"], rows["topic_key"]))
    numbered = placed(named)
    counted = named.group_by(["group_id", "name", "partition"]).aggregate([([], "count_all")])
    twice = numbered.join(
        counted.filter(pc.field("count_all") > 1), ["group_id", "name", "partition"], join_type="inner"
    )
    ambiguous = pc.is_in(numbered["place"], twice["place"].combine_chunks())
    return pc.if_else(ambiguous, rows["topic_key"], named["name"])
