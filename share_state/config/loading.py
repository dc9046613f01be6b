"""What is said of a key or value that cannot be used: one line with what was given and what may be.

YAML as it is written: off, 4.0 and 007 stay what they are, and a key that is there twice is refused.

One value for one key from elsewhere than the file, and how it is put in.

The layers over the file: environment variables, then `--set`.

From a file, or a call without one, to settings; where anything cannot be used, to one line about it.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from share_state.config import model
from share_state.config.model import (
    NEST,
    PREFIX,
    AuditSettings,
    Column,
    KeyPath,
    declared_at,
    dotted,
    keys,
    shown,
    takes,
    variable,
)
from share_state.errors import ShareStateError
from share_state.rules.registry import registered

_MOST_SAID = 60


class ConfigError(ShareStateError):
    """Raised when the audit's configuration cannot be used; the message names the file or variable, and the key."""


def refused(error: Any, where: Callable[[KeyPath], str]) -> str:
    """The line for what the model does not take.

    Args:
        error: one of the errors of a pydantic ValidationError.
        where: says of a key where it was written, and how.
    """
    path: KeyPath = error["loc"]
    if path[-1] == "[key]" and path[0] != "rules":
        return f"{where(path[:-1])}: no such column; give one of {', '.join(get_args(Column))}"
    if path[-1] == "[key]":
        near = get_close_matches(str(path[-2]).upper(), registered(), 1)
        mend = f"did you mean {near[0]}?" if near else "`share-state rules` lists them"
        return f"{where(path[:-1])}: no such rule; {mend}"
    if error["type"] == "extra_forbidden":
        return f"{where(path)}: {no_such_key(path)}"
    given = "missing" if error["type"] == "missing" else f"{said(error['input'])} given"
    return f"{where(path)}: {given}; give {takes(declared_at(path) or {})}"


def no_such_key(path: KeyPath, written: Callable[[KeyPath], str] = dotted) -> str:
    """What is said of a key that there is not, with the one that was likely meant.

    Args:
        path: of the key; its section, list or map exists.
        written: writes a key as the person would have to.
    """
    above, wrong = path[:-1], str(path[-1]).lower()
    declared = declared_at(above) or {}
    if "items" in declared:
        return f"no such key; its items go by number, as in {written((*above, 0))}"
    here = list(declared.get("properties", ()))
    near = [written((*above, name)) for name in get_close_matches(wrong, here, 1)]
    near += [key.name for key in keys() if key.name.rpartition(".")[2] == wrong]
    if near:
        return f"no such key; did you mean {near[0]}?"
    if not here:
        return f"no such key; {written(above)} has none of its own"
    return f"no such key; give one of {', '.join(here)}"


