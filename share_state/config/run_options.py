"""The inputs and options of a run, from its row of `runs`: with them, a warehouse stands for its logs."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.declaration import OptionSpec
from share_state.config.input_spec import input_options
from share_state.errors import ShareStateError
from share_state.sources.log_partition import STATE_TOPIC
from share_state.stores.paths import to_path

POINTS = ("as_of_offset", "as_of_time")
"""Options of a point of the logs, which a call may give for a warehouse, too."""


class RunTables(Protocol):
    """The tables of a run."""

    run: dict[str, Any]

    def read(self, table: str, where: pc.Expression | None, columns: Sequence[str] | None) -> pa.Table:
        """Some rows of a table."""
        ...


def logs_of_run(tables: RunTables) -> tuple[list[str], dict[str, Any]]:
    """The inputs of a run, and its options up to the records that it read.

    Args:
        tables: those of the run.
    Returns:
        Paths or addresses; name of an option -> its value, as `spec_of_options` takes it.
    """
    run = tables.run
    options = dict(run["options"] or ())
    given = {
        option.name: value for option in input_options() if (value := _given(option, options)) is not None
    }
    ends, absent = dict(run["progress"] or ()), _absent_logs(tables)
    # A format without offsets is read whole; of a log that the run missed, the end is that of an earlier audit.
    if progress := {log: end for log, end in ends.items() if end is not None and log not in absent}:
        given = {name: value for name, value in given.items() if name not in POINTS}
        given["as_of_offset"] = progress
    given.pop("judge", None)
    return list(run["inputs"]), given


def _absent_logs(tables: RunTables) -> set[str]:
    """The log partitions that were not in the input of a run."""
    where = pc.field("rule") == "STATE_PARTITION_MISSING"
    rows = tables.read("findings", where, ("state_partition",))
    return {f"{STATE_TOPIC}-{number}" for number in rows["state_partition"].to_pylist()}


def logs_of_warehouse(
    warehouse: str, tables: RunTables, asked: Mapping[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """The logs that a call reads in place of a warehouse, and its options.

    Args:
        warehouse: as the caller named it.
        tables: those of its last run.
        asked: the options of the call: a point of the logs, and limits; others are refused.
    Raises:
        ShareStateError: if another option is given, or the logs are gone.
    """
    refuse_options(warehouse, [name for name in asked if name not in (*POINTS, "limits")])
    logs, kept = logs_of_run(tables)
    for path in logs:
        if not _may_exist(path):
            raise ShareStateError(
                f"{warehouse}: the logs of its last run are gone ({path}); give logs in place of the warehouse"
            )
    if any(name in asked for name in POINTS):
        kept = {name: value for name, value in kept.items() if name not in POINTS}
    return logs, {**kept, **asked}


def refuse_options(warehouse: str, given: object) -> None:
    """Refuse options of a call that reads a warehouse.

    Raises:
        ShareStateError: if there are any.
    """
    if given:
        raise ShareStateError(
            f"{warehouse}: is a warehouse, which keeps the options of its run; leave out others"
        )


def _may_exist(path: str) -> bool:
    """Whether an input may be there: addresses and patterns are not looked up."""
    return "://" in path or any(one in path for one in "*?[") or to_path(path).exists()


def _given(option: OptionSpec, texts: Mapping[str, str]) -> Any:
    """The value of an option in a row of `runs`; None if it is not there.

    An audit writes its keys of the configuration, other commands the names of options.
    """
    if option.name == "limits":
        return _limits(texts)
    key = ".".join(option.path)
    text = texts.get(option.name, texts.get(key))
    if option.kind == "map":
        items = text.split(",") if text else []
        pairs = dict(item.split("=", 1) for item in items)
        pairs |= {
            name.removeprefix(f"{key}."): value for name, value in texts.items() if name.startswith(f"{key}.")
        }
        return pairs or None
    if option.kind == "list":
        items = [value for name, value in sorted(texts.items()) if name.startswith(f"{key}.")]
        return (text.split(",") if text else items) or None
    if text is None:
        return None
    if option.kind == "flag":
        return text.lower() == "true"
    return int(text) if option.kind == "number" else text


def _limits(texts: Mapping[str, str]) -> dict[str, Any] | None:
    limits: dict[str, Any] = {}
    for name, value in texts.items():
        section, _, rest = name.partition(".")
        if section != "limits" or rest.startswith("of_cluster."):
            continue
        if rest.startswith("groups."):
            group, _, limit = rest.removeprefix("groups.").rpartition(".")
            limits.setdefault("groups", {}).setdefault(group, {})[limit] = value
        else:
            limits[rest] = value
    return limits or None
