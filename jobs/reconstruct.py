"""Run `share-state reconstruct` under spark-submit, with the same options; spark-submit sets master and memory."""

import sys

from share_state.cli.main import run_job

run_job(["reconstruct", *sys.argv[1:]])
