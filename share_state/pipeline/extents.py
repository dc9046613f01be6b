"""Notes on what is not in an input, as far as it shows that: beginnings and ends of logs, partitions, groups."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import pluralize
from share_state.fold.checkpoint import resume_point_of
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.result import (
    ABSENT_NOTE,
    GROUPS_NOTE,
    PAST_NOTE,
    START_NOTE,
    TAIL_NOTE,
    TIME_NOTE,
    TOPICS_NOTE,
    RunResult,
)
from share_state.rules.breaches import listed
from share_state.sources.discovery import recorded_partitions
from share_state.sources.log_partition import GROUP_TOPIC, STATE_TOPIC, LogPartition
from share_state.sources.partition_count import missing_numbers
from share_state.sources.resume_point import READ_FROM_START
from share_state.sources.topics import Topics

_NAMES_NOTED = 10
"""Log partitions that a note names; their number stands for the others."""


_WITHOUT_GROUPS = (
    f"no logs of {GROUP_TOPIC} are in the input or beside its logs, so members, epochs, deleted groups and the"
    " initialization of share-partitions are not known"
)


def extent_notes(plan: FoldPlan, result: RunResult) -> list[str]:
    """What is not in the input, as far as it shows that: beginnings and ends of logs, partitions of ordinary topics.

    And which topics file was found beside the logs.

    Args:
        result: the result of the tasks.
    """
    outside = [] if plan.outside is None else [f"{TIME_NOTE}{plan.outside}"]
    outside += [f"{TOPICS_NOTE}{plan.topics_note}"] if plan.topics_note else []
    outside += [f"{GROUPS_NOTE}{_WITHOUT_GROUPS}"] if plan.lacks_groups else []
    outside += _past_notes(plan, result.cut)
    whole = [log for log in plan.logs if log.name not in result.cut]
    return [*outside, *_start_notes(plan), *_absent_notes(plan), *tail_notes(whole, result.progress)]


def _past_notes(plan: FoldPlan, cut: Collection[str]) -> list[str]:
    """A note on logs of an as-of point whose first records are not in them any more."""
    pruned = [log for log in plan.logs if log.name in cut and log.log_start_offset > 0]
    if not pruned:
        return []
    names = listed([log.name for log in pruned], _NAMES_NOTED)
    return [
        f"{PAST_NOTE}{names}: records before offset {min(log.log_start_offset for log in pruned)}"
        f"{' or later' * (len(pruned) > 1)} are not in the log any more: "
        "share-partitions of which only records after the given point are left are not in the tables"
    ]


def _start_notes(plan: FoldPlan) -> list[str]:
    starts = {log.name: _unshown_start(plan, log) for log in plan.logs}
    return start_notes({name: start for name, start in starts.items() if start is not None})


def start_notes(starts: Mapping[str, int]) -> list[str]:
    """A note on logs whose beginning is not in the input; none without such logs.

    Args:
        starts: log partition -> the first offset that this run or earlier ones read, where nothing shows that
            the broker's log begins there.
    """
    if not starts:
        return []
    names = listed([*starts], _NAMES_NOTED)
    where = f"offset {min(starts.values())}" + (" or later" if len(starts) > 1 else "")
    return [
        f"{START_NOTE}{names}: the log's beginning is not in the input: reading began at {where}, and nothing"
        " shows that the broker's log begins there; share-partitions whose records are all earlier are not in"
        " the tables"
    ]


def _unshown_start(plan: FoldPlan, log: LogPartition) -> int | None:
    """The first offset that this run or earlier audits read, if nothing shows that the log begins there; else None."""
    if not log.has_offsets or log.shows_its_start:
        return None
    resumed = (plan.resumed or {}).get(log.name)
    if resumed is None or resumed.checkpoint is None or resumed.status in READ_FROM_START:
        return log.log_start_offset
    point = resume_point_of(resumed.checkpoint)
    return None if point is None or point.shows_its_start else point.folded_from


def _absent_notes(plan: FoldPlan) -> list[str]:
    """A note on each topic with control records, or beside them, of which partitions are not in the input.

    The partitions are those that the input shows, and those that the topic has by what is known of the
    cluster.
    """
    logs = [
        log
        for log in plan.logs
        if log.topic != STATE_TOPIC and log.partition is not None and log.source is None
    ]
    if plan.names_logs or not logs:
        return []
    notes = list[str]()
    recorded_by_topic = {log.topic: set[int]() for log in logs}
    recorded_by_topic |= {
        topic: recorded for topic, recorded in recorded_partitions(logs).items() if not topic.startswith("__")
    }
    counts = _partition_counts(plan.options.topics, [*recorded_by_topic])
    for topic, recorded in sorted(recorded_by_topic.items()):
        numbers = {log.partition for log in logs if log.topic == topic}
        end = max([*filter(None, numbers), counts.get(topic, 0)])
        below = missing_numbers(end, numbers)
        absent = sorted({*below, *recorded} - numbers)
        if absent:
            names = listed([f"{topic}-{number}" for number in absent], _NAMES_NOTED)
            notes.append(
                f"{ABSENT_NOTE}{topic}: {names} are not in the input, so their states are not in the tables"
            )
    return notes


def _partition_counts(topics: Topics, names: Sequence[str]) -> dict[str, int]:
    """Number of partitions of topics by name, where it is known; by the first source that has the name."""
    named = topics.names.filter(pc.is_in(topics.names["topic"], pa.array(names, pa.string())))
    counts = topics.counts.combine_chunks()
    numbers = counts["partitions"].take(pc.index_in(named["topic_id"], counts["topic_id"]))
    by_name = [*zip(named["topic"].to_pylist(), numbers.to_pylist(), strict=True)]
    return {name: number for name, number in reversed(by_name) if number is not None}


def tail_notes(logs: Iterable[LogPartition], ends: Mapping[str, int | None]) -> list[str]:
    """A note on each copy that ends before the high watermark that is recorded beside it.

    Args:
        logs: the log partitions.
        ends: log partition -> next offset after what was read.
    """
    notes = list[str]()
    for log in logs:
        end = ends.get(log.name)
        if end is None or (log.high_watermark or 0) <= end:
            continue
        records = pluralize((log.high_watermark or 0) - end, "record")
        notes.append(
            f"{TAIL_NOTE}{log.name}: the copy ends at offset {end}, {records} before the high watermark recorded beside"
            " it: it was copied while the broker ran, or its newest segment is missing or truncated"
        )
    return notes
