"""What an option of the input is: `Option` marks a field of a section, `declared_options` lists all of them.

A field in share_state/config/sections.py or inputs.py is the only declaration of its option: name, meaning,
type, range, choices and default. Options of commands, arguments of Python calls, options of the data source,
keys of the configuration and environment variables derive from it. If a call lacks an option, the reason is
beside the field.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

PREFIX, NEST = "SHARE_STATE_", "__"

Kind = Literal["flag", "number", "choice", "text", "list", "map"]

INPUT = "input"
FOLD = "fold"
LIMITS = "limits"
RULES = "rules"
TOPICS = (INPUT, FOLD, LIMITS, RULES)
"""What options are about."""

READING_COMMANDS = (
    "reconstruct",
    "audit",
    "stream",
    "cutoff",
    "why",
    "repair",
    "offsets",
    "explain",
    "diff",
    "decode",
    "plot",
)
"""Commands that fold or decode an input; they take every option that has no reason against it."""

OTHER_COMMANDS: Mapping[str, str] = {
    "show": "it reads a warehouse, which has the options of its run, or an export with the defaults",
    "groups": "it reads a warehouse, which has the options of its run, or an export with the defaults",
    "compare": "it reads a warehouse, which has the options of its run, or an export with the defaults",
    "topics": "it reads facts about topics, no log of share groups",
    "simulate": "it writes logs",
    "rules": "it reads nothing",
    "setup": "it reads nothing",
}
"""Every other command, and why it takes no option of the input."""

PYTHON_CALLS = (
    "reconstruct",
    "audit",
    "cutoff",
    "timeline",
    "explain",
    "why",
    "repair",
    "diff",
    "decode",
    "read",
)
"""Python calls that read an input."""

DATA_SOURCE, CONFIGURATION = "spark.read", "configuration"


def python(call: str) -> str:
    """The name of a Python call among the surfaces of an option."""
    return f"share_state.{call}"


SURFACES = (*READING_COMMANDS, *map(python, PYTHON_CALLS), DATA_SOURCE, CONFIGURATION)
"""Where an input is described: commands, Python calls, the data source, and the audit's configuration."""


@dataclass(frozen=True, slots=True)
class Option:
    """Marks a field as an option; what is not given derives from the field.

    Attributes:
        about: one of TOPICS.
        name: name of the option in this package, and in the options of a run.
        flag: the option of commands.
        argument: the argument of Python calls, and the option of the data source.
        metavar: what help shows in place of the value.
        without: surface -> why it does not take the option.
        also: other commands that take it.
        default: default in words, if commands do not use that of the field.
        kind: form of the value.
    """

    about: str = INPUT
    name: str | None = None
    flag: str | None = None
    argument: str | None = None
    metavar: str | None = None
    without: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    default: str | None = None
    kind: "Kind | None" = None


