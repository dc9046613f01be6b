"""Options for the state of a group: move its start, forget, delete or snapshot it, or let a later release load it."""

from dataclasses import replace
from datetime import timedelta

from share_state.kafka.delivery_states import TERMINAL, DeliveryState
from share_state.kafka.releases import LATEST, first_with
from share_state.repairs.rehearsal import Rehearsal
from share_state.repairs.subject import AGAIN, DELETES, NOTHING, SETTINGS, SKIPS, Option, Subject
from share_state.simulator.types import find_release

COLD_SNAPSHOT = timedelta(minutes=5)
"""Default of share.coordinator.cold.partition.snapshot.interval.ms."""
NEW_GROUP_EPOCH = 2
"""The state epoch at which a new group initializes share-partitions; brokers refuse if the state has a later
one."""


def ask_broker(subject: Subject) -> Option:
    """What the broker has in memory, the log may lack."""
    what = "Compare with the start offset that the broker has in memory."
    return Option("ASK_BROKER", NOTHING, what, subject.tools.describe(subject.group, "offsets"))


def ask_for_group(subject: Subject) -> Option:
    """A group that the log lacks may exist."""
    what = (
        "Check whether the group exists. If it does, its log was not read, and nothing is wrong; if not, brokers "
        "refuse to delete or reset its offsets."
    )
    return Option("ASK_BROKER", NOTHING, what, subject.tools.describe(subject.group, "state"))


def leave_state(subject: Subject) -> Option | None:
    """State that a new group of the same name could not replace."""
    epoch = subject.status.row["state_epoch"] or 0
    if not subject.release.has_initialize or epoch <= NEW_GROUP_EPOCH:
        return None
    what = (
        f"Leave it, and use another group id: this state has epoch {epoch:,}, and a recreated group starts at a "
        "lower one. Until its epoch is higher, brokers neither initialize nor delete this state."
    )
    return Option("LEAVE", NOTHING, what)


def recreate_group(subject: Subject) -> Option | None:
    """A new group of the same name replaces the state."""
    if not subject.release.has_initialize or (subject.status.row["state_epoch"] or 0) > NEW_GROUP_EPOCH:
        return None
    what = (
        "If the group is no longer used, recreate it by joining it, which discards this state, then delete it. If "
        "it is used, start its consumers instead: share.auto.offset.reset decides where they begin."
    )
    join, delete = (
        subject.tools.recreate_group(subject.group, subject.topic),
        subject.tools.delete_group(subject.group),
    )
    return Option(
        "RECREATE_GROUP", DELETES, what, f"{join}\n{delete}", effect=subject.effect(Rehearsal.delete)
    )


def wait_for_snapshot(subject: Subject) -> Option | None:
    """A cold snapshot lets the cutoff advance."""
    written = subject.status.row["write_time"]
    is_due = subject.found.time and written and subject.found.time - written >= COLD_SNAPSHOT
    if not subject.release.takes_snapshots_when_cold or not written or is_due:
        return None
    what = "Wait: the coordinator snapshots share-partitions that are idle for five minutes, unless all are."
    effect = subject.effect(Rehearsal.write_cold_snapshot)
    return Option("WAIT", NOTHING, what, until=written + COLD_SNAPSHOT, effect=effect)


def upgrade(subject: Subject) -> Option | None:
    """Later brokers resume records in ARCHIVING, and can move or delete state."""
    if subject.settings.has_dead_letter_queue and subject.release.archiving != "resumed":
        what = (
            f"Upgrade to {LATEST.name}: {subject.release.name} never resumes records in ARCHIVING. The next leader "
            "sends them to the dead-letter queue, and archives them."
        )
        return Option("UPGRADE", SETTINGS, what, effect=subject.effect(Rehearsal.finish_dead_letters, LATEST))
    if subject.release.has_initialize:
        return None
    since = first_with(lambda release: release.has_initialize)
    what = (
        f"Upgrade: {subject.release.name} cannot move or delete the state of a group; {since} and later can."
    )
    return Option("UPGRADE", SETTINGS, what)


