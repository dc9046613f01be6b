"""An incident as one HTML page, which loads nothing else: `share-state why --html`."""

from typing import Any

from markupsafe import Markup

from share_state.incidents.incident import Incident
from share_state.incidents.incident_text import incident_facts
from share_state.kafka.delivery_states import state_name
from share_state.report import console
from share_state.report.page import window_svg
from share_state.report.plots.charts import TEMPLATES
from share_state.report.rule_text import describe_rule
from share_state.rules.breaches import INFO

_OK = "ok"


def write_incident_page(path: str, incident: Incident) -> None:
    """Write the page of an incident.

    Raises:
        ReportError: if the file cannot be written; an existing file stays.
    """
    console.write_report(path, render_incident(incident))


def render_incident(incident: Incident) -> str:
    """The page of an incident as text."""
    return TEMPLATES.get_template("incident.html").render(
        group=incident.group_id,
        place=incident.name,
        verdict=incident.heading,
        level=_level(incident),
        cause=incident.cause,
        facts=incident_facts(incident),
        window=_window(incident),
        repair=incident.option.command if incident.option else "",
        commands=incident.commands,
    )


def _level(incident: Incident) -> str:
    if incident.trouble is not None:
        return describe_rule(incident.trouble)["severity"]
    return _OK if incident.is_judged else INFO


def _window(incident: Incident) -> Markup | None:
    ranges: list[dict[str, Any]] = [
        {
            "first_offset": first,
            "last_offset": last,
            "state": state_name(int(state)),
            "delivery_count": count,
            "gap": first in incident.status.gaps,
        }
        for first, last, state, count in incident.status.ranges
    ]
    return window_svg(ranges, incident.limit, "w") if ranges else None
