"""Rows of several fields by column: what many rules look at lies side by side in memory once the first has asked."""

from typing import overload

import numpy as np


class Columns:
    """Rows that nobody changes, or some of them; a column that was asked for is kept, read-only."""

    def __init__(self, rows: np.ndarray, numbers: np.ndarray | None = None) -> None:
        """Take rows.

        Args:
            rows: of a structured type.
            numbers: int64, which of them; all by default.
        """
        self.rows, self._numbers = rows, numbers
        self._kept: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.rows if self._numbers is None else self._numbers)

    @overload
    def __getitem__(self, wanted: str) -> np.ndarray: ...
    @overload
    def __getitem__(self, wanted: np.ndarray) -> "Columns": ...
    def __getitem__(self, wanted: "str | np.ndarray") -> "np.ndarray | Columns":
        """A column by its name, contiguous; or some of the rows, by their numbers here or a bool for each."""
        if not isinstance(wanted, str):
            chosen = np.flatnonzero(wanted) if wanted.dtype == np.bool_ else wanted
            return Columns(self.rows, chosen if self._numbers is None else self._numbers[chosen])
        if wanted not in self._kept:
            column = self.rows[wanted]
            self._kept[wanted] = column = column.copy() if self._numbers is None else column[self._numbers]
            column.flags.writeable = False
        return self._kept[wanted]
