"""An incident as text: one screen of 80 columns, the cause first."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from textwrap import wrap

from share_state.errors import pluralize
from share_state.incidents.incident import Incident
from share_state.kafka.delivery_states import ACKNOWLEDGED, ARCHIVED, ARCHIVING, state_name
from share_state.repairs.repair_plan import describe_effect, describe_ranges
from share_state.repairs.subject import HARM
from share_state.report.audit_text import outcomes_text
from share_state.report.console import UNKNOWN, format_duration, format_name, format_number, format_time
from share_state.report.share_partitions import NO_BEGINNING

WIDTH = 80
_WIDEST = 110
_LABEL = 11
_CELLS = 60
_MOST_OTHERS = 3
_MOST_LINES = 3
"""Of the commands of the first option."""
_GLYPHS = {"waiting": "▒", "gap": "░", "archiving": "◆", "finished": "█"}
"""What a cell of the window shows, the least finished first."""


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
    place = f"{format_name(incident.group_id)} {format_name(incident.name)}"
    yield from _wrapped("", f"{incident.heading}: {place}: {incident.cause}", width, indent=2)
    for label, texts in incident_facts(incident):
        for number, text in enumerate(texts):
            yield from _wrapped("" if number else label, text, width)
        if has_picture and label == "lag":
            yield from window_picture(incident)
    yield "go on with"
    repair = incident.option.command.splitlines() if incident.option is not None else []
    # Longer ones are in the plan of `repair`.
    shown = repair if len(repair) <= _MOST_LINES else []
    yield from (f"  {command}" for command in (*shown, *incident.commands))


def incident_facts(incident: Incident) -> list[tuple[str, list[str]]]:
    """What is known of the incident: labels and their sentences, in the order of the screen."""
    facts = [
        ("since", _since(incident)),
        ("SPSO", [_start(incident)]),
        ("lag", [_lag(incident)]),
        ("history", list(incident.story.sentences) if incident.story is not None else []),
        ("last hour", [] if incident.outcomes is None else [outcomes_text(incident.outcomes)]),
        ("also", [", ".join(incident.repair.also)] if incident.repair and incident.repair.also else []),
        ("the group", _rest_of_group(incident)),
        ("repair", _option(incident)),
        ("not known", list(incident.unknown)),
    ]
    return [(label, texts) for label, texts in facts if texts]


def _since(incident: Incident) -> list[str]:
    if incident.since is None:
        return []
    ago = ""
    if incident.time is not None:
        ago = f", for {format_duration(incident.since, incident.time)}"
    return [f"{format_time(incident.since)}{ago}"]


def _start(incident: Incident) -> str:
    row, waits = incident.status.row, incident.waits_for
    start = row["effective_start_offset"]
    text = format_number(None if start is None or start < 0 else start)
    if waits is None:
        none = _nothing(incident, "nothing in flight is unfinished", "what it waits for is not known")
        return f"{text}, {none}"
    span = f"{waits.first:,}" if waits.first == waits.last else f"{waits.first:,} to {waits.last:,}"
    limit = f"{'at least ' * incident.limit_is_observed}{incident.limit}"
    state = "a gap: the log shows no delivery" if waits.is_gap else state_name(waits.state)
    return f"{text}, waits for {span}: {state}" + f" after delivery {waits.count} of {limit}" * (
        waits.count > 0
    )


def _lag(incident: Incident) -> str:
    row = incident.status.row
    lag = UNKNOWN if row["lag"] is None else pluralize(row["lag"], "record")
    return f"{lag}; SPEO {format_number(row['end_offset'])}, {_in_flight(incident)}"


def _in_flight(incident: Incident) -> str:
    counts = dict[str, int]()
    for batch in incident.status.ranges:
        name = "gap" if batch[0] in incident.status.gaps else state_name(int(batch[2]))
        counts[name] = counts.get(name, 0) + batch[1] - batch[0] + 1
    recorded = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    return recorded or _nothing(incident, "nothing in flight", "what is in flight is not known")


def _nothing(incident: Incident, known: str, unknown: str) -> str:
    """That nothing is recorded; of a suspect state, that it is not known."""
    row = incident.status.row
    if not row["suspect"]:
        return known
    return f"{unknown}: {NO_BEGINNING if row['snapshot_offset'] is None else 'its state cannot be trusted'}"


def _rest_of_group(incident: Incident) -> list[str]:
    others = [f"{format_name(name)} {code}" for name, code in incident.others]
    shown = others[:_MOST_OTHERS] + [f"{len(others) - _MOST_OTHERS:,} more"] * (len(others) > _MOST_OTHERS)
    if incident.healthy:
        shown.append(f"{pluralize(incident.healthy, 'other share-partition')} without trouble")
    return ["; ".join(shown)] if shown else []


def _option(incident: Incident) -> list[str]:
    option = incident.option
    if option is None:
        return []
    lines = [f"{option.title} ({HARM[option.harm]}): {option.what}"]
    if option.until is not None:
        lines.append(f"until {format_time(option.until)}")
    if option.effect is not None:
        lines.append(f"then {describe_effect(option.effect)}")
        skipped, again = option.effect.skipped, option.effect.delivered_again
        if skipped or again:
            lines.append(
                f"skipped {describe_ranges(skipped, 5)}; delivered again {describe_ranges(again, 5)}"
            )
    return lines


def _wrapped(label: str, text: str, width: int, indent: int = _LABEL) -> list[str]:
    first = label.ljust(indent) if indent == _LABEL else ""
    return wrap(
        text, width, initial_indent=first, subsequent_indent=" " * indent, break_on_hyphens=False
    ) or [first]


def window_picture(incident: Incident) -> list[str]:
    """The window from SPSO to SPEO as a bar: the least finished state in a cell is shown."""
    row, ranges = incident.status.row, incident.status.ranges
    start, end = row["effective_start_offset"], row["end_offset"]
    if not ranges or start is None or start < 0 or end is None or end <= start:
        return []
    count = min(_CELLS, end - start)
    marks = _marks(incident, start, end, count)
    bar = "".join(_GLYPHS[mark] for mark in marks)
    legend = ", ".join(f"{glyph} {name}" for name, glyph in _GLYPHS.items() if name in marks)
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