def said(value: Any) -> str:
    """A value as a message has it: short, on one line, and of a list or a map only that it is one."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        kind = "list" if isinstance(value, list) else "map"
        return f"a {kind}" if value else f"an empty {kind}"
    text = str(value)
    text = text if len(text) <= _MOST_SAID else f"{text[: _MOST_SAID - 3]}..."
    return text if re.fullmatch(r"[\w.+-]+", text) else repr(text)


_NULL = re.compile(r"(?:~|null|Null|NULL|)$")


class _Texts(yaml.BaseLoader):
    """YAML with every scalar as text; only null is null."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        """A mapping whose keys are there once."""
        lines: dict[str, int] = {}
        read = {}
        for key, value in node.value:
            place = _place(key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{place}: a list or a map where a key is due; give a name")
            name = self.construct_scalar(key)
            if name in lines:
                raise ConfigError(f"{place}: {shown(name)} is there twice, first in line {lines[name]}; keep one")
            lines[name] = key.start_mark.line + 1
            read[name] = self.construct_object(value, deep=deep)
        return read

    def construct_scalar(self, node: yaml.ScalarNode) -> str:
        """The text of a scalar."""
        try:
            return _unicode(super().construct_scalar(node))
        except ConfigError as error:
            raise ConfigError(f"{_place(node.start_mark)}: {error}") from None


_Texts.add_implicit_resolver("tag:yaml.org,2002:null", _NULL, ["~", "n", "N", ""])
_Texts.add_constructor("tag:yaml.org,2002:null", lambda *_: None)


def parsed(text: str) -> Any:
    """The lists, maps and texts of a YAML document.

    Raises:
        ConfigError: if it is no YAML, or a map has a key twice; the message begins with line and column.
    """
    try:
        return yaml.load(text, Loader=_Texts)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join((error.problem or "").split())
        begin = f"{_place(mark)}: not YAML ({problem})"
        raise ConfigError(f"{begin}; indent with spaces and put quotes around text with special characters") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        raise ConfigError(f"line {line}: the character #x{error.character:04x} is not text; take it out") from None
    except RecursionError:
        raise ConfigError("lists or maps too deep in each other; no key needs more than three levels") from None


def scalar(text: str) -> str | None:
    """A text that needs no quotes, whatever it holds; None where it says nothing.

    Raises:
        ConfigError: if it is not Unicode.
    """
    return None if _NULL.match(text) else _unicode(text)


def _unicode(text: str) -> str:
    """JSON escapes a character beyond 16 bits as two halves; a half alone is what undecodable bytes come in as."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ConfigError(f"{said(text)} is not Unicode text; give UTF-8") from None


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A value for a key.

    Attributes:
        label: where it was written, as the person knows it.
        path: of the key.
        value: lists, maps and texts; None for nothing.
    """

    label: str
    path: KeyPath
    value: Any


def assignment(label: str, names: list[str], text: str, joint: str, written: Callable[[KeyPath], str]) -> Assignment:
    """What a variable or a `--set` says.

    Args:
        label: where it was written.
        names: of its key, from the top.
        text: its value.
        joint: what stood between the names.
        written: writes a key as the person would have to.
    Raises:
        ConfigError: if there is no such key, or the value is no YAML where it has to be.
    """
    path: KeyPath = ()
    here = model.whole()
    while names:
        if isinstance(here.get("additionalProperties"), dict):
            # Names of Spark settings have dots of their own.
            name, names = joint.join(names), []
        else:
            name, *names = names
        if joint == NEST and "properties" in here:
            name = name.lower()
        below = model.below(here, name)
        if below is None:
            raise ConfigError(no_such_key((*path, name), written))
        path = (*path, int(name) if "items" in here else name)
        here = below
    return Assignment(label, path, _value(text, here))


def assigned(below: Any, path: KeyPath, value: Any) -> Any:
    """A copy of what is configured with one value in it; what is no map or list stays, for the model to refuse.

    Raises:
        ConfigError: if a list would get a hole.
    """
    if not path:
        return value
    name, rest = path[0], path[1:]
    if isinstance(name, str):
        known = {} if below is None else below
        return {**known, name: assigned(known.get(name), rest, value)} if isinstance(known, dict) else below
    items = [] if below is None else below
    if not isinstance(items, list):
        return below
    if name > len(items):
        raise ConfigError(f"the list holds {len(items)}; the next item is number {len(items)}, counted from 0")
    inner = items[name] if name < len(items) else None
    return [*items[:name], assigned(inner, rest, value), *items[name + 1 :]]


def _value(text: str, here: Mapping[str, Any]) -> Any:
    """A scalar as it is written, less its quotes, so that globs need none; a list, a map or a section as YAML."""
    text = text.strip()
    nests = any(isinstance(here.get(part), dict) for part in ("properties", "items", "additionalProperties"))
    return parsed(text) if nests or text[:1] in ("'", '"') else scalar(text)


_ALIKE = 0.85


def from_overrides(overrides: Sequence[str], problems: list[str]) -> Iterator[Assignment]:
    """What `--set` options say, in their order.

    Args:
        overrides: `a.b=value` each.
        problems: gets a line for each that cannot be used.
    """
    for text in overrides:
        key, sign, value = text.partition("=")
        label = f"--set {shown(key.strip())}"
        if not sign:
            problems.append(f"{label}: no value; give KEY=VALUE, as in limits.delivery_count=3")
            continue
        try:
            yield assignment(label, key.strip().split("."), value, ".", dotted)
        except ConfigError as error:
            problems.append(f"{label}: {error}")


def from_variables(environment: Mapping[str, str], problems: list[str]) -> Iterator[Assignment]:
    """What environment variables say, a whole section or list before its parts.

    Args:
        environment: name to value; names that are no setting's, nor close to one, are left alone.
        problems: gets a line for each that cannot be used.
    """
    ours = {name: name.removeprefix(PREFIX).split(NEST) for name in environment if name.startswith(PREFIX)}

    def whole_before_parts(name: str) -> list[str]:
        return [part.zfill(4) if part.isdecimal() else part.upper() for part in ours[name]]

    for name in sorted(ours, key=whole_before_parts):
        if ours[name][0].lower() in AuditSettings.model_fields:
            try:
                yield assignment(name, ours[name], environment[name], NEST, variable)
            except ConfigError as error:
                problems.append(f"{name}: {error}")
        elif near := _near_variable(ours[name]):
            problems.append(f"{name}: no such setting; did you mean {near}?")


def _near_variable(names: list[str]) -> str | None:
    """The variable that was meant; None where this one is likely somebody else's."""
    first = get_close_matches(names[0], [name.upper() for name in AuditSettings.model_fields], 1, _ALIKE)
    if first:
        return PREFIX + NEST.join([*first, *names[1:]])
    # One underscore in place of two is the likeliest slip.
    by_name = {key.variable.removeprefix(PREFIX).replace(NEST, "_"): key.variable for key in keys()}
    near = get_close_matches("_".join(names), by_name, 1, _ALIKE)
    return by_name[near[0]] if near else None


