"""The kinds of damage that a copy of a log can have, each a function that damages an export in memory.

Each takes the export, the name of the log partition to damage, and a source of random choices. It raises
`NotApplicableError` where the export has nothing to damage in this way.
"""

import struct
from collections.abc import Callable
from random import Random

from tests.damage.exports import (
    Export,
    Log,
    base_offset,
    batches,
    in_epoch,
    moved,
    positions,
    renumbered,
    with_right_crc,
)

Damage = Callable[[Export, str, Random], None]


class NotApplicableError(Exception):
    """The export has nothing to damage in this way."""


def _need(*, condition: bool) -> None:
    if not condition:
        raise NotApplicableError


def _remove_segment(log: Log, number: int) -> None:
    del log.segments[sorted(log.segments)[number]]


def head_segment_lost(export: Export, name: str, rng: Random) -> None:
    """The first segments were not copied."""
    log = export.logs[name]
    _need(condition=len(log.segments) > 1)
    for _ in range(rng.randint(1, min(3, len(log.segments) - 1))):
        _remove_segment(log, 0)


def middle_segment_lost(export: Export, name: str, rng: Random) -> None:
    """A segment between two others was not copied."""
    log = export.logs[name]
    _need(condition=len(log.segments) > 2)
    _remove_segment(log, rng.randrange(1, len(log.segments) - 1))


def tail_segment_lost(export: Export, name: str, rng: Random) -> None:
    """The newest segments were not copied."""
    log = export.logs[name]
    _need(condition=len(log.segments) > 1)
    for _ in range(rng.randint(1, min(3, len(log.segments) - 1))):
        _remove_segment(log, -1)


def truncated_inside_a_batch(export: Export, name: str, rng: Random) -> None:
    """A segment ends inside a batch."""
    log = export.logs[name]
    base, number = _any_batch(log, rng)
    kept = batches(log.segments[base])
    cut = kept[number][: rng.randrange(1, len(kept[number]))]
    log.segments[base] = b"".join(kept[:number]) + cut


def truncated_between_batches(export: Export, name: str, rng: Random) -> None:
    """A segment ends before its last batches."""
    log = export.logs[name]
    base, number = _any_batch(log, rng)
    log.segments[base] = b"".join(batches(log.segments[base])[:number])


def _any_batch(log: Log, rng: Random) -> tuple[int, int]:
    everywhere = list(positions(log))
    _need(condition=bool(everywhere))
    return rng.choice(everywhere)


def _edit(log: Log, rng: Random, edit: Callable[[list[bytes], int], list[bytes]]) -> None:
    base, number = _any_batch(log, rng)
    log.segments[base] = b"".join(edit(batches(log.segments[base]), number))


def batch_removed(export: Export, name: str, rng: Random) -> None:
    """A batch is missing, and its offsets with it."""
    _edit(export.logs[name], rng, lambda several, number: several[:number] + several[number + 1 :])


def batch_removed_without_a_gap(export: Export, name: str, rng: Random) -> None:
    """A batch is missing, and all that follow have its offsets and the next ones."""
    log = export.logs[name]
    several = _all_batches(log)
    number = rng.randrange(len(several))
    _write_again(log, several[:number] + several[number + 1 :], base_offset(several[0]))


def _all_batches(log: Log) -> list[bytes]:
    several = [batch for base in sorted(log.segments) for batch in batches(log.segments[base])]
    _need(condition=len(several) > 3)
    return several


