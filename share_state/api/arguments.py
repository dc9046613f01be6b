"""The arguments that calls share: they describe the input as the options of commands do, under the same names."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from inspect import signature
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypedDict, TypeGuard, TypeVar, cast

import pyarrow as pa

from share_state.config.declaration import OptionSpec, python
from share_state.config.input_spec import ARGUMENTS, input_options, spec_of_options, texts_of_options
from share_state.config.run_options import logs_of_warehouse
from share_state.errors import InputError, ShareStateError
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.planning import build_plan
from share_state.sources.as_of import AsOf
from share_state.sources.topics import Topics, topics_of
from share_state.stores.paths import normalize_address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


class ArrowFrame(Protocol):
    """Rows in memory that Arrow can read: an Arrow table, a DataFrame of pandas or polars."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Records = Paths | ArrowFrame
"""The records of a log: where they are, or the rows themselves."""

TopicsGiven = Topics | Mapping[str, str] | str | PathLike[str] | None
"""Names and end offsets of topics: a JSON file as `--topics` takes it, topic id -> name, or `Topics`."""


class ReadOptions(TypedDict, total=False):
    """Arguments that describe the input; share_state/config declares them, docs/options.md lists them."""

    format: str
    dialect: str
    columns: Mapping[str, str] | None
    kafka_properties: str | PathLike[str] | None
    as_of: AsOf | None
    topics: TopicsGiven
    state_partitions: int | None
    groups: "Records | DataFrame | None"
    group_partitions: int | None
    dead_letters: Paths | None
    dead_letters_copied_last: bool
    mode: str
    subscriptions: str | PathLike[str] | None
    ignore_uncheckpointed: bool
    limits: Mapping[str, Any] | None
    rules: Mapping[str, str] | None


class JudgedOptions(ReadOptions, total=False):
    """Arguments of `reconstruct`."""

    judge: str


_P = ParamSpec("_P")
_R = TypeVar("_R")
_PLACE = "        options: "


