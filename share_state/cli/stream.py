"""`share-state stream`: keep the tables of a warehouse current while records are written."""

import json
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import permutations
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from share_state.cli.command import DONE, FOUND, command
from share_state.cli.input_options import InputOptions
from share_state.cli.options import FailOn, Json, Out, Running, announce_compiling, fails
from share_state.cli.reconstruct import print_size
from share_state.config.input_spec import InputSpec
from share_state.delta.reader import CommittedTables
from share_state.delta.warehouse_place import check_warehouse_path, warehouse_lock
from share_state.errors import InputError, ShareStateError, WarehouseError, require
from share_state.fold.limits import Limits
from share_state.pipeline.dead_letter_checks import StreamLetters
from share_state.pipeline.facts import merge_topics, settle_live_limits
from share_state.pipeline.progress import Progress
from share_state.pipeline.resume import INITIAL, discard_unused, open_stream
from share_state.pipeline.stream_fold import StreamFold
from share_state.pipeline.stream_run import StreamProgress, StreamRun
from share_state.pipeline.stream_tables import StreamTables
from share_state.report import console
from share_state.report.console import print_findings, print_line
from share_state.report.prometheus import StreamMetrics, serve_metrics
from share_state.sources.input_contents import ask_limits
from share_state.sources.input_detection import find_cluster_address, find_dead_letters
from share_state.sources.kafka_client import read_client_properties
from share_state.sources.log_partition import STATE_TOPIC
from share_state.sources.topics import Topics, read_topics
from share_state.sources.topics_file import read_adjacent_topics
from share_state.spark.choice import names_schema
from share_state.spark.masters import LOCAL_MASTER
from share_state.stores.paths import absolute_address, to_path

_TOPICS_SECONDS = 10.0
_LOG = logging.getLogger("share_state")
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_LONGEST_TRIGGER = 24 * _UNITS["h"]

_INPUT = "kafka://HOST:PORT, or a growing folder of Parquet with Spark's Kafka columns."
Input = Annotated[str, typer.Argument(metavar="INPUT", help=_INPUT)]
Checkpoint = Annotated[
    str, typer.Option(metavar="DIR", help="Folder of the stream's state; each stream needs its own.")
]


def _milliseconds(trigger: str) -> int:
    found = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})", trigger.strip())
    milliseconds = 0.0 if found is None else float(found[1]) * _UNITS[found[2]]
    if found is None or milliseconds > _LONGEST_TRIGGER:
        raise ShareStateError(f"--trigger {trigger}: give a time as in 500ms, 10s or 1m, of at most 24h")
    return int(milliseconds)


def _check_places(source: str, out: str, checkpoint: str) -> None:
    """Refuse places within each other: the stream would take its own files for input, or for those of others.

    Raises:
        InputError: if one of them is within another.
        WarehouseError: if no stream can write to `out`.
    """
    check_warehouse_path(out)
    if names_schema(out):
        raise WarehouseError(
            f"{out}: a stream writes to a folder or an address, not to a schema; give ./{out} or a path"
        )
    places = {"--checkpoint": checkpoint, "--out": out, "INPUT": source}
    folders = {name: place for name, place in places.items() if not find_cluster_address([place])}
    paths = {name: f"{to_path(place).resolve()}/" for name, place in folders.items()}
    for inner, outer in permutations(paths, 2):
        if paths[inner].startswith(paths[outer]):
            raise InputError(
                f"{inner} {places[inner]}: is in {outer} {places[outer]}; give a folder outside of it"
            )


def _cluster(
    address: str, properties: str | None, limits: Limits, once: bool
) -> tuple[Callable[[], Topics], Limits]:
    """A function that returns a cluster's topics, queried at most every few seconds; limits with those of its groups.

    Raises:
        InputError: if no broker answers, or access is denied; with `once`, if there is no
            `__share_group_state`.
        SetupError: if the Kafka client library is missing.
    """
    from share_state.sources.kafka_cluster import Cluster  # noqa: PLC0415  a live cluster alone needs it

    cluster = Cluster(address, read_client_properties(properties))
    if once:
        cluster.fetch_topic_offsets([STATE_TOPIC])
    queried, latest = time.monotonic(), cluster.topics()

    def topics() -> Topics:
        nonlocal queried, latest
        if time.monotonic() - queried > _TOPICS_SECONDS:
            # While no broker answers, the topics stay as they were.
            with suppress(InputError):
                latest = cluster.topics()
            queried = time.monotonic()
        return latest

    asked, notes = ask_limits(address, properties)
    for note in notes:
        _LOG.info("%s", note)
    return topics, settle_live_limits(asked, limits, frozenset()).limits


def _starting(run: StreamRun) -> str | None:
    """The offsets from which a stream of a cluster continues another run, as JSON; None if it begins anew."""
    if run.begun_from is None:
        return None
    return json.dumps(
        {"topic_id": run.begun_from, "next": {k.rpartition("-")[2]: v for k, v in run.progress.items()}}
    )


