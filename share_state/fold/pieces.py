"""Rows of a table about many share-partitions, made a piece at a time, so that the whole is never in memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from share_state.declarations import table_schema

_ROWS_A_PIECE = 128 << 10


@dataclass(frozen=True, slots=True)
class Pieces:
    """A declared table in pieces.

    Attributes:
        table: its name.
        size: int64; about how many rows and ranges there are before each share-partition, and in all.
        made: the rows of share-partitions [begin, end); texts that repeat may be dictionary-encoded.
    """

    table: str
    size: np.ndarray
    made: Callable[[int, int], pa.Table]

    def __iter__(self) -> Iterator[pa.Table]:
        """Pieces of about as many rows; at least one, maybe empty."""
        return (self.made(begin, end) for begin, end in stretches(self.size))

    def whole(self) -> pa.Table:
        """All of it, as declared."""
        schema = table_schema(self.table)
        return pa.concat_tables([piece.cast(schema) for piece in self])


def stretches(size: np.ndarray) -> Iterator[tuple[int, int]]:
    """Share-partitions [begin, end) that together make a piece; `size` as in Pieces. At least one, maybe empty."""
    count, begin = len(size) - 1, 0
    while begin < count or begin == 0:
        reach = np.searchsorted(size, size[begin] + _ROWS_A_PIECE, side="right") - 1
        end = min(max(int(reach), begin + 1), count)
        yield begin, end
        begin = end or 1


def in_one_piece(name: str, table: pa.Table) -> Pieces:
    """A table that is there already."""
    return Pieces(name, np.arange(2), lambda *_: table)


def packed(key: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Columns, texts dictionary-encoded: in what is made of them each text is there once."""
    return {name: packed_column(column) for name, column in key.items()}


def packed_column(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """One column, dictionary-encoded where it is text."""
    return column.dictionary_encode() if pa.types.is_string(column.type) else column
