"""YAML as it is written: off, 4.0 and 007 stay what they are, and a key that is there twice is refused."""

import re
from typing import Any

import yaml

from share_state.config.key_names import shown
from share_state.config.refusals import ConfigError, said

_NULL = re.compile(r"(?:~|null|Null|NULL|)$")


class _Texts(yaml.BaseLoader):
    """YAML with every scalar as text; only null is null."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        """A mapping whose keys are there once."""
        lines: dict[str, int] = {}
        read = {}
        for key, value in node.value:
            place = _place(key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{place}: a list or a map where a key is due; give a name")
            name = self.construct_scalar(key)
            if name in lines:
                raise ConfigError(f"{place}: {shown(name)} is there twice, first in line {lines[name]}; keep one")
            lines[name] = key.start_mark.line + 1
            read[name] = self.construct_object(value, deep=deep)
        return read

    def construct_scalar(self, node: yaml.ScalarNode) -> str:
        """The text of a scalar."""
        try:
            return _unicode(super().construct_scalar(node))
        except ConfigError as error:
            raise ConfigError(f"{_place(node.start_mark)}: {error}") from None


_Texts.add_implicit_resolver("tag:yaml.org,2002:null", _NULL, ["~", "n", "N", ""])
_Texts.add_constructor("tag:yaml.org,2002:null", lambda *_: None)


def parsed(text: str) -> Any:
    """The lists, maps and texts of a YAML document.

    Raises:
        ConfigError: if it is no YAML, or a map has a key twice; the message begins with line and column.
    """
    try:
        return yaml.load(text, Loader=_Texts)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join((error.problem or "").split())
        begin = f"{_place(mark)}: not YAML ({problem})"
        raise ConfigError(f"{begin}; indent with spaces and put quotes around text with special characters") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        raise ConfigError(f"line {line}: the character #x{error.character:04x} is not text; take it out") from None
    except RecursionError:
        raise ConfigError("lists or maps too deep in each other; no key needs more than three levels") from None


def scalar(text: str) -> str | None:
    """A text that needs no quotes, whatever it holds; None where it says nothing.

    Raises:
        ConfigError: if it is not Unicode.
    """
    return None if _NULL.match(text) else _unicode(text)


def _unicode(text: str) -> str:
    """JSON escapes a character beyond 16 bits as two halves; a half alone is what undecodable bytes come in as."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ConfigError(f"{said(text)} is not Unicode text; give UTF-8") from None


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"
