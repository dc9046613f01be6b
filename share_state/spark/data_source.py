"""The data source `share_group_state` of `spark.read` and SQL; Spark plans it in a Python process by the driver."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from share_state.config.declaration import DATA_SOURCE, OptionSpec
from share_state.config.input_spec import ARGUMENTS, JUDGE_ALL, JUDGE_STATE, input_options, spec_of_options
from share_state.errors import ShareStateError
from share_state.pipeline.across_logs import judge_folded_states, modulus_of
from share_state.pipeline.driver_side import GroupSide, read_groups
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.mixed_logs import settle_cutoffs
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.planning import build_plan
from share_state.pipeline.reconstruct import DECODED_RECORDS
from share_state.pipeline.result import keep_proven, summarize
from share_state.pipeline.task import (
    CUTOFF,
    FINDINGS,
    IN_FLIGHT,
    STATE,
    OutputSpec,
    decoded_batches,
    returned_table,
)
from share_state.pipeline.task import run_task as fold_batches
from share_state.rules.findings import conditional, unconditional
from share_state.schema.declarations import table_schema
from share_state.sources.input_detection import find_cluster_address
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.spark.kafka_stream import (
    KAFKA_RECORDS,
    ClusterStreamReader,
    DecodedStreamReader,
    reader_options,
)
from share_state.stores.paths import absolute_address

TABLES = (DECODED_RECORDS, STATE, IN_FLIGHT, CUTOFF, FINDINGS)
"""What the option `table` may name; the first is the default."""

KAFKA_TABLE = "records"
"""The table that only a stream reads: the records with the columns of Spark's Kafka source."""

_OWN_OPTIONS = ("path", "paths", "table", "max_records", "starting")


def register(spark: SparkSession) -> None:
    """Let a session read logs by `spark.read.format("share_group_state")`, and by `USING share_group_state` in SQL.

    `spark.readStream` reads `kafka://` alone, and of the tables `decoded_records` or KAFKA_TABLE.

    Options: `path`; `table` (one of TABLES); and the arguments of `reconstruct` but those of dead letters.
    Maps and lists are given as JSON: `limits` as '{"delivery_count": 3}', `as_of` as a time or '{"3":
    12000}'.

    Args:
        spark: a session whose workers have share_state.
    """
    spark.dataSource.register(ShareGroupStateSource)


