"""Where the records of a log partition come from, where that is not segments: what a form must offer to be folded."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from share_state.wire.chunk import Chunk
    from share_state.wire.log_folder import LogPartition


class Source(Protocol):
    """Reads one log partition from one form of export; small and picklable, as it travels to the tasks."""

    @property
    def form(self) -> str:
        """Its name, as `--format` takes it."""
        ...

    @property
    def has_offsets(self) -> bool:
        """Whether it tells where in the log a record lies; without, records are numbered as they come."""
        ...

    @property
    def has_times(self) -> bool:
        """Whether it tells when a record was written."""
        ...

    @property
    def has_sizes(self) -> bool:
        """Whether it tells how many bytes of the log a batch takes."""
        ...

    def chunks(self, log: "LogPartition", chunk: int, *, merge: bool) -> Iterator["Chunk"]:
        """The chunks of a log partition in log order, each with `records`: located already, no batch to be opened.

        Args:
            log: what is read; its segments are the files of this form.
            chunk: bytes of keys and values to hold at a time.
            merge: whether its files may repeat each other; look at all of them first, as `read_chunks` does.
        Raises:
            RepeatedOffsetsError: if `merge` is off and needed.
            InputError: if what is there is not of this form.
        """
        ...
