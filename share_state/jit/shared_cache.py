"""numba's cache of compiled kernels, shared by processes: one compiles a kernel, the others wait for it and load it.

Without it, two Python workers of an executor compile the same kernels at the same time, and numba loses an entry
if two processes write the index of one function.
"""

import fcntl
import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from numba.core import event
from numba.core.caching import FunctionCache


class KernelLocks(event.Listener):
    """A lock for each kernel, of the processes that use a cache folder; held from when it is not cached until it is.

    A kernel is compiled within the one that calls it, so processes that wait for each other's kernels cannot do so
    in a circle. The locks are bytes of one file. The system releases those of a process that ends. Where the file
    system has no locks, each process compiles.
    """

    def __init__(self, file: Path) -> None:
        """Create locks that are not held; `file` is created when it is first needed."""
        self._path = file
        # Kept open: to close it would release all locks of this process.
        self._file: IO[bytes] | None = None
        self.held = set[int]()
        event.register("numba:compile", self)

    def acquire(self, kernel: int) -> bool:
        """Wait until no other process compiles a kernel; False if this one does already, or there are no locks."""
        if kernel in self.held:
            return False
        with suppress(OSError):
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("wb")
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1, kernel)
            self.held.add(kernel)
        return kernel in self.held

    def release(self, kernel: int) -> None:
        """Let other processes compile a kernel."""
        if self._file is not None and kernel in self.held:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, kernel)
            self.held.discard(kernel)

    def on_start(self, event: event.Event) -> None:
        """Nothing: the cache holds the lock already."""

    def on_end(self, event: event.Event) -> None:
        """A kernel is compiled, or has failed; the cache releases the lock of one that it has written."""
        compiled: Any = event.data
        # numba 0.68's `is_failed` says the contrary.
        has_failed = event._exc_details is not None
        if has_failed and isinstance(cache := compiled["dispatcher"]._cache, SharedCache):
            cache.release()


class SharedCache(FunctionCache):
    """The cache of one kernel."""

    def __init__(self, kernel: Callable[..., object], locks: KernelLocks | None) -> None:
        """Open the cache; `locks` is None if its folder cannot be written."""
        self._locks = locks
        name = f"{kernel.__module__}.{kernel.__qualname__}:{kernel.__code__.co_firstlineno}"
        # A place in the file: 62 bits, as offsets have a sign.
        self._kernel = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 2
        super().__init__(kernel)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel for a signature; if this process is to compile it, None, and the lock is held."""
        found = super().load_overload(sig, target_context)
        if found is None and self._locks is not None and self._locks.acquire(self._kernel):
            # Another process may have compiled it meanwhile.
            found = super().load_overload(sig, target_context)
            if found is not None:
                self.release()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a compiled kernel; without locks it stays in memory."""
        if self._locks is None:
            return
        try:
            super().save_overload(sig, data)
        finally:
            self.release()

    def release(self) -> None:
        """Let other processes compile the kernel."""
        if self._locks is not None:
            self._locks.release(self._kernel)
