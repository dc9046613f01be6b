"""A user topic's log with the KIP-932 draft's control records in it: how fast it is read, beside a plain CRC pass."""

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import google_crc32c

from bench.crc_pass import crc_pass
from bench.kafka import DATA
from bench.seconds import seconds
from share_state.fold.control_log import fold_control_log
from share_state.kafka.codec import encode
from share_state.schema.declarations import layout
from share_state.sources.discovery import LogPartition, find_topic_logs

_CONTROL = 0x20
_SEGMENT = 128 << 20
_CONTROL_SHARE = 100
_GROUPS = 20
_DELTAS_A_CHECKPOINT = 20


@dataclass(frozen=True, slots=True)
class UserLogRun:
    """Medians over the passes, in bytes a second of wall time.

    Attributes:
        bytes: of the log.
        control_records: in it.
        crc_pass: reading the segments and one CRC-32C over every byte, compiled, nothing else.
        fold: `fold_control_log`.
    """

    bytes: int
    control_records: int
    crc_pass: float
    fold: float


def measured(size: int, runs: int) -> UserLogRun:
    """Read the same log by turns with a plain CRC pass and with the fold.

    Args:
        size: bytes of the log, 1 % of them control batches.
        runs: passes of each.
    """
    log = _made(size)
    folded = fold_control_log(log)
    crc_pass([log])
    passes = [(seconds(lambda: crc_pass([log])), seconds(lambda: fold_control_log(log))) for _ in range(runs)]
    crc_s, fold_s = (median(side) for side in zip(*passes, strict=True))
    return UserLogRun(log.size, folded.record_count, log.size / crc_s, log.size / fold_s)


def _made(size: int) -> LogPartition:
    folder = DATA / f"user-log-{size}" / "orders-0"
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        file, written = None, 0
        for base_offset, batch in _batches(size):
            if file is None or file.tell() > _SEGMENT:
                file = (partial / f"{base_offset:020}.log").open("wb")
            written += file.write(batch)
        if file is not None:
            file.close()
        partial.rename(folder)
    (log,) = find_topic_logs([str(folder)])
    return log


def _batches(size: int) -> Iterator[tuple[int, bytes]]:
    """User batches of 16 KB, and a control batch whenever those before are less than one hundredth of the log."""
    drawn, offset, written, of_control = random.Random(1), 0, 0, 0
    bodies = [drawn.randbytes(16 << 10) for _ in range(8)]
    chains = {f"g{number}": (-1, 0, 0) for number in range(_GROUPS)}
    while written < size:
        if of_control * _CONTROL_SHARE < written:
            group = drawn.choice(list(chains))
            batch, chains[group] = _control_batch(offset, group, *chains[group])
            of_control += len(batch)
            count = 1
        else:
            count = 16
            batch = _batch(offset, 0, count, drawn.choice(bodies))
        yield offset, batch
        offset, written = offset + count, written + len(batch)


def _control_batch(offset: int, group: str, back: int, epoch: int, deltas: int) -> tuple[bytes, tuple[int, int, int]]:
    states = [{"first_offset": offset, "last_offset": offset + 9, "delivery_state": 2, "delivery_count": 1}]
    if back < 0 or deltas == _DELTAS_A_CHECKPOINT:
        epoch, deltas, kind, name = (epoch + 1) % 65536, 0, 5, "share_checkpoint_value"
        value = {
            "group_id": group,
            "checkpoint_epoch": epoch,
            "start_offset": offset,
            "end_offset": offset,
            "states": [],
        }
    else:
        deltas, kind, name = deltas + 1, 6, "share_delta_value"
        value = {"group_id": group, "checkpoint_epoch": epoch, "back_offset": back, "states": states}
    body = _record(struct.pack(">hh", 0, kind), encode(layout(name, "draft"), value))
    return _batch(offset, _CONTROL, 1, body), (offset, epoch, deltas)


def _record(key: bytes, value: bytes) -> bytes:
    content = b"\0\0\0" + _varint(len(key)) + key + _varint(len(value)) + value + b"\0"
    return _varint(len(content)) + content


def _varint(number: int) -> bytes:
    zigzag, out = number << 1, b""
    while zigzag > 127:
        out, zigzag = out + bytes([zigzag & 127 | 128]), zigzag >> 7
    return out + bytes([zigzag])


def _batch(base_offset: int, attributes: int, count: int, body: bytes) -> bytes:
    checked = struct.pack(">hiqqqhii", attributes, count - 1, 0, 0, -1, -1, -1, count) + body
    head = struct.pack(">qiib", base_offset, len(checked) + 9, 0, 2)
    return head + struct.pack(">I", google_crc32c.value(checked)) + checked
