"""Options for the consumers of a group: wait for them, start or stop them, give them other limits, and dead letters."""

from datetime import timedelta

from share_state.kafka.delivery_states import DeliveryState
from share_state.kafka.releases import first_with
from share_state.repairs.rehearsal import Effect, Rehearsal
from share_state.repairs.subject import AGAIN, NOTHING, SETTINGS, Option, Subject
from share_state.simulator.settings import WIDEST, BrokerConfigs
from share_state.simulator.types import find_release

DEAD_LETTER_RETRIES = timedelta(minutes=7)
"""Five attempts of 30 s each, with the pauses between them, to create the dead-letter topic and as many to
write."""


_DEFAULTS = BrokerConfigs()
_GROUP_LIMITS_SINCE = first_with(lambda release: release.sets_group_limits)


def wait_for_deliveries(subject: Subject) -> Option | None:
    """The waiting range finishes at the latest when all its deliveries have failed."""
    if subject.waiting is None or subject.waiting[2] is DeliveryState.ARCHIVING:
        return None
    _, last, _, count = subject.waiting
    effect = subject.effect(lambda rehearsal: rehearsal.fail_deliveries(last))
    takes = timedelta(seconds=effect.seconds)
    moved, now = subject.status.row["moved_time"], subject.found.time
    # Deliveries may be far apart; an SPSO that has not moved for so long waits for something else.
    worst_case = max(takes, timedelta(minutes=subject.found.limits.stall_minutes))
    if moved and now and now - moved > worst_case and not subject.is_empty:
        return None
    lock = f"locks of {subject.settings.record_lock_duration_ms // 1000} s"
    if subject.release.renews:
        lock += ", which consumers may renew"
    what = (
        "while consumers fetch, the records that SPSO waits for are accepted, or archived after their last "
        f"delivery. The effect shows the worst case: every delivery times out ({lock})."
    )
    if not count:
        # No delivery is recorded, so all of them are left.
        effect = subject.effect(Rehearsal.accept_everything)
        what = (
            "consumers fetch the gap that SPSO waits for, and all its deliveries are left. The effect shows that "
            "everything in flight is accepted at the next one."
        )
    if subject.is_empty:
        what = f"Start consumers of the group, which is empty, and wait: {what}"
        return Option("START_CONSUMERS", NOTHING, what, effect=effect, then="WAIT")
    return Option("WAIT", NOTHING, f"Wait: {what}", until=subject.after(takes), effect=effect)


def wait_for_consumers(subject: Subject) -> Option | None:
    """After a reset, records are delivered again."""
    what = "consumers receive these records again; those that skip records they have processed lose nothing."
    if subject.is_empty:
        what = f"Start consumers of the group, which is empty: {what}"
        return Option("START_CONSUMERS", NOTHING, what, effect=subject.consumed())
    if subject.is_empty is None:
        what += " The input does not show whether the group has consumers: the command lists them."
        command = subject.tools.describe(subject.group, "members")
        return Option("WAIT", NOTHING, f"Wait: {what}", command, effect=subject.consumed())
    return Option("WAIT", NOTHING, f"Wait: {what}", effect=subject.consumed())


def start_consumers(subject: Subject) -> Option | None:
    """Records wait for consumers."""
    if subject.has_nothing_to_fetch():
        return None
    what = (
        "Start consumers of the group, or find out why its consumers do not acknowledge: the command lists them. "
        "The effect shows the first fetches, all accepted."
    )
    command = subject.tools.describe(subject.group, "members")
    return Option("START_CONSUMERS", NOTHING, what, command, effect=subject.consumed())


def stop_consumers(subject: Subject) -> Option:
    """Consumers that reject everything lose records."""
    what = (
        "Stop the consumers of the group until they are fixed: each record that they get is given up. The command "
        "shows whether the group is empty. Records that were given up are delivered again only after a reset."
    )
    return Option("STOP_CONSUMERS", NOTHING, what, subject.tools.describe(subject.group, "state"))


def restart_consumers(subject: Subject) -> Option | None:
    """Consumers that leave release what they hold."""
    if subject.is_empty:
        return None
    what = (
        "Stop all consumers of the group until the command shows it as Empty, and start them again: locks are "
        "released, records are delivered again. The effect shows members that leave while they hold every record."
    )
    effect = subject.effect(Rehearsal.leave)
    return Option(
        "RESTART_CONSUMERS", AGAIN, what, subject.tools.describe(subject.group, "state"), effect=effect
    )


def raise_delivery_limit(subject: Subject) -> Option | None:
    """Records at their last delivery get more of them."""
    limit = subject.settings.delivery_count_limit
    raised = _raised(limit, _DEFAULTS.max_delivery_count_limit, WIDEST.max_delivery_count_limit)
    if raised is None or subject.waiting is None or subject.waiting[2] is not DeliveryState.AVAILABLE:
        return None
    first, last, *_ = subject.waiting
    effect = subject.effect(
        lambda rehearsal: rehearsal.fail_delivery(first, last), delivery_count_limit=raised
    )
    what = (
        f"Raise the delivery limit from {limit} to {raised}, to keep these records while consumers are fixed. "
        "The effect shows one more delivery, which fails."
    )
    return _limit(subject, "delivery.count.limit", raised, what, effect)