@command("share-state stream /exports/share_group_state --out /lake/live --checkpoint /lake/checkpoints/live")
def stream(
    source: Input,
    out: Out,
    checkpoint: Checkpoint,
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
    """Keep the tables current while share groups run."""
    progress, milliseconds = Progress(quiet=running.quiet), _milliseconds(trigger)
    _check_places(source, out, checkpoint)
    spec = options.spec([])
    limits, state_partitions = spec.limits.to_limits(), spec.state_partitions
    kafka_properties = options.get("kafka_properties")
    if find_cluster_address([source]):
        live_topics, limits = _cluster(source, kafka_properties, limits, once)
        named = read_topics(spec.topics) if spec.topics else Topics()
        fetch_topics = partial(_merged_topics, live_topics, named)
    else:
        fetch_topics = _topics_of_folder(source, spec)
    letters = _letters(spec, kafka_properties, once=once)
    require("pyspark", "pandas", "google.protobuf")
    from share_state.spark.session import session  # noqa: PLC0415  imports Spark
    from share_state.spark.streaming import StreamSpec, check_readable, run_stream  # noqa: PLC0415

    inputs = (absolute_address(source),)
    announce_compiling()
    with warehouse_lock(out, "stream"):
        run, folder = open_stream(out, checkpoint, inputs)
        initial, has_letters = f"{folder}/{INITIAL}", letters is not None
        fold = StreamFold(limits, spec.rules, state_partitions, initial, has_dead_letters=has_letters)
        texts = {**options.texts, "checkpoint": checkpoint}
        with (
            discard_unused(out, folder, run),
            StreamTables(out, run, fold, options=texts, topics=fetch_topics, letters=letters) as tables,
        ):
            stream_spec = StreamSpec(
                inputs[0],
                folder,
                fold,
                once,
                f"{milliseconds} milliseconds",
                kafka_properties=kafka_properties,
                starting=_starting(run),
                most_records=most_records,
                files_per_trigger=most_files,
                verbose=running.choice.verbose,
            )
            if run.batch < 0 and "://" not in source:
                check_readable(source, inputs[0])
            choice, latest = running.choice, deque[StreamProgress](maxlen=1)
            with ExitStack() as opened:
                if prometheus_port is not None:
                    shown = {"warehouse": out, "limits": limits, "most": prometheus_share_partitions}
                    metrics = StreamMetrics(tables, lambda: latest[-1] if latest else None, **shown)
                    opened.callback(serve_metrics(prometheus_address, prometheus_port, metrics))
                on_spark = {"verbose": choice.verbose, "progress": progress}
                started = session(choice.master or LOCAL_MASTER, choice.conf, **on_spark)
                spark = opened.enter_context(started)
                run_stream(spark, stream_spec, tables, latest.append)
                tables.match_letters()
            result = tables.result()
    if tables.run.batch >= 0:
        result = replace(result, cutoff=CommittedTables(out).read("cutoff"))
    progress.close()
    micro_batch = tables.run.batch if tables.run.batch >= 0 else None
    found = result.plain() | {"warehouse": out, "micro_batch": micro_batch}
    console.print_json(found) if as_json else _print_result(found, source)
    return FOUND if fails(result.by_severity, fail_on) else DONE


def _topics_of_folder(source: str, spec: InputSpec) -> Callable[[], Topics]:
    """What is known of topics if the records are in a folder of Parquet files.

    Raises:
        InputError: if it is not such a folder.
    """
    if "://" not in source and not Path(source).is_dir():
        raise InputError(
            f"{source}: no such folder; give a folder of Parquet files with Spark's Kafka columns"
        )
    if "://" not in source and not any(Path(source).rglob("*.parquet")) and any(Path(source).rglob("*.log")):
        raise InputError(
            f"{source}: segments of a log, which `share-state audit` reads; give a folder of Parquet files"
        )
    adjacent, notes = (None, []) if spec.topics else read_adjacent_topics([source], [])
    for note in [*notes, *([adjacent.note] if adjacent else [])]:
        _LOG.info("%s", note)
    named = read_topics(spec.topics) if spec.topics else Topics()
    topics = adjacent.topics if adjacent else named
    return lambda: topics


def _merged_topics(fetch: Callable[[], Topics], named: Topics) -> Topics:
    """The topics of a cluster, with what the call names where the cluster does not know it."""
    return merge_topics(fetch(), named)


def _letters(spec: InputSpec, kafka_properties: str | None, *, once: bool) -> StreamLetters | None:
    """Matches the dead letters that a spec names; None for none."""
    if not spec.dead_letters:
        return None
    find = partial(find_dead_letters, spec.dead_letters, kafka_properties)
    find()
    return StreamLetters(
        find,
        severities=spec.rules,
        state_partitions=spec.state_partitions,
        copied_last=spec.dead_letters_copied_last,
        **({"seconds": inf} if once else {}),
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
