"""What a command writes to stdout and stderr: JSON keeps its values, and nothing controls a terminal."""

import io
import json
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from share_state.terminal import CommandStream, elide, escape_unprintable, one_line, styled

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def _written(*given: str) -> str:
    target = io.StringIO()
    stream = CommandStream(target, "stdout")
    stream.write(given[0])
    stream.writelines(given[1:])
    return target.getvalue()


@given(st.recursive(texts, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)))
@example("\x7f\x9b31m\u202e\u2028\U000e0001")
def test_json_holds_the_same_values_and_nothing_that_controls_a_terminal(document: object):
    line = f"{json.dumps(document, ensure_ascii=False)}\n"
    written = _written(line, line)
    first, second, rest = written.split("\n")
    assert (json.loads(first), json.loads(second), rest) == (document, document, "")
    assert first.isprintable()
    if line.rstrip("\n").isprintable():
        assert written == line * 2


@given(texts)
@example("\x1b]0;title\x07\r\n\tx")
def test_a_line_of_text_is_one_printable_line(text: str):
    assert one_line(text).isprintable()
    assert escape_unprintable(text) == (text if text.isprintable() else escape_unprintable(text))
    assert all(line.replace("\t", "").isprintable() for line in _written(text).split("\n"))


def test_a_long_word_keeps_its_ends_and_says_its_length():
    assert elide("a" * 10 + "b" * 10_000 + "end", 20) == "aaaaaaaaaabbbbb...bbend (10,013 characters)"
    assert elide("short", 20) == "short"
    assert one_line("see " + "x" * 3000 + " now").startswith("see xxx")
    assert one_line("see " + "x" * 3000 + " now").endswith("xxx (3,000 characters) now")


def test_only_styles_pass_as_they_are(tmp_path: Path):
    target = io.StringIO()
    stream = CommandStream(target, "stdout")
    styled(stream).write("\x1b[1mHEADER\x1b[0m\n")
    stream.write("\x1b[1mNAME\n")
    assert target.getvalue() == "\x1b[1mHEADER\x1b[0m\n\\u001b[1mNAME\n"
    with (tmp_path / "file").open("w") as plain:
        assert styled(plain) is plain
