"""What the model declares for a key, as JSON schema; it is asked wherever a key is named before it has a value."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from share_state.config.key_names import KeyPath
from share_state.config.model import AuditSettings


@cache
def whole() -> dict[str, Any]:
    """The JSON schema of the model, references written out and `or null` left out."""
    schema = AuditSettings.model_json_schema()

    def written_out(part: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in part:
            part = {**schema["$defs"][part["$ref"].rpartition("/")[2]], **part}
        if "anyOf" in part:
            part = {**part["anyOf"][0], **part}
        inner = {name: written_out(part[name]) for name in ("items", "additionalProperties") if part.get(name)}
        if "properties" in part:
            inner["properties"] = {name: written_out(one) for name, one in part["properties"].items()}
        return {**part, **inner}

    return written_out(schema)


def below(declared: Mapping[str, Any], name: str | int) -> dict[str, Any] | None:
    """What a section declares for a key, a list for an item or a map for a name; None where there is no such key."""
    if "properties" in declared:
        return declared["properties"].get(name)
    if "items" in declared:
        return declared["items"] if re.fullmatch(r"\d{1,4}", str(name)) else None
    return declared.get("additionalProperties")


def declared_at(path: KeyPath) -> dict[str, Any] | None:
    """What the model declares for a key; None where there is no such key."""
    declared: dict[str, Any] | None = whole()
    for name in path:
        declared = declared and below(declared, name)
    return declared


def takes(declared: Mapping[str, Any]) -> str:
    """What may be given for a key, in words."""
    match declared:
        case {"enum": [*most, last]}:
            return f"{', '.join(most)} or {last}"
        case {"type": "integer", "minimum": least, "maximum": most}:
            return f"a whole number from {least} to {most}"
        case {"type": "number", "exclusiveMinimum": bound}:
            return f"a number over {bound:g}"
        case {"properties": known}:
            return f"a map of {', '.join(known)}"
        case {"items": item}:
            return f"a list of one or more: {takes(item)}"
        case {"additionalProperties": dict(value)}:
            return f"a map of names to {takes(value)}"
        case {"format": "path"}:
            return "a path"
    return "text"
