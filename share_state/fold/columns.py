"""Rows of several fields by column: what many rules look at lies side by side in memory once the first has asked."""

from typing import overload

import numpy as np


class Columns:
    """Rows that nobody changes; whoever asks for a column gets the same contiguous copy of it, read-only."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows
        self._copies: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, wanted: str) -> np.ndarray: ...
    @overload
    def __getitem__(self, wanted: np.ndarray) -> np.ndarray: ...
    def __getitem__(self, wanted: str | np.ndarray) -> np.ndarray:
        """A column by its name, or some of the rows by their numbers."""
        if not isinstance(wanted, str):
            return self.rows[wanted]
        if wanted not in self._copies:
            self._copies[wanted] = column = self.rows[wanted].copy()
            column.flags.writeable = False
        return self._copies[wanted]
