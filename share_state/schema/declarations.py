"""The declarations under schemas/: loaded, checked and turned into Arrow schemas and record layouts.

`table` and `table_schema` describe the tables that commands write; `record`, `struct` and `layout` describe
Kafka's records for the codec. `resource_folder` finds schemas/ and conf/.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import pyarrow as pa
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from share_state.errors import DeclarationError


def resource_folder(name: str) -> Traversable:
    """The folder `schemas` or `conf`: a package resource, in an archive too.

    In a checkout, it is the folder at its root.
    """
    package = resources.files("share_state")
    installed = package / f"_{name}"
    return installed if installed.is_dir() else Path(str(package)).parent / name


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Column(_Declared):
    """A column of a table: name, type in Spark's notation, meaning, and whether it may be null."""

    name: str
    type: str
    doc: str
    nullable: bool = True

    @field_validator("type")
    @classmethod
    def _is_a_type(cls, text: str) -> str:
        try:
            arrow_type(text)
        except DeclarationError as error:
            raise ValueError(str(error)) from None
        return text


class ColumnsOf(_Declared):
    """Includes all columns of a column group; the columns in `not_null` are never null in this table."""

    columns_of: str
    not_null: tuple[str, ...] = ()


class ColumnGroup(_Declared):
    """Columns that several tables share."""

    columns_group: str
    doc: str
    columns: tuple[Column, ...]


class Table(_Declared):
    """The declaration of a table, before its column groups are expanded."""

    table: str
    doc: str
    columns: tuple[Column | ColumnsOf, ...]


class Field(_Declared):
    """A field of a record or struct.

    Attributes:
        name: key in the decoded record.
        type: one of FIELD_TYPES, the name of a struct, or `[]` followed by one of these.
        doc: meaning.
        tag: number of a tagged field, which is written only if it differs from its default.
        default: value of an absent field; "null" and "[]" stand for null and an empty array.
        since: first Kafka release that writes it, if later than the layout.
    """

    name: str
    type: str
    doc: str
    tag: int | None = None
    default: int | str | None = None
    since: str | None = None

    @model_validator(mode="after")
    def _check_default_of_tagged_field(self) -> Self:
        if self.tag is not None and self.default is None:
            raise ValueError(f"{self.name}: a tagged field needs a default")
        return self


def _check_unique(what: str, values: Iterable[object]) -> None:
    repeated = [value for value, number in Counter(values).items() if number > 1]
    if repeated:
        raise ValueError(f"{what} {repeated[0]!r} is declared twice")


class Struct(_Declared):
    """A group of fields inside a record, mostly the element of an array."""

    struct: str
    doc: str
    fields: tuple[Field, ...]

    @model_validator(mode="after")
    def _is_unambiguous(self) -> Self:
        _check_unique("field", [field.name for field in self.fields])
        return self


class RecordLayout(_Declared):
    """One binary layout of a record.

    Attributes:
        releases: Kafka releases that write it, such as "4.0" or "4.1+".
        version: version number in front of a value, or in the frame of a message; None for keys and for
            nested data without one.
        flexible: whether lengths are varints and every struct ends with tagged fields (KIP-482).
        fields: in the order of the bytes; the position of tagged fields does not matter.
    """

    releases: str
    version: int | None = None
    flexible: bool
    fields: tuple[Field, ...]

    @model_validator(mode="after")
    def _is_unambiguous(self) -> Self:
        _check_unique("field", [field.name for field in self.fields])
        tags = [field.tag for field in self.fields if field.tag is not None]
        _check_unique("tag", tags)
        if tags and not self.flexible:
            raise ValueError("only a flexible layout has tagged fields")
        return self


class Record(_Declared):
    """The declaration of a record key or value that Kafka writes, or of client data nested in a value.

    Attributes:
        name: name in Kafka.
        log: topic that it is written to.
        part: key, value, data nested in a value, or a message of the metadata log, which has no key.
        key_type: the int16 at the start of the key; values and nested data repeat the number of their key.
            The type of a message is in its frame.
        doc: meaning.
        layouts: layouts in the order of the releases.
    """

    name: str
    log: str
    part: Literal["key", "value", "data", "message"]
    key_type: int
    doc: str
    layouts: tuple[RecordLayout, ...]

    @model_validator(mode="after")
    def _is_unambiguous(self) -> Self:
        _check_unique("layout", [layout.releases for layout in self.layouts])
        for layout in self.layouts:
            if self.part != "data" and (layout.version is None) != (self.part == "key"):
                raise ValueError(
                    f"layout {layout.releases}: a value or message has a version, a key has none"
                )
        return self


@cache
def table(name: str) -> tuple[str, tuple[Column, ...]]:
    """The description of a table and its columns in order.

    Raises:
        DeclarationError: if the file in schemas/tables does not declare a table.
    """
    declared = _load(f"tables/{name}.yaml", Table)
    groups = (_columns(one) if isinstance(one, ColumnsOf) else (one,) for one in declared.columns)
    return declared.doc, tuple(chain.from_iterable(groups))


def _columns(group: ColumnsOf) -> Iterable[Column]:
    columns = _load(f"tables/{group.columns_of}.yaml", ColumnGroup).columns
    return (one.model_copy(update={"nullable": one.name not in group.not_null}) for one in columns)


@cache
def table_schema(name: str) -> pa.Schema:
    """The Arrow schema of a table.

    Raises:
        DeclarationError: if a column has an unknown type.
    """
    return pa.schema([(column.name, arrow_type(column.type)) for column in table(name)[1]])


