"""An incident as text: one screen of 80 columns, the cause first."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from textwrap import wrap

from share_state.errors import pluralize
from share_state.fold.durations import duration_text
from share_state.incidents.incident import Incident
from share_state.kafka.delivery_states import ACKNOWLEDGED, ARCHIVED, ARCHIVING, state_name
from share_state.repairs.remedies import HARM
from share_state.repairs.repair_plan import describe_effect, describe_ranges
from share_state.report.audit_text import outcomes_text
from share_state.report.console import UNKNOWN, format_name, format_number, format_time

WIDTH = 80
_WIDEST = 110
_LABEL = 11
_CELLS = 60
_MOST_OTHERS = 3


def screen_width() -> int:
    """The columns of the terminal; 80 where there is none."""
    if not sys.stdout.isatty():
        return WIDTH
    return max(WIDTH, min(_WIDEST, shutil.get_terminal_size((WIDTH, 24)).columns))


def incident_lines(incident: Incident, width: int = WIDTH, *, has_picture: bool = False) -> Iterator[str]:
    """The lines of the screen.

    Args:
        incident: the incident.
        width: columns.
        has_picture: whether the window is drawn.
    """
    yield from _wrapped("", f"{_verdict(incident)}: {_place(incident)}: {incident.cause}", width, indent=2)
    yield from _facts(incident, width)
    if has_picture and (picture := window_picture(incident)):
        yield from picture
    if incident.story is not None:
        for place, sentence in enumerate(incident.story.sentences):
            yield from _wrapped("" if place else "history", sentence, width)
    yield from _hour(incident, width)
    yield from _rest_of_group(incident, width)
    yield from _option(incident, width)
    for line in incident.unknown:
        yield from _wrapped("not known", line, width)
    yield "go on with"
    yield from (f"  {command}" for command in incident.commands)


def _verdict(incident: Incident) -> str:
    return incident.trouble or "OK"


def _place(incident: Incident) -> str:
    return f"{format_name(incident.group_id)} {format_name(incident.name)}"


def _facts(incident: Incident, width: int) -> Iterator[str]:
    if incident.since is not None:
        ago = ""
        if incident.time is not None:
            ago = f", for {duration_text(round((incident.time - incident.since).total_seconds() * 1000))}"
        yield from _wrapped("since", f"{format_time(incident.since)}{ago}", width)
    row, waits = incident.status.row, incident.waits_for
    start = row["effective_start_offset"]
    text = f"{format_number(None if start is None or start < 0 else start)}"
    if waits is not None:
        span = f"{waits.first:,}" if waits.first == waits.last else f"{waits.first:,} to {waits.last:,}"
        limit = f"{'at least ' * incident.limit_is_observed}{incident.limit}"
        state = "a gap: the log shows no delivery" if waits.is_gap else state_name(waits.state)
        text += f", waits for {span}: {state}" + f" after delivery {waits.count} of {limit}" * (
            waits.count > 0
        )
    else:
        text += ", nothing in flight is unfinished"
    yield from _wrapped("SPSO", text, width)
    lag = UNKNOWN if row["lag"] is None else pluralize(row["lag"], "record")
    yield from _wrapped(
        "lag", f"{lag}; SPEO {format_number(row['end_offset'])}, {_in_flight(incident)}", width
    )


def _in_flight(incident: Incident) -> str:
    counts = dict[str, int]()
    for batch in incident.status.ranges:
        name = "gap" if batch[0] in incident.status.gaps else state_name(int(batch[2]))
        counts[name] = counts.get(name, 0) + batch[1] - batch[0] + 1
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "nothing in flight"


def _hour(incident: Incident, width: int) -> Iterator[str]:
    if incident.outcomes is not None:
        yield from _wrapped("last hour", outcomes_text(incident.outcomes), width)


def _rest_of_group(incident: Incident, width: int) -> Iterator[str]:
    if incident.repair is not None and incident.repair.also:
        yield from _wrapped("also", ", ".join(incident.repair.also), width)
    others = [f"{format_name(name)} {code}" for name, code in incident.others]
    shown = others[:_MOST_OTHERS] + [f"{len(others) - _MOST_OTHERS:,} more"] * (len(others) > _MOST_OTHERS)
    if shown or incident.healthy:
        healthy = [f"{pluralize(incident.healthy, 'share-partition')} without trouble"] * (
            incident.healthy > 0
        )
        yield from _wrapped("the group", "; ".join([*shown, *healthy]), width)


def _option(incident: Incident, width: int) -> Iterator[str]:
    option = incident.option
    if option is None:
        return
    yield from _wrapped("repair", f"{option.title} ({HARM[option.harm]}): {option.what}", width)
    if option.until is not None:
        yield from _wrapped("", f"until {format_time(option.until)}", width)
    if option.effect is not None:
        yield from _wrapped("", f"then {describe_effect(option.effect)}", width)
        if option.effect.skipped or option.effect.delivered_again:
            skipped, again = (
                describe_ranges(one, 5) for one in (option.effect.skipped, option.effect.delivered_again)
            )
            yield from _wrapped("", f"skipped {skipped}; delivered again {again}", width)


def _wrapped(label: str, text: str, width: int, indent: int = _LABEL) -> list[str]:
    first = label.ljust(indent) if indent == _LABEL else ""
    return wrap(
        text, width, initial_indent=first, subsequent_indent=" " * indent, break_on_hyphens=False
    ) or [first]


_CELL_ORDER = ("waiting", "archiving", "finished")


def window_picture(incident: Incident, cells: int = _CELLS, *, is_plain: bool = False) -> list[str]:
    """The window from SPSO to SPEO as a bar: the least finished state in a cell is shown."""
    row, ranges = incident.status.row, incident.status.ranges
    start, end = row["effective_start_offset"], row["end_offset"]
    if not ranges or start is None or start < 0 or end is None or end <= start:
        return []
    count = min(cells, end - start)
    marks = _marks(incident, start, end, count)
    glyphs = (
        {"waiting": "!", "gap": "?", "archiving": "a", "finished": "#"}
        if is_plain
        else {
            "waiting": "▒",
            "gap": "░",
            "archiving": "◆",
            "finished": "█",
        }
    )
    bar = "".join(glyphs[mark] for mark in marks)
    legend = ", ".join(f"{glyphs[name]} {name}" for name in glyphs if name in marks)
    return [f"{'window'.ljust(_LABEL)}{bar}", f"{' ' * _LABEL}{start:,} to {end:,}: {legend}"]


def _marks(incident: Incident, start: int, end: int, count: int) -> Sequence[str]:
    order = ("finished", "archiving", "gap", "waiting")
    marks = [0] * count
    for first, last, state, _ in incident.status.ranges:
        if last < start:
            continue
        name = "waiting"
        if first in incident.status.gaps:
            name = "gap"
        elif state in (ACKNOWLEDGED, ARCHIVED):
            name = "finished"
        elif state == ARCHIVING:
            name = "archiving"
        low = (max(first, start) - start) * count // (end - start)
        high = (min(last, end - 1) - start) * count // (end - start)
        for cell in range(low, high + 1):
            marks[cell] = max(marks[cell], order.index(name))
    return [order[mark] for mark in marks]
