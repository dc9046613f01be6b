"""`python -m share_state.declared_pages docs`: the pages docs/tables.md and docs/records.md, from the declarations."""

import sys
from collections.abc import Iterator
from pathlib import Path

from share_state.declarations import Field, declared, record, struct, table

GENERATED = "<!-- Made by `python -m share_state.declared_pages docs`; edit {}. -->"


def tables_page() -> str:
    """The page docs/tables.md: every table with its columns, key columns written out."""
    lines = ["# Tables", "", GENERATED.format("schemas/tables"), ""]
    lines += ["Delta tables, one folder each in the warehouse. Times are UTC."]
    for name in declared("tables", "table"):
        doc, columns = table(name)
        lines += ["", f"## {name}", "", f"{_sentence(doc)}", "", "| column | type | meaning |", "| --- | --- | --- |"]
        lines += [f"| {column.name} | `{column.type}` | {_cell(column.doc)} |" for column in columns]
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
    """Print the pages about the declarations, or write tables.md and records.md to the folder that is given."""
    if not arguments:
        sys.stdout.write(tables_page() + "\n" + records_page())
        return
    folder = Path(arguments[0])
    (folder / "tables.md").write_text(tables_page(), encoding="utf-8")
    (folder / "records.md").write_text(records_page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
