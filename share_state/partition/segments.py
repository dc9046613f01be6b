"""One log partition on disk: batches gathered, appended and rolled into segments, with little of it in memory."""

from collections.abc import Iterable
from pathlib import Path

from share_state.partition.record_batches import CODECS, Stamped, record_batch
from share_state.partition.simulation_error import SimulationError

SEGMENT_BYTES = 104_857_600
BATCH_BYTES = 16_384
LINGER_MS = 5
_BUFFER = 1 << 18


_LOG_STARTS = "log-start-offset-checkpoint"


class LogWriter:
    """Appends records to one log partition; offsets are known at once, bytes come a batch at a time.

    A batch is closed when the next record would make it larger than `batch_bytes`, or is stamped more than `linger_ms`
    after its first. Files are opened only to be appended to, so any number of logs can be written side by side.

    Args:
        folder: of the log partition, `<topic>-<partition>`; made where it is missing.
        base_offset: of the first record.
        codec: of data batches; control batches are never compressed.
        segment_bytes: a batch that would make a segment larger begins the next one.
        batch_bytes: of records, before compression; 0 gives every record a batch of its own.
        linger_ms: how long a batch stays open.
    Raises:
        SimulationError: if the codec is not known.
    Source: Kafka CoordinatorRuntime (batches), UnifiedLog.maybeRoll (segments).
    """

    def __init__(
        self,
        folder: Path,
        *,
        base_offset: int = 0,
        codec: str = "none",
        segment_bytes: int = SEGMENT_BYTES,
        batch_bytes: int = BATCH_BYTES,
        linger_ms: int = LINGER_MS,
    ) -> None:
        if codec not in CODECS:
            raise SimulationError(f"codec {codec!r} is not known; use one of {', '.join(CODECS)}")
        self.folder, self.codec = folder, codec
        self.segment_bytes, self.batch_bytes, self.linger_ms = segment_bytes, batch_bytes, linger_ms
        self.next_offset = self._batch_base = self.log_start_offset = base_offset
        self._batch: list[Stamped] = []
        self._batch_size = 0
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._segments: list[Path] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._roll(base_offset)

    def append(self, timestamp_ms: int, key: bytes | None, value: bytes | None) -> int:
        """Add a data record; returns its offset."""
        size = len(key or b"") + len(value or b"")
        batch = self._batch
        if batch and (
            self._batch_size + size > self.batch_bytes or not 0 <= timestamp_ms - batch[0].timestamp <= self.linger_ms
        ):
            self.end_batch()
        self._batch.append(Stamped(timestamp_ms, key, value))
        self._batch_size += size
        self.next_offset += 1
        return self.next_offset - 1

    def append_control(self, timestamp_ms: int, key: bytes, value: bytes) -> int:
        """Add a control record, in a batch of its own; returns its offset."""
        self.end_batch()
        offset = self.next_offset
        self.next_offset += 1
        self._write(offset, record_batch(offset, [Stamped(timestamp_ms, key, value)], is_control=True))
        self._batch_base = self.next_offset
        return offset

    def delete_before(self, offset: int) -> None:
        """Move the log start forward to an offset; segments that lie before it as a whole are deleted.

        Raises:
            SimulationError: if the log has not got that far.
        Source: Kafka ReplicaManager.deleteRecords, UnifiedLog.maybeIncrementLogStartOffset.
        """
        if offset > self.next_offset:
            raise SimulationError(
                f"{self.folder}: records before {offset} cannot go, the log ends at {self.next_offset}"
            )
        self.log_start_offset = max(self.log_start_offset, offset)
        while len(self._segments) > 1 and int(self._segments[1].stem) <= self.log_start_offset:
            self._segments.pop(0).unlink()

    @property
    def is_cut_inside(self) -> bool:
        """Whether the log start lies behind the first segment's base offset, so that a broker would note it."""
        return self.log_start_offset > int(self._segments[0].stem)

    def flush(self) -> None:
        """Bring everything to disk."""
        self.end_batch()
        self._spill()

    def end_batch(self) -> None:
        """Let the next record begin a batch, whatever its time and size."""
        if self._batch:
            self._write(self._batch_base, record_batch(self._batch_base, self._batch, codec=self.codec))
            self._batch, self._batch_size = [], 0
            self._batch_base = self.next_offset

    def _write(self, base_offset: int, data: bytes) -> None:
        if self._segment_size and self._segment_size + len(data) > self.segment_bytes:
            self._spill()
            self._roll(base_offset)
        self._buffer.append(data)
        self._buffered += len(data)
        self._segment_size += len(data)
        if self._buffered > _BUFFER:
            self._spill()

    def _roll(self, base_offset: int) -> None:
        self._segments.append(self.folder / f"{base_offset:020}.log")
        self._segments[-1].touch()
        self._segment_size = 0

    def _spill(self) -> None:
        if self._buffer:
            with self._segments[-1].open("ab") as file:
                file.writelines(self._buffer)
        self._buffer, self._buffered = [], 0


def flush_logs(folder: Path, logs: Iterable[LogWriter]) -> None:
    """Bring every log of a broker to disk, and note beside them the log starts that no segment's name tells.

    Args:
        folder: the broker's log directory.
        logs: all that have a folder in it.
    Source: Kafka LogManager.checkpointLogStartOffsetsInDir.
    """
    starts = []
    for log in logs:
        log.flush()
        if log.is_cut_inside:
            topic, _, partition = log.folder.name.rpartition("-")
            starts.append(f"{topic} {partition} {log.log_start_offset}")
    if starts:
        lines = ["0", str(len(starts)), *starts]
        (folder / _LOG_STARTS).write_text("\n".join(lines) + "\n", encoding="utf-8")
