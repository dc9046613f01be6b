"""`python -m share_state.declared_pages docs`: what docs/tables and docs/records.md say of the declarations."""

import sys
from collections.abc import Iterator
from pathlib import Path

from share_state.declarations import Field, declared, record, struct, table
from share_state.page_blocks import filled

GENERATED = "<!-- Made by `python -m share_state.declared_pages docs`; edit {}. -->"


def table_page(name: str, page: str) -> str:
    """The page of a table with what it is and its columns made anew, key columns written out.

    Args:
        name: of the table.
        page: the page so far.
    """
    doc, columns = table(name)
    lines = ["| column | type | meaning |", "| --- | --- | --- |"]
    lines += [f"| {column.name} | `{column.type}` | {_cell(column.doc)} |" for column in columns]
    return filled(page, {"doc": _sentence(doc), "columns": "\n".join(lines)})


def tables_index() -> str:
    """The page docs/tables/README.md: every table and what one row of it is."""
    lines = ["# Tables", "", GENERATED.format("schemas/tables"), ""]
    lines += ["Delta tables, one folder each in the warehouse. Times are UTC. The answers on the pages are those of"]
    lines += ["`python docs/tables/queries.py`, which asks the log of a real broker.", ""]
    lines += ["| table | what it holds |", "| --- | --- |"]
    for name in declared("tables", "table"):
        lines += [f"| [{name}]({name}.md) | {_cell(_sentence(table(name)[0]))} |"]
    return "\n".join(lines) + "\n"


def records_page() -> str:
    """The page docs/records.md: every record with its layouts, field by field."""
    lines = ["# Records", "", GENERATED.format("schemas/records"), ""]
    lines += [
        "What is written to the log, field by field in the order of the bytes, all numbers big endian. In front of a"
        " key is its type, in front of a value its version, both int16. In a flexible layout strings and arrays begin"
        " with their length plus one as an unsigned varint, and the record and every struct in it end with tagged"
        " fields; in another, strings begin with an int16 and arrays with an int32. No array is null."
    ]
    for name in declared("records", "name"):
        this = record(name)
        lines += ["", f"## {this.name}", "", f"{_sentence(this.doc)}", ""]
        part = "inside the value" if this.part == "data" else f"the {this.part}"
        lines += [f"In `{this.log}`: {part} of record type {this.key_type}."]
        for one in this.layouts:
            version = "" if one.version is None else f", version {one.version}"
            flexible = "flexible" if one.flexible else "not flexible"
            lines += ["", f"### Releases {one.releases}{version}, {flexible}", "", *_fields_table(one.fields)]
    for name in declared("records", "struct"):
        one = struct(name)
        lines += ["", f"## {one.struct}", "", f"{_sentence(one.doc)}", "", *_fields_table(one.fields)]
    return "\n".join(lines) + "\n"


def _fields_table(fields: tuple[Field, ...]) -> Iterator[str]:
    yield "| field | type | meaning |"
    yield "| --- | --- | --- |"
    for field in fields:
        tag = "" if field.tag is None else f", tag {field.tag}, absent at {field.default}"
        since = "" if field.since is None else f" (since {field.since})"
        yield f"| {field.name} | `{field.type}`{tag} | {_cell(field.doc)}{since} |"


def _sentence(doc: str) -> str:
    return f"{doc[0].upper()}{doc[1:]}."


def _cell(doc: str) -> str:
    return doc.replace("|", "\\|")


def main(arguments: list[str]) -> None:
    """Renew the pages about the declarations in a folder like docs."""
    folder = Path(arguments[0])
    (folder / "records.md").write_text(records_page(), encoding="utf-8")
    (folder / "tables" / "README.md").write_text(tables_index(), encoding="utf-8")
    for name in declared("tables", "table"):
        path = folder / "tables" / f"{name}.md"
        path.write_text(table_page(name, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
