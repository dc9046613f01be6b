"""Generic codec for the records declared in schemas/records: for rare records, and as reference for the kernels."""

import base64
import struct
from typing import Any

from share_state.errors import InputError
from share_state.schema.declarations import WireField, WireLayout

UNKNOWN_TAGS = "unknown_tags"
"""Key of the undeclared tagged fields of a decoded record or struct, if any: (tag, bytes) in the order of the
bytes."""

_NUMBERS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "uint16": struct.Struct(">H"),
}
_NULL = "null"
_MAX_STRING = 0x7FFF
_UVARINT_BYTES = 5
_UVARINT_MAX = 0xFFFFFFFF


class CodecError(InputError):
    """Raised when bytes or a value do not fit a layout; the message has the field and its position."""


def decode(layout: WireLayout, data: bytes) -> tuple[dict[str, Any], int]:
    """Decode one key or value, including its prefix.

    As Kafka does, it ignores the size in front of a declared tagged field, and bytes after the record.

    Returns:
        The fields by name, and the number of bytes consumed. A uuid becomes text as Kafka prints it, an array
        a list, and a struct a dict; an absent field has its default.
    Raises:
        CodecError: if the prefix differs, the bytes end early, a text is not UTF-8, or a required field is
            null.
    Source: Kafka MessageUtil, ByteBufferAccessor, generated message classes; KIP-482.
    """
    reader = _Reader(data, layout.record)
    prefix = layout.prefix if layout.prefix is None else reader.number("int16", "prefix")
    if prefix != layout.prefix:
        raise CodecError(f"{layout.record}: begins with {prefix}, not with {layout.prefix}")
    return _read_fields(reader, layout.fields, layout.flexible), reader.at


def default_of(field: WireField) -> Any:
    """The value of a field that is absent."""
    return (
        {_NULL: None, "[]": []}.get(field.default, field.default)
        if isinstance(field.default, str)
        else field.default
    )


def encode(layout: WireLayout, value: dict[str, Any]) -> bytes:
    """Encode one key or value, including its prefix.

    Fields are named as in the result of `decode`; those with a default are optional.
    Raises:
        CodecError: if a field is missing, unknown, or has a value that does not fit its type.
    Source: Kafka's generated message classes; KIP-482.
    """
    prefix = b"" if layout.prefix is None else _NUMBERS["int16"].pack(layout.prefix)
    return prefix + _write_fields(layout.fields, layout.flexible, value, layout.record)


class _Reader:
    """Bytes, the position in them, and the name of the record for messages."""

    def __init__(self, data: bytes, record: str) -> None:
        self.data = bytes(data)
        self.record = record
        self.at = 0

    def error(self, field: str, why: str) -> CodecError:
        return CodecError(f"{self.record}: {field} at byte {self.at}: {why}")

    def take(self, size: int, field: str) -> bytes:
        left = len(self.data) - self.at
        if not 0 <= size <= left:
            raise self.error(field, f"{size} bytes expected, {left} are left")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, kind: str, field: str) -> int:
        return _NUMBERS[kind].unpack(self.take(_NUMBERS[kind].size, field))[0]

    def uvarint(self, field: str) -> int:
        """An unsigned varint; as in Java, the bits of the fifth byte beyond 32 are dropped."""
        value = 0
        for number in range(_UVARINT_BYTES):
            byte = self.take(1, field)[0]
            value |= (byte & 127) << 7 * number
            if byte < 128:
                return value & _UVARINT_MAX
        raise self.error(field, "a varint of more than 5 bytes")


def _read_fields(reader: _Reader, fields: tuple[WireField, ...], flexible: bool) -> dict[str, Any]:
    value: dict[str, Any] = {field.name: default_of(field) for field in fields}
    for field in fields:
        if field.tag is None:
            value[field.name] = _read_field(reader, field, flexible)
    if flexible:
        unknown = _read_tags(reader, fields, value)
        if unknown:
            value[UNKNOWN_TAGS] = unknown
    return value


def _read_tags(
    reader: _Reader, fields: tuple[WireField, ...], value: dict[str, Any]
) -> list[tuple[int, bytes]]:
    """Read the tagged fields of a struct into it; returns the undeclared ones."""
    tagged = {field.tag: field for field in fields if field.tag is not None}
    unknown: list[tuple[int, bytes]] = []
    count = reader.uvarint("number of tags")
    if count > len(reader.data) - reader.at:
        raise reader.error("number of tags", f"{count} cannot fit")
    for _ in range(count):
        tag, size = reader.uvarint("tag"), reader.uvarint("size of a tag")
        if tag in tagged:
            value[tagged[tag].name] = _read_field(reader, tagged[tag], flexible=True)
        else:
            unknown.append((tag, reader.take(size, f"tag {tag}")))
    return unknown


def _read_field(reader: _Reader, field: WireField, flexible: bool) -> Any:
    if not field.is_array:
        return _read_one(reader, field, flexible)
    count = reader.uvarint(field.name) - 1 if flexible else reader.number("int32", field.name)
    if count < 0 and field.default == _NULL:
        return None
    if count < 0:
        raise reader.error(field.name, "a null array")
    # Each element takes at least one byte, so a larger count is wrong and must not be looped over.
    if count > len(reader.data) - reader.at:
        raise reader.error(field.name, f"{count} elements cannot fit")
    return [_read_one(reader, field, flexible) for _ in range(count)]


def _read_one(reader: _Reader, field: WireField, flexible: bool) -> Any:
    if field.fields:
        return _read_fields(reader, field.fields, flexible)
    if field.type == "uuid":
        return uuid_text(reader.take(16, field.name))
    if field.type in _NUMBERS:
        return reader.number(field.type, field.name)
    if field.type.endswith("bytes"):
        return _read_bytes(reader, field, flexible)
    return _read_string(reader, field, flexible)


