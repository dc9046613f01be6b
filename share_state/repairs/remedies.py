"""What is wrong with a share-partition, in a sentence, and the options to fix it, in order of harm."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from share_state.errors import pluralize
from share_state.kafka.delivery_states import TERMINAL, DeliveryState
from share_state.kafka.releases import LATEST, RELEASES, Release
from share_state.repairs.commands import KafkaTools, diff_command
from share_state.repairs.rehearsal import Effect, Rehearsal
from share_state.repairs.status import SharePartitionStatus, Survey, can_be_named
from share_state.report.console import format_number
from share_state.simulator.durability import UnloadableStateError
from share_state.simulator.settings import WIDEST, BrokerConfigs, PartitionSettings
from share_state.simulator.types import find_release
from share_state.sources.topics import TOPICS_HINT

HARM = (
    "no harm",
    "settings change",
    "records may be delivered again",
    "records are skipped",
    "state is deleted",
)
"""The worst that an option can do; `Option.harm` is an index into this."""

NOTHING, SETTINGS, AGAIN, SKIPS, DELETES = range(len(HARM))

COLD_SNAPSHOT = timedelta(minutes=5)
"""Default of share.coordinator.cold.partition.snapshot.interval.ms."""
DEAD_LETTER_RETRIES = timedelta(minutes=7)
"""Five attempts of 30 s each, with the pauses between them, to create the dead-letter topic and as many to
write."""

NEW_GROUP_EPOCH = 2
"""The state epoch at which a new group initializes share-partitions; brokers refuse if the state has a later
one."""

_DEFAULTS = BrokerConfigs()
_GROUP_LIMITS_SINCE = "4.3"
_OFFSET_RESETS_SINCE = "4.4"
"""kafka-share-groups.sh takes an offset (KIP-1323)."""


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that can be done.

    Attributes:
        action: a code for it.
        harm: index of HARM.
        what: what to do, in a sentence or two.
        command: lines of bash; empty if no command does it.
        until: how long to wait.
        effect: the simulated effect; None if it leaves the state as it is, no leader can load the state, or it is
            suspect.
        then: code of the action that has to follow, which the effect includes; empty if none has to.
    """

    action: str
    harm: int
    what: str
    command: str = ""
    until: datetime | None = None
    effect: Effect | None = None
    then: str = ""

    @property
    def title(self) -> str:
        """The action, and the one that has to follow it."""
        return f"{self.action}, then {self.then}" if self.then else self.action


@dataclass(frozen=True, slots=True)
class Repair:
    """A share-partition in trouble.

    Attributes:
        status: what the tables hold about it.
        trouble: code of status.TROUBLES.
        sentence: what is wrong.
        now: its state as a leader loads it; None if none can, or if it is suspect.
        options: in order of harm.
        check: the command that shows what changed; empty if the input has no offsets.
    """

    status: SharePartitionStatus
    trouble: str
    sentence: str
    now: Effect | None
    options: tuple[Option, ...]
    check: str

    @property
    def also(self) -> dict[str, str]:
        """The less severe troubles: code -> message."""
        return {code: text for code, text in self.status.troubles.items() if code != self.trouble}


def repairs(
    found: Survey, tools: KafkaTools, empty_groups: Collection[str] = frozenset()
) -> tuple[Repair, ...]:
    """The options for each share-partition in trouble.

    Args:
        found: the share-partitions.
        tools: the commands of the cluster.
        empty_groups: groups that are known to have no member.
    """
    made = (_Advisor(one, found, tools, is_empty=one.row["group_id"] in empty_groups) for one in found.found)
    return tuple(advisor.repair() for advisor in made)


