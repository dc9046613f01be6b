"""Decoded records as JSON lines."""

import json
import sys
from datetime import datetime
from typing import Any

from share_state.work import Work

_BATCH_ROWS = 10_000


def print_records(work: Work) -> None:
    """Print every record as one JSON object a line, log partition after log partition; nulls are left out."""
    for log in work.logs:
        for table in work.decode(log):
            for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
                lines = (
                    json.dumps(_present(row), ensure_ascii=False, default=datetime.isoformat)
                    for row in batch.to_pylist()
                )
                sys.stdout.write("\n".join(lines) + "\n")


def _present(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}
