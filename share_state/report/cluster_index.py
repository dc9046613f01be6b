"""The index of several clusters (`report.index`): one HTML file, which the audit of each cluster updates.

It keeps its rows as JSON in itself, so that it is all there is: an audit reads it, replaces its own row, and writes the
file anew under a lock.
"""

import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from share_state.report.audit_data import AuditReport
from share_state.report.audit_text import audit_level, headline
from share_state.report.console import ReportError, write_report
from share_state.report.plots.charts import TEMPLATES
from share_state.rules.breaches import ERROR, WARNING

_LOG = logging.getLogger("share_state")
_LEVELS = (ERROR, WARNING)
_ROWS = re.compile(r'<script type="application/json" id="rows">(.*?)</script>', re.DOTALL)
_FIELDS = {
    "cluster": str,
    "level": str,
    "headline": str,
    "flagged": int,
    "errors": int,
    "warnings": int,
    "statuses": dict,
    "finished": str,
    "log_time": str | None,
    "page": str | None,
    "warehouse": str,
}
_WAIT_SECONDS, _STEP_SECONDS = 10.0, 0.05
_OVERDUE = timedelta(days=1, hours=12)
"""A cluster whose audit is older than this, compared with the latest of all, has missed a night."""


def write_index(path: str, report: AuditReport, page: str | None) -> None:
    """Put the row of a cluster into the index; other rows stay.

    Args:
        path: of the index.
        report: of the cluster's audit.
        page: path of its page; None for none.
    Raises:
        ReportError: if the file cannot be written, or is something else.
    """
    with _locked(path):
        rows = read_index(path)
        own = _row(path, report, page)
        rows[own["cluster"]] = own
        write_report(path, render_index([*rows.values()]))


def read_index(path: str) -> dict[str, dict[str, Any]]:
    """The rows of an index by cluster; none if there is no file yet, or it is empty.

    Raises:
        ReportError: if the file is something else, or damaged.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ReportError(f"{path}: cannot be read ({error}); delete it, or give another file") from None
    if not text.strip():
        return {}
    found = _ROWS.search(text)
    try:
        rows = json.loads(found[1]) if found else None
    except ValueError:
        rows = None
    if not isinstance(rows, list) or not all(map(_is_row, rows)):
        raise ReportError(f"{path}: is no index of clusters; give another file, or delete it to begin anew")
    return {row["cluster"]: row for row in rows}


def _is_row(row: object) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(name), kind) for name, kind in _FIELDS.items())


def _row(path: str, report: AuditReport, page: str | None) -> dict[str, Any]:
    """The row of a cluster; its name is the warehouse if it has none."""
    log_time = report.log_time
    here = Path(path).resolve().parent
    return {
        "cluster": report.cluster or report.warehouse,
        "level": audit_level(report),
        "headline": headline(report),
        "flagged": len(report.flagged) + report.flagged_left_out,
        "errors": report.by_severity[ERROR],
        "warnings": report.by_severity[WARNING],
        "statuses": dict(report.statuses),
        "finished": report.run["finished"].isoformat(),
        "log_time": None if log_time is None else log_time.isoformat(),
        # Relative, so that the folder can be served or copied.
        "page": None if page is None else os.path.relpath(Path(page).resolve(), here),
        "warehouse": report.warehouse,
    }


def render_index(rows: Sequence[Mapping[str, Any]]) -> str:
    """The index as text, the worst cluster first."""
    times = [datetime.fromisoformat(row["finished"]) for row in rows]
    latest = max(times)
    shown = [
        {**row, "finished": time, "is_overdue": latest - time > _OVERDUE}
        for row, time in zip(rows, times, strict=True)
    ]
    shown.sort(key=_worst_first)
    # No text of a row can end the script or open a comment in it.
    kept = json.dumps(sorted(rows, key=lambda row: row["cluster"])).replace("<", "\\u003c")
    return TEMPLATES.get_template("index.html").render(rows=shown, kept=kept)


def _worst_first(row: Mapping[str, Any]) -> tuple[Any, ...]:
    level = _LEVELS.index(row["level"]) if row["level"] in _LEVELS else len(_LEVELS)
    return level, not row["is_overdue"], -row["errors"], -row["flagged"], -row["warnings"], row["cluster"]


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the lock of an index, a file beside it.

    After a while, or where the file system has no locks, go on without: the file is always replaced as a whole, and
    a row that a concurrent writer loses comes back with the next audit.
    """
    target = Path(path).resolve()
    name = target.with_name(f".{target.name}.lock")
    try:
        lock = name.open("w", encoding="utf-8")
    except OSError as error:
        _LOG.info("%s: is updated without a lock (%s)", path, error.strerror)
        yield
        return
    with lock:
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    _LOG.warning("%s: another audit has held its lock for long; updated without it", path)
                    break
                time.sleep(_STEP_SECONDS)
            except OSError as error:
                _LOG.info("%s: is updated without a lock (%s)", path, error.strerror)
                break
        yield
