"""Decoded records as JSON lines."""

import sys

from share_state.report.json_lines import json_lines
from share_state.work import Work

_ROWS_AT_A_TIME = 10_000


def print_records(work: Work) -> None:
    """Print every record as one JSON object a line, log partition after log partition; nulls are left out."""
    for log in work.logs:
        for table in work.decode(log):
            for batch in table.to_batches(max_chunksize=_ROWS_AT_A_TIME):
                sys.stdout.write(json_lines(batch))
