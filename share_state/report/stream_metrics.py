"""The metrics of a stream, served over HTTP: `/metrics` and `/healthz`."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, make_server

from isal import igzip
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer, choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

from share_state.errors import WarehouseError, printable
from share_state.fold.limits import Limits
from share_state.pipeline.live_tables import LiveTables, Shown
from share_state.pipeline.stream_findings import KnownGroups
from share_state.report.audit_data import AuditReport, read_report, report_of
from share_state.report.console import ReportError
from share_state.report.metric_families import Encode, family_text
from share_state.report.prometheus import Metrics
from share_state.sources.topics import Topics

if TYPE_CHECKING:
    from share_state.pipeline.local_stream import LocalStream
    from share_state.pipeline.stream_run import StreamProgress
    from share_state.pipeline.stream_tables import StreamTables

_CLIENT_SECONDS = 10.0
"""How long a client may take to send its request, and for each part of the answer."""
_SHOWN_SECONDS = 1.0
"""How long a report is shown again: the clock changes it as well as records do. A read is asked for as rarely."""
_AWAY_SECONDS = 60.0


class ShownStream(Protocol):
    """What `StreamMetrics` shows of a stream.

    Attributes:
        records: data records folded.
        log_time: ms, timestamp of the newest record; None if unknown.
        batch: number of the latest micro-batch in the tables; None without tables.
        committed: seconds since 1970, when this process committed it; None before.
        progress: the latest read; None before the first.
    """

    @property
    def records(self) -> int: ...  # noqa: D102
    @property
    def log_time(self) -> int | None: ...  # noqa: D102
    @property
    def batch(self) -> int | None: ...  # noqa: D102
    @property
    def committed(self) -> float | None: ...  # noqa: D102
    @property
    def progress(self) -> "StreamProgress | None": ...  # noqa: D102

    def report(self) -> AuditReport | None:
        """The present state; None if it is as at the last call, or there is none yet."""
        ...

    def trouble(self) -> str | None:
        """Why the stream does not follow its source; None if it does."""
        ...

    def await_read(self) -> None:
        """Wait until the source is read once more, for some seconds at most."""
        ...

    def answering(self) -> AbstractContextManager[None]:
        """Entered while an answer is made of the report."""
        ...


class CommittedStream:
    """A stream on Spark: its committed tables, which are read once per micro-batch."""

    def __init__(
        self,
        tables: "StreamTables",
        progress: "Callable[[], StreamProgress | None]",
        limits: Limits,
        warehouse: str,
    ) -> None:
        """Show a stream.

        Args:
            tables: its tables.
            progress: its latest micro-batch; None before the first.
            limits: the limits of the cluster.
            warehouse: folder of the tables.
        """
        self._tables = tables
        self._progress = progress
        self._limits = limits
        self._warehouse = warehouse
        self._read = -1

    @property
    def records(self) -> int:
        """As in ShownStream."""
        return self._tables.run.records

    @property
    def log_time(self) -> int | None:
        """As in ShownStream."""
        return self._tables.run.log_time

    @property
    def batch(self) -> int | None:
        """As in ShownStream."""
        return self._tables.run.batch

    @property
    def committed(self) -> float | None:
        """As in ShownStream."""
        return self._tables.committed

    @property
    def progress(self) -> "StreamProgress | None":
        """As in ShownStream."""
        return self._progress()

    def report(self) -> AuditReport | None:
        """The committed tables, unless a table cannot be read meanwhile."""
        batch = self._tables.run.batch
        if batch <= self._read:
            return None
        try:
            found = read_report(self._warehouse, limits=self._limits)
        except (WarehouseError, OSError):
            return None
        self._read = batch
        return found

    def trouble(self) -> str | None:
        """None: Spark ends a stream that cannot go on."""
        return None

    def await_read(self) -> None:
        """Nothing: other processes read."""

    def answering(self) -> AbstractContextManager[None]:
        """Nothing: other processes read."""
        return nullcontext()


class LiveStream:
    """A stream in this process: what it has in memory."""

    def __init__(
        self,
        stream: "LocalStream",
        tables: "StreamTables | None",
        topics: Callable[[], Topics],
        limits: Callable[[], Limits],
        groups: Callable[[], KnownGroups],
    ) -> None:
        """Show a stream.

        Args:
            stream: the stream.
            tables: its tables; None for none.
            topics: what is known of topics now.
            limits: the limits of the cluster and of its groups now.
            groups: the share groups that are known now.
        """
        self._stream = stream
        self._tables = tables
        self._topics = topics
        self._limits, self._groups = limits, groups
        self._made = self._awaited = 0.0
        self._reported: Shown | None = None
        self._live: LiveTables | None = None

    @property
    def records(self) -> int:
        """As in ShownStream."""
        return 0 if self._reported is None else self._reported.run["records"]

    @property
    def log_time(self) -> int | None:
        """As in ShownStream."""
        return None if self._reported is None or self._reported.newest < 0 else self._reported.newest

    @property
    def batch(self) -> int | None:
        """As in ShownStream."""
        return None if self._tables is None else self._tables.run.batch

    @property
    def committed(self) -> float | None:
        """As in ShownStream."""
        return None if self._tables is None else self._tables.committed

    @property
    def progress(self) -> "StreamProgress | None":
        """As in ShownStream."""
        return self._stream.progress

    def report(self) -> AuditReport | None:
        """What was read so far, with the present ends of topics, judged by the clock."""
        shown = self._stream.shown
        is_recent = shown is self._reported and time.monotonic() - self._made < _SHOWN_SECONDS
        if shown is None or not shown.logs or is_recent:
            return None
        limits = self._limits()
        letters = None if self._tables is None else self._tables.letters
        self._live = LiveTables(shown, self._topics(), limits, self._groups(), self._live, letters)
        found = report_of(self._live, limits=limits)
        self._made, self._reported = time.monotonic(), shown
        return found

    def trouble(self) -> str | None:
        """Why the source has not answered for a minute."""
        silent = time.monotonic() - self._stream.answered
        return f"the source has not answered for {silent:.0f} s" if silent > _AWAY_SECONDS else None

    def await_read(self) -> None:
        """As in LocalStream, at most once a second: a client that asks without a pause must not set the pace."""
        now = time.monotonic()
        if now - self._awaited >= _SHOWN_SECONDS:
            self._awaited = now
            self._stream.await_read()

    def answering(self) -> AbstractContextManager[None]:
        """As in LocalStream."""
        return self._stream.answering()


class StreamMetrics(Collector):
    """Shows a stream when Prometheus scrapes."""

    def __init__(self, stream: ShownStream, most: int, release: Callable[[], object] = int) -> None:
        """Metrics of a stream.

        Args:
            stream: the stream.
            most: share-partitions that have series, the worst first.
            release: called once a report is written as text, to give back the memory that this took.
        """
        self.stream, self._most = stream, most
        self._release = release
        self._lock = Lock()
        self._report: AuditReport | None = None
        self._texts = dict[str, bytes]()
        self._made = self._rest = 0.0

    def describe(self) -> list[Metric]:
        """Nothing: the tables are read only when Prometheus scrapes."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        with self._lock:
            self._report = self.stream.report() or self._report
            yield from self._of_tables()
        yield from self._of_stream()

    def text(self, accept: str | None) -> tuple[bytes, str]:
        """All metrics as text: those of the tables are written once per report, one family at a time.

        Objects for all samples of 2,000 share-partitions would take three times the memory of the text.
        A text is given again for half as long as it took of a core to make, so that clients, with the read before
        it, take three quarters of one at most, and to those that ask meanwhile.

        Args:
            accept: the header of the request.
        Returns:
            The text, and its content type.
        """
        encode, kind = choose_encoder(accept or "")
        requested_at = time.monotonic()
        with self._lock:
            is_due = requested_at >= self._made + self._rest
            if is_due or kind not in self._texts:
                self._write_text(kind, encode, is_due=is_due)
            of_tables = self._texts[kind]
        of_stream = [family_text(encode, one) for one in self._of_stream()]
        return b"".join([of_tables, *of_stream, encode(CollectorRegistry())]), kind

    def _write_text(self, kind: str, encode: Encode, *, is_due: bool) -> None:
        """Write the text of a type, if a report is due and there is a new one, or if it is not written yet."""
        if is_due:
            self.stream.await_read()
        with self.stream.answering():
            used = time.thread_time()
            if is_due and (report := self.stream.report()) is not None:
                self._report, self._texts = report, {}
            if kind not in self._texts:
                self._texts[kind] = b"".join(self._texts_of_tables(encode))
                self._release()
                if is_due:
                    self._made = time.monotonic()
                    self._rest = (time.thread_time() - used) / 2

    def _of_tables(self) -> Iterator[Metric]:
        if self._report is not None:
            yield from Metrics(self._report, self._most).collect()

    def _texts_of_tables(self, encode: Encode) -> Iterator[bytes]:
        if self._report is not None:
            yield from Metrics(self._report, self._most).texts(encode)

    def _of_stream(self) -> Iterator[Metric]:
        stream = self.stream
        yield CounterMetricFamily(
            "share_state_stream_records", "Records that the stream has folded.", stream.records
        )
        if stream.batch is not None:
            yield _gauge("micro_batch", "Number of the latest micro-batch with changes.", stream.batch)
            yield _gauge(
                "last_commit_timestamp_seconds", "When it was committed; absent before.", stream.committed
            )
        if (latest := stream.progress) is not None:
            yield _gauge("micro_batch_seconds", "How long the latest micro-batch took.", latest.seconds)
            yield _gauge("behind_records", "Records of the source that are not read yet.", latest.behind)
        newest = None if stream.log_time is None else time.time() - stream.log_time / 1000
        yield _gauge("newest_record_age_seconds", "Age of the newest record that was read.", newest)


