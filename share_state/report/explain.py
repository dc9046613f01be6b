"""`share-state explain`: the history of one offset, record by record, and one sentence that sums it up."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from share_state.errors import InputError
from share_state.fold.dead_letters.matching import letters_of_offset
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.groups.group_tables import add_topic_names, read_topic_names, topic_names
from share_state.fold.offset_history import (
    AssignmentHistory,
    Explanation,
    OffsetState,
    Place,
    Touch,
    assignment_history,
    explain,
)
from share_state.fold.states import to_datetime
from share_state.kafka.delivery_states import ACKNOWLEDGED, ACQUIRED, ARCHIVING, state_name
from share_state.kafka.primitives import partition_for
from share_state.pipeline.plan import FoldPlan
from share_state.report.console import UNKNOWN, format_time, print_line, print_sentence, print_table
from share_state.report.offset_events import earlier_life, has_delivery, is_reset, repeated_deliveries, when
from share_state.report.share_partitions import NO_BEGINNING
from share_state.sources.discovery import find_group_logs
from share_state.sources.input_detection import adjacent_group_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.pruned_logs import read_whole
from share_state.sources.topics import TOPICS_HINT

_EPOCHS = ("snapshot_epoch", "state_epoch", "leader_epoch")
_PLACES = {
    Place.UNKNOWN: "unknown",
    Place.DELETED: "no state",
    Place.UNINITIALISED: "no start yet",
    Place.BELOW_START: "below SPSO",
    Place.GAP: "gap",
    Place.BEYOND_END: "beyond SPEO",
}
_NOT_DELIVERED = (Place.UNINITIALISED, Place.GAP, Place.BEYOND_END)
"""Places in which no delivery of an offset is recorded."""


@dataclass(frozen=True, slots=True)
class DeliveryLimit:
    """The delivery count limit of a share group.

    Attributes:
        count: the limit.
        is_assumed: whether it is not known: Kafka's default, or as many deliveries as the log shows.
        is_observed: whether the log shows so many deliveries.
    """

    count: int
    is_assumed: bool
    is_observed: bool = False


def explain_offset(
    plan: FoldPlan,
    inputs: Sequence[str],
    group: str,
    topic: str,
    partition: int,
    offset: int | None = None,
) -> dict[str, Any]:
    """Find everything that the logs hold about one offset.

    Args:
        plan: the log partitions.
        inputs: the inputs of the command: if the plan has no group side, their logs of `__consumer_offsets`
            give the members.
        group, topic, partition: the share-partition; the topic by name, if that is known, or by id.
        offset: the offset in the topic-partition; by default the first unfinished one, which SPSO waits for.
    Returns:
        Plain data: the share-partition; `records` in log order (contents, the offset's state before and
        after, deliveries so far, members that had the partition); the offset's state now; `sentence`;
        and, if the plan has dead-letter topics, `dead_letters` of the offset.
    Raises:
        InputError: if there is no record of the share-partition, or no offset is given and it has no start offset.
    """
    if offset is not None and offset < 0:
        raise InputError(f"offset={offset}: give an offset from 0 on")
    plan.check_time()
    group_logs = _group_logs(plan, inputs)
    if topic not in topic_names(plan.options.topics).values() and group_logs:
        names = [item for log in group_logs for item in read_topic_names(log).items()]
        plan = plan.with_options(topics=add_topic_names(plan.options.topics, dict(names)))
    selection = SharePartitionFilter(group, topic, partition)
    if offset is None:
        latest, *_ = _explanations(plan, selection, 0)
        offset = _first_unfinished(latest)
    latest, *others = _explanations(plan, selection, offset)
    assignments = AssignmentHistory()
    if latest.topic_id:
        assignments = assignment_history(group_logs, latest.group_id, latest.topic_id, latest.partition)
    limit = _delivery_limit(plan, latest)
    found_json = _explanation_json(latest, assignments, others, limit, _topic_end(plan, latest))
    found_json["delivery_limits"] = _delivery_limits(plan, latest.group_id)
    found_json["sentence"] += _limits_sentence(found_json["delivery_limits"])
    if plan.dead_letters is not None:
        topics = [name for name in (latest.topic, latest.topic_id) if name]
        letters = letters_of_offset(plan.dead_letters, latest.group_id, topics, partition, offset)
        found_json["dead_letters"] = letters.to_pylist()
    return found_json


def _explanations(plan: FoldPlan, selection: SharePartitionFilter, offset: int) -> list[Explanation]:
    """What the logs hold about an offset, the newest share-partition first.

    A topic that was deleted and created again has one name and two ids; only the newer is alive.
    """
    explanations: list[Explanation] = []
    for logs in _likely_first(plan, selection):
        explanations = explanations or [
            one
            for log in logs
            for one in read_whole(
                log,
                lambda part: explain(part, plan.window_of(part), selection, offset, plan.fold_options(part)),
            )
        ]
    if not explanations:
        plan.check(selection)
    return sorted(explanations, key=lambda one: one.last_timestamp, reverse=True)


def _first_unfinished(explanation: Explanation) -> int:
    """The offset that SPSO waits for.

    Raises:
        InputError: if there is no start offset.
    """
    if explanation.offset_state.place == Place.DELETED:
        raise InputError("the state of the share-partition was deleted; give --offset, the offset to explain")
    if explanation.effective_start is None:
        raise InputError("the share-partition has no start offset yet; give --offset, the offset to explain")
    return explanation.effective_start


def _delivery_limit(plan: FoldPlan, explanation: Explanation) -> DeliveryLimit:
    """The delivery limit of the group: at least as many deliveries as the log shows."""
    known = plan.known_limit("delivery_count", explanation.group_id)
    most = max((count for touch in explanation.touches for *_, count in touch.ranges), default=0)
    count = known or plan.options.limits.delivery_count
    return DeliveryLimit(max(count, most), known is None or most > count, most > count)


def _delivery_limits(plan: FoldPlan, group: str) -> list[dict[str, Any]]:
    """The delivery limits that the group had: since when (None for the first one), and the limit.

    Empty if unknown.
    """
    changes = plan.cluster.delivery_limits.get(group, ()) if plan.cluster else ()
    of_cluster = plan.options.limits.delivery_count
    limits = list[dict[str, Any]]()
    if changes and changes[0][0] is not None:
        limits.append({"since": None, "limit": of_cluster})
    for time, own in changes:
        limit = own or of_cluster
        if not limits or limits[-1]["limit"] != limit:
            limits.append(
                {"since": to_datetime(time) if limits and time is not None else None, "limit": limit}
            )
    return limits


def _limits_sentence(limits: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on the delivery limits that the group had, if there were several."""
    if len(limits) < 2:
        return ""
    first, *later = limits
    steps = [f"until {format_time(one['since'])}, then {one['limit']}" for one in later]
    return f" The group's delivery limit was {first['limit']} {' '.join(steps)}."


