"""`share-state stream`: keep the tables of a warehouse current while records are written."""

import json
import logging
import re
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Annotated, Any

import typer

from share_state.cli.command import DONE, FOUND, command
from share_state.cli.input_options import InputOptions
from share_state.cli.options import FailOn, Json, Running, announce_compiling, fails
from share_state.cli.process import collect_garbage, release_memory
from share_state.cli.reconstruct import print_size
from share_state.cli.stream_inputs import Live, has_segments, letters_of, open_source, topics_and_limits
from share_state.config.input_spec import InputSpec
from share_state.delta.committed import CommittedTables
from share_state.delta.warehouse import Warehouse
from share_state.delta.warehouse_place import check_warehouse_path, warehouse_lock
from share_state.errors import InputError, ShareStateError, WarehouseError, require
from share_state.pipeline.local_stream import LocalStream
from share_state.pipeline.progress import Progress
from share_state.pipeline.state_file import SavedStream, StateFile
from share_state.pipeline.stream_files import check_readable
from share_state.pipeline.stream_findings import KnownGroups
from share_state.pipeline.stream_fold import StreamFold
from share_state.pipeline.stream_resume import INITIAL, discard_unused, open_local_stream, open_stream
from share_state.pipeline.stream_run import StreamProgress, StreamRun
from share_state.pipeline.stream_tables import OpenWarehouse, StreamTables
from share_state.report import console
from share_state.report.console import print_findings, print_line
from share_state.report.stream_metrics import (
    CommittedStream,
    LiveStream,
    ShownStream,
    StreamMetrics,
    serve_metrics,
)
from share_state.sources.input_detection import find_cluster_address
from share_state.sources.log_partition import STATE_TOPIC
from share_state.sources.new_records import StreamSource
from share_state.spark.choice import is_on_spark, names_schema, open_place
from share_state.spark.masters import LOCAL_MASTER
from share_state.stores.paths import absolute_address, to_path

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_LONGEST_TRIGGER = 24 * _UNITS["h"]
_LOG = logging.getLogger("share_state")

