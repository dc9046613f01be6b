"""`python -m share_state.setup`: fetch the jars, dump the JVM's classes, compile the kernels; no later command does."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from share_state import kernels
from share_state.errors import SetupError
from share_state.fold.control_log import fold_control_log
from share_state.fold.control_timeline import ControlTimeline
from share_state.fold.log import fold_log
from share_state.fold.timeline import timeline_tables
from share_state.rules import judge_records
from share_state.spark import class_archive, jars
from share_state.wire.control_records import CONTROL_RECORD, ControlRecords
from share_state.wire.keys import KeyTable
from share_state.wire.log import read_chunks
from share_state.wire.log_folder import find_logs
from share_state.wire.share_group_state import STATE_BATCH


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
    compile_kernels()


def compile_kernels() -> None:
    """Run every kernel once, on a log too small to matter; see share_state/kernels.py for where they are kept."""
    with tempfile.TemporaryDirectory(prefix="share-state-kernels-") as scratch:
        folder = Path(scratch, "__share_group_state-0")
        folder.mkdir()
        # Bytes that are no batch send every framing path through its kernel.
        (folder / f"{0:020}.log").write_bytes(bytes(range(200)))
        (log,) = find_logs([scratch])
        fold_log(log, state_partitions=1, judge=judge_records)
        list(timeline_tables(log))
        list(read_chunks(log, merge=True))
        fold_control_log(replace(log, topic="kernels"))
    checkpoint = ControlRecords(np.zeros(1, CONTROL_RECORD), np.zeros(0, STATE_BATCH))
    list(ControlTimeline().take(checkpoint, np.ones(1, bool)))
    KeyTable().grow(0)
    kernels.forget_others()


if __name__ == "__main__":
    main()
