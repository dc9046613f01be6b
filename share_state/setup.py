"""`python -m share_state.setup`: fetch the jars, dump the JVM's classes, compile the kernels; no later command does."""

import compileall
import sys
import tempfile
from pathlib import Path

from share_state import kernels
from share_state.errors import SetupError
from share_state.every_kernel import run_every_kernel
from share_state.spark import class_archive, jars


def main() -> None:
    """Prepare this environment.

    `--with-kafka` also fetches Kafka's client, with which `compare` asks a broker; `--with-test-jars` fetches all that
    tests and the benchmark use.
    """
    wanted = [jars.DELTA, *([jars.KAFKA_CLIENTS] if "--with-kafka" in sys.argv[1:] else [])]
    wanted = list(jars.COORDINATES) if "--with-test-jars" in sys.argv[1:] else wanted
    try:
        for name in wanted:
            jars.fetch(name)
        class_archive.dump()
    except SetupError as error:
        sys.exit(f"share-state: {error}")
    # Where Python is told to write no bytecode, as in many a container, every command would compile all it imports.
    compileall.compile_dir(Path(__file__).parent, quiet=2)
    compile_kernels()


def compile_kernels() -> None:
    """Compile the kernels and keep them; see share_state/kernels.py for where."""
    with tempfile.TemporaryDirectory(prefix="share-state-kernels-") as scratch:
        run_every_kernel(Path(scratch))
    kernels.forget_others()


if __name__ == "__main__":
    main()
