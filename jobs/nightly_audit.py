"""Run `share-state audit` under spark-submit, with the same options; spark-submit sets master and memory."""

import sys

from share_state.cli.main import run_job

run_job(["audit", *sys.argv[1:]])
