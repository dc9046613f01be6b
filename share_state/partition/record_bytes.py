"""The bytes of state records, in the layout of the release that writes them."""

from functools import lru_cache

from share_state.declarations import layout
from share_state.partition.combining import Batches
from share_state.partition.state_records import DurableState, StateKey, StateRecord
from share_state.partition.writer_release import WriterRelease
from share_state.wire.codec import encode


def bytes_of(record: StateRecord, release: WriterRelease) -> tuple[bytes, bytes | None]:
    """Key and value of a record.

    Args:
        record: what it says.
        release: whose layout is written.
    Returns:
        (key, value); the value of a tombstone is None.
    Raises:
        CodecError: if a number does not fit, as a snapshot epoch beyond 65535 in the layout of 4.0.
    Source: Kafka ShareCoordinatorRecordHelpers, CoordinatorRecordSerde.
    """
    value, releases = record.value, release.layout
    if value is None:
        return _key(record.key, "share_snapshot_key", releases), None
    fields = {
        "snapshot_epoch": value.snapshot_epoch,
        "leader_epoch": value.leader_epoch,
        "start_offset": value.start_offset,
        "state_batches": _structs(value.batches),
    }
    if release.tells_complete_count:
        fields["delivery_complete_count"] = value.delivery_complete_count
    if not isinstance(value, DurableState):
        return _key(record.key, "share_update_key", releases), encode(layout("share_update_value", releases), fields)
    fields["state_epoch"] = value.state_epoch
    if releases != "4.0":
        fields |= {"create_timestamp": value.create_timestamp, "write_timestamp": value.write_timestamp}
    return _key(record.key, "share_snapshot_key", releases), encode(layout("share_snapshot_value", releases), fields)


@lru_cache(1 << 16)
def _key(key: StateKey, record: str, releases: str) -> bytes:
    return encode(layout(record, releases), key._asdict())


def _structs(batches: Batches) -> list[dict[str, int]]:
    return [batch._asdict() for batch in batches]
