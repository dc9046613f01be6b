"""`share-state reconstruct` under spark-submit: the same options, Spark's own master and memory."""

import sys

from share_state.start import main

main(["reconstruct", *sys.argv[1:]])
