"""`share-state setup`: compiles kernels, fetches jars and dumps the JVM classes for later commands."""

import compileall
import logging
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from share_state.cli.command import Quiet, command
from share_state.cli.kernels import compile_kernels
from share_state.errors import SetupError, require
from share_state.pipeline.progress import Progress
from share_state.sources import jars

_LOG = logging.getLogger("share_state")


@command("share-state setup")
def setup(
    with_kafka: Annotated[
        bool,
        typer.Option("--with-kafka", help="Also fetch Kafka's client, which compare and live audits use."),
    ] = False,
    with_test_jars: Annotated[
        bool, typer.Option("--with-test-jars", help="Also fetch the test broker and Kafka's classes.")
    ] = False,
    *,
    quiet: Quiet = False,
) -> None:
    """Compile the kernels and fetch the jars that Spark needs.

    Otherwise the first commands that need them do so. Without Spark or Java, it compiles only the kernels:
    everything but Spark works.
    """
    progress = Progress(quiet=quiet)
    lacking = _describe_lacking()
    names = [] if lacking else _jars_to_fetch(with_kafka, with_test_jars)
    # Ivy mostly waits for the registry, while compiling keeps one core busy.
    with ThreadPoolExecutor(max_workers=len(jars.COORDINATES)) as waiting, ExitStack() as started:
        begun = time.monotonic()
        finishes = {name: started.enter_context(jars.start_fetch(name)) for name in names}
        fetches = {waiting.submit(_seconds_until, begun, finish): name for name, finish in finishes.items()}
        _timed(progress, "compile kernels", compile_kernels)
        with progress(f"fetch jars {', '.join(names)}"):
            _report_fetches(fetches)
    if names:
        from share_state.spark import session  # noqa: PLC0415  imports Spark

        _timed(progress, "store Java's classes, so that Spark starts sooner", session.dump_class_archive)
    _compile_modules()
    if lacking:
        _LOG.info("%s", lacking)


def _describe_lacking() -> str | None:
    """What jars need and is missing, and what works without it; None if nothing is missing."""
    try:
        require("pyspark")
    except SetupError as error:
        return f"everything but Spark and `compare` works; for them, {error}, then `share-state setup`"
    if jars.find_java() is None:
        return "no Java found: everything but Spark works; for Spark, install Java 17 and run `share-state setup`"
    return None


def _jars_to_fetch(with_kafka: bool, with_test_jars: bool) -> list[str]:
    if with_test_jars:
        return list(jars.COORDINATES)
    return [jars.DELTA, jars.KAFKA_CLIENTS] if with_kafka else [jars.DELTA]


def _seconds_until(begun: float, finish: Callable[[], None]) -> float:
    finish()
    return time.monotonic() - begun


def _report_fetches(fetches: Mapping[Future[float], str]) -> None:
    """Report each set of jars as soon as it is there.

    Raises:
        SetupError: the first failure, once all others are there.
    """
    errors = list[BaseException]()
    for fetch in as_completed(fetches):
        if (error := fetch.exception()) is not None:
            errors.append(error)
        else:
            _LOG.info("fetch jars %s: %.1f s", fetches[fetch], fetch.result())
    if errors:
        raise errors[0]


def _timed(progress: Progress, phase: str, step: Callable[[], None]) -> None:
    with progress(phase):
        step()
    _LOG.info("%s: %.1f s", phase, progress.seconds[phase])


def _compile_modules() -> None:
    """Compile this package and the modules of other packages that are loaded by now.

    Many containers set PYTHONDONTWRITEBYTECODE, and every command would then compile everything that it
    imports.
    """
    compileall.compile_dir(Path(__file__).parents[1], quiet=2)
    for source in [getattr(module, "__file__", None) for module in list(sys.modules.values())]:
        if source and source.endswith(".py"):
            compileall.compile_file(source, quiet=2)
