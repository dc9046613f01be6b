"""State records read back from disk, one by one, and a coordinator that loads them."""

from collections.abc import Iterator
from pathlib import Path

from share_state.declarations import layout
from share_state.partition.coordinator import ShareCoordinator
from share_state.partition.state_records import DurableState, StateKey, StateRecord, UpdateValue
from share_state.partition.writer_release import WriterRelease
from share_state.partition.writes import StateBatch
from share_state.wire.codec import decode
from share_state.wire.log import read_chunks
from share_state.wire.log_folder import find_logs
from share_state.wire.records import locate_records

_SNAPSHOT = 0


def stored_records(folder: Path, log_start_offset: int, release: WriterRelease) -> Iterator[tuple[int, StateRecord]]:
    """The records that a broker would load from a sound log.

    Args:
        folder: of the log partition.
        log_start_offset: the batch that holds it is loaded as a whole.
        release: that wrote the log.
    Returns:
        Offset and record, in log order.
    Source: Kafka CoordinatorLoaderImpl.doLoad, ShareCoordinatorRecordSerde.
    """
    (log,) = find_logs([str(folder)])
    for chunk in read_chunks(log):
        data = chunk.data.data
        ends = chunk.batches["last_offset"].tolist()
        for row in locate_records(chunk.data, chunk.batches).tolist():
            offset, _, key_at, value_at, key_size, value_size, batch = row
            if ends[batch] >= log_start_offset:
                value = None if value_size < 0 else bytes(data[value_at : value_at + value_size])
                yield offset, _record(bytes(data[key_at : key_at + key_size]), value, release)


def loaded(coordinator: ShareCoordinator, folder: Path, log_start_offset: int) -> Iterator[tuple[int, StateRecord]]:
    """Load a log into a coordinator that holds nothing else; yields each record once it is replayed."""
    coordinator.unload()
    for offset, record in stored_records(folder, log_start_offset, coordinator.release):
        coordinator.replay(offset, record)
        yield offset, record


def _record(key: bytes, value: bytes | None, release: WriterRelease) -> StateRecord:
    is_snapshot = int.from_bytes(key[:2], "big") == _SNAPSHOT
    name = "share_snapshot" if is_snapshot else "share_update"
    fields, _ = decode(layout(f"{name}_key", release.layout), key)
    if value is None:
        return StateRecord(StateKey(**fields), None)
    told, _ = decode(layout(f"{name}_value", release.layout), value)
    batches = tuple(StateBatch(**batch) for batch in told.pop("state_batches"))
    made = DurableState if is_snapshot else UpdateValue
    return StateRecord(StateKey(**fields), made(**told, batches=batches))