def raise_record_locks(subject: Subject) -> Option | None:
    """A full window gets larger."""
    limit = subject.settings.max_record_locks
    raised = _raised(limit, _DEFAULTS.max_partition_max_record_locks, WIDEST.max_partition_max_record_locks)
    if raised is None:
        return None
    begin, known = subject.loaded.partition.end_offset, subject.status.row["topic_end_offset"]
    last = min(subject.loaded.partition.start_offset + raised, raised + begin if known is None else known) - 1
    effect = subject.effect(lambda rehearsal: rehearsal.deliver(begin, last), max_record_locks=raised)
    what = f"Raise the limit of in-flight records from {limit:,} to {raised:,}; SPSO waits as before."
    if known is None:
        what += " The end of the topic is unknown: the effect assumes enough new records."
    return _limit(subject, "partition.max.record.locks", raised, what, effect)


def _limit(subject: Subject, config: str, value: int, what: str, effect: Effect) -> Option:
    """Set a limit: of the group from 4.3 on, else of all brokers."""
    action = f"RAISE_{config.upper().replace('.', '_')}"
    of_brokers = f"group.share.{config}={value} in server.properties of every broker, and a rolling restart"
    if not subject.release.sets_group_limits:
        why = f"{subject.release.name} has no such limit for a single group"
        return Option(action, AGAIN, f"{what} {why}: set {of_brokers}.", effect=effect)
    if not find_release(subject.found.releases[0]).sets_group_limits:
        what += f" This needs brokers of {_GROUP_LIMITS_SINCE}; earlier ones need {of_brokers}."
    elif value > getattr(_DEFAULTS, f"max_{config.replace('.', '_')}"):
        what += f" The brokers must allow it: group.share.max.{config}."
    command = subject.tools.configure_group(subject.group, f"share.{config}={value}")
    return Option(action, SETTINGS, what, command, effect=effect)


def forbid_renewals(subject: Subject) -> Option | None:
    """A consumer that renews a lock loses it when it expires."""
    if subject.waiting is None or subject.is_empty or not subject.release.sets_group_limits:
        return None
    first, last, *_ = subject.waiting
    what = (
        f"Disallow lock renewals ({_GROUP_LIMITS_SINCE} and later): a record that a consumer keeps is released "
        "when its lock expires. The effect shows one delivery of what SPSO waits for, whose locks expire."
    )
    command = subject.tools.configure_group(subject.group, "share.renew.acknowledge.enable=false")
    effect = subject.effect(lambda rehearsal: rehearsal.fail_delivery(first, last))
    return Option("FORBID_RENEWALS", SETTINGS, what, command, effect=effect)


def wait_for_dead_letters(subject: Subject) -> Option | None:
    """The broker tries a dead-letter write for some minutes, if a leader has loaded the state."""
    waited, effect = timedelta(milliseconds=subject.status.archiving_ms), Rehearsal.finish_dead_letters
    if not subject.release.dead_letters:
        return None
    if subject.is_empty:
        what = (
            "Start a consumer of the group, which is empty: until one fetches, no leader loads the state, and "
            "nothing moves. The leader sends the dead letters again, and archives the records in any case."
        )
        return Option("START_CONSUMERS", NOTHING, what, effect=subject.effect(effect))
    if waited >= DEAD_LETTER_RETRIES:
        return None
    what = (
        "Wait: the broker tries each dead-letter write five times, and archives the record in any case. If its "
        "leader has changed, nothing moves until a consumer of the group fetches."
    )
    until = subject.after(DEAD_LETTER_RETRIES - waited)
    return Option("WAIT", NOTHING, what, until=until, effect=subject.effect(effect))


def check_dead_letter_topic(subject: Subject) -> Option | None:
    """Dead letters need a topic that takes them."""
    if not subject.release.dead_letters:
        return None
    tools = subject.tools
    commands = (
        tools.describe_config(subject.group),
        tools.describe_dead_letter_topic(),
        tools.allow_dead_letters(),
    )
    what = (
        "Make the dead-letter topic usable before anything sends to it: errors.deadletterqueue.topic.name of the "
        "group (first command) names it, it needs leaders (second), and it must allow share groups (third)."
    )
    command = "\n".join(commands)
    if not subject.has_archiving():
        return Option("FIX_DLQ", SETTINGS, what, command)
    what = f"{what} Then {_restart(subject)}, and sends the dead letters again, some of them for the second time."
    effect = subject.effect(Rehearsal.finish_dead_letters)
    return Option("FIX_DLQ", AGAIN, what, command, effect=effect, then="RESTART_LEADER")


def restart_leader(subject: Subject) -> Option | None:
    """The next leader sends the dead letters again."""
    if subject.release.archiving != "resumed" or not subject.has_archiving():
        return None
    what = (
        f"If the dead-letter topic is usable, {_restart(subject)}, sends the dead letters again, some of them for "
        "the second time, and archives the records whether or not that works."
    )
    return Option("RESTART_LEADER", AGAIN, what, effect=subject.effect(Rehearsal.finish_dead_letters))


def _restart(subject: Subject) -> str:
    place = f"{subject.status.name}-{subject.partition}"
    start = ", and start a consumer of the group, which is empty" if subject.is_empty else ""
    return f"restart the broker that leads {place}{start}: the next leader loads the state when a consumer fetches"


def _raised(limit: int, usual: int, most: int) -> int | None:
    """A higher limit: twice as much, within what brokers allow by default, else within what they can allow."""
    raised = min(2 * limit, usual if limit < usual else most)
    return raised if raised > limit else None
