"""One run at a time writes a warehouse; whoever comes second is told who holds it."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from share_state.errors import WarehouseError
from share_state.warehouse_place import LOCK, missing_folders

_HOLDER = ".lock.holder.json"


@contextmanager
def locked(root: str, command: str) -> Iterator[None]:
    """Hold a warehouse while a command writes to it.

    The operating system lets go of the lock when the process ends, however it ends: a run that was killed bars nobody.

    An object store has no such lock: there `Warehouse` refuses to commit where another run has committed since.

    Args:
        root: the warehouse; made where it is not there.
        command: what holds it, for the other one's error.
    Raises:
        WarehouseError: if another run holds it, or it cannot be written.
    """
    if "://" in root:
        yield
        return
    place, made = Path(root), missing_folders(root)
    try:
        place.mkdir(parents=True, exist_ok=True)
        held = (place / LOCK).open("a", encoding="utf-8")
    except OSError as error:
        raise WarehouseError(f"{root}: cannot be written ({error.strerror}); give a folder for the tables") from None
    with held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # One that failed before it wrote anything takes its lock away with it.
            is_there = os.path.samestat(os.fstat(held.fileno()), (place / LOCK).stat())
        except OSError:
            is_there = False
        if not is_there:
            raise WarehouseError(
                f"{root}: held by {_holder(place)}; wait until it is done, or give another warehouse"
            ) from None
        holder = {
            "command": command,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        (place / _HOLDER).write_text(json.dumps(holder), encoding="utf-8")
        try:
            yield
        finally:
            (place / _HOLDER).unlink(missing_ok=True)
            if [entry.name for entry in place.iterdir()] == [LOCK]:
                (place / LOCK).unlink()
                for folder in made:
                    folder.rmdir()


def _holder(place: Path) -> str:
    try:
        told = json.loads((place / _HOLDER).read_text(encoding="utf-8"))
        return f"`share-state {told['command']}`, process {told['pid']} on {told['host']} since {told['since']}"
    except (OSError, ValueError, KeyError):
        return "another run"