def _topic_end(plan: FoldPlan, explanation: Explanation) -> int | None:
    """The end offset of the topic-partition; None if it is not known."""
    ids = pa.array([explanation.topic_id], pa.string())
    partitions = pa.array([explanation.partition], pa.int32())
    return plan.options.topics.end_of(ids, partitions)[0].as_py()


def _group_logs(plan: FoldPlan, inputs: Sequence[str]) -> list[LogPartition]:
    if plan.groups is not None:
        return list(plan.groups.logs)
    with suppress(InputError):
        return find_group_logs(inputs)
    with suppress(InputError):
        return list(adjacent_group_logs(inputs, plan.logs))
    return []


def _likely_first(plan: FoldPlan, selection: SharePartitionFilter) -> list[list[LogPartition]]:
    """The logs in which the coordinator keeps the share-partition, then the others."""
    if not plan.state_partitions:
        return [list(plan.logs)]
    ids = [topic_id for topic_id, name in topic_names(plan.options.topics).items() if name == selection.topic]
    homes = {
        partition_for(f"{selection.group_id}:{topic_id}:{selection.partition}", plan.state_partitions)
        for topic_id in (*ids, selection.topic)
    }
    likely = [log for log in plan.logs if log.partition in homes]
    return [likely, [log for log in plan.logs if log.partition not in homes]]


