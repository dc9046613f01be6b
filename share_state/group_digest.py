"""A digest of log partitions: an audit whose group side has the same one as before need not judge it again."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from share_state.live.address import FORM as LIVE
from share_state.wire.log_folder import LogPartition
from share_state.wire.places import place, unreadable
from share_state.wire.store_path import StorePath
from share_state.wire.stores import NotOpenedError, Store, refusal

if TYPE_CHECKING:
    from share_state.live.records import LiveSource


def digest_of_logs(logs: Sequence[LogPartition]) -> str:
    """A short text that is the same where the same is to be read.

    Of a file on this machine it is the bytes that count, wherever they lie; of a file in a store, which would have to
    be fetched whole, its size and when it was last written; of a cluster, how far each log partition is to be read.

    Args:
        logs: log partitions, in the order in which they were found.
    Raises:
        InputError: if a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=8)
    contents = _contents(segment.path for log in logs for segment in log.segments)
    for log in logs:
        digest.update(f"{log.topic} {log.partition}\n".encode())
        if log.source is not None and log.source.form == LIVE:
            end = cast("LiveSource", log.source).end_offset
            digest.update(f"{log.topic_id} {log.log_start_offset} {end}\n".encode())
        for one in log.segments:
            # Several log partitions may share a file, and each has its stretch of it.
            digest.update(f"{one.base_offset} {one.begin} {one.size} {contents[one.path]}\n".encode())
    return digest.hexdigest()


def _contents(paths: Iterable[str]) -> dict[str, str]:
    """Path -> what tells its content from another, each file looked at once."""
    told, stored = dict[str, str](), dict[Store, list[tuple[str, StorePath]]]()
    for path in dict.fromkeys(paths):
        found = place(path)
        if isinstance(found, StorePath):
            stored.setdefault(found.store, []).append((path, found))
        else:
            told[path] = _hashed(path)
    for store, files in stored.items():
        told |= _last_written(store, files)
    return told


def _last_written(store: Store, files: Sequence[tuple[str, StorePath]]) -> dict[str, str]:
    """Size and time of files of a store, asked for together; the bytes of those that it tells no time of."""
    try:
        infos = store.file_system.get_file_info([found.inner for _, found in files])
    except (OSError, pa.ArrowException, NotOpenedError) as error:
        raise refusal(files[0][0], error) from None
    told = {}
    for (path, _), info in zip(files, infos, strict=True):
        if not info.is_file:
            raise refusal(path, FileNotFoundError())
        told[path] = _hashed(path) if info.mtime_ns is None else f"{info.size} {info.mtime_ns}"
    return told


def _hashed(path: str) -> str:
    try:
        with place(path).open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from None
