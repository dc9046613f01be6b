"""Pages of prose with blocks that are made from the code: a block cannot drift, and what stands around it stays.

`python -m docs.reference_pages`: what docs/tables and docs/records.md say of the declarations.

`python -m docs.reference_pages`: what the registry says of each rule, in the pages about the rules.

The table of keys in docs/audit-configuration.md, made from the model.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from share_state.config.loading import ConfigError
from share_state.config.model import keys
from share_state.errors import DeclarationError
from share_state.rules.registry import Rule, registered
from share_state.schema.declarations import Field, declared, record, struct, table

_BLOCK = re.compile(r"<!-- begin (?P<name>[\w ]+) -->\n.*?<!-- end (?P=name) -->\n", re.DOTALL)


def filled(page: str, blocks: Mapping[str, str]) -> str:
    """A page with its blocks made anew.

    Args:
        page: markdown; a block stands between the lines `<!-- begin NAME -->` and `<!-- end NAME -->`.
        blocks: name -> lines of it.
    Raises:
        DeclarationError: if the page has a block that is not known.
    """

    def renewed(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in blocks:
            raise DeclarationError(f"block '{name}': nothing is known to fill it with; use {', '.join(blocks)}")
        return f"<!-- begin {name} -->\n{blocks[name].strip()}\n<!-- end {name} -->\n"

    return _BLOCK.sub(renewed, page)


def blocks_of(page: str) -> list[str]:
    """The names of the blocks of a page, in order."""
    return [found["name"] for found in _BLOCK.finditer(page)]


GENERATED = "<!-- Made by `python -m docs.reference_pages`; edit {}. -->"


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


def write_declared_pages(arguments: list[str]) -> None:
    """Renew the pages about the declarations in a folder like docs."""
    folder = Path(arguments[0])
    (folder / "records.md").write_text(records_page(), encoding="utf-8")
    (folder / "tables" / "README.md").write_text(tables_index(), encoding="utf-8")
    for name in declared("tables", "table"):
        path = folder / "tables" / f"{name}.md"
        path.write_text(table_page(name, path.read_text(encoding="utf-8")), encoding="utf-8")


INDEX = "README.md"
_MARK = "rule "


def rule_block(one: Rule) -> str:
    """What must hold, how severe its breach is by default, and where that is from."""
    return f"**{one.severity}**: {one.statement} *({one.source})*"


def rules_page(page: str) -> str:
    """A page about a family of rules with what the registry says of each."""
    return filled(page, {f"{_MARK}{code}": rule_block(one) for code, one in registered().items()})


def codes_of(page: str) -> list[str]:
    """The rules that a page is about."""
    return [name.removeprefix(_MARK) for name in blocks_of(page)]


def rules_index(index: str, pages: dict[str, str]) -> str:
    """The page docs/rules/README.md with every family and its rules.

    Args:
        index: the page so far.
        pages: file name -> page of a family.
    """
    lines = []
    for name, page in sorted(pages.items()):
        lines += [
            "",
            f"## [{page.splitlines()[0].removeprefix('# ')}]({name})",
            "",
            "| code | severity | what must hold |",
        ]
        lines += ["| --- | --- | --- |"]
        for code in codes_of(page):
            one = registered()[code]
            lines += [f"| [{code}]({name}#{code.lower()}) | {one.severity} | {one.statement} |"]
    return filled(index, {"rules": "\n".join(lines)})


def write_rules_pages(arguments: list[str]) -> None:
    """Renew the pages of a folder."""
    folder = Path(arguments[0])
    pages = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md") if path.name != INDEX}
    for name, page in pages.items():
        (folder / name).write_text(rules_page(page), encoding="utf-8")
    index = folder / INDEX
    index.write_text(rules_index(index.read_text(encoding="utf-8"), pages), encoding="utf-8")


BEGIN = "<!-- Made by `python -m docs.reference_pages`; edit share_state/config/model.py. -->"
END = "<!-- End of what is made. -->"


def with_keys(page: str) -> str:
    """The page docs/audit-configuration.md with its table of keys made anew.

    Raises:
        ConfigError: if the page does not have the two lines that the table stands between.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"the page of keys: its table goes between these two lines: {BEGIN} {END}")
    rows = ["| key | takes | default | environment variable | meaning |", "| --- | --- | --- | --- | --- |"]
    rows += [f"| `{key.name}` | {key.takes} | {key.default} | `{key.variable}` | {key.meaning} |" for key in keys()]
    return "\n".join([f"{before}{begin}", "", *rows, "", f"{end}{after}"])


def write_keys_page(arguments: Sequence[str]) -> None:
    """Renew the table of keys in each page that is named."""
    for path in map(Path, arguments):
        path.write_text(with_keys(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write_declared_pages(["docs"])
    write_rules_pages(["docs/rules"])
    write_keys_page(["docs/audit-configuration.md"])
