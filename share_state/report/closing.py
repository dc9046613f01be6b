"""Where an offset stands, in words, and the sentence that closes an explanation."""

from collections.abc import Callable
from datetime import datetime

from share_state.fold.explain import Explanation, Place, Standing, Touch
from share_state.fold.ranges import ACKNOWLEDGED, ACQUIRED, ARCHIVED, ARCHIVING, STATE_NAMES
from share_state.report.words import moment

_WORDS = {
    Place.UNKNOWN: "unknown",
    Place.DELETED: "no state",
    Place.UNINITIALISED: "no start yet",
    Place.BELOW_START: "below SPSO",
    Place.GAP: "gap",
    Place.BEYOND_END: "beyond SPEO",
}


def state_name(code: int) -> str:
    """The name of a delivery state."""
    return STATE_NAMES.get(code, f"UNKNOWN({code})")


def standing_words(standing: Standing) -> str:
    """Where an offset stands, in a few words."""
    if standing.state is None:
        return _WORDS[standing.place]
    return f"{state_name(standing.state)} ({standing.delivery_count})"


def verdict(told: Explanation, limit: int, time_of: Callable[[int], datetime | None]) -> str:
    """The sentence that says what became of an offset.

    Args:
        told: what the log says.
        limit: deliveries before a record is archived.
        time_of: the moment of a record's stamp.
    """
    doubt = "; not to be trusted, because records since the latest snapshot are missing or unreadable"
    return f"Offset {told.offset}: {_said(told, limit, time_of)}{doubt if told.is_suspect else ''}."


def _said(told: Explanation, limit: int, time_of: Callable[[int], datetime | None]) -> str:
    since, place = told.since, told.standing.place
    if since is None:
        return "no record of the share-partition can be read"
    when = f"{moment(time_of(since.timestamp))} (record {since.offset})"
    if place == Place.DELETED:
        return f"nothing is kept of it; the state of the share-partition was deleted at {when}"
    if place == Place.UNINITIALISED:
        return "never delivered: the share-partition has no start offset yet"
    if place == Place.GAP and told.gap is not None:
        return f"never delivered: inside a gap ({told.gap[0]} to {told.gap[1]}), which a leader hands out as available"
    if place == Place.BEYOND_END:
        return f"never delivered: beyond SPEO, the in-flight window ends at {told.end_offset}"
    if place == Place.BELOW_START:
        return _below(told, since, when, limit)
    return _in_flight(told, when, limit)


def _below(told: Explanation, since: Touch, when: str, limit: int) -> str:
    moved = f"below SPSO since {when}"
    if since.before.place in (Place.UNKNOWN, Place.DELETED):
        return f"{moved}, which began the state with SPSO {since.start_offset}; what the log says does not reach it"
    if since.before.place == Place.UNINITIALISED:
        return f"{moved}, which set the first SPSO, {since.start_offset}: the group never wanted it"
    step = f"{moved}, which moved SPSO from {since.start_before} to {since.start_offset}"
    # The record that moves SPSO may itself say how it ended.
    said = [Standing(Place.IN_FLIGHT, state, count) for _, _, state, count in since.ranges]
    ends = [one for one in (*said, since.before) if one.place == Place.IN_FLIGHT and one.is_finished]
    if ends:
        return f"{_finished(ends[0], limit)}; {step}"
    if since.before.place == Place.IN_FLIGHT:
        return f"{step}; before that it was {standing_words(since.before)}, and its end was never written down"
    return f"{step}; nothing was written of it before"


def _in_flight(told: Explanation, when: str, limit: int) -> str:
    standing, count = told.standing, told.standing.delivery_count or 0
    if standing.is_finished:
        leads = told.effective_start is not None and told.effective_start > told.offset
        waits = (
            f"a leader that loads this state starts behind it, at {told.effective_start}"
            if leads
            else f"SPSO is {told.start_offset} and waits for offset {told.effective_start}"
        )
        return f"{_finished(standing, limit)} at {when}; {waits}"
    if standing.state == ARCHIVING:
        return f"being archived since {when}: its dead-letter write has not finished, and SPSO cannot pass it"
    if standing.state == ACQUIRED:
        return f"acquired in delivery {count} of {limit} since {when}"
    if count < limit:
        return f"waiting for delivery {count + 1} of {limit} since {when}"
    return f"available since {when} though its {count} deliveries reach the limit of {limit}"


def _finished(standing: Standing, limit: int) -> str:
    count = standing.delivery_count or 0
    if standing.state == ACKNOWLEDGED:
        return f"acknowledged in delivery {count}"
    if standing.state == ARCHIVED and count >= limit:
        return f"archived at the delivery limit, in delivery {count} of {limit}"
    return f"archived in delivery {count} of {limit}: rejected, or there was no record to deliver"
