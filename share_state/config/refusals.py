"""What is said of a key or value that cannot be used: one line with what was given and what may be."""

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, get_args

from share_state.config.declared import declared_at, takes
from share_state.config.key_names import KeyPath, dotted
from share_state.config.keys import keys
from share_state.config.model import Column
from share_state.errors import ShareStateError
from share_state.rules import registered

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
