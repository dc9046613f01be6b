"""What a shell completes: rule codes and limits, and the groups and topics of a warehouse that is named."""

import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import typer

from share_state.errors import ShareStateError

_DEFAULT_WAREHOUSE = "share_state"
"""Where commands look for tables if none are named, such as `why`, which takes the group first."""

_LARGEST_TABLE = 4 << 20
"""Bytes of `share_partition_state` that are read within a tenth of a second; larger tables are not completed
from."""


def words_to_complete() -> list[str]:
    """The words after `share-state` of which a shell asks to complete the last; none if it asks for nothing."""
    # bash sets the first, other shells the second. Source: typer._completion_classes.
    words = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    try:
        return shlex.split(words)[1:] if "_SHARE_STATE_COMPLETE" in os.environ else []
    except ValueError:  # a quote that is still open
        return words.split()[1:]


def complete_rule(incomplete: str) -> list[str]:
    """Complete `--rule CODE=SEVERITY`: codes, then their severities."""
    from share_state.rules.breaches import OFF, SEVERITIES  # noqa: PLC0415  rules import the fold
    from share_state.rules.registry import registered  # noqa: PLC0415  rules import the fold

    return _complete_pair(incomplete, registered(), (*SEVERITIES, OFF))


def complete_release(incomplete: str) -> list[str]:
    """Complete a release; a version of it, such as 4.4.0, is taken, too."""
    from share_state.kafka.releases import SIMULATED  # noqa: PLC0415  as for the others, only to complete

    return [name for name in SIMULATED if name.startswith(incomplete)]


def complete_code(incomplete: str) -> list[str]:
    """Complete the code of a rule or verdict."""
    from share_state.fold.history import OK, VERDICTS  # noqa: PLC0415  slow to import
    from share_state.rules.registry import registered  # noqa: PLC0415  rules import the fold

    codes = {*registered(), *VERDICTS} - {OK}
    return sorted(code for code in codes if code.startswith(incomplete.upper()))


def complete_limit(incomplete: str) -> list[str]:
    """Complete `--limit NAME=VALUE`: names, also those after `GROUP:`."""
    from share_state.config.sections import GroupConfig, LimitSettings  # noqa: PLC0415  slow to import

    group, colon, begun = incomplete.rpartition(":")
    names = (
        GroupConfig.model_fields
        if colon
        else [name for name in LimitSettings.model_fields if name != "groups"]
    )
    return [f"{group}{colon}{name}=" for name in names if name.startswith(begun)]


def _complete_pair(incomplete: str, names: Iterable[str], values: Sequence[str]) -> list[str]:
    name, equals, value = incomplete.partition("=")
    if equals:
        return [f"{name}={one}" for one in values if one.startswith(value)]
    found = sorted(one for one in names if one.startswith(name))
    # A shell adds a space after the only match, which would end the word before its value.
    return [f"{found[0]}={one}" for one in values] if len(found) == 1 else found


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a group of the warehouse that the call names."""
    return _known(ctx, ("group_id",), incomplete)


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a topic of the warehouse that the call names, by its name or id."""
    return _known(ctx, ("topic", "topic_id"), incomplete)


def _known(ctx: typer.Context, columns: Sequence[str], incomplete: str) -> list[str]:
    """The values of columns of `share_partition_state` that begin with a text; none if there is no small warehouse."""
    # typer parses no argument before an option that still lacks its value.
    named = [word for word in words_to_complete()[1:] if not word.startswith("-")]
    for place in [*named, ctx.params.get("warehouse"), _DEFAULT_WAREHOUSE]:
        if place is None or not Path(place).is_dir():
            continue
        try:
            return sorted(one for one in _values(place, columns) if one.startswith(incomplete))
        except (ShareStateError, OSError):  # a shell would show what a completion prints
            continue
    return []


def _values(place: str, columns: Sequence[str]) -> set[str]:
    from share_state.delta.committed import CommittedTables  # noqa: PLC0415  slow to import

    tables = CommittedTables(place)
    if sum(file["size_bytes"] for file in tables.files("share_partition_state")) > _LARGEST_TABLE:
        return set()
    rows = tables.read("share_partition_state", columns=columns)
    return {one for column in columns for one in rows[column].unique().to_pylist() if one is not None}
