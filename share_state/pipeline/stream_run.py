"""What a stream has committed: `StreamRun`, which `last_stream_run` reads back from the row of `runs`."""

import json
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from share_state.delta.committed import CommittedTables
from share_state.errors import NothingCommittedError
from share_state.pipeline.extents import start_notes
from share_state.pipeline.mixed_logs import PlacedKeys
from share_state.pipeline.result import RunResult
from share_state.pipeline.task import CUTOFF
from share_state.schema.declarations import table_schema

COMMAND = "stream"
_LOG = logging.getLogger("share_state")


QUERY_OPTION = "query"


BATCH_OPTION = "batch"


ARCHIVING_OPTION = "archiving"
COMPLETE_OPTION = "complete_times"


PLACED_OPTION = "placed_keys"
COUNTED_OPTION = "state_partition_counts"
STARTS_OPTION = "unshown_starts"
"""Options of the row of `runs`: the stream, its latest micro-batch, and what StreamRun has of archiving, complete,
placed, counted and unshown_starts."""


Summaries = Mapping[str, Mapping[str, Any]]
"""Log partition -> `LogChanges.summary` of a micro-batch or of a read."""


@dataclass(frozen=True, slots=True)
class StreamRun:
    """What a stream has committed so far.

    Attributes:
        query: id of the stream, Delta's txnAppId.
        batch: its latest micro-batch, -1 for none.
        records: data records read.
        progress: log partition -> next offset.
        archiving: as in RunResult.
        log_time: ms, timestamp of the newest record; None for none.
        share_partitions: log partition -> live share-partitions.
        notes, inputs: as in its row of `runs`.
        complete: log partition -> as RunResult.complete_times; empty without dead letters.
        placed: log partition -> the result of `placed_keys`; without those whose keys need not show it.
        counted: log partition -> number of state partitions by which its rows leave states out; without those
            that leave out none.
        unshown_starts: log partition -> the first offset that was read, where nothing shows that the broker's
            log begins there.
        begun_from: topic id in the logs of the run whose state it begins with, "" if unknown; None if it
            begins anew.
    """

    query: str
    batch: int = -1
    records: int = 0
    progress: Mapping[str, int] = field(default_factory=dict)
    archiving: tuple[str, int, int] | None = None
    log_time: int | None = None
    share_partitions: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    complete: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    placed: Mapping[str, PlacedKeys] = field(default_factory=dict)
    counted: Mapping[str, int] = field(default_factory=dict)
    unshown_starts: Mapping[str, int] = field(default_factory=dict)
    begun_from: str | None = None

    def with_logs(self, summaries: Summaries) -> "StreamRun":
        """This run after a read: how far each log partition is read, and from where."""
        return replace(
            self,
            progress=latest(self.progress, summaries, "next_offset"),
            unshown_starts=known_latest(self.unshown_starts, summaries, "unshown_start"),
        )

    def result(self, findings: pa.Table, share_partitions: int) -> RunResult:
        """The result up to here.

        Args:
            findings: the rows of that table.
            share_partitions: number of live share-partitions.
        """
        return RunResult(
            run_id=self.query,
            records=self.records,
            share_partitions=share_partitions,
            cutoff=table_schema(CUTOFF).empty_table(),
            findings=Counter(),
            progress=self.progress,
            log_time=self.log_time,
            notes=self.notes,
        ).with_driver_rows([findings])


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """Progress of the latest micro-batch, according to Spark.

    Attributes:
        seconds: how long it took.
        behind: records that the source holds beyond it; None if unknown.
    """

    seconds: float
    behind: int | None


def latest(known: Mapping[str, Any], summaries: Summaries, name: str) -> dict[str, Any]:
    """What is known of each log partition after a micro-batch, from a value of its summary."""
    return dict(sorted({**known, **{log: summary[name] for log, summary in summaries.items()}}.items()))


def known_latest(known: Mapping[str, int], summaries: Summaries, name: str) -> dict[str, int]:
    """As `latest`, without the log partitions whose value is None."""
    return {log: number for log, number in latest(known, summaries, name).items() if number is not None}


def placed_after(before: Mapping[str, PlacedKeys], summaries: Summaries) -> dict[str, PlacedKeys]:
    """`StreamRun.placed` after a micro-batch."""
    keys = latest(before, summaries, "placed_keys")
    return {log: (modulus, least) for log, (modulus, least) in keys.items() if least}


def log_starts(run: StreamRun) -> None:
    """Log which logs do not begin in the input, as audits do."""
    for note in start_notes(run.unshown_starts):
        _LOG.info("%s", note)


def last_stream_run(warehouse: str) -> StreamRun | None:
    """The committed run of the stream that writes a warehouse; None if the latest run there is not a stream.

    Raises:
        WarehouseError: if the warehouse cannot be read.
    """
    try:
        tables = CommittedTables(warehouse)
    except NothingCommittedError:
        return None
    run = tables.run
    options = dict(run["options"])
    if run["command"] != COMMAND or QUERY_OPTION not in options or tables.lack_files():
        return None
    cutoffs = tables.read(CUTOFF, columns=["topic", "partition", "live_share_partitions"]).to_pylist()
    return StreamRun(
        query=options[QUERY_OPTION],
        batch=int(options[BATCH_OPTION]),
        records=run["records"],
        progress=dict(run["progress"]),
        archiving=tuple(json.loads(options[ARCHIVING_OPTION])) if options.get(ARCHIVING_OPTION) else None,
        log_time=tables.log_time,
        share_partitions={
            f"{row['topic']}-{row['partition']}": row["live_share_partitions"] for row in cutoffs
        },
        notes=tuple(run["notes"]),
        inputs=tuple(run["inputs"]),
        complete={
            log: (times[0], times[1]) for log, times in json.loads(options.get(COMPLETE_OPTION, "{}")).items()
        },
        placed={log: (one[0], one[1]) for log, one in json.loads(options.get(PLACED_OPTION, "{}")).items()},
        counted=json.loads(options.get(COUNTED_OPTION, "{}")),
        unshown_starts=json.loads(options.get(STARTS_OPTION, "{}")),
    )
