"""The history of the offset that SPSO waits for, in sentences, from the records of its log."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from share_state.errors import pluralize
from share_state.fold.durations import timedelta_text
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.offset_history import Explanation, Place, Touch, explain
from share_state.fold.states import to_datetime
from share_state.kafka.delivery_states import ACKNOWLEDGED, ARCHIVED, ARCHIVING, AVAILABLE, TERMINAL
from share_state.pipeline.plan import FoldPlan
from share_state.repairs.status import SharePartitionStatus
from share_state.report.console import format_number, format_time
from share_state.report.offset_events import came_from, failed_deliveries, goes_back, is_reset, spacing
from share_state.sources.pruned_logs import read_whole

DEFAULT_LOCK = timedelta(seconds=30)
"""Kafka's default of group.share.record.lock.duration.ms. No record shows that of a group."""

_LONGEST_LOCK = timedelta(minutes=1)
"""The greatest lock duration that brokers allow by default (group.share.max.record.lock.duration.ms)."""

_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Reset:
    """A record that moved SPSO back, past the offset.

    Attributes:
        before, after: SPSO.
        record: offset of the record in the log.
        time: of the record.
        by_reset: whether it is the record of a reset; else SPSO went back without one.
    """

    before: int
    after: int
    record: int
    time: datetime | None
    by_reset: bool


@dataclass(frozen=True, slots=True)
class OffsetStory:
    """What the records of a log say of one offset.

    Attributes:
        offset: the offset.
        reset: the last record that moved SPSO back past it; None if there is none.
        changed_time: when its state last changed; None if no record shows it.
        failures: times at which deliveries of it failed, since the reset.
        held: for how long a consumer has held it at least; None if that cannot be told.
        sentences: its history.
    """

    offset: int
    reset: Reset | None
    changed_time: datetime | None
    failures: tuple[datetime, ...]
    held: timedelta | None
    sentences: tuple[str, ...]


def read_story(
    plan: FoldPlan, status: SharePartitionStatus, offset: int, *, renews: bool = True
) -> OffsetStory | None:
    """Read the history of an offset; None if the logs hold no record of the share-partition.

    Args:
        plan: the logs.
        status: the share-partition.
        offset: the offset in its topic-partition.
        renews: whether consumers of the release can renew locks.
    Raises:
        InputError: if a segment cannot be read.
    """
    row = status.row
    topic = row["topic_id"] or row["topic"]
    selection = SharePartitionFilter(row["group_id"], topic, row["partition"])
    numbers = (None, row["state_partition"])
    for log in plan.logs:
        if row["state_partition"] is not None and log.partition not in numbers:
            continue
        for explanation in read_whole(
            log, lambda part: explain(part, plan.window_of(part), selection, offset, plan.fold_options(part))
        ):
            return _story(explanation, status, renews)
    return None


def _story(explanation: Explanation, status: SharePartitionStatus, renews: bool) -> OffsetStory:
    changes = [one for one in explanation.touches if one.is_readable and one.before != one.after]
    resets = [number for number, one in enumerate(changes) if goes_back(one)]
    reset = None
    if resets:
        touch = changes[resets[-1]]
        before = came_from(touch)
        assert before is not None
        assert touch.start_offset is not None
        moment = to_datetime(touch.timestamp)
        reset = Reset(before, touch.start_offset, touch.offset, moment, is_reset(touch))
    since = changes[resets[-1] + 1 :] if resets else changes
    failures = list(failed_deliveries(since))
    changed = to_datetime(changes[-1].timestamp) if changes else None
    times = tuple(time for one in failures if (time := to_datetime(one.timestamp)) is not None)
    held = _held(status, changed)
    sentences = (*_reset_sentences(reset), *_sentences(since, failures, times, held, renews, status))
    return OffsetStory(explanation.offset, reset, changed, times, held, sentences)


def _held(status: SharePartitionStatus, changed: datetime | None) -> timedelta | None:
    """For how long a consumer has held what SPSO waits for.

    A leader hands out the first available records first, so while later ones are delivered and finish, a
    consumer has those. Source: Kafka SharePartition.nextFetchOffset.
    """
    waits, active = status.waits_for, status.row["active_time"]
    if waits is None or waits.is_gap or waits.state != AVAILABLE or changed is None or active is None:
        return None
    if not any(batch[0] > waits.last and batch[2] in TERMINAL for batch in status.ranges):
        return None
    held = active - changed
    return held if held > _LONGEST_LOCK else None


def _reset_sentences(reset: Reset | None) -> Iterator[str]:
    if reset is not None:
        verb = "was reset" if reset.by_reset else "went back"
        place = f"at record {format_number(reset.record)} ({format_time(reset.time)})"
        yield f"SPSO {verb} from {reset.before:,} to {reset.after:,} {place}"


def _sentences(
    since: Sequence[Touch],
    failures: Sequence[Touch],
    times: Sequence[datetime],
    held: timedelta | None,
    renews: bool,
    status: SharePartitionStatus,
) -> Iterator[str]:
    if failures:
        yield _failed_deliveries(failures, times)
    if held is not None:
        span = timedelta_text(held)
        how = "its lock is renewed" if renews else "the log does not show why its lock does not expire"
        yield f"then held for {span}, while consumers finished later records: {how}"
    last = since[-1] if since else None
    if last is not None and last.after.state in (ACKNOWLEDGED, ARCHIVED, ARCHIVING):
        how = {
            ACKNOWLEDGED: "acknowledged",
            ARCHIVED: "archived",
            ARCHIVING: "rejected or given up",
        }[last.after.state or 0]
        waits = "; its dead-letter write has not finished" if last.after.state == ARCHIVING else ""
        yield f"{how} in delivery {last.after.delivery_count} {_at(last)}{waits}"
    if last is not None and last.after.place == Place.DELETED:
        yield f"the state was deleted {_at(last)}"
    if status.waits_for is not None and (last is None or last.after.place in (Place.GAP, Place.BEYOND_END)):
        yield _without_delivery(status)


def _without_delivery(status: SharePartitionStatus) -> str:
    """An offset of a gap: its first delivery, if there was one, is not in the log."""
    waits, none = (
        status.waits_for,
        "no delivery of it is recorded, and acquisitions are not written to the log",
    )
    if waits is not None and any(batch[0] > waits.last and batch[2] in TERMINAL for batch in status.ranges):
        return f"{none}; later records finished: its first delivery is held, or was lost with a leader"
    return none


def _failed_deliveries(failures: Sequence[Touch], times: Sequence[datetime]) -> str:
    """What the failed deliveries of an offset have in common."""
    last = failures[-1]
    count = last.after.delivery_count or 0
    apart, step = spacing(times)
    is_lock = step is not None and DEFAULT_LOCK <= step <= (1 + _JITTER) * DEFAULT_LOCK
    cause = "locks time out" if is_lock else "released, or the lock timed out: the log does not say which"
    failed = " ".join([pluralize(count, "delivery", "deliveries"), "failed", *filter(None, [apart])])
    return f"{failed}, the last {_at(last)}: {cause}"


def _at(touch: Touch) -> str:
    time = to_datetime(touch.timestamp)
    record = f"record {format_number(touch.offset)}"
    return f"at {format_time(time)} ({record})" if time is not None else f"at {record}"
