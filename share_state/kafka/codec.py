"""Reads and writes any record that schemas/records declares: plain, for rare records and as the twin of the kernels."""

import base64
import struct
from typing import Any

from share_state.errors import InputError
from share_state.schema.declarations import WireField, WireLayout

UNKNOWN_TAGS = "unknown_tags"
"""Name under which a decoded record or struct keeps tagged fields that its declaration does not know, where it has
any: (tag, bytes) pairs in the order of the bytes."""

_NUMBERS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "uint16": struct.Struct(">H"),
}
_LONGEST_STRING = 0x7FFF
_UVARINT_BYTES = 5
_UVARINT_BITS = 0xFFFFFFFF


class CodecError(InputError):
    """Raised when bytes are not what a layout says, or a value cannot be written in it; says which field and where."""


def decode(layout: WireLayout, data: bytes) -> tuple[dict[str, Any], int]:
    """Read one key or value, as tolerant as Kafka's readers.

    A known tag is read whatever size is written before it, and bytes behind the record are left alone.

    Args:
        layout: of `share_state.declarations.layout`.
        data: the bytes, prefix included.
    Returns:
        The fields by name, and how many bytes they took: fewer than len(data) where bytes are left over. A uuid is
        Kafka's text of it, an array a list, a struct a dict, bytes are bytes; an absent field has its default.
    Raises:
        CodecError: if the prefix is another, or the bytes end early, hold a null where none may be, or no UTF-8.
    Source: Kafka MessageUtil, ByteBufferAccessor, the readers its message generator writes; KIP-482.
    """
    reader = _Reader(data, layout.record)
    prefix = layout.prefix if layout.prefix is None else reader.number("int16", "prefix")
    if prefix != layout.prefix:
        raise CodecError(f"{layout.record}: begins with {prefix}, not with {layout.prefix}")
    return _read_fields(reader, layout.fields, layout.flexible), reader.at


def encode(layout: WireLayout, value: dict[str, Any]) -> bytes:
    """Write one key or value.

    Args:
        layout: of `share_state.declarations.layout`.
        value: fields by name, as `decode` returns them; those with a default may be left out.
    Returns:
        The bytes, prefix included.
    Raises:
        CodecError: if a field is missing, unknown, or has a value that its type cannot hold.
    Source: the writers Kafka's message generator writes; KIP-482.
    """
    prefix = b"" if layout.prefix is None else _NUMBERS["int16"].pack(layout.prefix)
    return prefix + _written_fields(layout.fields, layout.flexible, value, layout.record)


class _Reader:
    """Bytes, the place in them, and the name of what is read, for messages."""

    def __init__(self, data: bytes, record: str) -> None:
        self.data, self.record, self.at = bytes(data), record, 0

    def wrong(self, field: str, why: str) -> CodecError:
        return CodecError(f"{self.record}: {field} at byte {self.at}: {why}")

    def take(self, size: int, field: str) -> bytes:
        left = len(self.data) - self.at
        if not 0 <= size <= left:
            raise self.wrong(field, f"{size} bytes wanted, {left} are left")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, kind: str, field: str) -> int:
        return _NUMBERS[kind].unpack(self.take(_NUMBERS[kind].size, field))[0]

    def uvarint(self, field: str) -> int:
        """An unsigned varint; as in Java, what its fifth byte has beyond 32 bits is dropped."""
        value = 0
        for place in range(_UVARINT_BYTES):
            byte = self.take(1, field)[0]
            value |= (byte & 127) << 7 * place
            if byte < 128:
                return value & _UVARINT_BITS
        raise self.wrong(field, "a varint of more than 5 bytes")


def _read_fields(reader: _Reader, fields: tuple[WireField, ...], flexible: bool) -> dict[str, Any]:
    value: dict[str, Any] = {field.name: field.default for field in fields}
    for field in fields:
        if field.tag is None:
            value[field.name] = _read_field(reader, field, flexible)
    if flexible:
        unknown = _read_tags(reader, fields, value)
        if unknown:
            value[UNKNOWN_TAGS] = unknown
    return value


def _read_tags(reader: _Reader, fields: tuple[WireField, ...], value: dict[str, Any]) -> list[tuple[int, bytes]]:
    """Read the tagged fields of a struct into it; returns those that are not declared."""
    tagged = {field.tag: field for field in fields if field.tag is not None}
    unknown: list[tuple[int, bytes]] = []
    count = reader.uvarint("number of tags")
    if count > len(reader.data) - reader.at:
        raise reader.wrong("number of tags", f"{count} cannot fit")
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
    if count < 0:
        raise reader.wrong(field.name, "a null array")
    # No element is shorter than a byte, so a larger claim is a lie that must not be looped over.
    if count > len(reader.data) - reader.at:
        raise reader.wrong(field.name, f"{count} elements cannot fit")
    return [_read_one(reader, field, flexible) for _ in range(count)]


