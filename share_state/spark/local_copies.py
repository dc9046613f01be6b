"""Copies of values of Spark's state in its scratch folder, for other workers of the same machine.

Spark gives a worker a value byte by byte (29 ms a MB), and in half of the micro-batches two workers of a machine change
log partitions. Without a copy, the value comes from Spark.
"""

import os
from contextlib import suppress
from pathlib import Path

_FOLDER = "share_state"


def scratch_folder() -> str | None:
    """The folder of this machine where Spark spills, which it deletes when it ends; None outside of its workers."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or None


def keep_copy(name: str, token: str, value: bytes) -> None:
    """Keep the latest value of a name; it replaces the one before.

    Args:
        name: of the value, as a file name.
        token: tells this value from all others of the name.
        value: the value.
    """
    if (place := _place(name)) is None:
        return
    # No copy is needed where the disk is full or the folder is gone.
    with suppress(OSError):
        place.parent.mkdir(mode=0o700, exist_ok=True)
        partial = place.with_name(f"{place.name}.{os.getpid()}")
        with partial.open("wb") as file:
            file.write(token.encode())
            file.write(value)
        partial.replace(place)


def kept_copy(name: str, token: str) -> bytes | None:
    """The value that was kept with a name and a token; None if there is none, or another one by now."""
    if (place := _place(name)) is None or not token:
        return None
    try:
        with place.open("rb") as file:
            return file.read() if file.read(len(token)) == token.encode() else None
    except OSError:
        return None


def _place(name: str) -> Path | None:
    scratch = scratch_folder()
    return None if scratch is None else Path(scratch, _FOLDER, name)