class _Advisor:
    """Options for one share-partition.

    Size: one method per kind of trouble and per remedy.
    """

    def __init__(
        self, status: SharePartitionStatus, found: Survey, tools: KafkaTools, *, is_empty: bool
    ) -> None:
        self.is_empty = is_empty
        self._without_change = list[Effect]()
        self.status = status
        self.found = found
        self.tools = tools
        row = status.row
        self.group = row["group_id"]
        self.topic = row["topic"] or ""
        self.partition = row["partition"]
        # Groups have limits from 4.3 on; only 4.4 writes state 3.
        self.release = find_release(found.releases[-1])
        limits, group = found.limits, row["group_id"]
        self.settings = PartitionSettings(
            delivery_count_limit=limits.of_group("delivery_count", group),
            max_record_locks=limits.of_group("record_locks", group),
            has_dead_letter_queue=any(one.delivery_state is DeliveryState.ARCHIVING for one in status.ranges),
        )

    def repair(self) -> Repair:
        trouble = next(iter(self.status.troubles))
        if trouble == "STATE_SUSPECT":
            number = self.status.row["state_partition"]
            log = "the log" if number is None else f"__share_group_state-{number}"
            text = f"Do not act on this state; it cannot be trusted: {self.status.troubles[trouble]}."
            what = f"Export {log} again, from every replica, and create the plan from all copies."
            return self._repair(
                trouble, text, None, [Option("EXPORT_AGAIN", NOTHING, what), self.ask_broker()]
            )
        try:
            self.loaded = self._rehearse()
            # The rehearsal does not see batches before the start offset.
            if "UNLOADABLE" in self.status.troubles:
                raise UnloadableStateError(self.status.troubles["UNLOADABLE"])
        except UnloadableStateError as error:
            text = f"No leader of {self.release.name} can load the state: {error}."
            ways = (self.ask_broker(), self.upgrade(), self.forget_batches())
            return self._repair("UNLOADABLE", text, None, [one for one in ways if one])
        self.now, self.waiting = self.loaded.effect(), self.loaded.first_waiting()
        options, codes_of = dict[str, Option](), dict[str, str]()
        # Brokers refuse every command about a group that does not exist.
        codes = [trouble] if trouble == "ORPHAN_SHARE_STATE" else self.status.troubles
        for code in codes:
            for make in _ACTIONS[code]:
                if (option := make(self)) is not None:
                    options.setdefault(option.action, option)
                    codes_of.setdefault(option.action, code)
        useful = (_ranked(one) for one in options.values() if self._does_something(one))
        # An option against another trouble comes last, unless it moves SPSO too.
        ordered = sorted(
            useful, key=lambda one: (codes_of[one.action] != trouble and not self._moves_start(one), one.harm)
        )
        return self._repair(trouble, self._sentence(), self.now, ordered)

    def _moves_start(self, option: Option) -> bool:
        moved_to = None if option.effect is None else option.effect.start_offset
        return moved_to is not None and moved_to > (self.now.start_offset or 0)

    def _does_something(self, option: Option) -> bool:
        """Whether an option that was rehearsed changes anything."""
        return not any(option.effect is one for one in self._without_change)

    def _repair(self, trouble: str, text: str, now: Effect | None, options: list[Option]) -> Repair:
        row, log_end = self.status.row, self.status.cutoff.get("log_end_offset")
        key, check = (self.group, row["topic_id"], self.partition), ""
        # Without offsets there is no earlier point to compare with.
        if row["state_partition"] is not None and log_end is not None:
            check = diff_command(self.found.inputs, row["state_partition"], log_end, *key)
        return Repair(self.status, trouble, text, now, tuple(map(self._with_name, options)), check)

    def _with_name(self, option: Option) -> Option:
        """The option without its command if that names what cannot be named."""
        if not option.command or (can_be_named(self.group) and can_be_named(self.topic)):
            return option
        why = (
            f"the topic's name is unknown; {TOPICS_HINT}"
            if can_be_named(self.group)
            else "the group id is not UTF-8"
        )
        return replace(option, command="", what=f"{option.what} No command can name it: {why}.")

    def _rehearse(self, release: Release | None = None, **settings: int) -> Rehearsal:
        own, limits = replace(self.settings, **settings), self.found.limits
        return Rehearsal(self.status, release or self.release, own, limits.updates_per_snapshot)

    def _effect(
        self, act: Callable[[Rehearsal], object], release: Release | None = None, **settings: int
    ) -> Effect:
        rehearsal = self._rehearse(release, **settings)
        act(rehearsal)
        effect = rehearsal.effect()
        if not rehearsal.has_changed():
            self._without_change.append(effect)
        return effect

    def _sentence(self) -> str:
        """The message of the finding or verdict, and what SPSO waits for."""
        message = next(iter(self.status.troubles.values()))
        start = self.now.start_offset
        lag = self.now.lag
        waits = "nothing in flight is recorded"
        if self.waiting is not None:
            first, last, state, count = self.waiting
            waits = f"it waits for {first:,}" if first == last else f"it waits for {first:,} to {last:,}"
            limit = f"{'at least ' * (self.group in self.found.observed)}{self.settings.delivery_count_limit}"
            named = "a gap: the log shows no delivery" if first in self.status.gaps else state.name
            waits += f", {named}" + f" after delivery {count} of {limit}" * (count > 0)
        behind = "the lag is unknown" if lag is None else f"the lag is {pluralize(lag, 'record')}"
        return f"{message}; SPSO is {format_number(start)} and {waits}; {behind}."

    def ask_broker(self) -> Option:
        what = "Compare with the start offset that the broker has in memory."
        return Option("ASK_BROKER", NOTHING, what, self.tools.describe(self.group, "offsets"))

    def forget_batches(self) -> Option | None:
        """Set the start offset to what it is: the snapshot that brokers then write has no batches."""
        start, rest = self.status.row["start_offset"], replace(self.status, ranges=())
        if not self.release.has_initialize or start < 0:
            return None
        rehearsal = Rehearsal(rest, self.release, self.settings, self.found.limits.updates_per_snapshot)
        rehearsal.initialize(start)
        finished = [
            one for one in self.status.ranges if one.delivery_state in TERMINAL and one.last_offset >= start
        ]
        again = tuple((max(one.first_offset, start), one.last_offset) for one in finished)
        what = (
            f"Set SPSO to {start:,}, where it is, once the group is empty. This discards the state after it, which no "
            "leader can load: finished records there are delivered again."
        )
        command = self._set_start(start)
        effect = replace(rehearsal.effect(), delivered_again=again)
        return Option("FORGET_BATCHES", AGAIN, what, command, effect=effect)

    def ask_for_group(self) -> Option:
        what = (
            "Check whether the group exists. If it does, its log was not read, and nothing is wrong; if not, brokers "
            "refuse to delete or reset its offsets."
        )
        return Option("ASK_BROKER", NOTHING, what, self.tools.describe(self.group, "state"))

    def leave_state(self) -> Option | None:
        epoch = self.status.row["state_epoch"] or 0
        if not self.release.has_initialize or epoch <= NEW_GROUP_EPOCH:
            return None
        what = (
            f"Leave it, and use another group id: this state has epoch {epoch:,}, and a recreated group starts at a "
            "lower one. Until its epoch is higher, brokers neither initialize nor delete this state."
        )
        return Option("LEAVE", NOTHING, what)

    def recreate_group(self) -> Option | None:
        if not self.release.has_initialize or (self.status.row["state_epoch"] or 0) > NEW_GROUP_EPOCH:
            return None
        what = (
            "If the group is no longer used, recreate it by joining it, which discards this state, then delete it. If "
            "it is used, start its consumers instead: share.auto.offset.reset decides where they begin."
        )
        join, delete = self.tools.recreate_group(self.group, self.topic), self.tools.delete_group(self.group)
        return Option(
            "RECREATE_GROUP", DELETES, what, f"{join}\n{delete}", effect=self._effect(Rehearsal.delete)
        )

    def wait_for_deliveries(self) -> Option | None:
        """The waiting range finishes at the latest when all its deliveries have failed."""
        if self.waiting is None or self.waiting[2] is DeliveryState.ARCHIVING:
            return None
        _, last, _, count = self.waiting
        effect = self._effect(lambda rehearsal: rehearsal.fail_deliveries(last))
        takes = timedelta(seconds=effect.seconds)
        moved, now = self.status.row["moved_time"], self.found.time
        # Deliveries may be far apart; an SPSO that has not moved for so long waits for something else.
        worst_case = max(takes, timedelta(minutes=self.found.limits.stall_minutes))
        if moved and now and now - moved > worst_case and not self.is_empty:
            return None
        lock = f"locks of {self.settings.record_lock_duration_ms // 1000} s"
        if self.release.renews:
            lock += ", which consumers may renew"
        what = (
            "while consumers fetch, the records that SPSO waits for are accepted, or archived after their last "
            f"delivery. The effect shows the worst case: every delivery times out ({lock})."
        )
        if not count:
            # No delivery is recorded, so all of them are left.
            effect = self._effect(Rehearsal.accept_everything)
            what = (
                "consumers fetch the gap that SPSO waits for, and all its deliveries are left. The effect shows that "
                "everything in flight is accepted at the next one."
            )
        if self.is_empty:
            what = f"Start consumers of the group, which is empty, and wait: {what}"
            return Option("START_CONSUMERS", NOTHING, what, effect=effect, then="WAIT")
        return Option("WAIT", NOTHING, f"Wait: {what}", until=self._after(takes), effect=effect)

    def wait_for_dead_letters(self) -> Option | None:
        waited, effect = timedelta(milliseconds=self.status.archiving_ms), Rehearsal.finish_dead_letters
        if not self.release.dead_letters:
            return None
        if self.is_empty:
            what = (
                "Start a consumer of the group, which is empty: until one fetches, no leader loads the state, and "
                "nothing moves. The leader sends the dead letters again, and archives the records in any case."
            )
            return Option("START_CONSUMERS", NOTHING, what, effect=self._effect(effect))
        if waited >= DEAD_LETTER_RETRIES:
            return None
        what = (
            "Wait: the broker tries each dead-letter write five times, and archives the record in any case. If its "
            "leader has changed, nothing moves until a consumer of the group fetches."
        )
        until = self._after(DEAD_LETTER_RETRIES - waited)
        return Option("WAIT", NOTHING, what, until=until, effect=self._effect(effect))

    def wait_for_consumers(self) -> Option | None:
        what = (
            "consumers receive these records again; those that skip records they have processed lose nothing."
        )
        if self.is_empty:
            what = f"Start consumers of the group, which is empty: {what}"
            return Option("START_CONSUMERS", NOTHING, what, effect=self._consumed())
        return Option("WAIT", NOTHING, f"Wait: {what}", effect=self._consumed())

    def _consumed(self) -> Effect | None:
        """The effect of the first fetches, all accepted; None if it is unknown what they return."""
        effect = self._effect(Rehearsal.accept_first_fetches)
        return None if effect in self._without_change else effect

    def wait_for_snapshot(self) -> Option | None:
        written = self.status.row["write_time"]
        is_due = self.found.time and written and self.found.time - written >= COLD_SNAPSHOT
        if not self.release.has_initialize or not written or is_due:
            return None
        what = (
            "Wait: the coordinator snapshots share-partitions that are idle for five minutes, unless all are."
        )
        effect = self._effect(Rehearsal.write_cold_snapshot)
        return Option("WAIT", NOTHING, what, until=written + COLD_SNAPSHOT, effect=effect)

    def start_consumers(self) -> Option | None:
        if self._has_nothing_to_fetch():
            return None
        what = (
            "Start consumers of the group, or find out why its consumers do not acknowledge: the command lists them. "
            "The effect shows the first fetches, all accepted."
        )
        command = self.tools.describe(self.group, "members")
        return Option("START_CONSUMERS", NOTHING, what, command, effect=self._consumed())

    def _has_nothing_to_fetch(self) -> bool:
        """Whether consumers would receive no record, as far as the topic's end is known."""
        partition, end = self.loaded.partition, self.status.row["topic_end_offset"]
        batches = partition.in_flight_batches()
        covered = sum(batch[1] - batch[0] + 1 for batch in batches)
        is_open = any(batch[2] in (DeliveryState.AVAILABLE, DeliveryState.ACQUIRED) for batch in batches)
        has_gap = covered < partition.end_offset - partition.start_offset
        return end is not None and end <= partition.end_offset and not is_open and not has_gap

    def stop_consumers(self) -> Option:
        what = (
            "Stop the consumers of the group until they are fixed: each record that they get is given up. The command "
            "shows whether the group is empty. Records that were given up are delivered again only after a reset."
        )
        return Option("STOP_CONSUMERS", NOTHING, what, self.tools.describe(self.group, "state"))

    def check_dead_letter_topic(self) -> Option | None:
        if not self.release.dead_letters:
            return None
        tools = self.tools
        commands = (
            tools.describe_config(self.group),
            tools.describe_dead_letter_topic(),
            tools.allow_dead_letters(),
        )
        what = (
            "Make the dead-letter topic usable before anything sends to it: errors.deadletterqueue.topic.name of the "
            "group (first command) names it, it needs leaders (second), and it must allow share groups (third)."
        )
        command = "\n".join(commands)
        if not self._has_archiving():
            return Option("FIX_DLQ", SETTINGS, what, command)
        what = f"{what} Then {self._restart()}, and sends the dead letters again, some of them for the second time."
        effect = self._effect(Rehearsal.finish_dead_letters)
        return Option("FIX_DLQ", AGAIN, what, command, effect=effect, then="RESTART_LEADER")

    def restart_leader(self) -> Option | None:
        if self.release.archiving != "resumed" or not self._has_archiving():
            return None
        what = (
            f"If the dead-letter topic is usable, {self._restart()}, sends the dead letters again, some of them for "
            "the second time, and archives the records whether or not that works."
        )
        return Option("RESTART_LEADER", AGAIN, what, effect=self._effect(Rehearsal.finish_dead_letters))

    def _has_archiving(self) -> bool:
        return DeliveryState.ARCHIVING.name in self.now.in_flight

    def _restart(self) -> str:
        place = f"{self.status.name}-{self.partition}"
        start = ", and start a consumer of the group, which is empty" if self.is_empty else ""
        return f"restart the broker that leads {place}{start}: the next leader loads the state when a consumer fetches"

    def upgrade(self) -> Option | None:
        """Later brokers resume records in ARCHIVING, and can move or delete state."""
        if self.settings.has_dead_letter_queue and self.release.archiving != "resumed":
            what = (
                f"Upgrade to {LATEST.name}: {self.release.name} never resumes records in ARCHIVING. The next leader "
                "sends them to the dead-letter queue, and archives them."
            )
            return Option(
                "UPGRADE", SETTINGS, what, effect=self._effect(Rehearsal.finish_dead_letters, LATEST)
            )
        if self.release.has_initialize:
            return None
        what = f"Upgrade: {self.release.name} cannot move or delete the state of a group; 4.1 and later can."
        return Option("UPGRADE", SETTINGS, what)

    def raise_delivery_limit(self) -> Option | None:
        limit = self.settings.delivery_count_limit
        raised = _raised(limit, _DEFAULTS.max_delivery_count_limit, WIDEST.max_delivery_count_limit)
        if raised is None or self.waiting is None or self.waiting[2] is not DeliveryState.AVAILABLE:
            return None
        first, last, *_ = self.waiting
        effect = self._effect(
            lambda rehearsal: rehearsal.fail_delivery(first, last), delivery_count_limit=raised
        )
        what = (
            f"Raise the delivery limit from {limit} to {raised}, to keep these records while consumers are fixed. "
            "The effect shows one more delivery, which fails."
        )
        return self._limit("delivery.count.limit", raised, what, effect)

    def raise_record_locks(self) -> Option | None:
        limit = self.settings.max_record_locks
        raised = _raised(
            limit, _DEFAULTS.max_partition_max_record_locks, WIDEST.max_partition_max_record_locks
        )
        if raised is None:
            return None
        begin, known = self.loaded.partition.end_offset, self.status.row["topic_end_offset"]
        last = (
            min(self.loaded.partition.start_offset + raised, raised + begin if known is None else known) - 1
        )
        effect = self._effect(lambda rehearsal: rehearsal.deliver(begin, last), max_record_locks=raised)
        what = f"Raise the limit of in-flight records from {limit:,} to {raised:,}; SPSO waits as before."
        if known is None:
            what += " The end of the topic is unknown: the effect assumes enough new records."
        return self._limit("partition.max.record.locks", raised, what, effect)

    def _limit(self, config: str, value: int, what: str, effect: Effect) -> Option:
        """Set a limit: of the group from 4.3 on, else of all brokers."""
        action = f"RAISE_{config.upper().replace('.', '_')}"
        of_brokers = (
            f"group.share.{config}={value} in server.properties of every broker, and a rolling restart"
        )
        if self.release.is_before(_GROUP_LIMITS_SINCE):
            why = f"{self.release.name} has no such limit for a single group"
            return Option(action, AGAIN, f"{what} {why}: set {of_brokers}.", effect=effect)
        if RELEASES[self.found.releases[0]].is_before(_GROUP_LIMITS_SINCE):
            what += f" This needs brokers of {_GROUP_LIMITS_SINCE}; earlier ones need {of_brokers}."
        elif value > getattr(_DEFAULTS, f"max_{config.replace('.', '_')}"):
            what += f" The brokers must allow it: group.share.max.{config}."
        command = self.tools.configure_group(self.group, f"share.{config}={value}")
        return Option(action, SETTINGS, what, command, effect=effect)

    def forbid_renewals(self) -> Option | None:
        if self.waiting is None or self.is_empty or self.release.is_before(_GROUP_LIMITS_SINCE):
            return None
        first, last, *_ = self.waiting
        what = (
            f"Disallow lock renewals ({_GROUP_LIMITS_SINCE} and later): a record that a consumer keeps is released "
            "when its lock expires. The effect shows one delivery of what SPSO waits for, whose locks expire."
        )
        command = self.tools.configure_group(self.group, "share.renew.acknowledge.enable=false")
        effect = self._effect(lambda rehearsal: rehearsal.fail_delivery(first, last))
        return Option("FORBID_RENEWALS", SETTINGS, what, command, effect=effect)

    def restart_consumers(self) -> Option | None:
        if self.is_empty:
            return None
        what = (
            "Stop all consumers of the group until the command shows it as Empty, and start them again: locks are "
            "released, records are delivered again. The effect shows members that leave while they hold every record."
        )
        effect = self._effect(Rehearsal.leave)
        return Option(
            "RESTART_CONSUMERS", AGAIN, what, self.tools.describe(self.group, "state"), effect=effect
        )

    def move_past_waiting(self) -> Option | None:
        """Move SPSO past the records that it waits for, and past finished or hopeless ones after them."""
        if self.waiting is None:
            return None
        target, waits = self.waiting[1] + 1, (DeliveryState.AVAILABLE, DeliveryState.ACQUIRED)
        failing = self.settings.delivery_count_limit - 1
        hopeless = {batch[:2] for batch in self.status.ranges if batch[2] in waits and batch[3] >= failing}
        for first, last, state, _ in self.loaded.partition.in_flight_batches():
            is_done = state in (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED, DeliveryState.ARCHIVING)
            if first > target:
                break
            if last >= target and (is_done or (first, last) in hopeless):
                target = last + 1
        return self._move_to(target, "past the records that it waits for")

    def move_back_to_audited(self) -> Option | None:
        target = self.status.previous_start or 0
        return (
            self._move_to(target, "back to where it was")
            if target > self.loaded.partition.start_offset
            else None
        )

    def _move_to(self, target: int, where: str) -> Option | None:
        if not self.release.has_initialize:
            return None
        effect = self._effect(lambda rehearsal: rehearsal.initialize(target))
        what = (
            f"Move SPSO {where}, to {target:,}, once the group is empty: until then, brokers refuse. This discards the "
            "state after that offset: finished records there are delivered again. Skipped records get no dead letter."
        )
        return Option("MOVE_START", AGAIN, what, self._set_start(target), effect=effect)

    def _set_start(self, offset: int) -> str:
        """The command that sets SPSO in each release that may have written the log."""
        can_reset = not RELEASES[self.found.releases[0]].is_before(_OFFSET_RESETS_SINCE)
        set_start = self.tools.reset_to_offset if can_reset else self.tools.move_start
        return set_start(self.group, self.topic, self.partition, offset)

    def reset_to_latest(self) -> Option | None:
        end = self.status.row["topic_end_offset"]
        if end is None or end <= self.loaded.partition.start_offset or self.release.is_before("4.2"):
            return None
        what = (
            "Skip to the end of the topic-partition, once the group is empty. The effect assumes the end at "
            f"{end:,}."
        )
        command = self.tools.reset_to_latest(self.group, self.topic, self.partition)
        effect = self._effect(lambda rehearsal: rehearsal.initialize(end))
        return Option("RESET_TO_LATEST", SKIPS, what, command, effect=effect)

    def delete_offsets(self) -> Option | None:
        if not self.release.has_initialize:
            return None
        what = (
            f"If the group no longer reads {self.status.name}, delete its state in all partitions, once the group is "
            "empty. If it reads it again, share.auto.offset.reset decides: latest skips unfinished records, earliest "
            "delivers finished ones again."
        )
        command = self.tools.delete_offsets(self.group, self.topic)
        return Option("DELETE_OFFSETS", DELETES, what, command, effect=self._effect(Rehearsal.delete))

    def delete_group(self) -> Option | None:
        if not self.release.has_initialize:
            return None
        what = "If the group is no longer used, delete it with the state of all its topics, once it is empty."
        command, effect = self.tools.delete_group(self.group), self._effect(Rehearsal.delete)
        return Option("DELETE_GROUP", DELETES, what, command, effect=effect)

    def _after(self, span: timedelta) -> datetime | None:
        return None if self.found.time is None else self.found.time + span


