"""Loads the audit's settings: YAML file, then environment variables, then `--set`.

pydantic-settings (2.16) cannot merge these layers. It replaces a list instead of setting one item
(`sources.0.format`, SHARE_STATE_SOURCES__0__FORMAT), reads `off` as false and `4.0` as a number, folds the
case of rule codes in variable names, ignores misspelt variables and duplicate keys, and does not know where a
value comes from.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike, fspath
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from share_state.config.declaration import NEST, PREFIX
from share_state.config.input_spec import FieldNames, input_options, leaves
from share_state.config.model import (
    AuditSettings,
    KeyPath,
    declaration_below,
    declared_at,
    dotted,
    expected,
    keys,
    settings_schema,
    variable,
)
from share_state.config.sections import Column
from share_state.errors import ShareStateError, printable
from share_state.rules.registry import registered
from share_state.stores.paths import regular_path, to_path

_EXAMPLE = "conf/audit.yaml"
_NO_FILE = "the configuration"
_LONGEST_SHOWN = 60
_SIMILAR = 0.85


class ConfigError(ShareStateError):
    """Raised when the audit's configuration cannot be used.

    The message names the file or variable, and the key.
    """


@dataclass(frozen=True, slots=True)
class Assignment:
    """A value for a key: the option or variable that sets it, the key, and the value (lists, maps and texts)."""

    label: str
    path: KeyPath
    value: Any


Overrides = Sequence[str] | Mapping[str, Any]
"""`--set` options, `a.b=value` each; from Python, `a.b` -> the value."""


def load_settings(
    path: str | None,
    overrides: Overrides = (),
    environment: Mapping[str, str] | None = None,
    assignments: Sequence[Assignment] = (),
) -> AuditSettings:
    """Load the settings of an audit from its file, variables and overrides.

    Args:
        path: a YAML file; None to use only variables and overrides.
        overrides: they win over variables, which win over the file.
        environment: variables; by default those of this process.
        assignments: values of options; they win over variables.
    Raises:
        ConfigError: if a setting is unknown, missing or invalid.
    """
    settings = {} if path is None else _read_file(path)
    return _merge(settings, path or _NO_FILE, assignments, overrides, environment)


def settings_for(
    inputs: Sequence[str],
    warehouse: str,
    overrides: Overrides = (),
    environment: Mapping[str, str] | None = None,
    assignments: Sequence[Assignment] = (),
) -> AuditSettings:
    """Build the settings of an audit from inputs and a warehouse instead of a file.

    Args:
        inputs: log folders, .log files or globs; they win over variables, as `warehouse` does.
        warehouse: folder of the tables.
        overrides, environment, assignments: as for `load_settings`; overrides win over everything.
    Raises:
        ConfigError: if a setting is unknown, missing or invalid.
    """
    arguments = [
        Assignment("INPUT", ("sources",), [{"path": path} for path in inputs]),
        Assignment("--out", ("warehouse",), warehouse),
        *assignments,
    ]
    return _merge({}, _NO_FILE, arguments, overrides, environment)


def assignments_of(given: Mapping[str, Any], sources: int, names: FieldNames) -> list[Assignment]:
    """Options of the input as values of the configuration.

    Args:
        given: name of an option -> its value, as `spec_of_options` takes it.
        sources: number of sources that they are about.
        names: how messages name the options.
    """
    made = list[Assignment]()
    columns = given.get("columns")
    if columns and "groups" in given:
        made.append(Assignment(names.label("columns"), ("groups", "columns"), columns))
    for option in input_options():
        if option.name in given:
            label = names.label(option.key.removeprefix("sources.N."))
            for path, value in leaves(option.path, given[option.name]):
                numbers = range(sources) if path[1:2] == ("N",) else range(1)
                made += [Assignment(label, _numbered(path, number), value) for number in numbers]
    return made


def _numbered(path: tuple[str, ...], number: int) -> tuple[str | int, ...]:
    return tuple(number if one == "N" and place == 1 else one for place, one in enumerate(path))


def _merge(
    values: Any,
    file: str,
    arguments: Sequence[Assignment],
    overrides: Overrides,
    environment: Mapping[str, str] | None,
) -> AuditSettings:
    problems: list[str] = []
    assignments = [
        *_from_variables(os.environ if environment is None else environment, problems),
        *arguments,
        *_from_overrides(overrides, problems),
    ]
    for assignment in assignments:
        try:
            values = _with_value(values, assignment.path, assignment.value)
        except ConfigError as error:
            problems.append(f"{assignment.label}: {error}")

    def written_at(path: KeyPath) -> str:
        for assignment in reversed(assignments):
            if path[: len(assignment.path)] == assignment.path:
                return assignment.label if path == assignment.path else f"{assignment.label}: {dotted(path)}"
        return f"{file}: {dotted(path)}"

    known = AuditSettings.model_fields
    # A section drops keys without a value, so unknown keys at the top are refused now.
    problems += [f"{written_at((key,))}: {_no_such_key((key,))}" for key in values if key not in known]
    settings = None
    try:
        settings = AuditSettings(**{key: value for key, value in values.items() if key in known})
    except ValidationError as error:
        # A misspelt key explains why another key is missing, so it comes first.
        errors = sorted(error.errors(), key=lambda assignment: assignment["type"] != "extra_forbidden")
        problems += [_refusal(assignment, written_at) for assignment in errors]
    if settings is None or problems:
        more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        raise ConfigError(problems[0] + more)
    return settings


def _from_overrides(overrides: Overrides, problems: list[str]) -> Iterator[Assignment]:
    given = list[tuple[str, str, Any]]()
    if isinstance(overrides, Mapping):
        given = [(f"settings[{key!r}]", str(key), value) for key, value in overrides.items()]
    else:
        for text in overrides:
            key, sign, value = text.partition("=")
            label = f"--set {printable(key.strip())}"
            if sign:
                given.append((label, key.strip(), value))
            else:
                problems.append(f"{label}: no value; give KEY=VALUE, as in limits.delivery_count=3")
    for label, key, value in given:
        try:
            yield _assignment(label, key.split("."), value, ".", dotted)
        except ConfigError as error:
            problems.append(f"{label}: {error}")


def _from_variables(environment: Mapping[str, str], problems: list[str]) -> Iterator[Assignment]:
    """Assignments from variables, sections and lists before their parts.

    Ignores variables of other programs.
    """
    ours = {name: name.removeprefix(PREFIX).split(NEST) for name in environment if name.startswith(PREFIX)}

    def whole_before_parts(name: str) -> list[str]:
        return [part.zfill(4) if part.isdecimal() else part.upper() for part in ours[name]]

    for name in sorted(ours, key=whole_before_parts):
        if ours[name][0].lower() in AuditSettings.model_fields:
            try:
                yield _assignment(name, ours[name], environment[name], NEST, variable)
            except ConfigError as error:
                problems.append(f"{name}: {error}")
        elif similar := _similar_variable(ours[name]):
            problems.append(f"{name}: no such setting; did you mean {similar}?")


def _similar_variable(names: list[str]) -> str | None:
    """The most similar variable of ours; None if this one probably belongs to another program."""
    first = get_close_matches(names[0], [name.upper() for name in AuditSettings.model_fields], 1, _SIMILAR)
    if first:
        return PREFIX + NEST.join([*first, *names[1:]])
    # The most likely mistake is one underscore instead of two.
    by_name = {key.variable.removeprefix(PREFIX).replace(NEST, "_"): key.variable for key in keys()}
    similar = get_close_matches("_".join(names), by_name, 1, _SIMILAR)
    return by_name[similar[0]] if similar else None


def _assignment(
    label: str, names: list[str], value: Any, separator: str, write: Callable[[KeyPath], str]
) -> Assignment:
    path: KeyPath = ()
    declared = settings_schema()
    while names:
        if isinstance(declared.get("additionalProperties"), dict):
            # Names of Spark settings contain dots.
            name, names = separator.join(names), []
        else:
            name, *names = names
        if separator == NEST and "properties" in declared:
            name = name.lower()
        below = declaration_below(declared, name)
        if below is None:
            raise ConfigError(_no_such_key((*path, name), write))
        path = (*path, int(name) if "items" in declared else name)
        declared = below
    if isinstance(value, PathLike):
        value = fspath(value)
    return Assignment(label, path, _parse_value(value.strip(), declared) if isinstance(value, str) else value)


def _parse_value(text: str, declared: Mapping[str, Any]) -> Any:
    """Parse lists, maps and quoted text as YAML; keep other text, so that globs need no quotes."""
    nests = any(
        isinstance(declared.get(part), dict) for part in ("properties", "items", "additionalProperties")
    )
    if nests or text[:1] in ("'", '"'):
        return _parse_yaml(text)
    return None if _NULL.match(text) else _to_unicode(text)


def _with_value(settings: Any, path: KeyPath, value: Any) -> Any:
    """A copy of the settings with one value set.

    A value that cannot hold the path stays, and the model refuses it.
    """
    if not path:
        return value
    name, rest = path[0], path[1:]
    if isinstance(name, str):
        section = {} if settings is None else settings
        return (
            {**section, name: _with_value(section.get(name), rest, value)}
            if isinstance(section, dict)
            else settings
        )
    items = [] if settings is None else settings
    if not isinstance(items, list):
        return settings
    if name > len(items):
        raise ConfigError(f"the list has {len(items)} items; the number of the next one is {len(items)}")
    item = items[name] if name < len(items) else None
    return [*items[:name], _with_value(item, rest, value), *items[name + 1 :]]


def _refusal(error: Any, written_at: Callable[[KeyPath], str]) -> str:
    """The message for an error of the model."""
    path: KeyPath = error["loc"]
    if path[-1] == "[key]":
        where = written_at(path[:-1])
        if path[0] != "rules":
            return f"{where}: no such column; give one of {', '.join(get_args(Column))}"
        similar = get_close_matches(str(path[-2]).upper(), registered(), 1)
        fix = f"did you mean {similar[0]}?" if similar else "`share-state rules` lists them"
        return f"{where}: no such rule; {fix}"
    if error["type"] == "extra_forbidden":
        return f"{written_at(path)}: {_no_such_key(path)}"
    if error["type"] == "value_error" and isinstance(error["input"], dict):
        return f"{written_at(path)}: give {error['msg'].removeprefix('Value error, ')}"
    problem = "missing" if error["type"] == "missing" else f"{_shown(error['input'])} given"
    return f"{written_at(path)}: {problem}; give {expected(declared_at(path) or {})}"


def _no_such_key(path: KeyPath, write: Callable[[KeyPath], str] = dotted) -> str:
    """The message for an unknown key, with the most similar key as `write` writes it."""
    above, wrong = path[:-1], str(path[-1]).lower()
    declared = declared_at(above) or {}
    if "items" in declared:
        return f"no such key; number its items from 0, as in {write((*above, 0))}"
    names = list(declared.get("properties", ()))
    similar = [write((*above, name)) for name in get_close_matches(wrong, names, 1)]
    similar += [key.name for key in keys() if key.name.rpartition(".")[2] == wrong]
    if similar:
        return f"no such key; did you mean {similar[0]}?"
    return (
        f"no such key; give one of {', '.join(names)}"
        if names
        else f"no such key; {write(above)} has none of its own"
    )


def _shown(value: Any) -> str:
    """A value in a message: short and on one line; lists and maps show only their type."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        kind = "list" if isinstance(value, list) else "map"
        return f"a {kind}" if value else f"an empty {kind}"
    text = str(value)
    text = text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
    return text if re.fullmatch(r"[\w.+-]+", text) else repr(text)


