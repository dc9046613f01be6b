"""Keeps pyarrow from importing pandas, which no command needs and which takes as long as all else that starts."""

import sys
from collections.abc import Sequence


class _Hidden:
    """Finds pandas first, and says that it is not there."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def keep_pandas_out() -> None:
    """Let pyarrow find no pandas when it looks for it; for commands, not for notebooks.

    It looks when the first array is made of Python's objects and remembers what it found, but looks again where pandas
    is asked of it (`to_pandas`). Others import pandas as ever.
    Source: pyarrow pandas-shim.pxi, _PandasAPIShim._check_import.
    """
    sys.meta_path.insert(0, _Hidden)
    try:
        import pyarrow as pa  # noqa: PLC0415  not before pandas is hidden

        pa.array([None])
    finally:
        sys.meta_path.remove(_Hidden)
