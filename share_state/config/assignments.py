"""One value for one key from elsewhere than the file, and how it is put in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from share_state.config import declared
from share_state.config.key_names import NEST, KeyPath
from share_state.config.refusals import ConfigError, no_such_key
from share_state.config.yaml_text import parsed, scalar


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
    here = declared.whole()
    while names:
        if isinstance(here.get("additionalProperties"), dict):
            # Names of Spark settings have dots of their own.
            name, names = joint.join(names), []
        else:
            name, *names = names
        if joint == NEST and "properties" in here:
            name = name.lower()
        below = declared.below(here, name)
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
