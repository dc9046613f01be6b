"""Starts a command: what has to be settled before anything large is imported, and how the process is left."""

import gc
import os
import sys
from collections.abc import Sequence

_OBJECTS = 100_000


def settle() -> None:
    """Spare this process what it gains nothing from; before numpy and most else is imported."""
    # What is imported stays: to look through it after every 700 objects takes a tenth of a small command.
    gc.set_threshold(_OBJECTS)
    # numpy's linear algebra, which nothing here uses, has a thread a core turn round for a while until it has to work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and leave with the exit code of the contract: 0 done, 1 found, 2 unusable, 3 unexpected."""
    settle()
    from share_state.cli import run  # noqa: PLC0415  not before that
    from share_state.kept_memory import keep_memory  # noqa: PLC0415
    from share_state.no_pandas import keep_pandas_out  # noqa: PLC0415

    keep_memory()
    keep_pandas_out()
    code = run(arguments)
    # Memory is given back in a moment: nothing has to be looked through for what could be let go, for half a second.
    gc.freeze()
    sys.exit(code)
