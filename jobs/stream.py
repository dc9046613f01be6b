"""Run `share-state stream` under spark-submit, with the same options; spark-submit sets master and memory."""

import sys

from share_state.cli.main import main

main(["stream", *sys.argv[1:]])
