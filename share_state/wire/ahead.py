"""Work that a log's stages do side by side, each in a thread: compiled kernels and reads let the others run."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


AHEAD = 2
"""Items that are made before they are asked for: one alone lets the threads wait for each other at every item."""


def made_ahead(items: Iterable[_T]) -> Iterator[_T]:
    """The items of an iterable, the next ones made in a thread while one is in use.

    Args:
        items: what one item stands on must hold while AHEAD more are made.
    """
    end, source = object(), iter(items)
    with ThreadPoolExecutor(1) as thread:
        coming: deque[Future[_T | object]] = deque(thread.submit(next, source, end) for _ in range(AHEAD))
        while (item := coming.popleft().result()) is not end:
            coming.append(thread.submit(next, source, end))
            yield item  # pyright: ignore[reportReturnType]  it is no end


class Behind:
    """Does one thing after the other, at most one of them while its owner goes on."""

    def __init__(self, cores: int) -> None:
        """With one core everything is done at once."""
        self._thread = ThreadPoolExecutor(1) if cores > 1 else None
        self._doing: Future[None] | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Begin something, when what was begun before it is done."""
        self.wait()
        if self._thread is None:
            work()
        else:
            self._doing = self._thread.submit(work)

    def wait(self) -> None:
        """Until what was begun is done; what it raised is raised here."""
        doing, self._doing = self._doing, None
        if doing is not None:
            doing.result()