def _write_again(log: Log, several: list[bytes], offset: int) -> None:
    """Write batches with consecutive offsets to as many segments."""
    count = len(log.segments)
    size = max(1, -(-len(several) // count))
    log.segments = {}
    several = renumbered(several, offset)
    for begin in range(0, len(several), size):
        part = several[begin : begin + size]
        log.segments[base_offset(part[0])] = b"".join(part)


def batch_repeated(export: Export, name: str, rng: Random) -> None:
    """A batch is there twice, with the same offsets."""
    _edit(export.logs[name], rng, lambda several, number: several[: number + 1] + several[number:])


def batch_repeated_at_new_offsets(export: Export, name: str, rng: Random) -> None:
    """A batch is there twice, and all that follow have later offsets."""
    log = export.logs[name]
    several = _all_batches(log)
    number = rng.randrange(len(several))
    again = rng.randrange(number, len(several)) + 1
    _write_again(log, [*several[:again], several[number], *several[again:]], base_offset(several[0]))


def batches_swapped(export: Export, name: str, rng: Random) -> None:
    """A batch lies behind the one that follows it, both with their offsets."""

    def swap(several: list[bytes], number: int) -> list[bytes]:
        _need(condition=number + 1 < len(several))
        return [*several[:number], several[number + 1], several[number], *several[number + 2 :]]

    _edit(export.logs[name], rng, swap)


def batches_swapped_and_renumbered(export: Export, name: str, rng: Random) -> None:
    """A batch lies behind the one that follows it, with its offsets."""
    log = export.logs[name]
    several = _all_batches(log)
    first = base_offset(several[0])
    number = rng.randrange(len(several) - 1)
    several[number : number + 2] = [several[number + 1], several[number]]
    _write_again(log, several, first)


def bytes_flipped(export: Export, name: str, rng: Random) -> None:
    """A byte of a segment has another value."""
    log = export.logs[name]
    base = rng.choice(sorted(log.segments))
    _need(condition=len(log.segments[base]) > 0)
    data = bytearray(log.segments[base])
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    log.segments[base] = bytes(data)


def bytes_zeroed(export: Export, name: str, rng: Random) -> None:
    """A range of bytes of a segment is zero."""
    log = export.logs[name]
    base = rng.choice(sorted(log.segments))
    _need(condition=len(log.segments[base]) > 0)
    data = bytearray(log.segments[base])
    begin = rng.randrange(len(data))
    end = min(len(data), begin + rng.randint(1, 2000))
    data[begin:end] = bytes(end - begin)
    log.segments[base] = bytes(data)


def bytes_flipped_with_a_right_crc(export: Export, name: str, rng: Random) -> None:
    """A byte of a batch has another value, and its CRC fits."""

    def forge(several: list[bytes], number: int) -> list[bytes]:
        forged = bytearray(several[number])
        forged[rng.randrange(61, len(forged))] ^= 1 << rng.randrange(8)
        return [*several[:number], with_right_crc(bytes(forged)), *several[number + 1 :]]

    _edit(export.logs[name], rng, forge)


def garbage_before(export: Export, name: str, rng: Random) -> None:
    """Other bytes precede a batch."""
    noise = rng.randbytes(rng.randint(1, 300))
    _edit(export.logs[name], rng, lambda several, number: [*several[:number], noise, *several[number:]])


def garbage_after(export: Export, name: str, rng: Random) -> None:
    """Other bytes follow a segment."""
    log = export.logs[name]
    base = rng.choice(sorted(log.segments))
    log.segments[base] += rng.randbytes(rng.randint(1, 300))


def folders_swapped(export: Export, name: str, rng: Random) -> None:
    """Two folders have each other's name; the broker's files above them do not know."""
    other = _other(export, name, rng)
    export.logs[name], export.logs[other] = export.logs[other], export.logs[name]


def _other(export: Export, name: str, rng: Random) -> str:
    others = [other for other in export.logs if other != name]
    _need(condition=bool(others))
    return rng.choice(others)


def first_folder_lost(export: Export, name: str, rng: Random) -> None:
    """The first log partition was not copied."""
    del name, rng
    _lose(export, sorted(export.logs)[:1])


def middle_folder_lost(export: Export, name: str, rng: Random) -> None:
    """A log partition between two others was not copied."""
    del name
    _need(condition=len(export.logs) > 2)
    _lose(export, [rng.choice(sorted(export.logs)[1:-1])])


def last_folder_lost(export: Export, name: str, rng: Random) -> None:
    """The last log partition was not copied."""
    del name, rng
    _lose(export, sorted(export.logs)[-1:])


def all_folders_but_one_lost(export: Export, name: str, rng: Random) -> None:
    """Only one log partition was copied."""
    del rng
    _lose(export, [other for other in export.logs if other != name])


def _lose(export: Export, names: list[str]) -> None:
    _need(condition=0 < len(names) < len(export.logs))
    for name in names:
        del export.logs[name]


def segment_of_another_log(export: Export, name: str, rng: Random) -> None:
    """A segment of another log partition lies among the others, in place of one or besides."""
    log = export.logs[name]
    other = export.logs[_other(export, name, rng)]
    base = rng.choice(sorted(other.segments))
    log.segments[base] = other.segments[base]


def segment_of_another_log_renumbered(export: Export, name: str, rng: Random) -> None:
    """A segment of another log partition is in place of one, with offsets that fit."""
    log = export.logs[name]
    other = export.logs[_other(export, name, rng)]
    foreign = batches(other.segments[rng.choice(sorted(other.segments))])
    bases = sorted(log.segments)
    number = rng.randrange(len(bases))
    _need(condition=bool(foreign))
    several = [batches(log.segments[base]) for base in bases]
    several[number] = foreign
    _write_again(log, [batch for part in several for batch in part], bases[0])


def tail_of_another_replica(export: Export, name: str, rng: Random) -> None:
    """The last batches are those of a replica that had led in another epoch, and were replaced since."""
    log = export.logs[name]
    several = _all_batches(log)
    begin = rng.randrange(1, len(several))
    foreign = [several[rng.randrange(len(several))] for _ in range(begin, len(several))]
    epoch = rng.randrange(8)
    tail = [in_epoch(batch, epoch) for batch in renumbered(foreign, base_offset(several[begin]))]
    _write_again(log, [*several[:begin], *tail], base_offset(several[0]))


def older_copy_beside(export: Export, name: str, rng: Random) -> None:
    """An older copy of every log partition lies beside the export."""
    del name
    export.older = export.copied()
    if rng.random() < 0.5:
        export.older = export.older.without_checkpoints()
    for log in export.older.logs.values():
        for _ in range(rng.randrange(len(log.segments))):
            _remove_segment(log, -1)
    if export.older.high_watermarks is not None:
        export.older.high_watermarks = {own: log.end for own, log in export.older.logs.items()}


def older_copy_instead(export: Export, name: str, rng: Random) -> None:
    """One log partition is an older copy, the broker's files above it are not."""
    tail_segment_lost(export, name, rng)
    truncated = export.logs[name]
    base = max(truncated.segments)
    kept = batches(truncated.segments[base])
    truncated.segments[base] = b"".join(kept[: rng.randint(1, len(kept))])


def checkpoints_lost(export: Export, name: str, rng: Random) -> None:
    """Some of the broker's checkpoint files were not copied, nor was the first segment."""
    if rng.random() < 0.5:
        export.log_starts = None
    if rng.random() < 0.5:
        export.high_watermarks = None
    if rng.random() < 0.5:
        export.logs[name].leader_epochs = None
    if rng.random() < 0.5:
        head_segment_lost(export, name, rng)


def checkpoints_stale(export: Export, name: str, rng: Random) -> None:
    """The broker's checkpoint files are older than the segments."""
    log = export.logs[name]
    end = rng.randint(min(log.segments), log.end)
    if export.high_watermarks is not None:
        export.high_watermarks[name] = end
    if export.log_starts is not None:
        export.log_starts[name] = rng.randint(0, min(log.segments))
    if log.leader_epochs is not None:
        log.leader_epochs = [line for line in log.leader_epochs if line[1] < end] or log.leader_epochs[:1]


def log_start_too_large(export: Export, name: str, rng: Random) -> None:
    """The recorded log start is one that the log never had."""
    _need(condition=export.log_starts is not None)
    log = export.logs[name]
    assert export.log_starts is not None
    export.log_starts[name] = rng.randint(log.log_start + 1, log.end + 1)


def high_watermark_too_large(export: Export, name: str, rng: Random) -> None:
    """The recorded high watermark is beyond the end of the log."""
    _need(condition=export.high_watermarks is not None)
    assert export.high_watermarks is not None
    export.high_watermarks[name] = export.logs[name].end + rng.randint(1, 1000)


def checkpoints_of_another_log(export: Export, name: str, rng: Random) -> None:
    """The checkpoint file in the folder is that of another log partition."""
    other = export.logs[_other(export, name, rng)]
    _need(condition=other.leader_epochs is not None)
    export.logs[name].leader_epochs = other.leader_epochs
    for offsets in (export.log_starts, export.high_watermarks):
        if offsets is not None and rng.random() < 0.5:
            offsets[name] = rng.choice(sorted(offsets.values(), key=str) or [0])


def segment_renamed(export: Export, name: str, rng: Random) -> None:
    """The name of a segment states another base offset."""
    log = export.logs[name]
    base = rng.choice(sorted(log.segments))
    data = log.segments.pop(base)
    log.segments[rng.randint(0, log.end + 10)] = data


def segment_emptied(export: Export, name: str, rng: Random) -> None:
    """A segment has no bytes."""
    log = export.logs[name]
    log.segments[rng.choice(sorted(log.segments))] = b""


def offsets_shifted(export: Export, name: str, rng: Random) -> None:
    """Every offset is later or earlier by the same number, as in the copy of another cluster."""
    log = export.logs[name]
    shift = rng.choice((-1, 1)) * rng.randint(1, log.end)
    _need(condition=min(log.segments) + shift >= 0)
    log.segments = {
        base + shift: b"".join(moved(batch, base_offset(batch) + shift) for batch in batches(data))
        for base, data in log.segments.items()
    }


def length_changed(export: Export, name: str, rng: Random) -> None:
    """The header of a batch states another length."""

    def lie(several: list[bytes], number: int) -> list[bytes]:
        batch = several[number]
        (length,) = struct.unpack_from(">i", batch, 8)
        lied = batch[:8] + struct.pack(">i", length + rng.randint(-60, 400)) + batch[12:]
        return [*several[:number], lied, *several[number + 1 :]]

    _edit(export.logs[name], rng, lie)


KINDS: dict[str, Damage] = {
    damage.__name__: damage
    for damage in (
        head_segment_lost,
        middle_segment_lost,
        tail_segment_lost,
        truncated_inside_a_batch,
        truncated_between_batches,
        batch_removed,
        batch_removed_without_a_gap,
        batch_repeated,
        batch_repeated_at_new_offsets,
        batches_swapped,
        batches_swapped_and_renumbered,
        bytes_flipped,
        bytes_zeroed,
        bytes_flipped_with_a_right_crc,
        garbage_before,
        garbage_after,
        folders_swapped,
        first_folder_lost,
        middle_folder_lost,
        last_folder_lost,
        all_folders_but_one_lost,
        segment_of_another_log,
        segment_of_another_log_renumbered,
        tail_of_another_replica,
        older_copy_beside,
        older_copy_instead,
        checkpoints_lost,
        checkpoints_stale,
        log_start_too_large,
        high_watermark_too_large,
        checkpoints_of_another_log,
        segment_renamed,
        segment_emptied,
        offsets_shifted,
        length_changed,
    )
}
"""Name of each kind of damage -> what does it."""