def _read_file(path: str) -> dict[str, Any]:
    try:
        settings = _parse_yaml(regular_path(to_path(path)).read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; give the audit's YAML file ({_EXAMPLE} is an example)"
        ) from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: a folder; give the YAML file in it") from None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); give a file that this user may read"
        ) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: line {line}: not UTF-8; save the file as UTF-8 text") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if settings is None:
        raise ConfigError(f"{path}: empty; give at least sources and warehouse ({_EXAMPLE} is an example)")
    if not isinstance(settings, dict):
        kind = "a list" if isinstance(settings, list) else "text"
        raise ConfigError(f"{path}: {kind} at the top; give {expected(settings_schema())}")
    return settings


_NULL = re.compile(r"(?:~|null|Null|NULL|)$")


class _TextLoader(yaml.BaseLoader):
    """Loads YAML with every scalar except null as text, so that off, 4.0 and 007 stay unchanged.

    Refuses duplicates.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        read = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(
                    f"{_position(key.start_mark)}: a list or a map in place of a key; give a name"
                )
            name = self.construct_scalar(key)
            if name in lines:
                first = f"first in line {lines[name]}"
                raise ConfigError(
                    f"{_position(key.start_mark)}: {printable(name)} appears twice, {first}; keep one"
                )
            lines[name] = key.start_mark.line + 1
            read[name] = self.construct_object(value, deep=deep)
        return read

    def construct_scalar(self, node: yaml.ScalarNode) -> str:
        try:
            return _to_unicode(super().construct_scalar(node))
        except ConfigError as error:
            raise ConfigError(f"{_position(node.start_mark)}: {error}") from None


_TextLoader.add_implicit_resolver("tag:yaml.org,2002:null", _NULL, ["~", "n", "N", ""])
_TextLoader.add_constructor("tag:yaml.org,2002:null", lambda *_: None)


def _parse_yaml(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_TextLoader)
    except yaml.MarkedYAMLError as error:
        problem = " ".join((error.problem or "").split())
        begin = f"{_position(error.problem_mark or error.context_mark)}: not YAML ({problem})"
        raise ConfigError(
            f"{begin}; indent with spaces and put quotes around text with special characters"
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        raise ConfigError(
            f"line {line}: the character #x{error.character:04x} is not text; remove it"
        ) from None
    except RecursionError:
        raise ConfigError(
            "lists or maps are nested too deeply; no key needs more than three levels"
        ) from None


def _to_unicode(text: str) -> str:
    """Join the surrogate pairs of JSON escapes.

    Refuse single surrogates, which come from bytes that are not UTF-8.
    """
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ConfigError(f"{_shown(text)} is not Unicode text; give UTF-8") from None


def _position(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"