@cache
def stored_schema(name: str) -> pa.Schema:
    """The Arrow schema of a table as Delta stores it: `table_schema` with the comment of each column, and NOT NULL."""
    columns = table(name)[1]
    return pa.schema(
        pa.field(column.name, arrow_type(column.type), column.nullable, {"comment": column.doc})
        for column in columns
    )


_SIMPLE = {
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "tinyint": pa.int8(),
    "boolean": pa.bool_(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def arrow_type(text: str) -> pa.DataType:
    """The Arrow type for a type in Spark's notation.

    Raises:
        DeclarationError: if the type is unknown.
    """
    text = text.strip()
    if text in _SIMPLE:
        return _SIMPLE[text]
    nested = re.fullmatch(r"(array|map|struct)<(.*)>", text)
    parts = _split(nested[2]) if nested else []
    if nested and nested[1] == "array" and len(parts) == 1:
        return pa.list_(arrow_type(parts[0]))
    if nested and nested[1] == "map" and len(parts) == 2:
        return pa.map_(arrow_type(parts[0]), arrow_type(parts[1]))
    if nested and nested[1] == "struct":
        named = [part.partition(" ") for part in parts]
        return pa.struct([(name, arrow_type(kind)) for name, _, kind in named])
    raise DeclarationError(f"type {text!r} is unknown; use one of {', '.join(_SIMPLE)}, array, map or struct")


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "<") - (character == ">")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


FIELD_TYPES = frozenset(("int8", "int16", "int32", "int64", "uint16", "uuid", "string", "nullable_string",
                         "compact_string", "bytes", "nullable_bytes"))  # fmt: skip
"""Field types that are not structs. Lengths are varints in flexible layouts; otherwise int16 for strings,
int32 for bytes and arrays. The length of a compact_string is always a varint."""


@dataclass(frozen=True, slots=True)
class WireField:
    """A field with its struct resolved.

    Attributes:
        type: one of FIELD_TYPES, or the name of the struct.
        is_array: whether it is an array of that type.
        fields: fields of the struct; empty for FIELD_TYPES.
    """

    name: str
    type: str
    is_array: bool
    fields: tuple["WireField", ...]
    tag: int | None
    default: int | str | None


@dataclass(frozen=True, slots=True)
class WireLayout:
    """A layout with its structs resolved, as the codec needs it.

    Attributes:
        prefix: the int16 in front: record type of a key, version of a value; None for messages, and data
            without one.
    """

    record: str
    releases: str
    prefix: int | None
    flexible: bool
    fields: tuple[WireField, ...]


@cache
def record(name: str) -> Record:
    """The declaration of a record; `name` is the name of its file, such as share_snapshot_value.

    Raises:
        DeclarationError: if the file in schemas/records does not declare a record.
    """
    return _load(f"records/{name}.yaml", Record)


@cache
def struct(name: str) -> Struct:
    """The declaration of a struct; `name` is the name of its file, such as state_batch.

    Raises:
        DeclarationError: if the file in schemas/records does not declare a struct.
    """
    return _load(f"records/{name}.yaml", Struct)


@cache
def layout(name: str, releases: str) -> WireLayout:
    """The layout of a record for the declared `releases` ("4.0" or "4.1+"), with its structs resolved.

    Raises:
        DeclarationError: if the layout does not exist or a field has an unknown type.
    """
    declared = record(name)
    for one in declared.layouts:
        if one.releases == releases:
            prefix = {"key": declared.key_type, "message": None}.get(declared.part, one.version)
            fields = tuple(_wire_field(f"records/{name}.yaml", field) for field in one.fields)
            return WireLayout(declared.name, releases, prefix, one.flexible, fields)
    known = ", ".join(one.releases for one in declared.layouts)
    raise DeclarationError(f"records/{name}.yaml: no layout {releases!r}; there are {known}")


def _wire_field(file: str, field: Field) -> WireField:
    kind, inner = field.type.removeprefix("[]"), ()
    if kind not in FIELD_TYPES:
        struct_file = f"records/{snake_case(kind)}.yaml"
        if not re.fullmatch("([A-Z][a-z0-9]*)+", kind) or not _path(struct_file).is_file():
            known = ", ".join(sorted(FIELD_TYPES))
            raise DeclarationError(f"{_path(file)}: {field.name}: type {field.type!r} is unknown; use one of {known}"
                                   f" or a struct that has a file in schemas/records")  # fmt: skip
        inner = tuple(_wire_field(struct_file, one) for one in struct(snake_case(kind)).fields)
    return WireField(field.name, kind, kind != field.type, inner, field.tag, field.default)


@cache
def snake_case(name: str) -> str:
    """Convert a name from Kafka's camel case to the snake case of files, columns and decoded fields."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


_Model = TypeVar("_Model", bound=_Declared)

# libyaml's loader is ten times as fast; PyYAML may be built without it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _load(name: str, model: type[_Model]) -> _Model:
    path = _path(name)
    try:
        return model.model_validate(yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER))
    except OSError as error:
        raise DeclarationError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValidationError, yaml.YAMLError) as error:
        raise DeclarationError(f"{path}: {_first(error)}") from None


def declaration_names(folder: str, first_key: str) -> list[str]:
    """Names of the files in a folder of schemas/ whose first key is table, columns_group, name or struct."""
    files = (file for file in _path(folder).iterdir() if file.name.endswith(".yaml"))
    declared = (file for file in files if file.read_text(encoding="utf-8").startswith(f"{first_key}:"))
    return sorted(file.name.removesuffix(".yaml") for file in declared)


def _path(name: str) -> Traversable:
    return resource_folder("schemas") / name


def _first(error: Any) -> str:
    if isinstance(error, ValidationError):
        problem = error.errors()[0]
        return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
    return " ".join(str(error).split())
