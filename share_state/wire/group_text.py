"""Records of `__consumer_offsets` as the stock tools print them, written back to the bytes they were printed from.

What the tools leave out cannot come back: tagged fields that they do not know, and trailing bytes.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from share_state.declarations import WireField, layout, record
from share_state.wire.codec import CodecError, encode
from share_state.wire.group_records import FOREIGN_TYPES, GroupRecordType, record_name
from share_state.wire.state_text import StateTextError

_CAPITAL = re.compile(r"(?=[A-Z])")
_READ_TYPES = frozenset(GroupRecordType)
_OF_MEMBERS = {"subscription": "consumer_protocol_subscription", "assignment": "consumer_protocol_assignment"}


def record_bytes(key: Any, value: Any) -> tuple[bytes, bytes | None]:
    """The bytes of a printed record.

    Args:
        key: object with `type` (of 4.0: `version`) and `data`.
        value: object with `version` (of 4.0: `type`) and `data`; None for a tombstone.
    Returns:
        Key and value. Of a record about committed offsets, or inside a group that is known by id only, the type alone.
    Raises:
        StateTextError: if a field is missing, or has a value that it cannot have.
    Source: Kafka CoordinatorRecordJsonConverters, OffsetsMessageParser, ShareGroupMessageFormatter.
    """
    record_type = _number(key, ("type", "version"), "the key")
    if record_type in FOREIGN_TYPES or record_type not in _READ_TYPES:
        return record_type.to_bytes(2, "big", signed=True), None
    name = record_name(record_type)
    # Kafka calls the group of a classic group's key `group`, and that of every other key `groupId`.
    named = {"groupId" if called == "group" else called: told for called, told in _data(key, "the key").items()}
    written = _written(f"{name}_key", named)
    if value is None:
        return written, None
    version = _number(value, ("version", "type"), "the value")
    return written, _written(f"{name}_value", _data(value, "the value"), version)


def _number(printed: Any, names: Sequence[str], what: str) -> int:
    found = printed if isinstance(printed, dict) else {}
    text = str(next((found[name] for name in names if name in found), ""))
    if not re.fullmatch(r"-?\d{1,5}", text) or not -(2**15) <= int(text) < 2**15:
        raise StateTextError(f"{what} names no {names[0]}")
    return int(text)


def _data(printed: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    if not isinstance(printed.get("data"), dict):
        raise StateTextError(f"{what} has no data")
    return printed["data"]


def _written(name: str, data: Any, version: int | None = None) -> bytes:
    """The bytes of a printed struct, of a version that is told or of the latest one whose fields are all there."""
    if not isinstance(data, dict):
        raise StateTextError(f"{name} is no object")
    layouts = [one for one in record(name).layouts if version in (None, one.version)]
    if not layouts:
        raise StateTextError(f"{record(name).name}: version {version} is not known")
    shapes = [layout(name, one.releases) for one in reversed(layouts)]
    fitting = (shape for shape in shapes if _names(shape.fields) <= data.keys())
    shape = next(fitting, shapes[0])
    try:
        return encode(shape, _fields(shape.fields, data))
    except CodecError as error:
        raise StateTextError(str(error)) from None


def _fields(declared: Sequence[WireField], data: Any) -> dict[str, Any]:
    """Printed fields under the names and in the types that the codec takes."""
    if not isinstance(data, dict):
        raise StateTextError("a struct is no object")
    kinds = {field.name: field for field in declared}
    return {
        name: _value(kinds.get(name), printed)
        for name, printed in ((_snake(called), printed) for called, printed in data.items())
    }


def _value(field: WireField | None, printed: Any) -> Any:
    if field is None:
        return printed
    if field.is_array:
        if not isinstance(printed, list):
            raise StateTextError(f"{field.name} is no list")
        return [_fields(field.fields, one) if field.fields else one for one in printed]
    if "bytes" in field.type and printed is not None:
        return _bytes(field.name, printed)
    return printed


def _bytes(name: str, printed: Any) -> bytes:
    """Bytes, printed as base64; what a member of a classic group says is printed as the object that it is."""
    if isinstance(printed, dict) and name in _OF_MEMBERS:
        return _written(_OF_MEMBERS[name], printed)
    try:
        return base64.b64decode(str(printed), validate=True)
    except ValueError:
        raise StateTextError(f"{name} is not base64") from None


def _names(declared: Sequence[WireField]) -> set[str]:
    """What the tools print of a layout in any case: a tagged field is left out where it has its default."""
    words = (field.name.split("_") for field in declared if field.tag is None)
    return {first + "".join(word.capitalize() for word in more) for first, *more in words}


@lru_cache(maxsize=1 << 10)
def _snake(called: str) -> str:
    return _CAPITAL.sub("_", called).lower()
