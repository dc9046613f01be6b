"""Transactions in a log: their markers, and which records count under read_committed semantics.

Records outside of transactions count, and those of committed ones, at their own offsets. A record of a transaction
without a marker yet does not count: its transaction is open. The last stable offset is that of the first such
record. Records after it that belong to no open transaction count, as they do when a coordinator loads the log.

Source: Kafka CoordinatorLoaderImpl, OffsetMetadataManager.replayEndTransactionMarker, ProducerStateManager.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from share_state.kafka.record_batches import CONTROL, TRANSACTIONAL, BatchStatus, Chunk, locate_records


class ControlType(IntEnum):
    """Types of control records that end a transaction. Source: Kafka ControlRecordType."""

    ABORT = 0
    COMMIT = 1


_TYPES_OF_KRAFT = range(2, 7)
"""LEADER_CHANGE to KRAFT_VOTERS; coordinators skip them."""

_VERSION = 0
_KEY = struct.Struct(">hh")
"""Version and type."""

_NO_TYPE = -1

MARKER = np.dtype(
    [
        ("offset", "i8"),
        ("timestamp", "i8"),  # ms
        ("producer_id", "i8"),
        ("key_size", "i4"),
        ("version", "i2"),  # of the key
        ("type", "i2"),  # -1 for a key that Kafka refuses to load
    ]
)
"""One row per control record."""


class Fate(IntEnum):
    """What becomes of the records of a batch."""

    COUNTS = 0
    ABORTED = 1
    OPEN = 2


def read_markers(chunk: Chunk) -> np.ndarray:
    """The control records of a chunk, as MARKER rows in log order. Source: Kafka ControlRecordType.parse."""
    if chunk.markers is not None:
        return chunk.markers
    batches = chunk.batches
    if not (batches["attributes"] & CONTROL).any():
        return np.zeros(0, MARKER)
    # In a copy: malformed batches are marked and reported where their data records would be located.
    records = locate_records(chunk.data, batches.copy(), control=True)
    producers = batches["producer_id"][records["batch"]]
    keys = [chunk.data[row["key_at"] : row["key_at"] + max(row["key_size"], 0)].tobytes() for row in records]
    return np.array(
        [
            marker_row(record["offset"], record["timestamp"], producer, key)
            for record, producer, key in zip(records, producers, keys, strict=True)
        ],
        MARKER,
    )


def marker_row(offset: int, timestamp: int, producer_id: int, key: bytes) -> tuple[int, ...]:
    """A MARKER row from the key of a control record."""
    version, kind = _KEY.unpack_from(key) if len(key) >= _KEY.size else (_VERSION, _NO_TYPE)
    return (offset, timestamp, producer_id, len(key), version, _NO_TYPE if version < _VERSION else kind)


def marker_key(kind: int) -> bytes:
    """The key of a control record of a type."""
    return _KEY.pack(_VERSION, kind)


def describe_unknown(marker: np.void) -> str:
    """What is not known of one of `Transactions.unknown`, and what Kafka does with it."""
    if marker["key_size"] < _KEY.size:
        return f"a key of {marker['key_size']} bytes instead of {_KEY.size}, which no broker can load"
    if marker["version"] < _VERSION:
        return f"version {marker['version']} of the key, which no broker can load"
    if marker["version"] > _VERSION:
        return f"version {marker['version']} of the key, which brokers up to 4.4 read as version {_VERSION}"
    return f"type {marker['type']}, which brokers up to 4.4 skip, and cannot recover after a crash"


@dataclass(frozen=True, slots=True)
class Transactions:
    """The ends of the transactions of a log.

    Attributes:
        ends: MARKER rows that commit or abort, by producer id and offset.
        unknown: MARKER rows of producers whose layout or type is not known, and those that no broker can load,
            by offset.
    """

    ends: np.ndarray
    unknown: np.ndarray
    _as_of: "dict[tuple[int | None, int | None], Transactions]" = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def of(cls, chunks: Iterable[Chunk]) -> "Transactions":
        """The ends of the transactions in the chunks of a log."""
        markers = np.concatenate([np.zeros(0, MARKER), *(read_markers(chunk) for chunk in chunks)])
        is_known = (markers["version"] == _VERSION) & np.isin(
            markers["type"], [*ControlType, *_TYPES_OF_KRAFT]
        )
        ends = markers[is_known & np.isin(markers["type"], [*ControlType])]
        # Without a producer, nothing ends that brokers would know of.
        is_of_concern = (markers["producer_id"] >= 0) | (markers["type"] == _NO_TYPE)
        return cls(np.sort(ends, order=["producer_id", "offset"]), markers[~is_known & is_of_concern])

    def until(self, offset: int | None, time_ms: int | None) -> "Transactions":
        """As the log showed them before an offset and up to a timestamp (ms)."""
        if offset is None and time_ms is None:
            return self
        # Each chunk of a fold asks for the same moment.
        if (offset, time_ms) not in self._as_of:
            self._as_of.clear()
            ends, unknown = (_until(markers, offset, time_ms) for markers in (self.ends, self.unknown))
            self._as_of[offset, time_ms] = Transactions(ends, unknown)
        return self._as_of[offset, time_ms]

    def fates(self, batches: np.ndarray) -> np.ndarray:
        """The Fate of the records of each BATCH row, int8."""
        fates = np.full(len(batches), Fate.COUNTS, np.int8)
        # A coordinator takes a record without a producer id for one outside of transactions.
        flags, producers = batches["attributes"] & (TRANSACTIONAL | CONTROL), batches["producer_id"]
        is_valid = batches["status"] == BatchStatus.VALID
        rows = np.flatnonzero(is_valid & (flags == TRANSACTIONAL) & (producers >= 0))
        # The extra row is that of transactions without an end.
        outcomes = np.where(self.ends["type"] == ControlType.COMMIT, Fate.COUNTS, Fate.ABORTED)
        outcomes = np.append(outcomes, Fate.OPEN)
        for producer in np.unique(producers[rows]).tolist():
            own = rows[producers[rows] == producer]
            first = np.searchsorted(self.ends["producer_id"], producer, side="left")
            last = np.searchsorted(self.ends["producer_id"], producer, side="right")
            at = first + np.searchsorted(self.ends["offset"][first:last], batches["base_offset"][own])
            fates[own] = outcomes[np.where(at < last, at, -1)]
        return fates

    def unknown_in(self, batches: np.ndarray) -> np.ndarray:
        """The `unknown` markers in the BATCH rows of a chunk, which are in log order."""
        valid = batches[batches["status"] == BatchStatus.VALID]
        if not len(self.unknown) or not len(valid):
            return self.unknown[:0]
        offsets = self.unknown["offset"]
        return self.unknown[(offsets >= valid["base_offset"][0]) & (offsets <= valid["last_offset"][-1])]


def _until(markers: np.ndarray, offset: int | None, time_ms: int | None) -> np.ndarray:
    is_kept = np.ones(len(markers), bool)
    if offset is not None:
        is_kept &= markers["offset"] < offset
    if time_ms is not None:
        is_kept &= markers["timestamp"] <= time_ms
    return markers[is_kept]
