"""Small inputs that were once misread or misjudged, each with what is right."""

from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.truth import DATA

CASES = DATA / "cases"
ONE = ("--group", "gs1", "--topic", "YDceSjdmT8S9BTxbi7vQIA", "--partition", 0)


def test_an_offset_that_was_finished_before_a_reset_says_so(cli: Command):
    said = cli("explain", CASES / "explain-after-reset/reset-back", *ONE, "--offset", 12).lines[-1]
    assert said == (
        "Offset 12: acknowledged in delivery 1 at 2026-09-21 14:13:24 UTC (record 3); the offsets were reset from 20 "
        "to 5 at 2026-09-21 14:13:25 UTC (record 4); below SPSO since 2026-09-21 14:13:27 UTC (record 6), which moved "
        "SPSO from 5 to 20; no record since is about it."
    )


def test_an_offset_beyond_the_window_after_a_reset_says_what_it_was(cli: Command):
    said = cli("explain", CASES / "explain-after-reset/reset-back", *ONE, "--offset", 12, "--as-of-offset", "0=5")
    assert (
        "acknowledged in delivery 1 at 2026-09-21 14:13:24 UTC (record 3); the offsets were reset from 20 to 5"
        in said.lines[-1]
    )
    assert "; no delivery is recorded since: beyond SPEO" in said.lines[-1]


def test_an_offset_that_was_available_before_a_reset_says_so(cli: Command):
    said = cli("explain", CASES / "explain-after-reset/k19859", *ONE, "--offset", 20).lines[-1]
    assert said.startswith("Offset 20: it was AVAILABLE (1) at 2026-09-21 14:13:23 UTC (record 2); SPSO went back from")
    assert "no earlier record" not in said


def test_a_stall_at_a_gap_is_not_said_to_fail_deliveries(cli: Command, tmp_path: Path):
    found = cli("audit", CASES / "gap-stall", "--out", tmp_path / "w", "--json", "-q").json
    (advice,) = [one for one in found["advice"] if "STALL" in one["what"]]
    assert advice["then"].startswith("It waits for a gap, offsets 21 to 30: the log shows no delivery of them.")
    assert "renewed" not in advice["then"]
    said = cli("repair", CASES / "gap-stall", "-q").out
    assert "SPSO is 21 and it waits for 21 to 30, a gap: the log shows no delivery; the lag is unknown." in said


def test_loose_segments_of_two_state_partitions_are_refused(cli: Command, tmp_path: Path):
    files = [CASES / "loose-segments" / name for name in ("p0.log", "p1.log")]
    said = cli("reconstruct", *files, "--out", tmp_path / "w", "-q")
    assert (said.code, said.out) == (2, "")
    assert "they are segments of two state partitions" in said.err


def test_a_number_that_no_log_holds_is_refused_with_file_and_line(cli: Command):
    case = CASES / "share-snapshot-bigint"
    said = cli("cutoff", case / "topic-0-0", "--dialect", "control_records", "--index", case / "idx")
    assert said.code == 2
    assert "topic-0-0.share-snapshot, line 3: a number that no log holds" in said.err


@pytest.mark.parametrize(
    "call",
    [
        ("diff", "__share_group_state-0", "--as-of-offset", "0=5", "--and-as-of-offset", "0=90"),
        ("cutoff", "evil2", "--verify"),
    ],
)
def test_names_do_not_control_the_terminal(call: tuple[str, ...], cli: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(CASES / "terminal-escape")
    said = cli(*call)
    assert said.out
    printed = said.out + said.err
    assert not [sign for sign in printed if not sign.isprintable() and sign != "\n"]
