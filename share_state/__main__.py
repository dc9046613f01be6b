"""`python -m share_state` is `share-state`."""

from share_state.cli.main import main

main()
