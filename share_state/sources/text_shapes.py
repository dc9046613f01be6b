"""Names the texts in which people keep records of the state topic and that no format reads, and how to make one."""

import codecs
import re
import shlex
from collections.abc import Callable, Mapping
from typing import NamedTuple

_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_REPLACEMENT = (b"\\ufffd", "\ufffd".encode())
_CONSOLE_RECORD = rb'\{\s*"key"\s*:\s*\{\s*"(type|version)"\s*:'
_ROW = rb'\{\s*("[A-Za-z_]+"\s*:\s*("[^"]*"|-?\d+|null)\s*,\s*)*"(key|value)"\s*:'
_FORMATTER = "org.apache.kafka.tools.consumer.group.share.ShareGroupStateMessageFormatter"


class _Shape(NamedTuple):
    """A shape of texts.

    Attributes:
        name: what it is.
        matches: whether the first bytes of a file have it.
        fix: how to make a text that is read; `{file}` and `{out}` are the file, and a new one.
    """

    name: str
    matches: Callable[[bytes], object]
    fix: str


def _begins(pattern: bytes) -> Callable[[bytes], object]:
    return re.compile(rb"\s*" + pattern, re.DOTALL).match


def _holds_line(*patterns: bytes) -> Callable[[bytes], object]:
    return re.compile(rb"^(" + rb"|".join(patterns) + rb")", re.MULTILINE).search


_SHAPES = (
    _Shape(
        "UTF-16 text, as > of PowerShell writes it",
        lambda head: head.startswith(_BOMS),
        "convert it: iconv -f UTF-16 -t UTF-8 {file} > {out}",
    ),
    _Shape(
        "text with a byte order mark",
        lambda head: head.startswith(codecs.BOM_UTF8),
        "remove the mark: tail -c +4 {file} > {out}",
    ),
    _Shape(
        "an export of Kafka UI, which decodes keys and values as text, so that bytes are lost",
        lambda head: (
            _begins(rb"\[\s*\{")(head) and b'"Value"' in head and any(one in head for one in _REPLACEMENT)
        ),
        f"consume the topic with kafka-console-consumer.sh --formatter {_FORMATTER}, or copy the segments",
    ),
    _Shape(
        "an export of Redpanda Console",
        lambda head: _begins(rb"\[\s*\{")(head) and b'"partitionID"' in head and b'"payload"' in head,
        'make rows of it: jq -c \'.[] | {{topic: "__share_group_state", partition: .partitionID, offset, timestamp,'
        " key: .key.payload, value: .value.payload}}' {file} > {out}",
    ),
    _Shape(
        "a JSON array of records of the console consumer",
        _begins(rb"\[\s*" + _CONSOLE_RECORD),
        "write its elements without the brackets: jq -c '.[]' {file} > {out}",
    ),
    _Shape(
        "a JSON array of rows",
        _begins(rb"\[\s*" + _ROW),
        "write one row a line: jq -c '.[]' {file} > {out}",
    ),
    _Shape(
        "CSV",
        lambda head: (
            re.match(rb'"?[A-Za-z_]+"?([,;\t]"?[A-Za-z_]+"?)+\s*$', head.partition(b"\n")[0])
            and {b"key", b"value"} <= {*re.findall(rb"[A-Za-z_]+", head.partition(b"\n")[0].lower())}
        ),
        "convert it to Parquet: python -c 'import sys, pyarrow.csv as c, pyarrow.parquet as p; p.write_table("
        "c.read_csv(sys.argv[1], convert_options=c.ConvertOptions(strings_can_be_null=True)), sys.argv[2])'"
        " {file} {out}",
    ),
    _Shape(
        "lines of kafka-dump-log without its other lines, as grep leaves them",
        _begins(rb"\| offset: "),
        "give the whole output, from the line that begins with Dumping on",
    ),
    _Shape(
        "records of the console consumer after other output",
        _holds_line(_CONSOLE_RECORD),
        "keep the lines of records: grep '^{{' {file} > {out}; and leave -t out of docker exec and kubectl",
    ),
)

_ENDINGS: Mapping[str, str] = {"CSV": ".parquet", _SHAPES[0].name: ".txt", _SHAPES[1].name: ".txt"}
"""Name of a shape -> how the name of the new file ends, if not in .json."""


def name_shape(path: str, head: bytes) -> str | None:
    """What a text is that no format reads, and how to make one that is; None if it is of no known shape.

    Args:
        path: of the file.
        head: its first bytes.
    """
    for shape in _SHAPES:
        if shape.matches(head):
            out = (
                path.rpartition("/")[2].rpartition(".")[0]
                + "-share-state"
                + _ENDINGS.get(shape.name, ".json")
            )
            return f"{path}: {shape.name}; {shape.fix.format(file=shlex.quote(path), out=shlex.quote(out))}"
    return None