def forget_batches(subject: Subject) -> Option | None:
    """Set the start offset to what it is: the snapshot that brokers then write has no batches."""
    start, rest = subject.status.row["start_offset"], replace(subject.status, ranges=())
    if not subject.release.has_initialize or start < 0:
        return None
    rehearsal = Rehearsal(rest, subject.release, subject.settings, subject.found.limits.updates_per_snapshot)
    rehearsal.initialize(start)
    finished = [
        one for one in subject.status.ranges if one.delivery_state in TERMINAL and one.last_offset >= start
    ]
    again = tuple((max(one.first_offset, start), one.last_offset) for one in finished)
    what = (
        f"Set SPSO to {start:,}, where it is, once the group is empty. This discards the state after it, which no "
        "leader can load: finished records there are delivered again."
    )
    command = _set_start(subject, start)
    effect = replace(rehearsal.effect(), delivered_again=again)
    return Option("FORGET_BATCHES", AGAIN, what, command, effect=effect)


def move_past_waiting(subject: Subject) -> Option | None:
    """Move SPSO past the records that it waits for, and past finished or hopeless ones after them."""
    if subject.waiting is None:
        return None
    target, waits = subject.waiting[1] + 1, (DeliveryState.AVAILABLE, DeliveryState.ACQUIRED)
    failing = subject.settings.delivery_count_limit - 1
    hopeless = {batch[:2] for batch in subject.status.ranges if batch[2] in waits and batch[3] >= failing}
    for first, last, state, _ in subject.loaded.partition.in_flight_batches():
        is_done = state in (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED, DeliveryState.ARCHIVING)
        if first > target:
            break
        if last >= target and (is_done or (first, last) in hopeless):
            target = last + 1
    return _move_to(subject, target, "past the records that it waits for")


def move_back_to_audited(subject: Subject) -> Option | None:
    """After a rewind, SPSO is set to where the last audit saw it."""
    target = subject.status.previous_start or 0
    return (
        _move_to(subject, target, "back to where it was")
        if target > subject.loaded.partition.start_offset
        else None
    )


def _move_to(subject: Subject, target: int, where: str) -> Option | None:
    if not subject.release.has_initialize:
        return None
    effect = subject.effect(lambda rehearsal: rehearsal.initialize(target))
    what = (
        f"Move SPSO {where}, to {target:,}, once the group is empty: until then, brokers refuse. This discards the "
        "state after that offset: finished records there are delivered again. Skipped records get no dead letter."
    )
    return Option("MOVE_START", AGAIN, what, _set_start(subject, target), effect=effect)


def _set_start(subject: Subject, offset: int) -> str:
    """The command that sets SPSO in each release that may have written the log."""
    release = find_release(subject.found.releases[0])
    return subject.tools.set_start(release, subject.group, subject.topic, subject.partition, offset)


def reset_to_latest(subject: Subject) -> Option | None:
    """Everything that waits is skipped."""
    end = subject.status.row["topic_end_offset"]
    if end is None or end <= subject.loaded.partition.start_offset or not subject.release.resets_to_latest:
        return None
    what = (
        "Skip to the end of the topic-partition, once the group is empty. The effect assumes the end at "
        f"{end:,}."
    )
    command = subject.tools.reset_to_latest(subject.group, subject.topic, subject.partition)
    effect = subject.effect(lambda rehearsal: rehearsal.initialize(end))
    return Option("RESET_TO_LATEST", SKIPS, what, command, effect=effect)


def delete_offsets(subject: Subject) -> Option | None:
    """The state of one topic is deleted."""
    if not subject.release.has_initialize:
        return None
    what = (
        f"If the group no longer reads {subject.status.name}, delete its state in all partitions, once the group is "
        "empty. If it reads it again, share.auto.offset.reset decides: latest skips unfinished records, earliest "
        "delivers finished ones again."
    )
    command = subject.tools.delete_offsets(subject.group, subject.topic)
    return Option("DELETE_OFFSETS", DELETES, what, command, effect=subject.effect(Rehearsal.delete))


def delete_group(subject: Subject) -> Option | None:
    """The group is deleted."""
    if not subject.release.has_initialize:
        return None
    what = "If the group is no longer used, delete it with the state of all its topics, once it is empty."
    command, effect = subject.tools.delete_group(subject.group), subject.effect(Rehearsal.delete)
    return Option("DELETE_GROUP", DELETES, what, command, effect=effect)
