"""Numbers, times and names as people read them."""

from datetime import timedelta

import pytest

from share_state.report import console
from tests.report.made_warehouse import TONIGHT


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (4.5, "4.5 s"),
        (75, "1 min 15 s"),
        (3600, "1 h"),
        (273_600, "3 d 4 h"),
        (-60, "0 s"),
        (59.7, "1 min"),
    ],
)
def test_a_span_has_its_two_largest_units(seconds: float, said: str):
    assert console.format_duration(TONIGHT, TONIGHT + timedelta(seconds=seconds)) == said


@pytest.mark.parametrize(
    ("octets", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (328_000, "328 kB"), (5_200_000, "5.2 MB"), (7 * 10**15, "7000 TB")],
)
def test_bytes_have_a_unit(octets: int, said: str):
    assert console.format_size(octets) == said


def test_what_is_not_known_is_a_hyphen():
    assert {
        console.format_number(None),
        console.format_time(None),
        console.format_size(None),
        console.format_name(None),
        console.format_duration(None, TONIGHT),
    } == {"-"}


def test_a_name_shows_what_it_is_made_of():
    assert console.format_name("") == '""'
    assert console.format_name("a\nb\N{RIGHT-TO-LEFT OVERRIDE}") == "a\\nb\\u202e"
    assert console.format_name("é שלום") == "é שלום"


def test_a_sentence_breaks_between_words_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    text = "next: " + "a few words " * 12
    console.print_sentence(text)
    assert capsys.readouterr().out == f"{text}\n"
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    console.print_sentence(text, "      ")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert all(line.startswith("      ") for line in lines[1:])
    assert " ".join(line.strip() for line in lines) == text.strip()