def _ranked(option: Option) -> Option:
    """The option with at least the harm that its effect shows."""
    effect = option.effect
    if effect is None:
        return option
    shown = SKIPS if effect.skipped else AGAIN if effect.delivered_again else NOTHING
    return replace(option, harm=max(option.harm, shown))


def _raised(limit: int, usual: int, most: int) -> int | None:
    """A higher limit: twice as much, within what brokers allow by default, else within what they can allow."""
    raised = min(2 * limit, usual if limit < usual else most)
    return raised if raised > limit else None


_Action = Callable[[_Advisor], Option | None]
_MOVES: tuple[_Action, ...] = (_Advisor.upgrade, _Advisor.move_past_waiting, _Advisor.reset_to_latest)
_ACTIONS: Mapping[str, tuple[_Action, ...]] = {
    "ORPHAN_SHARE_STATE": (
        _Advisor.ask_for_group, _Advisor.leave_state, _Advisor.upgrade, _Advisor.recreate_group,
    ),
    "REWIND": (_Advisor.wait_for_consumers, _Advisor.move_back_to_audited),
    "ARCHIVING_STUCK": (
        _Advisor.wait_for_dead_letters, _Advisor.check_dead_letter_topic, _Advisor.restart_leader, *_MOVES,
    ),
    "POISON_RECORDS": (_Advisor.wait_for_deliveries, _Advisor.raise_delivery_limit, *_MOVES),
    "IN_FLIGHT_LIMIT": (
        _Advisor.wait_for_deliveries, _Advisor.raise_record_locks, _Advisor.restart_consumers, *_MOVES,
    ),
    "STALL": (_Advisor.wait_for_deliveries, _Advisor.forbid_renewals, _Advisor.restart_consumers, *_MOVES),
    "STOP": (_Advisor.start_consumers,),
    "NO_MEMBERS": (_Advisor.start_consumers,),
    "GIVING_UP": (_Advisor.stop_consumers,),
    "TOPIC_GONE": (_Advisor.upgrade, _Advisor.delete_offsets, _Advisor.delete_group),
    "DLQ_UNUSABLE": (_Advisor.check_dead_letter_topic,),
    "DELETE_INCOMPLETE": (_Advisor.upgrade, _Advisor.delete_offsets, _Advisor.delete_group),
    "CUTOFF_PINNED": (_Advisor.wait_for_snapshot, _Advisor.upgrade, _Advisor.delete_offsets),
}  # fmt: skip
