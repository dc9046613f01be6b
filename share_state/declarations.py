"""The declarations under schemas/: loaded, checked, and turned into what Arrow, Spark and the docs need."""

import re
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from share_state import resources
from share_state.errors import DeclarationError


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Column(_Declared):
    """A column of a table: its name, its type as Spark writes it, what it means."""

    name: str
    type: str
    doc: str


class ColumnsOf(_Declared):
    """In place of a column: all columns of a declared group."""

    columns_of: str


class ColumnGroup(_Declared):
    """Columns that several tables share."""

    columns_group: str
    doc: str
    columns: tuple[Column, ...]


class Table(_Declared):
    """A table as declared, its groups not yet written out."""

    table: str
    doc: str
    columns: tuple[Column | ColumnsOf, ...]


@cache
def table(name: str) -> tuple[str, tuple[Column, ...]]:
    """What a table is for, and its columns in order.

    Raises:
        DeclarationError: if schemas/tables says something that is no table.
    """
    declared = _load(f"tables/{name}.yaml", Table)
    columns: list[Column] = []
    for column in declared.columns:
        if isinstance(column, ColumnsOf):
            columns += _load(f"tables/{column.columns_of}.yaml", ColumnGroup).columns
        else:
            columns.append(column)
    return declared.doc, tuple(columns)


@cache
def table_schema(name: str) -> pa.Schema:
    """The Arrow schema of a table.

    Raises:
        DeclarationError: if a column has a type that is not known.
    """
    return pa.schema([(column.name, arrow_type(column.type)) for column in table(name)[1]])


_SIMPLE = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "tinyint": pa.int8(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def arrow_type(text: str) -> pa.DataType:
    """The Arrow type that a type in Spark's notation stands for.

    Raises:
        DeclarationError: if it is not known.
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
    raise DeclarationError(f"type {text!r} is not known; use one of {', '.join(_SIMPLE)}, array, map or struct")


def _split(text: str) -> list[str]:
    """At the commas that no bracket encloses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "<") - (character == ">")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


_Model = TypeVar("_Model", bound=_Declared)


def _load(name: str, model: type[_Model]) -> _Model:
    path: Path = resources.folder("schemas") / name
    try:
        return model.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise DeclarationError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValidationError, yaml.YAMLError) as error:
        raise DeclarationError(f"{path}: {_first(error)}") from None


def _first(error: Any) -> str:
    if isinstance(error, ValidationError):
        problem = error.errors()[0]
        return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
    return " ".join(str(error).split())