@dataclass(frozen=True, slots=True)
class NoOption:
    """Marks a field that is no option.

    Attributes:
        reason: why.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """An option of the input, as every surface offers it.

    Attributes:
        name: name in this package: `group_partitions`.
        about: one of TOPICS.
        path: keys from the top of the configuration; "N" is the number of a source.
        flag: the option of commands: `--group-partitions`.
        argument: the argument of Python calls, and the option of the data source.
        metavar: what help shows in place of the value.
        meaning: a phrase.
        kind: form of the value.
        choices: valid values of a choice, or of each value of a map.
        minimum, maximum: of a number.
        default: default in words; None for none.
        without: surface -> why it does not take the option.
        also: other commands that take it.
    """

    name: str
    about: str
    path: tuple[str, ...]
    flag: str
    argument: str
    metavar: str | None
    meaning: str
    kind: Kind
    choices: tuple[str, ...]
    minimum: int | None
    maximum: int | None
    default: str | None
    without: Mapping[str, str]
    also: tuple[str, ...]

    @property
    def key(self) -> str:
        """The key of the configuration, with dots."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """The environment variable that sets the key."""
        return PREFIX + NEST.join(self.path).upper()

    @property
    def help(self) -> str:
        """The meaning as a sentence for a terminal."""
        text = self.meaning.replace("`", "")
        repeatable = " (repeatable)" if self.kind in ("list", "map") else ""
        return f"{text[0].upper()}{text[1:]}{repeatable}."

    def is_taken_by(self, surface: str) -> bool:
        """Whether a surface takes the option."""
        return surface in self.also or (surface in SURFACES and surface not in self.without)


@cache
def declared_options(model: type[BaseModel]) -> tuple[OptionSpec, ...]:
    """The options that the fields of a model declare, in order, those of its sections included."""
    return tuple(_options_of(model, ()))


def undeclared_fields(model: type[BaseModel]) -> dict[str, str | None]:
    """The fields that are no option, as keys with dots -> reason; None if none is written."""
    return dict(_undeclared(model, ()))


def _options_of(model: type[BaseModel], above: tuple[str, ...]) -> Iterator[OptionSpec]:
    for name, info in model.model_fields.items():
        if (option := _mark(info, Option)) is not None:
            yield _spec(name, info, option, (*above, name))
        elif (inner := _section_below(info, (*above, name))) is not None:
            yield from _options_of(*inner)


def _undeclared(model: type[BaseModel], above: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    for name, info in model.model_fields.items():
        if _mark(info, Option) is not None:
            continue
        if (marked := _mark(info, NoOption)) is not None:
            yield ".".join((*above, name)), marked.reason
        elif (inner := _section_below(info, (*above, name))) is not None:
            yield from _undeclared(*inner)
        else:
            yield ".".join((*above, name)), None


def _mark(info: FieldInfo, kind: type[Any]) -> Any:
    return next((mark for mark in info.metadata if isinstance(mark, kind)), None)


def _section_below(info: FieldInfo, path: tuple[str, ...]) -> tuple[type[BaseModel], tuple[str, ...]] | None:
    """The section that a field holds, or of which it holds a list, and its path."""
    annotation = _plain_type(info.annotation)
    is_list = get_origin(annotation) is list
    if is_list:
        annotation = _plain_type(get_args(annotation)[0])
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return None
    return annotation, (*path, "N") if is_list else path


def _spec(name: str, info: FieldInfo, option: Option, path: tuple[str, ...]) -> OptionSpec:
    own = option.name or name
    annotation = _plain_type(info.annotation)
    kind, choices = _kind(annotation)
    kind = option.kind or kind
    bounds = _bounds(info)
    default = option.default
    if default is None and kind == "choice":
        default = str(info.default)
    return OptionSpec(
        name=own,
        about=option.about,
        path=path,
        flag=option.flag or f"--{own.replace('_', '-')}",
        argument=option.argument or own,
        metavar=option.metavar,
        meaning=info.description or "",
        kind=kind,
        choices=choices,
        minimum=bounds.get("ge"),
        maximum=bounds.get("le"),
        default=default,
        without=option.without,
        also=option.also,
    )


def _plain_type(annotation: Any) -> Any:
    """A type without None and without annotations."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, UnionType):
            known = [one for one in get_args(annotation) if one is not NoneType]
            annotation = known[-1]
        else:
            return annotation


def _kind(annotation: Any) -> tuple[Kind, tuple[str, ...]]:
    origin = get_origin(annotation)
    if origin is Literal:
        return "choice", get_args(annotation)
    if origin is dict:
        value = _plain_type(get_args(annotation)[1])
        return "map", get_args(value) if get_origin(value) is Literal else ()
    if origin is list:
        return "list", ()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "map", ()
    by_type: dict[Any, Kind] = {bool: "flag", int: "number"}
    return by_type.get(annotation, "text"), ()


def _bounds(info: FieldInfo) -> dict[str, int]:
    """`ge` and `le` of a number, of the field or of its type."""
    marks = [*info.metadata, *_annotations(info.annotation)]
    bounds = {}
    for mark in marks:
        inner = mark.metadata if isinstance(mark, FieldInfo) else [mark]
        for one in inner:
            bounds |= {
                name: getattr(one, name) for name in ("ge", "le") if getattr(one, name, None) is not None
            }
    return bounds


def _annotations(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        first, *marks = get_args(annotation)
        return [*_annotations(first), *marks]
    if get_origin(annotation) in (Union, UnionType):
        return [mark for one in get_args(annotation) for mark in _annotations(one)]
    return []


_LIMIT = re.compile(r"(?:(?P<group>.+):)?(?P<name>\w+)=(?P<value>.*)", re.DOTALL)


def parse_limit(text: str) -> tuple[tuple[str, ...], str] | None:
    """The keys below `limits`, and the value, of `NAME=VALUE` or `GROUP:NAME=VALUE`.

    None if it is neither.
    """
    found = _LIMIT.fullmatch(text)
    if found is None:
        return None
    above = ("groups", found["group"]) if found["group"] is not None else ()
    return (*above, found["name"]), found["value"]