def _explanation_json(
    explanation: Explanation,
    assignments: AssignmentHistory,
    others: Sequence[Explanation],
    limit: DeliveryLimit,
    topic_end: int | None,
) -> dict[str, Any]:
    records, deliveries = [], 0
    for touch in explanation.touches:
        if touch.after.delivery_count is not None:
            deliveries = touch.after.delivery_count
        elif touch.after.place not in (Place.BELOW_START, Place.UNKNOWN):
            deliveries = 0
        records.append(_record_json(touch, deliveries, assignments))
    key = ("group_id", "topic_id", "topic", "partition", "offset", "log")
    return {
        **{name: getattr(explanation, name) for name in key},
        "records": records,
        "place": str(explanation.offset_state.place),
        "delivery_state": explanation.offset_state.state,
        "delivery_count": explanation.offset_state.delivery_count,
        "deliveries": deliveries,
        "delivery_limit": limit.count,
        "delivery_limit_assumed": limit.is_assumed,
        "start_offset": explanation.start_offset,
        "effective_start_offset": explanation.effective_start,
        "end_offset": explanation.end_offset,
        "topic_end_offset": topic_end,
        "gap": explanation.gap,
        "first_gap_start": explanation.first_gap_start,
        "suspect": explanation.is_suspect,
        "beginning_missing": explanation.is_suspect and not explanation.has_base,
        "last_record": explanation.last_offset,
        "others": [{"topic_id": other.topic_id, "log": other.log} for other in others],
        "sentence": summary_sentence(explanation, limit, topic_end),
    }


def _record_json(touch: Touch, deliveries: int, assignments: AssignmentHistory) -> dict[str, Any]:
    before, after = _describe(touch.before), _describe(touch.after)
    members = assignments.at(touch.timestamp)
    return {
        "offset": touch.offset,
        "timestamp": to_datetime(touch.timestamp),
        "kind": touch.kind,
        "said": _contents(touch),
        "standing": after if before == after else f"{before} -> {after}",
        "changed": touch.before != touch.after,
        "place": str(touch.after.place),
        "delivery_state": touch.after.state,
        "delivery_count": touch.after.delivery_count,
        "deliveries": deliveries,
        **{name: getattr(touch, name) for name in ("start_offset", "end_offset", *_EPOCHS)},
        "delivery_complete_count": None
        if touch.delivery_complete_count == -1
        else touch.delivery_complete_count,
        "members": None if members is None else list(members),
    }


def _contents(touch: Touch) -> str:
    """The ranges of a record that contain the offset, and its SPSO, as text."""
    if not touch.is_readable:
        return "cannot be read"
    if touch.kind == "tombstone":
        return "deleted"
    parts = [
        f"{first if first == last else f'{first}-{last}'} {state_name(state)} ({count})"
        for first, last, state, count in touch.ranges
    ]
    parts += [f"SPSO {touch.recorded_start}"] if touch.recorded_start != -1 else []
    return f"{'unchanged: ' if touch.is_cold else ''}{', '.join(parts) or 'no range, no SPSO'}"


def _describe(offset_state: OffsetState) -> str:
    if offset_state.state is None:
        return _PLACES[offset_state.place]
    return f"{state_name(offset_state.state)} ({offset_state.delivery_count})"


def summary_sentence(explanation: Explanation, limit: DeliveryLimit, topic_end: int | None = None) -> str:
    """The sentence that sums up the history of an offset.

    Args:
        explanation: what the log holds about it.
        limit: the delivery limit of the group.
        topic_end: end offset of the topic-partition; None if it is not known.
    """
    doubt = ""
    if explanation.is_suspect:
        cause = "records since the latest snapshot are missing or unreadable"
        doubt = f"; not to be trusted, because {cause if explanation.has_base else NO_BEGINNING}"
    return f"Offset {explanation.offset}: {_summary(explanation, limit, topic_end)}{doubt}."


def _summary(explanation: Explanation, limit: DeliveryLimit, topic_end: int | None) -> str:
    if topic_end is not None and explanation.offset >= topic_end:
        return _summary_beyond_topic(explanation, limit, topic_end)
    since, place = explanation.since, explanation.offset_state.place
    if since is None:
        late = f"; {NO_BEGINNING}" if explanation.begins_late else ""
        return f"no record of the share-partition can be read{late}"
    earlier = earlier_life(explanation.touches, lambda state: _held(state, limit))
    if place == Place.DELETED:
        if not has_delivery(explanation.touches):
            return f"no state is kept for it; the state of the share-partition was deleted at {when(since)}"
        return f"{earlier}; no state is kept for it now"
    now = _summary_now(explanation, since, limit, topic_end, has_earlier=earlier is not None)
    return f"{earlier}; {now}" if earlier else now