_EXAMPLE = "conf/audit.yaml"
_NO_FILE = "the configuration"


def load_settings(
    path: str | None, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> AuditSettings:
    """The configuration of an audit from its file.

    Args:
        path: a YAML file, None for what variables and overrides say alone.
        overrides: `--set` options, `a.b=value` each; they win over variables, which win over the file.
        environment: variables, those of this process where it is None.
    Raises:
        ConfigError: if anything in it cannot be used.
    """
    given = {} if path is None else _read(path)
    return _settings(given, path or _NO_FILE, [], overrides, environment)


def settings_for(
    inputs: Sequence[str], warehouse: str, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> AuditSettings:
    """The configuration of an audit that is given its inputs and its warehouse in place of a file.

    Args:
        inputs: log folders, .log files or globs; they win over variables, as `warehouse` does.
        warehouse: folder of the tables.
        overrides: as for `load_settings`; they win over everything.
        environment: as for `load_settings`.
    Raises:
        ConfigError: if anything in it cannot be used.
    """
    called = [
        Assignment("INPUT", ("sources",), [{"path": path} for path in inputs]),
        Assignment("--out", ("warehouse",), warehouse),
    ]
    return _settings({}, _NO_FILE, called, overrides, environment)


def _settings(
    given: Any,
    file: str,
    called: Sequence[Assignment],
    overrides: Sequence[str],
    environment: Mapping[str, str] | None,
) -> AuditSettings:
    problems: list[str] = []
    assignments = list(from_variables(os.environ if environment is None else environment, problems))
    assignments += called
    assignments += from_overrides(overrides, problems)
    for one in assignments:
        try:
            given = assigned(given, one.path, one.value)
        except ConfigError as error:
            problems.append(f"{one.label}: {error}")

    def where(path: KeyPath) -> str:
        for one in reversed(assignments):
            if path[: len(one.path)] == one.path:
                return one.label if path == one.path else f"{one.label}: {dotted(path)}"
        return f"{file}: {dotted(path)}"

    # At the top a key that is not known is refused even without a value.
    problems += [f"{where((key,))}: {no_such_key((key,))}" for key in given if key not in AuditSettings.model_fields]
    settings = None
    try:
        settings = AuditSettings(**{key: value for key, value in given.items() if key in AuditSettings.model_fields})
    except ValidationError as error:
        # A key that is misspelt is why another is missing, so it comes first.
        found = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        problems += [refused(one, where) for one in found]
    if settings is None or problems:
        more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        raise ConfigError(problems[0] + more)
    return settings


def _read(path: str) -> dict[str, Any]:
    try:
        given = parsed(Path(path).read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give the audit's YAML file ({_EXAMPLE} is an example)") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: a folder; give the YAML file in it") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give a file that this user may read") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: line {line}: not UTF-8; save the file as UTF-8 text") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if given is None:
        raise ConfigError(f"{path}: empty; give at least sources and warehouse ({_EXAMPLE} is an example)")
    if not isinstance(given, dict):
        kind = "a list" if isinstance(given, list) else "text"
        raise ConfigError(f"{path}: {kind} at the top; give {model.takes(model.whole())}")
    return given
