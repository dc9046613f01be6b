"""`InputSpec`: what to read and how to fold it. Options, YAML keys and Python arguments all build one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, InstanceOf, ValidationError

from share_state.config.declaration import (
    CONFIGURATION,
    DATA_SOURCE,
    RULES,
    SURFACES,
    NoOption,
    Option,
    OptionSpec,
    declared_options,
    python,
)
from share_state.config.sections import Column, GroupSettings, InputSettings, LimitSettings
from share_state.errors import InputError, ShareStateError
from share_state.kafka.primitives import LARGEST_INT64
from share_state.sources.as_of import TIME_FORMS, LogTime, NotATimeError, parse_time
from share_state.sources.topics import Topics

JUDGE_ALL = "all"
JUDGE_STATE = "state"
JUDGE_NONE = "none"
"""Which rules apply: all rules, all except those over single records of `__share_group_state`, or none."""

Judge = Literal["all", "state", "none"]
LogOffset = Annotated[int, Field(ge=0, le=LARGEST_INT64, strict=True)]

_RESUMES = "an audit goes on where the last one stopped, up to the end of the logs"
_NO_AS_OF = {
    "audit": _RESUMES,
    python("audit"): _RESUMES,
    CONFIGURATION: _RESUMES,
    "stream": "a stream goes on while records are written",
}
_NO_JUDGE = {
    surface: "it applies the rules that its result needs"
    for surface in SURFACES
    if surface not in ("reconstruct", python("reconstruct"), DATA_SOURCE)
}


def _to_time(value: Any) -> int | LogTime:
    if not isinstance(value, str | datetime):
        raise ValueError("neither a datetime nor text")
    return parse_time(value)


class InputSpec(InputSettings):
    """What to read, up to which record, and how to fold it.

    Attributes:
        sources: exports; those of the same format and dialect are read together.
        as_of_offsets: log partition (name or number) -> first offset left out.
        as_of_time: ms, or a time that depends on the logs; records with a later timestamp are left out.
            Accepts a datetime, or a text in one of TIME_FORMS.
        judge: which rules apply: JUDGE_ALL, JUDGE_STATE or JUDGE_NONE.
        groups: exports of `__consumer_offsets`; None to read no groups.
        frame: a Spark DataFrame of records in place of `sources`.
        columns: column names of `frame`.
        group_frame: a Spark DataFrame of group records in place of `groups.paths`.
        known_topics: names and end offsets in place of the file `topics`.
        names_only: whether groups are read only for the names of topics; then a log of theirs that cannot be
            read is only noted.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    as_of_offsets: Annotated[
        dict[str, LogOffset],
        Option(name="as_of_offset", argument="as_of", metavar="P=OFFSET", without=_NO_AS_OF),
    ] = Field(default={}, description="ignore records at or after OFFSET of log partition P")
    as_of_time: Annotated[
        Annotated[int | InstanceOf[LogTime] | None, BeforeValidator(_to_time)],
        Option(argument="as_of", metavar="TIME", without=_NO_AS_OF, kind="text"),
    ] = Field(
        default=None,
        description="ignore records with a later timestamp: ISO 8601 (UTC unless it has an offset or a zone as"
        " Europe/Berlin), ms since 1970, 02:10, or -30m before the newest record",
    )
    judge: Annotated[Judge, Option(RULES, without=_NO_JUDGE, default=JUDGE_ALL)] = Field(
        default="state", description="rules to apply: all, state (those over folded state) or none"
    )
    groups: GroupSettings | None = None
    frame: Annotated[Any, NoOption("`input` of a Python call")] = None
    columns: Annotated[
        dict[Column, str], NoOption("`columns` of a Python call whose input is a DataFrame")
    ] = Field(default={})
    group_frame: Annotated[Any, NoOption("`groups` of a Python call")] = None
    known_topics: Annotated[InstanceOf[Topics] | None, NoOption("`topics` of a Python call")] = None
    names_only: Annotated[bool, NoOption("calls that only print names set it")] = False

    @property
    def has_as_of(self) -> bool:
        """Whether only the records up to a point are read."""
        return bool(self.as_of_offsets) or self.as_of_time is not None


