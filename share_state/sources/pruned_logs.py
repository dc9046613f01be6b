"""Reads logs of a running cluster whole, although the broker prunes them meanwhile.

The broker deletes records that a later snapshot replaces, and that snapshot may be after the end at which a
reader stops. So where the log start passes a reader, the log is read from that start up to an end that was
fetched after it: the broker had committed every snapshot between the two before it deleted anything.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, TypeVar, cast

import pyarrow as pa

from share_state.errors import InputError, PrunedError
from share_state.kafka.record_batches import Chunk
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.sources.log_partition import LogPartition
from share_state.sources.record_tables import CONSUMED, rows_in_chunks, rows_of_batches
from share_state.sources.topics import Topics

if TYPE_CHECKING:
    from share_state.sources.kafka_source import KafkaSource

MOST_PASSES = 50
"""Passes after which a reader gives up that the log start passes each time."""

_ROWS_A_PART = 1 << 16
_Result = TypeVar("_Result")


def read_whole(log: LogPartition, read: Callable[[LogPartition], _Result]) -> _Result:
    """Read a log partition; if the broker deletes records before they are read, again from its new start.

    Args:
        log: the log partition.
        read: reads it from its start to the end of its source.
    Returns:
        The result of the first pass that the log start did not overtake.
    Raises:
        InputError: if it overtakes each of MOST_PASSES passes.
    """
    for _ in range(MOST_PASSES):
        try:
            return read(log)
        except PrunedError as pruned:
            log = pruned.log
    raise _overtaken(log)


def read_pieces(log: LogPartition, read: Callable[[LogPartition], Iterator[_Result]]) -> Iterator[_Result]:
    """Pieces of a log partition, each of its own records: those that the broker deletes meanwhile are left out.

    Raises:
        InputError: if the log start overtakes the reader MOST_PASSES times.
    """
    for _ in range(MOST_PASSES):
        try:
            yield from read(log)
            return
        except PrunedError as pruned:
            log = pruned.log
    raise _overtaken(log)


def _overtaken(log: LogPartition) -> InputError:
    return InputError(
        f"{log.name}: the broker deleted records before they were read, {MOST_PASSES} times in a row; "
        "run the command nearer to the broker"
    )


@dataclass(frozen=True, slots=True)
class CopiedRecords:
    """The records of a log partition of a cluster, in a file that is deleted with this object.

    A `RecordSource`.

    Attributes:
        rows: columns of CONSUMED, in offset order.
        origin: the source that they were read from.
    """

    rows: pa.Table
    origin: "KafkaSource"

    form = KAFKA_FORM
    has_offsets = True
    has_times = True
    has_sizes = False

    @property
    def end_offset(self) -> int:
        """First offset after those that were read."""
        return self.origin.end_offset

    @property
    def is_extended(self) -> bool:
        """As in KafkaSource."""
        return self.origin.is_extended

    def fetch_topics(self) -> Topics:
        """As in KafkaSource."""
        return self.origin.fetch_topics()

    def chunks(self, log: LogPartition, chunk: int, *, merge: bool) -> Iterator[Chunk]:
        """The records in offset order, about `chunk` bytes of keys and values at a time."""
        del log, merge
        yield from rows_in_chunks(rows_of_batches(self.rows.to_batches(max_chunksize=_ROWS_A_PART)), chunk)


def copy_log(log: LogPartition) -> LogPartition:
    """A log partition that can be read more than once: records of a cluster are copied to a temporary file.

    Raises:
        InputError: if the cluster denies access or stops answering.
    """
    if log.source is None or log.source.form != KAFKA_FORM or isinstance(log.source, CopiedRecords):
        return log
    return read_whole(log, _copy)


def _copy(log: LogPartition) -> LogPartition:
    source = cast("KafkaSource", log.source)
    with NamedTemporaryFile(prefix="share-state-") as file:
        with pa.ipc.new_file(file, CONSUMED) as writer:
            for batch in source.batches(log):
                writer.write_batch(batch)
        file.flush()
        # The mapping keeps the file after its name is deleted.
        rows = pa.ipc.open_file(pa.memory_map(file.name)).read_all()
    return replace(log, source=CopiedRecords(rows, source))
