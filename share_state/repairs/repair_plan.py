"""The plan of `share-state repair`, from tables or logs: as Markdown, bash script and plain data."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from share_state.delta.reader import CommittedTables
from share_state.errors import ShareStateError, pluralize
from share_state.fold.limits import Limits
from share_state.kafka.releases import RELEASES
from share_state.repairs.commands import BOOTSTRAP, DEAD_LETTER_TOPIC, LIBRARIES, KafkaTools, quote
from share_state.repairs.rehearsal import Effect, Ranges, count_offsets
from share_state.repairs.remedies import HARM, Option, Repair, repairs
from share_state.repairs.status import Survey, survey
from share_state.report.console import format_name, format_number, format_time, write_report

SUFFIXES = (".md", ".sh", ".json")
_MAX_RANGES = 20
_VARIABLES = {
    BOOTSTRAP: "host:port of a broker",
    LIBRARIES: "folder with the jars of Kafka, for jshell (of a JDK)",
    DEAD_LETTER_TOPIC: "dead-letter topic of the group",
}


@dataclass(frozen=True, slots=True, repr=False)
class RepairPlan:
    """Options for the share-partitions in trouble; the reader carries them out.

    Attributes:
        repairs: the most severe first.
        survey: what they are about, and how many more are in trouble.
    """

    repairs: tuple[Repair, ...]
    survey: Survey

    def __repr__(self) -> str:
        return self.markdown()

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data."""
        repair_rows = []
        for one in self.repairs:
            row = one.status.row
            key = {
                name: row[name] for name in ("group_id", "topic_id", "topic", "partition", "state_partition")
            }
            options = [asdict(option) | {"harm": HARM[option.harm]} for option in one.options]
            repair_rows.append(
                key | {"trouble": one.trouble, "sentence": one.sentence, "also": one.also,
                       "suspect": "STATE_SUSPECT" in one.status.troubles, "now": one.now and asdict(one.now),
                       "options": options, "check": one.check}
            )  # fmt: skip
        head = {
            "inputs": list(self.survey.inputs),
            "time": self.survey.time,
            "releases": list(self.survey.releases),
        }
        return head | {"share_partitions": repair_rows, "left_out": self.survey.left_out}

    def markdown(self) -> str:
        """The plan as Markdown."""
        return "\n".join(self._markdown()).rstrip() + "\n"

    def _markdown(self) -> Iterator[str]:
        yield "# Repair plan"
        yield ""
        yield from self._head()
        for number, repair in enumerate(self.repairs, 1):
            yield f"## {number}. {_title(repair)}"
            yield ""
            yield f"**{repair.trouble}**: {repair.sentence}"
            yield ""
            facts = [f"- also {code}: {format_name(text)}" for code, text in repair.also.items()]
            facts += [f"- now: {describe_effect(repair.now)}"] if repair.now is not None else []
            yield from (*facts, "") if facts else ()
            for place, option in enumerate(repair.options, 1):
                yield f"### {number}.{place} {option.action} ({HARM[option.harm]})"
                yield ""
                yield from _option_lines(option)
                if option.command:
                    yield from ("", "```bash", option.command, "```")
                yield ""
            if repair.check:
                yield "Afterwards, export again and compare; the state at this plan is the earlier point:"
                yield from ("", "```bash", repair.check, "```", "")

    def _head(self) -> Iterator[str]:
        first, last = self.survey.releases[0], self.survey.releases[-1]
        writer = first if first == last else f"{first} to {last}, the log does not show which"
        time = f", up to {format_time(self.survey.time)}" if self.survey.time else ""
        inputs = ", ".join(map(format_name, self.survey.inputs))
        yield f"From {inputs}{time}; written by Kafka {writer}. Nothing was changed."
        yield ""
        if without := self.survey.without_state:
            count = pluralize(len(without), "finding")
            yield f"{count} about share-partitions without a state, for which there is no plan:"
            yield ""
            yield from (f"- {format_name(line)}" for line in without[:_MAX_WITHOUT])
            if len(without) > _MAX_WITHOUT:
                yield f"- and {len(without) - _MAX_WITHOUT:,} more"
            yield ""
            yield _INITIALIZE
            yield ""
        if not self.repairs:
            state = " that has a state" if self.survey.without_state else ""
            yield f"No share-partition{state} is in trouble: there is nothing{' else' if state else ''} to do."
            return
        more = (
            f", and {self.survey.left_out:,} more that are left out (--most)" if self.survey.left_out else ""
        )
        count = pluralize(len(self.repairs), "share-partition")
        yield f"{count} in trouble{more}. Options are in order of harm; one is enough."
        yield ""
        if names := _variables("\n".join(option.command for one in self.repairs for option in one.options)):
            named = "; ".join(f"`{name}`, {_VARIABLES[name]}" for name in names)
            yield f"Set these before you run a command: {named}."
            yield ""

    def script(self, name: str = "plan.sh") -> str:
        """The plan as a script of this name: it prints itself, or runs the option that its argument names."""
        run = f"bash {quote(name)}"
        usage = f"# `{run} 1.2` carries out option 1.2 and nothing else, `{run} 1.check` compares."
        head = (f"# {line}".rstrip() for line in self._head())
        lines = ["#!/usr/bin/env bash", *head, usage, "set -eu", 'case "${1:-}" in']
        for number, one in enumerate(self.repairs, 1):
            for place, option in enumerate(one.options, 1):
                if option.command:
                    used = _variables(option.command)
                    needs = [f': "${{{name}:?{_VARIABLES[name]}}}"; export {name}' for name in used]
                    lines += [f"{number}.{place})  # {option.action}", *needs, option.command, ";;"]
            lines += [f"{number}.check)", one.check, ";;"] if one.check else []
        lines += [
            "'')",
            *(f"printf '%s\\n' {quote(line)}" for line in self.markdown()[:-1].split("\n")),
            ";;",
        ]
        lines += ['*) echo "no option $1 with a command" >&2; exit 2;;', "esac"]
        return "\n".join(lines) + "\n"

    def write(self, path: str) -> None:
        """Write the plan in the format of the path's suffix, completely or not at all.

        Raises:
            ReportError: if it cannot be written.
        """
        formats = {".md": self.markdown, ".sh": partial(self.script, Path(path).name), ".json": self._json}
        write_report(path, formats[Path(path).suffix]())

    def _json(self) -> str:
        return json.dumps(self.to_json(), ensure_ascii=False, indent=2, default=datetime.isoformat) + "\n"


