"""A log in memory, for tests that look at the records of one coordinator."""

from share_state.kafka.releases import RELEASES
from share_state.simulator.coordinator import UPDATES_PER_SNAPSHOT, ShareCoordinator
from share_state.simulator.state_values import StateRecord, encode_record


class KeptRecords:
    """The records of a state partition: offset n is the n-th."""

    def __init__(self) -> None:
        self.records: list[StateRecord] = []

    def append(self, record: StateRecord, now_ms: int) -> int:
        self.records.append(record)
        return len(self.records) - 1


def coordinator_of(
    release: str, *, updates_per_snapshot: int = UPDATES_PER_SNAPSHOT
) -> tuple[ShareCoordinator, KeptRecords]:
    """A fresh coordinator and the log that it writes."""
    log = KeptRecords()
    return ShareCoordinator(log.append, RELEASES[release], updates_per_snapshot=updates_per_snapshot), log


def hex_values(log: KeptRecords, release: str) -> list[str | None]:
    """The values of a log as hex digits, None for a tombstone."""
    values = [encode_record(record, RELEASES[release])[1] for record in log.records]
    return [None if value is None else value.hex() for value in values]