class _Handler(WSGIRequestHandler):
    """Logs no requests, and gives up a client that is too slow."""

    timeout = _CLIENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def serve_metrics(address: str, port: int, metrics: StreamMetrics) -> Callable[[], None]:
    """Serve `/metrics` and `/healthz` on a port of one network address; whoever reaches it can read them.

    Each request has a thread of its own: a slow client holds up nobody.

    Args:
        address: IPv4, IPv6 or the name of a host; 0.0.0.0 or :: for every network interface.
        port: its number.
        metrics: what is served.
    Returns:
        A function that stops the server.
    Raises:
        ReportError: if the address is not of this host, or the port is taken.
    """
    registry = CollectorRegistry()
    registry.register(metrics)
    of_metrics = make_wsgi_app(registry)

    def answer(environ: Any, start_response: Any) -> Any:
        if environ["PATH_INFO"] != "/healthz":
            if environ["REQUEST_METHOD"] != "GET" or environ["PATH_INFO"] == "/favicon.ico":
                return of_metrics(environ, start_response)
            text, kind = metrics.text(environ.get("HTTP_ACCEPT"))
            headers = [("Content-Type", kind)]
            if gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", "")):
                text, headers = igzip.compress(text), [*headers, ("Content-Encoding", "gzip")]
            start_response("200 OK", headers)
            return [text]
        trouble = metrics.stream.trouble()
        status = "200 OK" if trouble is None else "503 Service Unavailable"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{trouble or 'ok'}\n".encode()]

    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, host = found[0][0], str(found[0][4][0])
        kind = type("Server", (ThreadingWSGIServer,), {"address_family": family})
        server = make_server(host, port, answer, kind, _Handler)
    except socket.gaierror as error:
        raise ReportError(
            f"--prometheus-address {printable(address)}: unknown ({error.strerror}); give an address of this host"
        ) from None
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not an address"
        raise ReportError(
            f"--prometheus-address {printable(address)} --prometheus-port {port}: cannot be opened ({reason}); "
            "give an address of this host and a free port"
        ) from None
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _gauge(name: str, text: str, value: float | None) -> Metric:
    return GaugeMetricFamily(f"share_state_stream_{name}", text, value)
