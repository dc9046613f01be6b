"""Text on a terminal: a group id may hold any character, so what controls a terminal or breaks a line is escaped.

`escape_unprintable` and `elide` are for text that a report prints. `CommandStream` replaces stdout and stderr
while a command runs, and escapes what nothing has escaped before: JSON, messages of other libraries,
tracebacks.
"""

import codecs
import io
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, TextIO, cast

from share_state.errors import ShareStateError

LONGEST_WORD = 1000
"""Characters of a word in a line that are printed; paths are seldom longer."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_KEPT = "\n\t"


def escape_unprintable(text: str) -> str:
    """Escape characters that would break a line or control a terminal: a group id may hold any character."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def elide(text: str, most: int) -> str:
    """A text of at most about `most` characters: of a longer one the beginning, the end, and its length."""
    if len(text) <= most:
        return text
    length = f"({len(text):,} characters)"
    end = most // 4
    return f"{text[: most - end]}...{text[len(text) - end :]} {length}"


def one_line(text: str, longest_word: int = LONGEST_WORD) -> str:
    """A text as one line of a terminal: unprintable characters are escaped, and words of great length elided."""
    escaped = escape_unprintable(text)
    if len(escaped) <= longest_word:
        return escaped
    return " ".join(elide(word, longest_word) for word in escaped.split(" "))


def _escape_as_json(text: str) -> str:
    r"""Escape as \uXXXX what could control a terminal: JSON has such characters only in strings, so it stays JSON."""
    if text.isascii() and _CONTROLS.search(text) is None:
        return text
    if all(line.isprintable() for line in text.split("\n")):
        return text
    odd = {one for one in set(text) if not one.isprintable() and one not in _KEPT}
    return text.translate({ord(one): _json_escape(one) for one in odd})


def _json_escape(text: str) -> str:
    encoded = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{encoded[at : at + 2].hex()}" for at in range(0, len(encoded), 2))


_JSON_ESCAPES = "share_state.json_escapes"


def _escape_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Characters that the encoding of a stream lacks."""
    encoded = cast("UnicodeEncodeError", error)
    return _json_escape(encoded.object[encoded.start : encoded.end]), encoded.end


codecs.register_error(_JSON_ESCAPES, _escape_unencodable)


class CommandStream:
    """Stdout or stderr of a command: no text controls the terminal.

    Once the reader is gone, text is dropped, and the command keeps its exit code. Stderr drops text after any
    error.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        """Wrap a stream.

        Args:
            stream: the stream.
            name: stdout or stderr.
        """
        self._stream = stream
        self._name = name
        self.closed = False
        self._reason: str | None = None
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_JSON_ESCAPES)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, escaped, unless the reader is gone."""
        self._attempt(self._stream.write, _escape_as_json(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines, escaped, unless the reader is gone."""
        self._attempt(self._stream.writelines, map(_escape_as_json, lines))

    def close(self) -> None:
        """Drop text from now on, as if the reader were gone; the wrapped stream stays open."""
        self.closed = True

    def flush(self) -> None:
        """Write what is buffered, unless the reader is gone."""
        self._attempt(self._stream.flush)

    def write_styled(self, text: str) -> None:
        """Write text with the control sequences of a style, unless the reader is gone."""
        self._attempt(self._stream.write, text)

    def _attempt(self, call: Callable[..., object], *given: object) -> None:
        try:
            if not self.closed:
                call(*given)
        except OSError as error:
            self.closed = True
            # What is buffered would fail again when the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if self._name == "stdout" and not isinstance(error, BrokenPipeError):
                self._reason = error.strerror
        if self._reason is not None:
            raise ShareStateError(f"stdout: cannot be written ({self._reason}); print to another place")


class _Styled:
    """A stream that takes the control sequences of rich; rich must be given escaped text only."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._stream.write_styled(text)
        return len(text)


def styled(stream: "TextIO | CommandStream") -> TextIO:
    """The stream for rich's styles and progress lines."""
    return cast("TextIO", _Styled(stream)) if isinstance(stream, CommandStream) else stream
