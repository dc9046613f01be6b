"""`python -m bench.start_up_clock FILE ARGUMENTS`: `share-state ARGUMENTS`; seconds of its start-up go to FILE (JSON).

BENCH_STARTED is when the process was started. What the command would import later is imported first.
"""

import atexit
import json
import os
import sys
import time
from pathlib import Path

from share_state.cli.main import main

begun = time.monotonic()
target, *arguments = sys.argv[1:]
seconds = {"interpreter": begun - float(os.environ["BENCH_STARTED"])}
from share_state.cli import reconstruct  # noqa: E402, F401

if "--master" in arguments:
    from pyspark.core import context

    from share_state.spark import executor

    launch = context.launch_gateway

    def _launch(*values: object, **options: object) -> object:
        before = time.monotonic()
        gateway = launch(*values, **options)
        seconds["start the JVM"] = time.monotonic() - before
        return gateway

    context.launch_gateway = _launch
else:
    from share_state.pipeline import executor  # noqa: F401
seconds["imports"] = time.monotonic() - begun
atexit.register(lambda: Path(target).write_text(json.dumps(seconds)))
main(arguments)