class ShareGroupStateSource(DataSource):
    """Reads one table of a log; one Spark partition per log partition."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "share_group_state"

    def schema(self) -> StructType:
        """The columns of the chosen table.

        Raises:
            ShareStateError: if an option or the table is unknown.
        """
        known = {*_OWN_OPTIONS, *(option.argument for option in input_options(DATA_SOURCE))}
        for name in self.options:
            if name not in known:
                raise ShareStateError(
                    f"option {name}: no such option; give one of {', '.join(sorted(known))}"
                )
        return from_arrow_schema(KAFKA_RECORDS if self._table == KAFKA_TABLE else table_schema(self._table))

    def reader(self, schema: StructType) -> "ShareGroupStateReader":
        """Find the log partitions.

        Raises:
            InputError: if a path is missing or holds no log.
            ShareStateError: if an option has an invalid value.
        """
        if self._table == KAFKA_TABLE:
            raise ShareStateError(
                f"option table {KAFKA_TABLE!r}: for readStream only; give one of {', '.join(TABLES)}"
            )
        side, plan = read_groups(self._plan())
        return ShareGroupStateReader(self._table, plan, side if self._table == FINDINGS else None, schema)

    def streamReader(self, schema: StructType) -> ClusterStreamReader:  # noqa: N802
        """Read a running cluster as a stream: the records as they are, or decoded.

        Raises:
            ShareStateError: if the path is not a cluster, or the table cannot be streamed.
        """
        del schema
        address = find_cluster_address([self.options.get("path", "")], KAFKA_FORM)
        assert address is not None
        if self._table not in (KAFKA_TABLE, DECODED_RECORDS):
            raise ShareStateError(
                f"option table {self._table!r}: a stream reads {KAFKA_TABLE} or {DECODED_RECORDS}"
            )
        reader = DecodedStreamReader if self._table == DECODED_RECORDS else ClusterStreamReader
        return reader(*reader_options(self.options))

    @property
    def _table(self) -> str:
        table = self.options.get("table", TABLES[0])
        if table not in (*TABLES, KAFKA_TABLE):
            raise ShareStateError(f"option table {table!r}: give one of {', '.join(TABLES)}")
        return table

    def _plan(self) -> FoldPlan:
        options = self.options
        paths = json.loads(options.get("paths", "[]")) or [path for path in [options.get("path")] if path]
        if not paths:
            raise ShareStateError("option path: none is given; give the folder of a log, or load(PATH)")
        given = dict(read_option(option, options) for option in input_options(DATA_SOURCE))
        if given.get("groups") is not None:
            given["groups"] = [absolute_address(path) for path in given["groups"]]
        # Judging single records takes time that only findings need.
        judge = given.pop("judge") or (JUDGE_ALL if self._table == FINDINGS else JUDGE_STATE)
        # Workers have another working directory.
        spec = spec_of_options(ARGUMENTS, [absolute_address(path) for path in paths], given, judge=judge)
        plan = build_plan(spec, ARGUMENTS)
        plan.check_time()
        return plan


def read_option(option: OptionSpec, options: Mapping[str, str]) -> tuple[str, Any]:
    """The name of an option and its value, of the text that Spark passes on; None if it is not given.

    Raises:
        ShareStateError: if the text of a map or a list is not JSON.
    """
    text = options.get(option.argument)
    is_json = option.kind == "map" or (option.kind == "list" and (text or "").startswith("["))
    if option.argument == "as_of" and ((text or "").startswith("{") != (option.kind == "map")):
        return option.name, None
    if text is None or not is_json:
        return option.name, [text] if text is not None and option.kind == "list" else text
    try:
        return option.name, json.loads(text)
    except ValueError:
        form = "an object" if option.kind == "map" else "a list"
        raise ShareStateError(f"option {option.argument} {text!r}: give {form} as JSON") from None


class ShareGroupStateReader(DataSourceReader):
    """Folds or decodes the log partitions of a plan; travels to the tasks.

    Attributes:
        table: one of TABLES.
        plan: the log partitions.
        side: the group side, if its findings are to be read.
        schema: the schema of the batches.
    """

    def __init__(self, table: str, plan: FoldPlan, side: GroupSide | None, schema: StructType) -> None:
        self.table = table
        self.plan = plan
        self.side = side
        self.schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        """One per log partition; one more, None, for what needs all of them."""
        numbers = [InputPartition(number) for number in range(len(self.plan.logs))]
        if self.table == CUTOFF and len(numbers) > 1 and self.plan.state_partitions is None:
            # Whether the logs hold records of each other.
            return [InputPartition(None)]
        return [*numbers, *([InputPartition(None)] if self.table == FINDINGS else [])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one log partition."""
        batches = self._batches_of_all() if partition.value is None else self._batches(partition.value)
        for batch in batches:
            yield batch.cast(self.schema)

    def _batches(self, number: int) -> Iterator[pa.RecordBatch]:
        log = self.plan.logs[number]
        if self.table == DECODED_RECORDS:
            yield from decoded_batches(self.plan, log)
            return
        returned = () if self.table == CUTOFF else (self.table,)
        output = OutputSpec(returned, incomplete=(FINDINGS,))
        for batch in fold_batches(self.plan, output, log):
            rows = returned_table(pa.Table.from_batches([batch]), self.table, output)
            # What depends on the other logs comes from `_batches_of_all`.
            yield from (unconditional(rows) if self.table == FINDINGS else rows).to_batches()

    def _batches_of_all(self) -> Iterator[pa.RecordBatch]:
        """The cutoffs of all logs, or the findings that need the state of all."""
        output = OutputSpec((STATE, FINDINGS), incomplete=(FINDINGS,))
        rows = LocalExecutor().fold(self.plan, output)
        if self.table == CUTOFF:
            cutoffs = returned_table(rows, CUTOFF)
            yield from settle_cutoffs(self.plan, cutoffs, modulus_of(rows)).to_batches()
            return
        newest_of_groups = None if self.side is None else self.side.folded.newest_time
        result = summarize(rows, (), {}, newest_of_others=newest_of_groups)
        pending = conditional(returned_table(rows, FINDINGS, output))
        yield from keep_proven(pending, result.archiving, result.log_time).to_batches()
        found = judge_folded_states(self.side, self.plan, rows, returned_table(rows, STATE))[1]
        for findings in found:
            # This source does not settle the states that SPLIT_KEY is about.
            yield from findings.filter(pc.field("rule") != "SPLIT_KEY").to_batches()
