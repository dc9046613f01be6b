"""`python -m share_state` is `share-state`."""

from share_state.start import main

main()
