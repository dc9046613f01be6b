"""The process of a command: its memory, its imports, and the signals that stop it."""

import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import FrameType

from share_state.delta import commits

INTERRUPTED = 128 + signal.SIGINT
"""Exit code after an interrupt, as in a shell: 128 plus the number of the signal."""


class Stopped(BaseException):
    """Raised in the running command on SIGINT or SIGTERM, so that it deletes uncommitted files."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def find_stop(error: BaseException) -> Stopped | None:
    """The signal that ended a command, whatever errors followed it; None for none.

    A signal to the process group ends the JVM of Spark as well, which then does not answer.
    """
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, Stopped | KeyboardInterrupt):
            return Stopped(chain.code if isinstance(chain, Stopped) else INTERRUPTED)
        chain = chain.__context__
    return None


_MMAP_THRESHOLD = -3, 32 << 20
"""M_MMAP_THRESHOLD: larger blocks are returned to the system at once; glibc allows no larger number."""


_TRIM_THRESHOLD = -1, 64 << 20
"""M_TRIM_THRESHOLD: bytes kept at the end of the heap."""


_ARENA_MAX = -8, 1
"""M_ARENA_MAX: one heap for all threads."""


def keep_freed_memory() -> None:
    """Let glibc reuse freed memory: the page faults of new memory can cost as much as the work done in it.

    Other C libraries keep their defaults. Source: mallopt(3).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    for parameter in (_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX):
        mallopt(*parameter)


def share_one_heap() -> None:
    """Let Arrow take memory from glibc, as all else does, here and in the processes that this one starts.

    Its own allocator never gives back what a peak of one thread has taken: a `reconstruct` needs a tenth more memory
    with it and no less CPU time, and a stream 50 MB more. `pa.set_memory_pool` would leave out what Acero does, such
    as `group_by`. A process that has used Arrow already stays as it is. Source: Arrow's setting
    ARROW_DEFAULT_MEMORY_POOL.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def release_memory() -> None:
    """Return freed memory to the system, wherever it is in glibc's heap. Source: malloc_trim(3)."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def collect_garbage() -> None:
    """Free objects that refer to each other, then release memory.

    deltalake leaves some with each commit (closures of `_convert_arro3_schema_to_delta`), and Python looks
    for them only after 100,000 new objects: in a stream, after hours.
    """
    gc.collect()
    release_memory()


class _NoPandas:
    """An import hook that finds no pandas."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def keep_pandas_out() -> None:
    """Keep pyarrow from importing pandas with its first array: that would add 0.3 s to every command.

    pyarrow remembers that it is missing, but imports it when `to_pandas` is called. Source: pyarrow
    pandas-shim.pxi, _PandasAPIShim._check_import.
    """
    sys.meta_path.insert(0, _NoPandas)
    try:
        import pyarrow as pa  # noqa: PLC0415  after pandas is hidden

        pa.array([None])
    finally:
        sys.meta_path.remove(_NoPandas)


def stop_on_signal(number: int, _frame: FrameType | None = None) -> None:
    """Stop the command; a commit that is under way is completed first."""
    if commits.hold(partial(stop_on_signal, number)):
        return
    if number == signal.SIGTERM:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # If the JVM has ended as well, py4j logs tracebacks, and pyspark's server of accumulators prints them.
    logging.disable(logging.ERROR)
    if (loaded := sys.modules.get("socketserver")) is not None:
        loaded.BaseServer.handle_error = lambda *_: None
    raise Stopped(128 + number)