def takes_options(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a call refuse unknown arguments, and let its docstring list the options that it takes."""
    options = input_options(python(call.__name__))
    known = {option.argument for option in options} | set(signature(call).parameters) - {"options"}

    @wraps(call)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for name in kwargs:
            if name not in known:
                raise TypeError(f"share_state.{call.__name__}() got an unexpected keyword argument {name!r}")
        return call(*args, **kwargs)

    listed = dict.fromkeys(f"            {option.argument}: {option.meaning}." for option in options)
    before, place, rest = (call.__doc__ or "").partition(_PLACE)
    if place:
        first, _, after = rest.partition("\n")
        checked.__doc__ = "\n".join([f"{before}{place}{first}", *listed, after])
    return checked


def plan_of(
    input: "Records | DataFrame",
    options: Mapping[str, Any],
    *,
    spark: "SparkSession | None" = None,
    reads_groups: bool = True,
    names_only: bool = False,
    judge: str | None = None,
    takes_warehouse: bool = False,
) -> FoldPlan:
    """The plan of a call; its notes go to the logger.

    Args:
        input: paths or rows.
        options: those of ReadOptions.
        spark: a session, to sort rows; rows in memory become rows of it.
        reads_groups: whether groups are read if no argument names some.
        names_only: whether they are read only for the names of topics.
        judge: which rules apply.
        takes_warehouse: whether a warehouse stands for the logs of its last run.
    Raises:
        ShareStateError: if an argument cannot be used.
    """
    for option in input_options():
        _check_option(option, options.get(option.argument))
    rows, groups = rows_of(input, spark), options.get("groups")
    if rows is not None and any(options.get(name) not in (None, "auto") for name in _OF_FILES):
        raise ShareStateError("a DataFrame has no format, dialect or kafka_properties; leave them out")
    given_options = given_values(options)
    more: dict[str, Any] = {"names_only": names_only, "judge": judge or options.get("judge")}
    if isinstance(topics := options.get("topics"), Topics | Mapping):
        more["known_topics"] = topics if isinstance(topics, Topics) else _named_topics(topics)
    if rows is not None:
        more |= {"frame": rows, "columns": options.get("columns")}
    if (group_rows := rows_of(groups, spark, "groups")) is not None:
        more["group_frame"] = group_rows
    elif groups is not None:
        given_options["groups"] = listed_paths(cast("Paths", groups), "groups")
        if not given_options["groups"]:
            given_options = {
                name: value
                for name, value in given_options.items()
                if name not in ("groups", "group_partitions")
            }
            reads_groups = False
    named = [] if rows is not None else listed_paths(cast("Paths", input))
    if takes_warehouse and named:
        from share_state.repairs.status import open_warehouse  # noqa: PLC0415  only some calls take a warehouse

        if (tables := open_warehouse(named)) is not None:
            # Topics and groups of the call are options, too.
            asked = given_options | {one: more[one] for one in ("known_topics", "group_frame") if one in more}
            named, given_options = logs_of_warehouse(named[0], tables, asked)
    spec = spec_of_options(ARGUMENTS, named, given_options, reads_groups=reads_groups, **more)
    sorter = None
    if (session := session_of(groups, session_of(input, spark))) is not None:
        from share_state.spark.sorted_tables import SparkSorter  # noqa: PLC0415  imports Spark

        sorter = SparkSorter(session)
    return build_plan(spec, ARGUMENTS, sorter)


_OF_FILES = ("format", "dialect", "kafka_properties")
_OTHERWISE_READ = ("as_of", "topics", "groups", "judge")


def given_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Name of an option -> its value, for options whose value is plain."""
    given = {}
    for option in input_options():
        value = options.get(option.argument)
        if value is None or option.argument in _OTHERWISE_READ:
            continue
        given[option.name] = listed_paths(value, option.argument) if option.kind == "list" else _text(value)
    as_of, topics = options.get("as_of"), options.get("topics")
    if isinstance(as_of, Mapping):
        given["as_of_offset"] = {str(log): offset for log, offset in as_of.items()}
    elif as_of is not None:
        given["as_of_time"] = as_of
    if isinstance(topics, str | PathLike):
        given["topics"] = fspath(topics)
    return given


def _text(value: Any) -> Any:
    return fspath(value) if isinstance(value, PathLike) else value


def _named_topics(names: Mapping[str, str]) -> Topics:
    for topic_id, name in names.items():
        if not (isinstance(topic_id, str) and isinstance(name, str)):
            raise ShareStateError(f"topics={{{topic_id!r}: {name!r}}}: give topic ids and names")
    return topics_of(names)


def session_of(given: object, spark: "SparkSession | None") -> "SparkSession | None":
    """The session of a DataFrame, which must not be streaming; for other input, the one that the caller gave.

    Raises:
        ShareStateError: if it cannot be used.
    """
    check_types(spark=spark)
    session = given.sparkSession if is_frame(given) else spark
    check_types(spark=session)
    if session is not None:
        from share_state.spark.connections import is_stopped, send_package  # noqa: PLC0415  imports Spark

        if is_stopped(session):
            raise ShareStateError("the Spark session is stopped; open another one")
        send_package(session)
    if is_frame(given) and given.isStreaming:
        raise InputError("the DataFrame is streaming: give one of spark.read, or run `share-state stream`")
    return session


def listed_paths(paths: Paths, name: str = "input") -> list[str]:
    """One or several paths as a list of addresses.

    Raises:
        ShareStateError: if it is something else.
    """
    if hasattr(type(paths), "columns") or isinstance(paths, Mapping):
        raise ShareStateError(f"{name} is a {type(paths).__name__}: give {_ROWS}, or a path")
    one_or_more = [paths] if isinstance(paths, str | PathLike) or not isinstance(paths, Iterable) else paths
    named = list(one_or_more)
    is_usable = all(isinstance(path, str | PathLike) and path != "" for path in named)
    if not is_usable or (not named and name == "input"):
        raise InputError(f"{name}={paths!r}: give a path, several paths, or a DataFrame")
    return [normalize_address(fspath(path)) for path in named]


_ROWS = "an Arrow table, a DataFrame of pandas, polars or Spark"
_PATH = ((str, PathLike), "a path")
_NUMBER = (int, "a whole number")
_TEXT = (str, "text")
_TYPES: dict[str, tuple[Any, str]] = {
    "warehouse": _PATH,
    "config": _PATH,
    "group": _TEXT,
    "topic": _TEXT,
    **dict.fromkeys(("partition", "offset", "delivery_limit", "most"), _NUMBER),
}
"""Argument of a call that is no option -> its types, and what to give, in words."""

_EXAMPLES = {"columns": {"key": "k"}, "rules": {"CRC_MISMATCH": "warning"}, "limits": {"delivery_count": 3}}


def _check_option(option: OptionSpec, value: Any) -> None:
    """Refuse a value whose type is not that of the option; the model refuses the others."""
    types: tuple[Any, str] | None = None
    if option.argument == "topics":
        types = (str, PathLike, Mapping, Topics), "the path of a JSON file, topic ids and names, or Topics"
    elif option.name in _EXAMPLES:
        types = Mapping, f"a dictionary as in {_EXAMPLES[option.name]}"
    elif option.kind == "number":
        types = _NUMBER
    elif option.kind == "flag" and not isinstance(value, bool | None):
        raise ShareStateError(f"{option.argument}={value!r}: give True or False")
    elif option.kind == "text" and option.argument != "as_of":
        types = _PATH
    if types is not None:
        _check_type(option.argument, value, *types)


def check_types(**given: Any) -> None:
    """Refuse an argument of a wrong type; None is a default.

    Raises:
        ShareStateError: naming the argument, its value and what may be given.
    """
    for name, value in given.items():
        if name == "spark":
            if value is not None and not hasattr(value, "createDataFrame"):
                raise ShareStateError(f"spark={value!r}: give a SparkSession")
        else:
            _check_type(name, value, *_TYPES[name])


def _check_type(name: str, value: Any, types: Any, fix: str) -> None:
    is_right = isinstance(value, types) and not isinstance(value, bool) and (value != "" or types is str)
    if value is not None and not is_right:
        raise ShareStateError(f"{name}={value!r}: give {fix}")


def texts_of(options: Mapping[str, Any]) -> dict[str, str]:
    """The arguments of a call as text, for the table `runs`."""
    given = given_values(options)
    groups = options.get("groups")
    if has_rows(groups):
        given["groups"] = [ROWS]
    elif groups is not None:
        given["groups"] = listed_paths(cast("Paths", groups), "groups")
    if isinstance(moment := given.get("as_of_time"), datetime):
        given["as_of_time"] = moment.isoformat()
    return texts_of_options(given)


def is_frame(given: object) -> "TypeGuard[DataFrame]":
    """Whether it is a Spark DataFrame."""
    return hasattr(given, "sparkSession")


ROWS = "DataFrame"
"""How the table `runs` names an input that is no path."""


def has_rows(argument: object) -> "TypeGuard[DataFrame | ArrowFrame]":
    """Whether it holds records itself, in memory or in Spark."""
    return (
        is_frame(argument)
        or hasattr(argument, "__arrow_c_stream__")
        or hasattr(argument, "__arrow_c_array__")
    )


def named_inputs(argument: "Records | DataFrame") -> list[str]:
    """The input of a call for the table `runs`."""
    return [ROWS] if has_rows(argument) else listed_paths(cast("Paths", argument))


def rows_of(
    argument: object, spark: "SparkSession | None" = None, name: str = "input"
) -> "pa.Table | DataFrame | None":
    """The records that a caller holds, as an Arrow table or, with a session, a DataFrame of Spark.

    Args:
        argument: as the caller gave it.
        spark: a session.
        name: of the argument.
    Returns:
        None if the argument names paths.
    Raises:
        ShareStateError: if Arrow cannot read its rows.
    """
    if is_frame(argument) or not has_rows(argument):
        return argument if is_frame(argument) else None
    try:
        table = pa.table(cast("Any", argument))
        return table if spark is None else spark.createDataFrame(table)
    except (pa.ArrowException, TypeError, ValueError) as error:
        kind, reason = type(argument).__name__, (str(error).splitlines() or [type(error).__name__])[0]
        raise ShareStateError(f"{name}: Arrow cannot read this {kind} ({reason}); give {_ROWS}") from None
