"""The metrics of a stream, served to Prometheus: those of the nightly file as they are now, and the stream's own."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from share_state.errors import WarehouseError
from share_state.fold.options import Limits
from share_state.pipeline.stream_tables import StreamTables
from share_state.report.audit_data import read_report
from share_state.report.console import ReportError
from share_state.report.prometheus import Metrics


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """What Spark says of the latest micro-batch.

    Attributes:
        seconds: how long it took.
        behind: records that the source holds beyond it; None if unknown.
    """

    seconds: float
    behind: int | None


class StreamMetrics(Collector):
    """Reads the tables when Prometheus asks, once per micro-batch."""

    def __init__(
        self,
        tables: StreamTables,
        progress: Callable[[], StreamProgress | None],
        *,
        warehouse: str,
        limits: Limits,
        most: int,
    ) -> None:
        """Metrics of a stream.

        Args:
            tables: its tables.
            progress: its latest micro-batch; None before the first.
            warehouse: folder of the tables.
            limits: of the cluster.
            most: share-partitions that have series, the worst first.
        """
        self._tables, self._progress, self._warehouse = tables, progress, warehouse
        self._limits, self._most = limits, most
        self._lock, self._batch, self._of_tables = Lock(), -1, list[Metric]()

    def describe(self) -> list[Metric]:
        """Nothing: the tables are not read before Prometheus asks."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics; those of the tables stay as they were if a table cannot be read meanwhile."""
        run = self._tables.run
        with self._lock:
            if run.batch > self._batch:
                try:
                    report = read_report(self._warehouse, limits=self._limits)
                    self._of_tables, self._batch = list(Metrics(report, self._most).collect()), run.batch
                except (WarehouseError, OSError):
                    pass
            yield from self._of_tables
        yield _counter("records", "Records that the stream has folded.", run.records)
        yield _gauge("micro_batch", "Number of the latest micro-batch with changes.", run.batch)
        yield _gauge("last_commit_timestamp_seconds", "When it was committed; absent before.", self._tables.committed)
        if (latest := self._progress()) is not None:
            yield _gauge("micro_batch_seconds", "How long the latest micro-batch took.", latest.seconds)
            yield _gauge("behind_records", "Records of the source that are not read yet.", latest.behind)
        newest = None if run.log_time is None else time.time() - run.log_time / 1000
        yield _gauge("newest_record_age_seconds", "Age of the newest record that was read.", newest)


def serve_metrics(port: int, metrics: StreamMetrics) -> Callable[[], None]:
    """Serve metrics at a port, at /metrics.

    Returns:
        What ends it.
    Raises:
        ReportError: if the port is taken.
    """
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        raise ReportError(f"--prometheus-port {port}: cannot be opened ({error.strerror}); give another") from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _gauge(name: str, text: str, value: Any) -> Metric:
    family = GaugeMetricFamily(f"share_state_stream_{name}", text)
    if value is not None:
        family.add_metric([], value)
    return family


def _counter(name: str, text: str, value: int) -> Metric:
    family = CounterMetricFamily(f"share_state_stream_{name}", text)
    family.add_metric([], value)
    return family