def _read_string(reader: _Reader, field: WireField, flexible: bool) -> str | None:
    compact = flexible or field.type == "compact_string"
    size = reader.uvarint(field.name) - 1 if compact else reader.number("int16", field.name)
    if size < 0 and field.type == "nullable_string":
        return None
    if not 0 <= size <= _MAX_STRING:
        raise reader.error(field.name, f"a string of {size} bytes")
    try:
        return reader.take(size, field.name).decode()
    except UnicodeDecodeError:
        raise reader.error(field.name, "not UTF-8") from None


def _read_bytes(reader: _Reader, field: WireField, flexible: bool) -> bytes | None:
    size = reader.uvarint(field.name) - 1 if flexible else reader.number("int32", field.name)
    return None if size < 0 and field.type == "nullable_bytes" else reader.take(size, field.name)


def _write_fields(fields: tuple[WireField, ...], flexible: bool, value: dict[str, Any], where: str) -> bytes:
    values = {field.name: default_of(field) for field in fields if field.default is not None} | value
    names = {field.name for field in fields}
    unknown = values.keys() - names - ({UNKNOWN_TAGS} if flexible else set())
    if unknown or names - values.keys():
        raise CodecError(
            f"{where}: fields {sorted(unknown)} are unknown, {sorted(names - values.keys())} missing"
        )
    plain = [
        _write_field(field, values[field.name], flexible, f"{where}.{field.name}")
        for field in fields
        if field.tag is None
    ]
    return b"".join(plain) + (_write_tags(fields, values, where) if flexible else b"")


def _write_tags(fields: tuple[WireField, ...], values: dict[str, Any], where: str) -> bytes:
    """The tagged fields of a struct in ascending order, without those at their default."""
    declared = {field.tag for field in fields if field.tag is not None}
    tags = [
        (field.tag, _write_field(field, values[field.name], True, f"{where}.{field.name}"))
        for field in fields
        if field.tag is not None and values[field.name] != default_of(field)
    ]
    for tag, data in values.get(UNKNOWN_TAGS, ()):
        if tag in declared:
            raise CodecError(f"{where}: tag {tag} is declared, but listed in {UNKNOWN_TAGS}")
        tags.append((tag, bytes(data)))
    tags.sort(key=lambda tagged: tagged[0])
    parts = [encode_uvarint(tag, where) + encode_uvarint(len(data), where) + data for tag, data in tags]
    return encode_uvarint(len(parts), where) + b"".join(parts)


def _write_field(field: WireField, value: Any, flexible: bool, where: str) -> bytes:
    if not field.is_array:
        return _write_one(field, value, flexible, where)
    if value is None and field.default == _NULL:
        return encode_uvarint(0, where) if flexible else _number("int32", -1, where)
    if not isinstance(value, list):
        raise CodecError(f"{where}: {value!r} is not a list")
    count = encode_uvarint(len(value) + 1, where) if flexible else _number("int32", len(value), where)
    elements = [_write_one(field, one, flexible, f"{where}[{place}]") for place, one in enumerate(value)]
    return count + b"".join(elements)


def _write_one(field: WireField, value: Any, flexible: bool, where: str) -> bytes:
    if field.fields:
        if not isinstance(value, dict):
            raise CodecError(f"{where}: {value!r} is not a {field.type}")
        return _write_fields(field.fields, flexible, value, where)
    if field.type == "uuid":
        return _uuid(value, where)
    if field.type in _NUMBERS:
        return _number(field.type, value, where)
    if field.type.endswith("bytes"):
        return _write_bytes(field, value, flexible, where)
    return _write_string(field, value, flexible, where)


def _write_string(field: WireField, value: Any, flexible: bool, where: str) -> bytes:
    compact = flexible or field.type == "compact_string"
    if value is None and field.type == "nullable_string":
        return encode_uvarint(0, where) if compact else _number("int16", -1, where)
    if not isinstance(value, str):
        raise CodecError(f"{where}: {value!r} is not text")
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise CodecError(f"{where}: {value!r} cannot be encoded in UTF-8") from None
    if len(data) > _MAX_STRING:
        raise CodecError(f"{where}: {len(data)} bytes, more than {_MAX_STRING}")
    return (encode_uvarint(len(data) + 1, where) if compact else _number("int16", len(data), where)) + data


def _write_bytes(field: WireField, value: Any, flexible: bool, where: str) -> bytes:
    if value is None and field.type == "nullable_bytes":
        return encode_uvarint(0, where) if flexible else _number("int32", -1, where)
    if not isinstance(value, bytes):
        raise CodecError(f"{where}: {value!r} is not bytes")
    return (
        encode_uvarint(len(value) + 1, where) if flexible else _number("int32", len(value), where)
    ) + value


def uuid_text(data: bytes) -> str:
    """A uuid as Kafka prints it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _uuid(text: Any, where: str) -> bytes:
    try:
        data = base64.b64decode(f"{text}==", altchars=b"-_", validate=True)
    except ValueError:
        data = b""
    if uuid_text(data) != text or len(data) != 16:
        raise CodecError(f"{where}: {text!r} is not a uuid of 22 characters")
    return data


def _number(kind: str, value: Any, where: str) -> bytes:
    try:
        return _NUMBERS[kind].pack(value)
    except struct.error:
        raise CodecError(f"{where}: {value!r} is not an {kind}") from None


def encode_uvarint(value: int, where: str = "") -> bytes:
    """Encode an unsigned varint; `where` starts the message of an error."""
    if not 0 <= value <= _UVARINT_MAX:
        raise CodecError(f"{where}: {value!r} is not an unsigned 32-bit number")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
