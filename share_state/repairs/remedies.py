"""What is wrong with a share-partition, in a sentence, and the options to fix it, in order of harm."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from share_state.errors import pluralize
from share_state.repairs.commands import KafkaTools, diff_command
from share_state.repairs.consumer_options import (
    check_dead_letter_topic,
    forbid_renewals,
    raise_delivery_limit,
    raise_record_locks,
    restart_consumers,
    restart_leader,
    start_consumers,
    stop_consumers,
    wait_for_consumers,
    wait_for_dead_letters,
    wait_for_deliveries,
)
from share_state.repairs.rehearsal import Effect
from share_state.repairs.state_options import (
    ask_broker,
    ask_for_group,
    delete_group,
    delete_offsets,
    forget_batches,
    leave_state,
    move_back_to_audited,
    move_past_waiting,
    recreate_group,
    reset_to_latest,
    upgrade,
    wait_for_snapshot,
)
from share_state.repairs.status import Survey, can_be_named
from share_state.repairs.subject import AGAIN, NOTHING, SKIPS, Option, Repair, Subject
from share_state.report.console import format_number
from share_state.simulator.durability import UnloadableStateError
from share_state.sources.topics import TOPICS_HINT

_Action = Callable[[Subject], Option | None]
_MOVES: tuple[_Action, ...] = (upgrade, move_past_waiting, reset_to_latest)
_ACTIONS: Mapping[str, tuple[_Action, ...]] = {
    "ORPHAN_SHARE_STATE": (
        ask_for_group, leave_state, upgrade, recreate_group,
    ),
    "REWIND": (wait_for_consumers, move_back_to_audited),
    "ARCHIVING_STUCK": (
        wait_for_dead_letters, check_dead_letter_topic, restart_leader, *_MOVES,
    ),
    "POISON_RECORDS": (wait_for_deliveries, raise_delivery_limit, *_MOVES),
    "IN_FLIGHT_LIMIT": (
        wait_for_deliveries, raise_record_locks, restart_consumers, *_MOVES,
    ),
    "STALL": (wait_for_deliveries, forbid_renewals, restart_consumers, *_MOVES),
    "STOP": (start_consumers,),
    "NO_MEMBERS": (start_consumers,),
    "GIVING_UP": (stop_consumers,),
    "TOPIC_GONE": (upgrade, delete_offsets, delete_group),
    "DLQ_UNUSABLE": (check_dead_letter_topic,),
    "DELETE_INCOMPLETE": (upgrade, delete_offsets, delete_group),
    "CUTOFF_PINNED": (wait_for_snapshot, upgrade, delete_offsets),
}  # fmt: skip


def repairs(
    found: Survey, tools: KafkaTools, is_empty: Mapping[str, bool] | None = None
) -> tuple[Repair, ...]:
    """The options for each share-partition in trouble.

    Args:
        found: the share-partitions.
        tools: the commands of the cluster.
        is_empty: group -> whether it has no member, as far as that is known.
    """
    subjects = (
        Subject(one, found, tools, is_empty=(is_empty or {}).get(one.row["group_id"])) for one in found.found
    )
    return tuple(map(_repair_of, subjects))


def _repair_of(subject: Subject) -> Repair:
    trouble = next(iter(subject.status.troubles))
    if trouble == "STATE_SUSPECT":
        number = subject.status.row["state_partition"]
        log = "the log" if number is None else f"__share_group_state-{number}"
        text = f"Do not act on this state; it cannot be trusted: {subject.status.troubles[trouble]}."
        what = f"Export {log} again, from every replica, and create the plan from all copies."
        return _repair(
            subject, trouble, text, None, [Option("EXPORT_AGAIN", NOTHING, what), ask_broker(subject)]
        )
    try:
        subject.load()
    except UnloadableStateError as error:
        text = f"No leader of {subject.release.name} can load the state: {error}."
        ways = (ask_broker(subject), upgrade(subject), forget_batches(subject))
        return _repair(subject, "UNLOADABLE", text, None, [one for one in ways if one])
    options, codes_of = dict[str, Option](), dict[str, str]()
    # Brokers refuse every command about a group that does not exist.
    codes = [trouble] if trouble == "ORPHAN_SHARE_STATE" else subject.status.troubles
    for code in codes:
        for make in _ACTIONS[code]:
            if (option := make(subject)) is not None:
                options.setdefault(option.action, option)
                codes_of.setdefault(option.action, code)
    useful = (_ranked(one) for one in options.values() if subject.does_something(one))
    # An option against another trouble comes last, unless it moves SPSO too.
    ordered = sorted(
        useful, key=lambda one: (codes_of[one.action] != trouble and not subject.moves_start(one), one.harm)
    )
    return _repair(subject, trouble, _sentence(subject), subject.now, ordered)


def _repair(subject: Subject, trouble: str, text: str, now: Effect | None, options: list[Option]) -> Repair:
    row, log_end = subject.status.row, subject.status.cutoff.get("log_end_offset")
    key, check = (subject.group, row["topic_id"], subject.partition), ""
    # Without offsets there is no earlier point to compare with.
    if row["state_partition"] is not None and log_end is not None:
        check = diff_command(subject.found.inputs, row["state_partition"], log_end, *key)
    return Repair(
        subject.status, trouble, text, now, tuple(_with_name(subject, one) for one in options), check
    )


def _with_name(subject: Subject, option: Option) -> Option:
    """The option without its command if that names what cannot be named."""
    if not option.command or (can_be_named(subject.group) and can_be_named(subject.topic)):
        return option
    why = (
        f"the topic's name is unknown; {TOPICS_HINT}"
        if can_be_named(subject.group)
        else "the group id is not UTF-8"
    )
    return replace(option, command="", what=f"{option.what} No command can name it: {why}.")


def _sentence(subject: Subject) -> str:
    """The message of the finding or verdict, and what SPSO waits for."""
    message = next(iter(subject.status.troubles.values()))
    start = subject.now.start_offset
    lag = subject.now.lag
    waits = "nothing in flight is recorded"
    if subject.waiting is not None:
        first, last, state, count = subject.waiting
        waits = f"it waits for {first:,}" if first == last else f"it waits for {first:,} to {last:,}"
        limit = f"{'at least ' * (subject.group in subject.found.observed)}{subject.settings.delivery_count_limit}"
        named = "a gap: the log shows no delivery" if first in subject.status.gaps else state.name
        waits += f", {named}" + f" after delivery {count} of {limit}" * (count > 0)
    behind = "the lag is unknown" if lag is None else f"the lag is {pluralize(lag, 'record')}"
    return f"{message}; SPSO is {format_number(start)} and {waits}; {behind}."


def _ranked(option: Option) -> Option:
    """The option with at least the harm that its effect shows."""
    effect = option.effect
    if effect is None:
        return option
    shown = SKIPS if effect.skipped else AGAIN if effect.delivered_again else NOTHING
    return replace(option, harm=max(option.harm, shown))
