"""Work that a log's stages do side by side, each in a thread: compiled kernels and reads let the others run."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


def made_ahead(items: Iterable[_T]) -> Iterator[_T]:
    """The items of an iterable, the next one made in a thread while one is in use.

    Args:
        items: what one item stands on must hold until the next but one is asked for.
    """
    end, source = object(), iter(items)
    with ThreadPoolExecutor(1) as thread:
        coming: Future[_T | object] = thread.submit(next, source, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, source, end)
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
