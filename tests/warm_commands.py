"""Commands in processes of their own that have the modules already, so that many can be killed."""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess

import share_state.cli.stream  # noqa: F401  each process that the server forks has it
from share_state.cli.main import run
from share_state.jit.portable import compile_for_every_cpu
from tests.processes import die_with_parent

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([__name__])


def _run(arguments: Sequence[str]) -> None:
    die_with_parent()
    os.setsid()
    compile_for_every_cpu()
    raise SystemExit(run(arguments))


@contextmanager
def running_command(arguments: Sequence[str]) -> Iterator[BaseProcess]:
    """Run a command, which is killed at the end with the processes that it has started."""
    process = _SERVER.Process(target=_run, args=([*arguments],))
    process.start()
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.ident or 0, signal.SIGKILL)
        process.kill()
        process.join()
