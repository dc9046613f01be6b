"""Writes settings as a person or a program would: YAML on one line, every text in double quotes."""

from typing import Any

import yaml

REQUIRED = {"sources": [{"path": "/exports/one"}], "warehouse": "/lake"}


def in_yaml(value: Any) -> str:
    """A list, a map or a scalar on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{in_yaml(name)}: {in_yaml(one)}' for name, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(in_yaml, value))}]"
    if isinstance(value, str):
        return yaml.safe_dump(value, default_style='"', width=2**31).strip()
    return "null" if value is None else str(value)


def with_key(settings: Any, key: str, value: Any) -> Any:
    """Settings with one more dotted key, as the file would hold it."""
    first, _, rest = key.partition(".")
    if isinstance(settings, list):
        return [with_key(item, rest, value) if str(number) == first else item for number, item in enumerate(settings)]
    return {**settings, first: with_key(settings.get(first, {}), rest, value) if rest else value}


def at_key(settings: Any, key: str) -> Any:
    """What settings hold under a dotted key."""
    for name in key.split("."):
        settings = settings[int(name) if isinstance(settings, list) else name]
    return settings
