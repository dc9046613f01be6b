"""The page that people open after a nightly audit: one HTML file that needs nothing but itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from share_state.report import words
from share_state.report.advice import advice, counted, headline, level, show_command
from share_state.report.audit_data import AuditReport
from share_state.report.pictures import DRAWN_ONE_BY_ONE, history_picture, window_picture
from share_state.report.report_file import write_whole
from share_state.report.share_partitions import STATES
from share_state.report.troubled import TroubledSharePartition
from share_state.rules import SEVERITIES

_FIRST_RANGES = 8
_NEAR_THE_START = 40
_CUTOFFS = 60
_RUNS = 30
_POISON = 20


@dataclass(frozen=True, slots=True)
class _Card:
    """A troubled share-partition, ready for the page."""

    about: TroubledSharePartition
    states: str
    window: Markup | None
    near_start: Markup | None
    history: Markup | None
    first_ranges: tuple[Mapping[str, Any], ...]
    command: str | None


def write_page(path: str, report: AuditReport) -> None:
    """Write the page of an audit.

    Args:
        path: of the HTML file; it refers to nothing outside itself.
        report: what `read_report` returned.
    Raises:
        ReportError: if the file cannot be written; what was there before stays.
    """
    write_whole(path, page(report))


def page(report: AuditReport) -> str:
    """The page of an audit as text."""
    environment = Environment(
        loader=PackageLoader("share_state.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    told = (words.number, words.moment, words.size, words.name, counted)
    environment.filters.update({one.__name__: one for one in told})
    return environment.get_template("page.html").render(
        report=report,
        level=level(report),
        headline=headline(report),
        advice=advice(report),
        cards=[_card(report, one, f"p{place}") for place, one in enumerate(report.troubled, 1)],
        severities=SEVERITIES,
        cutoffs=report.cutoffs[:_CUTOFFS],
        poison=report.poison.worst[:_POISON],
        runs=report.runs[:_RUNS],
        span=words.span,
    )


def _card(report: AuditReport, one: TroubledSharePartition, name: str) -> _Card:
    ranges, limit = one.ranges, report.limits.delivery_count
    return _Card(
        about=one,
        states=_states(one.now),
        window=window_picture(ranges, limit, f"{name}w") if ranges else None,
        near_start=window_picture(ranges[:_NEAR_THE_START], limit, f"{name}n") if _are_many(one) else None,
        history=history_picture(one.history, f"{name}h"),
        first_ranges=ranges[:_FIRST_RANGES],
        command=show_command(report.warehouse, one.now),
    )


def _are_many(one: TroubledSharePartition) -> bool:
    return len(one.ranges) > DRAWN_ONE_BY_ONE


def _states(now: Mapping[str, Any]) -> str:
    """Records in flight by state; what waits or is stuck first."""
    return ", ".join(f"{now[state.lower()]:,} {state.lower()}" for state in STATES if now[state.lower()])
