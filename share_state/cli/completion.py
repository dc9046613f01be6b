"""What a shell completes: rule codes and limits, and the groups and topics of a warehouse that is named."""

from collections.abc import Iterable, Sequence

import typer

_LARGEST_TABLE = 4 << 20
"""Bytes of `share_partition_state` that are read within a tenth of a second; larger tables are not completed from."""


def complete_rule(incomplete: str) -> list[str]:
    """Complete `--rule CODE=SEVERITY`: codes, then their severities."""
    from share_state.rules.registry import OFF, SEVERITIES, registered  # noqa: PLC0415  rules import the fold

    return _complete_pair(incomplete, registered(), (*SEVERITIES, OFF))


def complete_limit(incomplete: str) -> list[str]:
    """Complete `--limit NAME=VALUE`: names, also those after `GROUP:`."""
    from share_state.config.sections import GroupConfig, LimitSettings  # noqa: PLC0415  slow to import

    group, colon, begun = incomplete.rpartition(":")
    names = GroupConfig.model_fields if colon else [name for name in LimitSettings.model_fields if name != "groups"]
    return [f"{group}{colon}{name}=" for name in names if name.startswith(begun)]


def _complete_pair(incomplete: str, names: Iterable[str], values: Sequence[str]) -> list[str]:
    name, equals, value = incomplete.partition("=")
    if equals:
        return [f"{name}={one}" for one in values if one.startswith(value)]
    found = sorted(one for one in names if one.startswith(name.upper()))
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
    named = ctx.params.get("warehouse") or ctx.params.get("inputs") or ()
    for place in [named] if isinstance(named, str) else named:
        try:
            return sorted(one for one in _values(place, columns) if one.startswith(incomplete))
        except Exception:  # noqa: BLE001  a shell shows what a completion prints
            continue
    return []


def _values(place: str, columns: Sequence[str]) -> set[str]:
    from share_state.cli.main import keep_pandas_out  # noqa: PLC0415

    keep_pandas_out()
    from share_state.delta.reader import CommittedTables  # noqa: PLC0415  slow to import

    tables = CommittedTables(place)
    if "://" in place or sum(file["size"] for file in tables.files("share_partition_state")) > _LARGEST_TABLE:
        return set()
    rows = tables.read("share_partition_state", columns=columns)
    return {one for column in columns for one in rows[column].unique().to_pylist() if one is not None}