def _read_one(reader: _Reader, field: WireField, flexible: bool) -> Any:
    if field.fields:
        return _read_fields(reader, field.fields, flexible)
    if field.type == "uuid":
        return _uuid_text(reader.take(16, field.name))
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
    if not 0 <= size <= _LONGEST_STRING:
        raise reader.wrong(field.name, f"a string of {size} bytes")
    try:
        return reader.take(size, field.name).decode()
    except UnicodeDecodeError:
        raise reader.wrong(field.name, "no UTF-8") from None


def _read_bytes(reader: _Reader, field: WireField, flexible: bool) -> bytes | None:
    size = reader.uvarint(field.name) - 1 if flexible else reader.number("int32", field.name)
    return None if size < 0 and field.type == "nullable_bytes" else reader.take(size, field.name)


def _written_fields(fields: tuple[WireField, ...], flexible: bool, value: dict[str, Any], where: str) -> bytes:
    given = {field.name: field.default for field in fields if field.default is not None} | value
    names = {field.name for field in fields}
    surplus = given.keys() - names - ({UNKNOWN_TAGS} if flexible else set())
    if surplus or names - given.keys():
        raise CodecError(f"{where}: fields {sorted(surplus)} are unknown, {sorted(names - given.keys())} missing")
    plain = [
        _written_field(field, given[field.name], flexible, f"{where}.{field.name}")
        for field in fields
        if field.tag is None
    ]
    return b"".join(plain) + (_written_tags(fields, given, where) if flexible else b"")


def _written_tags(fields: tuple[WireField, ...], given: dict[str, Any], where: str) -> bytes:
    """The tagged fields of a struct, ascending: declared ones unless at their default, and those not declared."""
    declared = {field.tag for field in fields if field.tag is not None}
    tags = [
        (field.tag, _written_field(field, given[field.name], True, f"{where}.{field.name}"))
        for field in fields
        if field.tag is not None and given[field.name] != field.default
    ]
    for tag, data in given.get(UNKNOWN_TAGS, ()):
        if tag in declared:
            raise CodecError(f"{where}: tag {tag} is declared, and given as unknown")
        tags.append((tag, bytes(data)))
    tags.sort(key=lambda tagged: tagged[0])
    parts = [_uvarint(tag, where) + _uvarint(len(data), where) + data for tag, data in tags]
    return _uvarint(len(parts), where) + b"".join(parts)


def _written_field(field: WireField, value: Any, flexible: bool, where: str) -> bytes:
    if not field.is_array:
        return _written_one(field, value, flexible, where)
    if not isinstance(value, list):
        raise CodecError(f"{where}: {value!r} is no list")
    count = _uvarint(len(value) + 1, where) if flexible else _number("int32", len(value), where)
    elements = [_written_one(field, one, flexible, f"{where}[{place}]") for place, one in enumerate(value)]
    return count + b"".join(elements)


def _written_one(field: WireField, value: Any, flexible: bool, where: str) -> bytes:
    if field.fields:
        if not isinstance(value, dict):
            raise CodecError(f"{where}: {value!r} is no {field.type}")
        return _written_fields(field.fields, flexible, value, where)
    if field.type == "uuid":
        return _uuid(value, where)
    if field.type in _NUMBERS:
        return _number(field.type, value, where)
    if field.type.endswith("bytes"):
        return _written_bytes(field, value, flexible, where)
    return _written_string(field, value, flexible, where)


def _written_string(field: WireField, value: Any, flexible: bool, where: str) -> bytes:
    compact = flexible or field.type == "compact_string"
    if value is None and field.type == "nullable_string":
        return _uvarint(0, where) if compact else _number("int16", -1, where)
    if not isinstance(value, str):
        raise CodecError(f"{where}: {value!r} is no text")
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise CodecError(f"{where}: {value!r} is no text that UTF-8 can hold") from None
    if len(data) > _LONGEST_STRING:
        raise CodecError(f"{where}: {len(data)} bytes, more than {_LONGEST_STRING}")
    return (_uvarint(len(data) + 1, where) if compact else _number("int16", len(data), where)) + data


def _written_bytes(field: WireField, value: Any, flexible: bool, where: str) -> bytes:
    if value is None and field.type == "nullable_bytes":
        return _uvarint(0, where) if flexible else _number("int32", -1, where)
    if not isinstance(value, bytes):
        raise CodecError(f"{where}: {value!r} is no bytes")
    return (_uvarint(len(value) + 1, where) if flexible else _number("int32", len(value), where)) + value


def _uuid_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _uuid(text: Any, where: str) -> bytes:
    try:
        data = base64.b64decode(f"{text}==", altchars=b"-_", validate=True)
    except ValueError:
        data = b""
    if _uuid_text(data) != text or len(data) != 16:
        raise CodecError(f"{where}: {text!r} is no uuid of 22 characters")
    return data


def _number(kind: str, value: Any, where: str) -> bytes:
    try:
        return _NUMBERS[kind].pack(value)
    except struct.error:
        raise CodecError(f"{where}: {value!r} is no {kind}") from None


def _uvarint(value: int, where: str) -> bytes:
    if not 0 <= value <= _UVARINT_BITS:
        raise CodecError(f"{where}: {value!r} is no unsigned 32-bit number")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