def _summary_now(
    explanation: Explanation, since: Touch, limit: DeliveryLimit, topic_end: int | None, *, has_earlier: bool
) -> str:
    """The summary of what an offset is since the last event that discarded what it was."""
    place, is_known = explanation.offset_state.place, explanation.has_base or not explanation.is_suspect
    again = " since" * has_earlier
    if not is_known and place in _NOT_DELIVERED:
        unknown = f"it is not known whether it was delivered{again}"
        return f"{unknown}; it is {_PLACES[place]} in the records that are there"
    none = f"no delivery is recorded{again}"
    acquired = "it may be acquired right now"
    if place == Place.UNINITIALISED:
        return f"{none}: the share-partition has no start offset yet; {acquired}"
    leads = explanation.effective_start
    if leads is not None and explanation.offset < leads and not explanation.offset_state.is_finished:
        return f"not delivered any more: the log starts after it, a leader starts at {leads}"
    if place == Place.GAP and explanation.gap is not None:
        first, last = explanation.gap
        where = f"inside a gap ({first} to {last}), which a leader hands out as available"
        if leads is not None and first <= leads <= last:
            where = f"SPSO waits at a gap ({first} to {last}), which a leader hands out as available"
        return f"{none}: {where}; {acquired}"
    if place == Place.BEYOND_END:
        where = f"beyond SPEO, the in-flight window ends at {explanation.end_offset}"
        is_sure = topic_end is not None or has_earlier
        exists = f", or not exist yet: the end of the topic is not known; {TOPICS_HINT}"
        return f"{none}: {where}; {acquired}{'' if is_sure else exists}"
    if place == Place.BELOW_START:
        return _summary_below_start(explanation, since, limit, has_earlier=has_earlier)
    return _summary_in_flight(explanation, when(since), limit)


def _summary_beyond_topic(explanation: Explanation, limit: DeliveryLimit, topic_end: int) -> str:
    """The summary of an offset at or after the end of the topic, as far as that is known."""
    end = f"the end of the topic-partition, {topic_end}"
    is_outside = explanation.offset >= max(explanation.start_offset or 0, explanation.end_offset or 0)
    if is_outside and not has_delivery(explanation.touches):
        return f"no record has this offset: it is not before {end}"
    stale = "the topic was recreated or truncated, or what is known of it is older than the log"
    return f"{_summary(explanation, limit, None)}; but it is not before {end}: {stale}"


def _held(state: OffsetState, limit: DeliveryLimit) -> str:
    """What an in-flight state was, in the past tense."""
    return _final_state(state, limit) if state.is_finished else f"it was {_describe(state)}"


def _summary_below_start(
    explanation: Explanation, since: Touch, limit: DeliveryLimit, *, has_earlier: bool
) -> str:
    moved, begins_late = f"below SPSO since {when(since)}", explanation.begins_late
    older = NO_BEGINNING if begins_late else "the log holds nothing older about it"
    if since.before.place == Place.DELETED and has_earlier:
        return f"{moved}; no record since is about it"
    if since.before.place in (Place.UNKNOWN, Place.DELETED):
        if since.kind == "snapshot" and (since.snapshot_epoch or 0) > 0:
            # The broker prunes what an older snapshot made redundant.
            return f"{moved} or longer: that snapshot is the first record of the state; {older}"
        return f"{moved}, which began the state with SPSO {since.start_offset}; {older}"
    if since.before.place == Place.UNINITIALISED:
        return f"{moved}, which set the first SPSO, {since.start_offset}: the group starts after it"
    verb = "reset" if is_reset(since) else "moved"
    step = f"{moved}, which {verb} SPSO from {since.start_before} to {since.start_offset}"
    # The record that moves SPSO may itself hold the final state.
    own = [OffsetState(Place.IN_FLIGHT, state, count) for _, _, state, count in since.ranges]
    final = [one for one in (*own, since.before) if one.place == Place.IN_FLIGHT and one.is_finished]
    if final:
        return f"{_final_state(final[0], limit)}; {step}"
    if since.before.place == Place.IN_FLIGHT:
        return f"{step}; before that it was {_describe(since.before)}, and no record shows how it ended"
    if has_earlier:
        return f"{step}; no record since is about it"
    return f"{step}; no earlier record{' in the input' if begins_late else ''} is about it" + (
        f", and {NO_BEGINNING}" if begins_late else ""
    )


