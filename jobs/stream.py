"""Run `share-state stream` under spark-submit, with the same options; spark-submit sets master and memory."""

import sys

from share_state.cli.main import run_job

run_job(["stream", *sys.argv[1:]])
