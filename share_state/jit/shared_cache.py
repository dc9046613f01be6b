"""numba's cache of compiled kernels, shared by processes: one compiles a kernel, the others wait for it and load it.

Without it, two Python workers of an executor compile the same kernels at the same time, and numba loses an entry
if two processes write the index of one function.
"""

import fcntl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from numba.core import event
from numba.core.caching import FunctionCache


class CompilerLock(event.Listener):
    """A lock of the processes that use a cache folder; held from a kernel that is not cached until it is.

    numba compiles in one thread at a time, and a kernel within the one that calls it. The system releases the lock
    of a process that ends. Where the file system has no locks, each process compiles.
    """

    def __init__(self, file: Path) -> None:
        """Create a lock that is not held; `file` is created when it is first needed."""
        self._path = file
        self._held: IO[bytes] | None = None
        self._depth = 0
        event.register("numba:compile", self)

    def acquire(self) -> bool:
        """Wait until no other process compiles; False if this one holds the lock already, or there are no locks."""
        if self._held is not None:
            return False
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._path.open("wb")
            fcntl.lockf(file, fcntl.LOCK_EX)
            self._held = file
        return self._held is not None

    def release(self) -> None:
        """Let other processes compile, unless the kernel is a part of one that is being compiled."""
        if self._depth == 0 and self._held is not None:
            self._held.close()
            self._held = None

    def on_start(self, event: event.Event) -> None:
        """A kernel is being compiled."""
        del event
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        """A kernel is compiled, or has failed; the cache releases the lock when it has written a kernel of its own."""
        self._depth -= 1
        compiled: Any = event.data
        # numba 0.68's `is_failed` says the contrary.
        has_failed = event._exc_details is not None
        if has_failed or not isinstance(compiled["dispatcher"]._cache, SharedCache):
            self.release()


class SharedCache(FunctionCache):
    """The cache of one kernel."""

    def __init__(self, kernel: Callable[..., object], lock: CompilerLock | None) -> None:
        """Open the cache; `lock` is None if its folder cannot be written."""
        self._lock = lock
        super().__init__(kernel)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel for a signature; if this process is to compile it, None, and the lock is held."""
        found = super().load_overload(sig, target_context)
        if found is None and self._lock is not None and self._lock.acquire():
            # Another process may have compiled it meanwhile.
            found = super().load_overload(sig, target_context)
            if found is not None:
                self._lock.release()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a compiled kernel; without a lock it stays in memory."""
        if self._lock is None:
            return
        try:
            super().save_overload(sig, data)
        finally:
            self._lock.release()
