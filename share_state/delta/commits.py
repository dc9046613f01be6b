"""What a command leaves behind when it ends early: each commit is noted here, and no signal comes before the note.

Writers note what stands; the command line prints it, whatever ends the command. Imports no other module, so a
command that writes nothing does not load the writers for it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

standing = dict[str, str]()
"""Path or address -> what this process has committed there, in words."""

_pending = list[Callable[[], None]]()
_depth = 0


@contextmanager
def held_signals() -> Iterator[None]:
    """Hold signals, of which `hold` was told, until a commit is done and noted.

    Python handles signals in the main thread only, so a commit of another thread is not interrupted by one.
    """
    global _depth  # noqa: PLW0603  of the process, as signals are
    if current_thread() is not main_thread():
        yield
        return
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if _depth == 0 and _pending:
            handle = _pending[0]
            _pending.clear()
            handle()


def note_file(path: str) -> None:
    """Note that a file or folder is written."""
    standing[path] = f"{path} is written"


def hold(handle: Callable[[], None]) -> bool:
    """Whether a commit is under way; the first signal that comes meanwhile is handled once it is done.

    Args:
        handle: handles the signal; may raise.
    """
    if _depth:
        _pending.append(handle)
    return _depth > 0