def _summary_in_flight(explanation: Explanation, since: str, limit: DeliveryLimit) -> str:
    offset_state, count = explanation.offset_state, explanation.offset_state.delivery_count or 0
    effective_start = explanation.effective_start
    if offset_state.is_finished:
        waits = f"SPSO is {explanation.start_offset} and waits for offset {effective_start}"
        if effective_start is not None and effective_start > explanation.offset:
            waits = f"a leader that loads this state starts after it, at {effective_start}"
        return f"{_final_state(offset_state, limit)} at {since}; {waits}"
    if offset_state.state == ARCHIVING:
        return (
            f"being archived since {since}: its dead-letter write has not finished, and SPSO cannot pass it"
        )
    assumed = f" (the group's limit is unknown; {limit.count} is assumed)" if limit.is_assumed else ""
    if offset_state.state == ACQUIRED:
        return f"acquired in delivery {count} of {limit.count} since {since}{assumed}"
    if count < limit.count:
        failed = repeated_deliveries(explanation.touches)
        waits = (
            f"waiting for delivery {count + 1} of {limit.count} or acquired right now, since {since}{assumed}"
        )
        return f"{waits}; {failed}" if failed else waits
    return f"available since {since} though its {count} deliveries reach the limit of {limit.count}{assumed}"


def _final_state(offset_state: OffsetState, limit: DeliveryLimit) -> str:
    count = offset_state.delivery_count or 0
    if offset_state.state == ACKNOWLEDGED:
        return f"acknowledged in delivery {count}"
    causes = "it was rejected, or there was no record to deliver"
    if limit.is_assumed:
        known = (
            f"the log shows {limit.count} deliveries"
            if limit.is_observed
            else f"Kafka's default is {limit.count}"
        )
        unknown = f"or {count} is the group's delivery limit, which is unknown; {known}"
        return f"archived in delivery {count} ({causes}, {unknown})"
    if count >= limit.count:
        causes = "at the delivery limit, or rejected"
    return f"archived in delivery {count} of {limit.count} ({causes})"


def print_explanation(explanation: Mapping[str, Any]) -> None:
    """Print the result of `explain_offset`: one line per record, and the sentence."""
    topic = explanation["topic"] or explanation["topic_id"]
    key = f"group {explanation['group_id']}, topic {topic}, partition {explanation['partition']}"
    print_line(f"{key}, offset {explanation['offset']} ({explanation['log']})")
    for other in explanation["others"]:
        print_line(f"  (not shown: topic id {other['topic_id']} in {other['log']})")
    print_line()
    has_members = any(record["members"] is not None for record in explanation["records"])
    rows = []
    for record in explanation["records"]:
        members = UNKNOWN if record["members"] is None else ", ".join(record["members"]) or "nobody"
        rows.append([
            record["offset"],
            f"{record['timestamp']:%Y-%m-%d %H:%M:%S.%f}"[:-3] if record["timestamp"] else None,
            *(record[name] for name in ("kind", "said", "standing", "deliveries", "start_offset", "end_offset")),
            *([members] if has_members else []),
        ])  # fmt: skip
    columns = ["RECORD", "TIME", "KIND", "CONTENTS", "STATE", "DELIVERIES", "SPSO", "SPEO"]
    numeric = ("RECORD", "DELIVERIES", "SPSO", "SPEO")
    print_table([*columns, *(["ASSIGNED TO"] if has_members else [])], rows, numeric=numeric)
    print_line()
    print_sentence(explanation["sentence"])
    for letter in explanation.get("dead_letters", ()):
        place = f"{letter['dead_letter_topic']}-{letter['dead_letter_partition']} offset {letter['dead_letter_offset']}"
        text = f"Dead letter: {place}, {format_time(letter['timestamp'])}: {letter['reason'] or 'no reason'}"
        print_sentence(text)
    if explanation.get("dead_letters") == []:
        print_sentence("The dead-letter topics that were read hold no dead letter for this offset.")