@cache
def input_options(surface: str | None = None) -> tuple[OptionSpec, ...]:
    """The options of the input that a surface takes; by default all."""
    declared = declared_options(InputSpec)
    return declared if surface is None else tuple(one for one in declared if one.is_taken_by(surface))


@dataclass(frozen=True, slots=True)
class FieldNames:
    """How messages name the fields of InputSpec: as the caller wrote them.

    Attributes:
        form: how the caller names them: "flag" (an option of a command), "argument" (of a Python call), or
            "key".
        flags: name of an option -> its flag, where that is not its own.
    """

    form: Literal["flag", "argument", "key"]
    flags: Mapping[str, str] = field(default_factory=dict)

    def name(self, key: str, item: object = "", value: object = "") -> str:
        """A field with the value that the caller wrote.

        Args:
            key: the key of the field: `groups.partitions`.
            item: name of the item, if it is a map; keys of inner maps are a tuple.
            value: the value.
        """
        option = _by_key().get(key)
        if option is None or self.form == "key":
            return key
        items = item if isinstance(item, tuple) else (item,)
        if self.form == "flag":
            flag = self.flags.get(option.name, option.flag)
            if option.kind != "map":
                return f"{flag} {value}"
            # limits.groups.app.delivery_count is app:delivery_count.
            written = ":".join(str(one) for one in items if option.name != "limits" or one != "groups")
            return f"{flag} {written}={value}"
        if option.kind != "map":
            return f"{option.argument}={value!r}" if option.kind != "number" else f"{option.argument}={value}"
        text = repr(value)
        for one in reversed(items):
            text = f"{{{one if option.argument == 'as_of' else repr(one)}: {text}}}"
        return f"{option.argument}={text}"

    def label(self, key: str) -> str:
        """A field without its value."""
        option = _by_key().get(key)
        if option is None or self.form == "key":
            return key
        return self.flags.get(option.name, option.flag) if self.form == "flag" else option.argument

    def expected(self, key: str) -> str | None:
        """Valid values of a field, for fields whose type does not say."""
        if self.form == "key":
            return None
        return _EXPECTED[self.form].get(key)


@cache
def _by_key() -> dict[str, OptionSpec]:
    # An option of every source is named without its number.
    return {one.key.removeprefix("sources.N."): one for one in input_options()}


_EXPECTED = {
    "flag": {
        "as_of_offsets": "a partition and an offset, as in 3=12000",
        "as_of_time": f"a time as in {TIME_FORMS}",
    },
    "argument": {
        "as_of_offsets": "a log partition and an offset, as in {3: 12000}",
        "as_of_time": f"a datetime, offsets as in {{3: 12000}}, or text as in {TIME_FORMS}",
    },
}

OPTIONS = FieldNames("flag")
LATER_OPTIONS = FieldNames("flag", {"as_of_offset": "--and-as-of-offset", "as_of_time": "--and-as-of-time"})
"""The options of the later of two points."""
ARGUMENTS = FieldNames("argument")
KEYS = FieldNames("key")
"""Keys of the audit's YAML file, with their dots."""


def input_spec(names: FieldNames, **values: Any) -> InputSpec:
    """Build an InputSpec and refuse invalid values in one line.

    Args:
        names: how messages name its fields.
        values: values of its fields; None keeps the default.
    Raises:
        ShareStateError: if a value cannot be used.
    """
    try:
        return InputSpec(**values)
    except NotATimeError as error:
        # parse_time does not know how the caller wrote the field.
        reason = error.reason or f"give {names.expected('as_of_time')}"
        raise InputError(f"{names.name('as_of_time', value=values['as_of_time'])}: {reason}") from None
    except ValidationError as error:
        raise ShareStateError(_refusal(names, values, error.errors()[0])) from None


