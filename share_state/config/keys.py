"""Every key of the configuration, for the docs and for guessing which one was meant."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from share_state.config import declared
from share_state.config.key_names import KeyPath, dotted, variable


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the configuration.

    Attributes:
        name: dotted, N for the number of a list item.
        takes: what may be given, in words.
        default: as YAML writes it, in backticks; "required" where there is none.
        variable: the environment variable that overrides it.
        meaning: one line.
    """

    name: str
    takes: str
    default: str
    variable: str
    meaning: str


def keys() -> Iterator[Key]:
    """Every key in the order of the model; a list before the keys of its items."""
    yield from _keys(declared.whole(), ())


def _keys(section: Mapping[str, Any], above: KeyPath) -> Iterator[Key]:
    for name, one in section["properties"].items():
        path = (*above, name)
        if "properties" in one:
            yield from _keys(one, path)
            continue
        default = f"`{_plain_yaml(one['default'])}`" if "default" in one else "required"
        yield Key(dotted(path), declared.takes(one), default, variable(path), one["description"])
        if "properties" in one.get("items", {}):
            yield from _keys(one["items"], (*path, "N"))


def _plain_yaml(default: Any) -> str:
    return yaml.safe_dump(default, default_flow_style=True).splitlines()[0]
