"""`python -m share_state.config docs/audit-configuration.md` renews the table of keys in that page."""

import sys

from share_state.config.keys_page import main

main(sys.argv[1:])