_MAX_WITHOUT = 10
_INITIALIZE = (
    "The group coordinator requests their state again at a heartbeat of a member. Check that the group has a running "
    "member, that the brokers' logs show no error of InitializeShareGroupState, and that __share_group_state has "
    "leaders; `share-state groups` shows the group."
)
"""What to do about share-partitions without a state. Source: Kafka
GroupMetadataManager.shareGroupHeartbeat."""


def check_release(release: str | None) -> None:
    """Refuse a release that is unknown; None is inferred.

    Raises:
        ShareStateError: naming those that are known.
    """
    if release is not None and release not in RELEASES:
        raise ShareStateError(f"release {release}: give one of {', '.join(RELEASES)}")


def make_plan(
    tables: CommittedTables,
    groups: Sequence[str] = (),
    *,
    limits: Limits | None = None,
    release: str | None = None,
    most: int = 50,
    tools: KafkaTools | None = None,
) -> RepairPlan:
    """Plan what to do about share-partitions in trouble; changes nothing.

    Args:
        tables: the tables of an audit or a reconstruct.
        groups: only these; all if there are none.
        limits: the limits of the cluster and its groups; by default those of the run.
        release: the release that wrote the log; by default inferred.
        most: maximum number of share-partitions.
        tools: the commands of the cluster.
    Raises:
        InputError: if a group is unknown.
        WarehouseError: if a table is gone.
    """
    found = survey(tables, groups, limits, release, most)
    return RepairPlan(repairs(found, tools or KafkaTools()), found)


def _variables(command: str) -> list[str]:
    """The shell variables that a command needs."""
    return [name for name in _VARIABLES if re.search(rf'\${name}\b|getenv\("{name}"\)', command)]


def _title(one: Repair) -> str:
    row = one.status.row
    key = f"group {format_name(row['group_id'])}, topic {format_name(one.status.name)}, partition {row['partition']}"
    return (
        key if row["state_partition"] is None else f"{key} (in __share_group_state-{row['state_partition']})"
    )


def _option_lines(option: Option) -> Iterator[str]:
    yield format_name(option.what)
    if option.until is not None:
        yield f"- until: {format_time(option.until)}"
    if option.effect is None:
        return
    yield f"- then: {describe_effect(option.effect)}"
    for name, ranges in (
        ("skipped", option.effect.skipped),
        ("delivered again", option.effect.delivered_again),
    ):
        yield f"- {name}: {describe_ranges(ranges)}"


def describe_effect(effect: Effect) -> str:
    """The state that an option leaves, in words."""
    cutoff = f"cutoff {format_number(effect.cutoff)}"
    in_flight = ", ".join(f"{count:,} {state}" for state, count in effect.in_flight.items()) or "nothing"
    window = f"SPSO {format_number(effect.start_offset)}, SPEO {format_number(effect.end_offset)}"
    return f"{window}, in flight {in_flight}, lag {format_number(effect.lag)}, {cutoff}"


def describe_ranges(ranges: Ranges, most: int = _MAX_RANGES) -> str:
    """Ranges of offsets in words, at most `most` of them one by one."""
    if not ranges:
        return "none"
    listed = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges[:most])
    more = f" and {len(ranges) - most:,} more ranges (--json lists all)" if len(ranges) > most else ""
    return f"{pluralize(count_offsets(ranges), 'offset')}: {listed}{more}"