def spec_of_options(
    names: FieldNames,
    paths: Sequence[str],
    option_values: Mapping[str, Any],
    *,
    reads_groups: bool = True,
    **more: Any,
) -> InputSpec:
    """The InputSpec of a call.

    Args:
        names: how messages name the options.
        paths: the inputs.
        option_values: name of an option -> its value, as its field takes it.
        reads_groups: whether the call reads groups if no option names some.
        more: fields of InputSpec that are no options.
    Raises:
        ShareStateError: if an option cannot be used.
    """
    values: dict[str, Any] = {}
    source: dict[str, Any] = {}
    for option in input_options():
        if option_values.get(option.name) is not None:
            *above, last = option.path
            section = source if above[:1] == ["sources"] else values
            for name in above if section is values else ():
                section = section.setdefault(name, {})
            section[last] = option_values[option.name]
    if reads_groups or "groups" in values:
        values["groups"] = values.get("groups", {}) | {"columns": option_values.get("columns")}
    return input_spec(names, sources=[{"path": path} | source for path in paths], **values, **more)


def texts_of_options(given: Mapping[str, Any]) -> dict[str, str]:
    """The options of a call for its row of `runs`.

    Args:
        given: name of an option -> its value.
    Returns:
        Name -> text; limits under their keys of the configuration, as an audit writes them.
    """
    texts = {}
    for name, value in given.items():
        if name == "limits":
            texts |= {".".join(path): str(one) for path, one in leaves(("limits",), value)}
        elif isinstance(value, Mapping):
            texts[name] = ",".join(f"{key}={one}" for key, one in value.items())
        elif isinstance(value, list):
            texts[name] = ",".join(value)
        else:
            texts[name] = "true" if value is True else str(value)
    return texts


def leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values below a key, with their own keys; the entries of a map, but not those of a list."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from leaves((*path, str(name)), one)
    else:
        yield path, value


def _refusal(names: FieldNames, value: Any, error: Any) -> str:
    is_key = error["loc"][-1] == "[key]"
    path = [part for part in error["loc"] if part != "[key]"]
    for part in path:
        value = value[part] if isinstance(value, dict | list) and part in _parts(value) else error["input"]
    key, items = _key_of(path)
    text = names.name(key, items, value)
    if is_key and key == "rules":
        return f"{text}: no such rule; `share-state rules` lists them"
    if error["type"] == "extra_forbidden":
        return f"{text}: {_no_such_limit(items)}"
    choices = error.get("ctx", {}).get("expected", "")
    choices = choices.replace(" or ", ", ").replace("'", "") if isinstance(choices, str) else ""
    expected = f"one of {choices}" if choices else _plain(error["msg"])
    if is_key:
        return f"{text}: no such column; give {expected}"
    return f"{text}: give {names.expected(key) or expected}"


_BOUNDS = {
    "greater than or equal to ": "at least ",
    "less than or equal to ": "at most ",
    "greater than ": "more than ",
}


def _plain(message: str) -> str:
    """What pydantic expects, in words."""
    text = message.removeprefix("Input should be ")
    if text.startswith("a valid integer"):
        return "a whole number"
    if text.startswith("a valid number"):
        return "a number"
    begin = next((begin for begin in _BOUNDS if text.startswith(begin)), "")
    return _BOUNDS.get(begin, "") + text.removeprefix(begin)


def _parts(value: Mapping[str, Any] | Sequence[Any]) -> Iterator[object]:
    return iter(value) if isinstance(value, Mapping) else iter(range(len(value)))


def _key_of(path: Sequence[str | int]) -> tuple[str, tuple[str | int, ...]]:
    """The key of the option that a path of an error is in, and what follows it."""
    for end in range(len(path), 0, -1):
        key = ".".join("N" if isinstance(part, int) else part for part in path[:end]).removeprefix(
            "sources.N."
        )
        if key in _by_key():
            return key, tuple(path[end:])
    return ".".join(map(str, path)), ()


def _no_such_limit(items: Sequence[str | int]) -> str:
    declared = LimitSettings.model_fields if len(items) < 2 else ("delivery_count", "record_locks")
    known = [name for name in declared if name != "groups"]
    similar = get_close_matches(str(items[-1]), known, 1) if items else []
    return (
        f"no such limit; did you mean {similar[0]}?"
        if similar
        else f"no such limit; give one of {', '.join(known)}"
    )
