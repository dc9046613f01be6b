"""Where an offset stands, in words, and the sentence that closes an explanation.

`share-state explain`: what became of one offset, record by record, and how it stands in one sentence.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from share_state.errors import InputError
from share_state.fold.control_log import decode_control_log
from share_state.fold.explain import Explanation, Holders, Place, Standing, Touch, explain, explain_control, holders
from share_state.fold.groups import completed, fold_groups, names_of
from share_state.fold.interval_merge import ACKNOWLEDGED, ACQUIRED, ARCHIVED, ARCHIVING, STATE_NAMES
from share_state.fold.log import decode_log
from share_state.fold.options import Chosen
from share_state.pipeline.plan import Work
from share_state.report.console import moment, print_table, printable, say
from share_state.sources.discovery import STATE_TOPIC, LogPartition, find_group_logs, group_partition_of

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
    return f"Offset {told.offset}: {_closing_text(told, limit, time_of)}{doubt if told.is_suspect else ''}."


def _closing_text(told: Explanation, limit: int, time_of: Callable[[int], datetime | None]) -> str:
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


_SHOWN = 5


def explained(work: Work, inputs: Sequence[str], group: str, topic: str, partition: int, offset: int) -> dict[str, Any]:
    """Everything that the logs say of one offset.

    Args:
        work: the log partitions, and which of their records count.
        inputs: what the person named; logs of `__consumer_offsets` among them tell the members, where `work` has none.
        group, topic, partition: the share-partition; the topic by name, where that is known, or by id.
        offset: of the topic-partition.
    Returns:
        Plain data: the share-partition, `records` in log order (what each said, where the offset stood before and
        after, deliveries so far, members that had the partition), where it stands now, and `sentence`.
    Raises:
        InputError: if no record of the share-partition is there.
    """
    if offset < 0:
        raise InputError(f"--offset {offset}: give an offset from 0 on")
    group_logs = _group_logs(work, inputs)
    if topic not in names_of(work.topics).values() and group_logs:
        work = replace(work, topics=completed(work.topics, fold_groups(group_logs).names))
    chosen = Chosen(group, topic, partition)
    found: list[Explanation] = []
    for logs in _likely_first(work, chosen):
        found = found or [told for log in logs for told in _of_log(work, log, chosen, offset)]
    if not found:
        raise InputError(_nothing(work, chosen))
    # A topic that was made again has one name and two ids, and only the newer lives.
    told, *others = sorted(found, key=lambda one: one.last_timestamp, reverse=True)
    held = holders(group_logs, told.group_id, told.topic_id, told.partition) if told.topic_id else Holders()
    return _plain(told, held, others, work.limits.delivery_count)


def print_explained(found: Mapping[str, Any]) -> None:
    """Print what `explained` found: a line a record, and the sentence."""
    topic = found["topic"] or found["topic_id"]
    said = printable(f"group {found['group_id']}, topic {topic}, partition {found['partition']}")
    say(f"{said}, offset {found['offset']} ({found['log']})")
    for other in found["others"]:
        say(f"  (not told here: topic id {other['topic_id']} in {other['log']})")
    say()
    columns = ["RECORD", "TIME", "KIND", "SAID", "STANDING", "DELIVERIES", "SPSO", "SPEO"]
    has_members = any(record["members"] is not None for record in found["records"])
    rows = [
        [
            record["offset"],
            f"{record['timestamp']:%Y-%m-%d %H:%M:%S.%f}"[:-3] if record["timestamp"] else None,
            record["kind"],
            record["said"],
            record["standing"],
            record["deliveries"],
            record["start_offset"],
            record["end_offset"],
            *(["-" if record["members"] is None else ", ".join(record["members"]) or "nobody"] if has_members else []),
        ]
        for record in found["records"]
    ]
    numeric = ("RECORD", "DELIVERIES", "SPSO", "SPEO")
    print_table([*columns, *(["ASSIGNED TO"] if has_members else [])], rows, numeric=numeric)
    say()
    say(found["sentence"])


def _of_log(work: Work, log: LogPartition, chosen: Chosen, offset: int) -> list[Explanation]:
    if log.topic == STATE_TOPIC:
        return explain([log], [work.window_of(log)], chosen, offset, work.topics)
    told = explain_control(log, work.window_of(log), chosen, offset, work.control.mode)
    return [told] if told else []


def _group_logs(work: Work, inputs: Sequence[str]) -> list[LogPartition]:
    """The group side that came with the logs, or what the inputs hold of it."""
    if work.groups is not None:
        return list(work.groups.logs)
    try:
        return find_group_logs(inputs)
    except InputError:
        # The state logs alone are an export, too.
        return []


def _likely_first(work: Work, chosen: Chosen) -> list[list[LogPartition]]:
    """The logs in which the broker keeps the share-partition, then the others."""
    if not work.state_partitions:
        return [list(work.logs)]
    ids = [topic_id for topic_id, name in names_of(work.topics).items() if name == chosen.topic]
    homes = {
        group_partition_of(f"{chosen.group_id}:{topic_id}:{chosen.partition}", work.state_partitions)
        for topic_id in (*ids, chosen.topic)
    }
    likely = [log for log in work.logs if log.partition in homes]
    return [likely, [log for log in work.logs if log.partition not in homes]]


def _nothing(work: Work, chosen: Chosen) -> str:
    """Why nothing was found, and what there is."""
    groups: dict[str, set[tuple[str, int]]] = {}
    for log in work.logs:
        if log.topic != STATE_TOPIC:
            for _, seen_groups in decode_control_log(log, work.window_of(log)):
                for group in seen_groups.names().to_pylist():
                    groups.setdefault(group, set()).add((log.topic, log.partition or 0))
            continue
        seen = [keys for _, keys in decode_log(log, work.window_of(log))]
        if not seen:
            continue
        names, ids, partitions = seen[-1].columns()
        rows = zip(*(column.to_pylist() for column in (names, ids, work.topics.name_of(ids), partitions)), strict=True)
        for group, topic_id, name, partition in rows:
            shown = topic_id if chosen.topic == topic_id else name or topic_id
            groups.setdefault(group, set()).add((shown, partition))
    if chosen.group_id not in groups:
        return f"--group {chosen.group_id}: no record of it here; there are {_some(sorted(groups))}"
    known = groups[chosen.group_id]
    of_topic = sorted(number for name, number in known if name == chosen.topic)
    if of_topic:
        return f"--partition {chosen.partition}: no record of it here; there are {_some(of_topic)}"
    listed = _some(sorted({name for name, _ in known}))
    return f"--topic {chosen.topic}: no record of it here; group {chosen.group_id} has {listed} (--topics tells names)"


def _some(names: Sequence[Any]) -> str:
    listed = ", ".join(map(str, names[:_SHOWN])) or "none"
    return listed if len(names) <= _SHOWN else f"{listed} and {len(names) - _SHOWN} more"


def _plain(told: Explanation, held: Holders, others: Sequence[Explanation], limit: int) -> dict[str, Any]:
    records, deliveries = [], 0
    for touch in told.touches:
        deliveries = _deliveries(touch, deliveries)
        records.append(_record(touch, deliveries, held))
    return {
        "group_id": told.group_id,
        "topic_id": told.topic_id,
        "topic": told.topic,
        "partition": told.partition,
        "offset": told.offset,
        "log": told.log,
        "records": records,
        "place": str(told.standing.place),
        "delivery_state": told.standing.state,
        "delivery_count": told.standing.delivery_count,
        "deliveries": deliveries,
        "start_offset": told.start_offset,
        "effective_start_offset": told.effective_start,
        "end_offset": told.end_offset,
        "gap": told.gap,
        "suspect": told.is_suspect,
        "last_record": told.last_offset,
        "others": [{"topic_id": other.topic_id, "log": other.log} for other in others],
        "sentence": verdict(told, limit, moment_of),
    }


def _record(touch: Touch, deliveries: int, held: Holders) -> dict[str, Any]:
    before, after = standing_words(touch.before), standing_words(touch.after)
    members = held.at(touch.timestamp)
    return {
        "offset": touch.offset,
        "timestamp": moment_of(touch.timestamp),
        "kind": touch.kind,
        "said": _said(touch),
        "standing": after if before == after else f"{before} -> {after}",
        "changed": touch.before != touch.after,
        "place": str(touch.after.place),
        "delivery_state": touch.after.state,
        "delivery_count": touch.after.delivery_count,
        "deliveries": deliveries,
        "start_offset": touch.start_offset,
        "end_offset": touch.end_offset,
        "snapshot_epoch": touch.snapshot_epoch,
        "state_epoch": touch.state_epoch,
        "leader_epoch": touch.leader_epoch,
        "delivery_complete_count": touch.delivery_complete_count,
        "members": None if members is None else list(members),
    }


def _deliveries(touch: Touch, before: int) -> int:
    """How often the log says that the offset was delivered, by this record."""
    if touch.after.delivery_count is not None:
        return touch.after.delivery_count
    return before if touch.after.place in (Place.BELOW_START, Place.UNKNOWN) else 0


def _said(touch: Touch) -> str:
    if not touch.is_readable:
        return "cannot be read"
    if touch.kind == "tombstone":
        return "deleted"
    ranges = [f"{_span(first, last)} {state_name(state)} ({count})" for first, last, state, count in touch.ranges]
    start = [f"SPSO {touch.start_said}"] if touch.start_said != -1 else []
    return f"{'the same again: ' if touch.is_cold else ''}{', '.join([*ranges, *start]) or 'no range, no SPSO'}"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def moment_of(milliseconds: int) -> datetime | None:
    """A record's stamp; None where there is none, or no calendar holds it."""
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds) if milliseconds > 0 else None
    except OverflowError:
        return None
