"""The options that commands share, and what they mean for the library."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from share_state.errors import InputError, ShareStateError
from share_state.rules import OFF, SEVERITIES, registered
from share_state.topics_file import read_topics
from share_state.wire.log_folder import LogPartition, Window, find_logs
from share_state.work import Work

FORMATS = ("auto", "segments")

Inputs = Annotated[
    list[str], typer.Argument(metavar="INPUT...", help="Log folders, .log files or globs; several are one export.")
]
Format = Annotated[str, typer.Option("--format", help="auto or segments: what the input is.")]
AsOfOffset = Annotated[
    list[str] | None,
    typer.Option("--as-of-offset", metavar="P=OFFSET", help="Leave out records of state partition P from OFFSET on."),
]
AsOfTime = Annotated[
    str | None,
    typer.Option("--as-of-time", metavar="ISO-8601", help="Leave out records stamped later (UTC unless it says)."),
]
TopicsFile = Annotated[
    str | None, typer.Option("--topics", metavar="FILE", help="JSON: topic id to name, partitions, end offsets.")
]
StatePartitions = Annotated[
    int | None,
    typer.Option(
        "--state-partitions", metavar="N", min=1, help="Partitions of __share_group_state; by default as found."
    ),
]
RuleSeverity = Annotated[
    list[str] | None, typer.Option("--rule", metavar="CODE=SEVERITY", help="error, warning, info or off.")
]
FailOn = Annotated[
    str, typer.Option("--fail-on", help="Exit with 1 from this severity on: error, warning, info or off.")
]
Master = Annotated[str, typer.Option("--master", help="Spark master.")]
SparkConf = Annotated[list[str] | None, typer.Option("--spark-conf", metavar="K=V", help="A Spark setting.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress line.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Spark's own log, and tracebacks.")]


def pairs(given: Sequence[str] | None, option: str = "--spark-conf") -> dict[str, str]:
    """`K=V` options as a dictionary.

    Raises:
        ShareStateError: if one has no `=`.
    """
    split = [item.partition("=") for item in given or ()]
    for name, sign, _ in split:
        if not name or not sign:
            raise ShareStateError(f"{option} {name}: give NAME=VALUE")
    return {name: value for name, _, value in split}


def work_from(
    inputs: Sequence[str],
    format: str,
    as_of_offset: Sequence[str] | None,
    as_of_time: str | None,
    topics: str | None,
    state_partitions: int | None,
    rules: Sequence[str] | None,
    fail_on: str = OFF,
) -> Work:
    """The work that the options describe.

    Raises:
        ShareStateError: if an option or an input cannot be used.
    """
    if format not in FORMATS:
        raise ShareStateError(f"--format {format}: not read by this version; give one of {', '.join(FORMATS)}")
    _check_fail_on(fail_on)
    severities = _severities(rules)
    until_time = _milliseconds(as_of_time)
    known_topics = read_topics(topics)
    logs = find_logs(inputs)
    cuts = _cuts(as_of_offset, logs)
    return Work(
        logs=logs,
        windows={
            partition: Window(until_offset=offset, until_time_ms=until_time) for partition, offset in cuts.items()
        },
        window=Window(until_time_ms=until_time),
        topics=known_topics,
        state_partitions=state_partitions or _as_found(logs),
        severities=severities,
    )


def fails(by_severity: Mapping[str, int], fail_on: str) -> bool:
    """Whether findings at or above a severity were made."""
    return fail_on != OFF and any(by_severity.get(severity) for severity in SEVERITIES[: SEVERITIES.index(fail_on) + 1])


def _check_fail_on(fail_on: str) -> None:
    if fail_on not in (*SEVERITIES, OFF):
        raise ShareStateError(f"--fail-on {fail_on}: give one of {', '.join((*SEVERITIES, OFF))}")


def _severities(rules: Sequence[str] | None) -> dict[str, str]:
    chosen = pairs(rules, "--rule")
    for code, severity in chosen.items():
        if code not in registered():
            raise ShareStateError(f"--rule {code}: no such rule; `share-state rules` lists them")
        if severity not in (*SEVERITIES, OFF):
            raise ShareStateError(f"--rule {code}={severity}: give one of {', '.join((*SEVERITIES, OFF))}")
    return chosen


def _cuts(as_of_offset: Sequence[str] | None, logs: Sequence[LogPartition]) -> dict[int, int]:
    present = {log.partition for log in logs}
    cuts = {}
    for partition, offset in pairs(as_of_offset, "--as-of-offset").items():
        if not partition.isdecimal() or not offset.isdecimal():
            raise ShareStateError(f"--as-of-offset {partition}={offset}: give two numbers, as in 3=12000")
        if int(partition) not in present:
            raise InputError(f"--as-of-offset {partition}={offset}: state partition {partition} is not in the input")
        cuts[int(partition)] = int(offset)
    return cuts


def _milliseconds(as_of_time: str | None) -> int | None:
    if as_of_time is None:
        return None
    try:
        moment = datetime.fromisoformat(as_of_time)
    except ValueError:
        raise ShareStateError(f"--as-of-time {as_of_time}: give a time as in 2026-11-21T02:10:00Z") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _as_found(logs: Sequence[LogPartition]) -> int | None:
    """As many as there are, where they run from 0 without a gap."""
    numbers = sorted(log.partition for log in logs if log.partition is not None)
    return len(numbers) if numbers and numbers == list(range(len(logs))) else None