_INPUT = "kafka://HOST:PORT, a growing folder of Parquet with Spark's Kafka columns, or (not on Spark) of segments."
Input = Annotated[str, typer.Argument(metavar="INPUT", help=_INPUT)]
Out = Annotated[
    str | None,
    typer.Option(
        metavar="WAREHOUSE",
        help="Where the Delta tables go: a folder, an address (s3://...) or, on Spark, catalog.schema.",
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="On Spark: folder of the stream's state; each stream needs its own. With --no-tables: where it is "
        "kept. Else WAREHOUSE holds it.",
    ),
]


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the command.

    Attributes:
        source, once, most_records, most_files: as given.
        out: the warehouse.
        checkpoint: as given.
        milliseconds: the trigger.
        address, port, most: of the metrics; the port is None for none.
        spec: the options of input, fold, limits and rules.
        texts: the options of the row of `runs`.
        kafka_properties: path of a properties file for a cluster.
        live: what is known of topics and groups.
        running: where it runs.
    """

    source: str
    out: str | None
    checkpoint: str | None
    once: bool
    milliseconds: int
    most_records: int | None
    most_files: int
    address: str
    port: int | None
    most: int
    spec: InputSpec
    texts: Mapping[str, str]
    kafka_properties: str | None
    live: Live
    running: Running

    def fold(self, initial: str | None = None) -> StreamFold:
        """The fold of the stream; `initial` as in StreamFold."""
        has_letters = bool(self.spec.dead_letters)
        return StreamFold(
            self.live.limits,
            self.spec.rules,
            self.spec.state_partitions,
            initial,
            has_dead_letters=has_letters,
        )

    def groups(self) -> KnownGroups:
        """The share groups that are known now."""
        return KnownGroups() if self.live.groups is None else self.live.groups.known

    def open_tables(
        self,
        place: str,
        run: StreamRun,
        fold: StreamFold,
        *,
        keeps_state: bool,
        open_warehouse: OpenWarehouse = Warehouse,
        **texts: str,
    ) -> StreamTables:
        """The tables; arguments as for StreamTables, `texts` for the row of `runs`."""
        letters = letters_of(self.spec, self.kafka_properties, once=self.once)
        return StreamTables(
            place,
            run,
            fold,
            options={**self.texts, **texts},
            facts=self.live.facts,
            topics=self.live.topics,
            letters=letters,
            keeps_state=keeps_state,
            groups=self.groups,
            open_warehouse=open_warehouse,
        )


def _milliseconds(trigger: str) -> int:
    found = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})", trigger.strip())
    milliseconds = 0.0 if found is None else float(found[1]) * _UNITS[found[2]]
    if found is None or milliseconds > _LONGEST_TRIGGER:
        raise ShareStateError(f"--trigger {trigger}: give a time as in 500ms, 10s or 1m, of at most 24h")
    return int(milliseconds)


def _check_out(out: str, *, on_spark: bool) -> None:
    """Refuse a place to which no stream can write.

    Raises:
        WarehouseError: naming it.
    """
    check_warehouse_path(out)
    if names_schema(out) and not on_spark:
        raise WarehouseError(
            f"{out}: a stream without Spark writes to a folder or an address, not to a schema; "
            f"give ./{out} or a path"
        )


def _check_places(source: str, out: str | None, checkpoint: str | None) -> None:
    """Refuse places within each other: the stream would take its own files for input, or for those of others.

    Raises:
        InputError: if one of them is within another.
    """
    places = {"--checkpoint": checkpoint, "--out": out, "INPUT": source}
    given = {name: place for name, place in places.items() if place is not None}
    folders = {name: place for name, place in given.items() if not find_cluster_address([place])}
    paths = {name: f"{to_path(place).resolve()}/" for name, place in folders.items()}
    for inner, outer in permutations(paths, 2):
        if paths[inner].startswith(paths[outer]):
            raise InputError(
                f"{inner} {given[inner]}: is in {outer} {given[outer]}; give a folder outside of it"
            )


def _starting(run: StreamRun) -> str | None:
    """The offsets from which a stream of a cluster continues another run, as JSON; None if it begins anew."""
    if run.begun_from is None:
        return None
    return json.dumps(
        {"topic_id": run.begun_from, "next": {k.rpartition("-")[2]: v for k, v in run.progress.items()}}
    )


@command("share-state stream kafka://broker-1:9092 --out /lake/live")
def stream(
    source: Input,
    out: Out = None,
    checkpoint: Checkpoint = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Read what is available now, and exit.")] = False,
    trigger: Annotated[
        str, typer.Option(metavar="TIME", help="Time between the starts of micro-batches: 500ms, 10s, 1m.")
    ] = "10s",
    most_records: Annotated[
        int | None,
        typer.Option(
            "--max-records", metavar="N", min=1, help="kafka://: maximum number of records in a micro-batch."
        ),
    ] = None,
    most_files: Annotated[
        int,
        typer.Option(
            "--max-files", metavar="N", min=1, help="Folder: maximum number of files in a micro-batch."
        ),
    ] = 1000,
    no_tables: Annotated[
        bool,
        typer.Option(
            "--no-tables", help="Metrics alone: write no tables, and keep the state in --checkpoint."
        ),
    ] = False,
    prometheus_port: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=65535, help="Serve Prometheus metrics on this port.")
    ] = None,
    prometheus_address: Annotated[
        str,
        typer.Option(
            metavar="HOST", help="Serve them on this address only; 0.0.0.0 for every network interface."
        ),
    ] = "127.0.0.1",
    prometheus_share_partitions: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Maximum number of share-partitions with their own series, worst first."
        ),
    ] = 2000,
    options: InputOptions,
    fail_on: FailOn = "error",
    running: Running,
    as_json: Json = False,
) -> int:
    """Keep tables or metrics current while share groups run.

    In the process of the command, or on Spark where `--master` or `--spark-conf` asks for it.
    """
    milliseconds = _milliseconds(trigger)
    on_spark = is_on_spark(running.choice)
    has_letters = bool(options.get("dead_letters"))
    _check_combination(
        out, checkpoint, prometheus_port, on_spark=on_spark, no_tables=no_tables, has_letters=has_letters
    )
    if out is not None:
        _check_out(out, on_spark=on_spark)
    _check_places(source, out, checkpoint)
    if on_spark and has_segments(source):
        raise InputError(
            f"{source}: segments, which a stream on Spark does not read; leave --master and --spark-conf out"
        )
    spec, kafka_properties = options.spec([]), options.get("kafka_properties")
    live = topics_and_limits(source, spec, kafka_properties, once=once, on_spark=on_spark)
    call = _Call(
        source=source,
        out=out,
        checkpoint=checkpoint,
        once=once,
        milliseconds=milliseconds,
        most_records=most_records,
        most_files=most_files,
        address=prometheus_address,
        port=prometheus_port,
        most=prometheus_share_partitions,
        spec=spec,
        texts=options.texts,
        kafka_properties=kafka_properties,
        live=live,
        running=running,
    )
    if out is None:
        _run_without_tables(call)
        return DONE
    tables = (_run_on_spark if on_spark else _run_here)(call, out)
    result = tables.result()
    if tables.run.batch >= 0:
        result = replace(result, cutoff=CommittedTables(tables.root).read("cutoff"))
    micro_batch = tables.run.batch if tables.run.batch >= 0 else None
    found = result.plain() | {"warehouse": out, "micro_batch": micro_batch}
    console.print_json(found) if as_json else _print_result(found, source)
    return FOUND if fails(result.by_severity, fail_on) else DONE


def _check_combination(
    out: str | None,
    checkpoint: str | None,
    port: int | None,
    *,
    on_spark: bool,
    no_tables: bool,
    has_letters: bool,
) -> None:
    """Refuse options that do not go together.

    Raises:
        InputError: naming one of them.
    """
    if no_tables and on_spark:
        raise InputError("--no-tables: a stream on Spark writes tables; leave --master and --spark-conf out")
    if no_tables and out is not None:
        raise InputError(f"--out {out}: --no-tables writes none; leave one of the two out")
    if no_tables and port is None:
        raise InputError("--no-tables: shows nothing without --prometheus-port; give a port")
    if no_tables and has_letters:
        raise InputError(
            "--dead-letters: a stream without tables does not match them; "
            "give --out, or leave them to the audit"
        )
    if out is None and not no_tables:
        raise InputError("--out: is missing; give the folder of the tables, or --no-tables for metrics alone")
    if on_spark and not checkpoint:
        raise InputError("--checkpoint: is missing; a stream on Spark keeps its state in a folder of its own")


def _run_here(call: _Call, out: str) -> StreamTables:
    """Run a stream in this process; returns the tables, which are closed."""
    if call.checkpoint is not None:
        _LOG.info(
            "--checkpoint %s: only a stream on Spark needs it; %s holds the state", call.checkpoint, out
        )
    inputs, fold = (absolute_address(call.source),), call.fold()
    announce_compiling()
    with warehouse_lock(out, "stream"), ExitStack() as opened:
        run, states = open_local_stream(out, inputs, has_positions=has_segments(call.source))
        source = _source_of(call, is_begun=run.batch >= 0)
        tables = opened.enter_context(call.open_tables(out, run, fold, keeps_state=True))
        begun = SavedStream(inputs, states=states)
        _follow(call, opened, LocalStream(source, fold, begun, tables.run, tables, **_pace(call)), tables)
        tables.match_letters()
    return tables


def _run_without_tables(call: _Call) -> None:
    """Run a stream that serves metrics alone."""
    inputs, file = (absolute_address(call.source),), None
    announce_compiling()
    with ExitStack() as opened:
        begun = SavedStream(inputs)
        if call.checkpoint is not None:
            file = StateFile(call.checkpoint)
            opened.enter_context(warehouse_lock(call.checkpoint, "stream"))
            begun = file.read(inputs)
        times = [state.mark.newest_time for state in begun.states.values()]
        run = StreamRun("stream", inputs=inputs, records=begun.records, log_time=max(times, default=None))
        source = _source_of(call, is_begun=bool(begun.states))
        _follow(call, opened, LocalStream(source, call.fold(), begun, run, file, **_pace(call)), None)


def _source_of(call: _Call, *, is_begun: bool) -> StreamSource:
    return open_source(
        call.source,
        call.kafka_properties,
        call.spec.state_partitions,
        most_records=call.most_records,
        most_files=call.most_files,
        is_begun=is_begun,
    )


def _pace(call: _Call) -> dict[str, Any]:
    return {
        "trigger": call.milliseconds / 1000,
        "once": call.once,
        "is_shown": call.port is not None,
        "limits": call.live.limits_now,
        "release": collect_garbage,
    }


def _follow(call: _Call, opened: ExitStack, stream: LocalStream, tables: StreamTables | None) -> None:
    """Run a stream, and serve its metrics meanwhile."""
    groups = call.live.groups
    if groups is not None and call.once:
        groups.refresh(stream.group_ids())
    elif groups is not None:
        opened.callback(groups.start(stream.group_ids))
    _serve(
        call,
        opened,
        LiveStream(
            stream,
            tables,
            call.live.topics,
            call.live.limits_now,
            call.groups,
        ),
    )
    stream.run()


def _run_on_spark(call: _Call, out: str) -> StreamTables:
    """Run a stream on Spark; returns the tables, which are closed."""
    require("pyspark", "pandas", "google.protobuf")
    from share_state.spark.session import session  # noqa: PLC0415  imports Spark
    from share_state.spark.stream_warehouse import stream_warehouse  # noqa: PLC0415
    from share_state.spark.streaming import StreamSpec, run_stream  # noqa: PLC0415
    from share_state.spark.worker_daemon import with_imports  # noqa: PLC0415

    progress, inputs = Progress(quiet=call.running.quiet), (absolute_address(call.source),)
    checkpoint = str(call.checkpoint)
    announce_compiling()
    with (
        open_place(call.running.choice, out, progress) as (choice, place),
        warehouse_lock(place, "stream"),
        ExitStack() as opened,
    ):
        _check_places(call.source, place, checkpoint)
        run, folder = open_stream(place, checkpoint, inputs)
        opened.enter_context(discard_unused(place, folder, run))
        if run.batch < 0 and not find_cluster_address([call.source]) and "://" not in call.source:
            check_readable(call.source, inputs[0])
        master = choice.master or LOCAL_MASTER
        on_spark = session(
            master,
            choice.conf,
            verbose=choice.verbose,
            progress=progress,
            delta=True,
            defaults=with_imports(master),
        )
        spark = opened.enter_context(on_spark)
        fold = call.fold(f"{folder}/{INITIAL}")
        open_warehouse = stream_warehouse(spark, place, choice.schema)
        tables = opened.enter_context(
            call.open_tables(
                place, run, fold, keeps_state=False, open_warehouse=open_warehouse, checkpoint=checkpoint
            )
        )
        latest = deque[StreamProgress](maxlen=1)
        shown = CommittedStream(tables, lambda: latest[-1] if latest else None, call.live.limits, place)
        _serve(call, opened, shown)
        spec = StreamSpec(
            inputs[0],
            folder,
            fold,
            call.once,
            f"{call.milliseconds} milliseconds",
            kafka_properties=call.kafka_properties,
            starting=_starting(run),
            most_records=call.most_records,
            files_per_trigger=call.most_files,
            verbose=choice.verbose,
        )
        run_stream(spark, spec, tables, latest.append)
        tables.match_letters()
    progress.close()
    return tables


def _serve(call: _Call, opened: ExitStack, shown: ShownStream) -> None:
    """Serve metrics, if the call asks for them, until `opened` is closed."""
    if call.port is not None:
        opened.callback(
            serve_metrics(call.address, call.port, StreamMetrics(shown, call.most, release_memory))
        )


def _print_result(found: Mapping[str, Any], source: str) -> None:
    """Print what a stream has committed."""
    if found["micro_batch"] is None:
        print_line(f"{source}: no records of {STATE_TOPIC} to read yet; nothing was committed")
        return
    print_size(found)
    print_findings(found["findings"])
    place = found["warehouse"]
    print_line(f"tables are in {place} (micro-batch {found['micro_batch']}): `share-state show {place}`")
