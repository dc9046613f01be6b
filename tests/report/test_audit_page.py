"""The page says what the report says, needs nothing but itself, and lets no name out of its place."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from share_state.report.audit_data import AuditReport, read_report
from share_state.report.console import ReportError, escape_unprintable
from share_state.report.page import render_page, write_page
from tests.profiles import nightly
from tests.report.made_warehouse import HOSTILE, MadeWarehouse, cutoff, finding, share_partition
from tests.report.parsed_page import ParsedPage


@pytest.fixture(scope="module")
def text(troubled: AuditReport) -> str:
    return render_page(troubled)


@pytest.fixture(scope="module")
def parsed(text: str) -> ParsedPage:
    return ParsedPage(text)


def test_the_headline_says_what_is_wrong(troubled: AuditReport, parsed: ParsedPage):
    head = parsed.texts[""]
    assert f"{len(troubled.flagged)} of {troubled.live} share-partitions need attention" in head
    assert "1 error, 44 warnings, 1 unsafe cutoff" in head
    assert "1 finding at or above “error”: the run exits with 1." in head
    assert "audit of prod-eu" in head
    assert "finished 2026-11-29 02:00:14 UTC after 4.5 s" in head
    assert "the log of partition 4 <began> again" in head
    for status, count in troubled.statuses.items():
        assert f"{status} {count}" in head


def test_what_to_do_comes_in_the_order_of_urgency(parsed: ParsedPage):
    to_do = parsed.texts["to-do"]
    places = [to_do.index(word) for word in ("REWIND", "STOP", "START_OFFSET_INVALID", "POISON_RECORDS", "cleaned")]
    assert places == sorted(places)
    assert "share-state why" in to_do
    assert "share-state repair" in to_do


def test_every_troubled_share_partition_has_its_card(troubled: AuditReport, parsed: ParsedPage):
    for place, one in enumerate(troubled.flagged, 1):
        card = parsed.texts[f"p{place}"]
        assert one.now["verdict"] in card
        assert (one.now["reason"] is None) or " ".join(escape_unprintable(one.now["reason"]).split()) in card
        assert f"Start offset (SPSO) {one.now['start_offset']:,}" in card
        for own in one.findings:
            assert own["rule"] in card


def test_an_unknown_number_is_a_hyphen(parsed: ParsedPage):
    card = next(text for text in parsed.texts.values() if text.startswith("STALL orders-app"))
    assert "Topic's end offset 1,400" in card
    card = next(text for text in parsed.texts.values() if text.startswith("REWIND+error billing"))
    assert "Topic's end offset - Lag -" in card
    assert "In flight nothing" in card


def test_pictures_stand_where_there_is_something_to_see(troubled: AuditReport, parsed: ParsedPage):
    trends = len(troubled.groups) + sum(len(one.history) > 1 for one in troubled.summaries)
    assert parsed.tags.count("svg") == parsed.tags.count("figure") + trends
    spoken = Counter(value.split()[0] for value in parsed.values("aria-label"))
    # 12 hostile names, orders-app, inventory, and the dense window twice; a history for each of them and for billing.
    assert spoken == {"In": 12 + 2 + 2, "Over": 12 + 4 + trends, "Sections": 1}


def test_the_first_table_holds_the_worst_groups_first_with_reason_and_trend(troubled: AuditReport, parsed: ParsedPage):
    listed = parsed.texts["groups"]
    names = [escape_unprintable(one.group_id) or '""' for one in troubled.groups]
    assert names[:3] == ["billing", "audit-trail-of-a-group-with-a-rather-long-name", "inventory"]
    why = "POISON_RECORDS: records 100 to 103 failed 4 of 5 deliveries: poison"
    assert re.search(rf"orders-app {why} STALL orders-0 1,000 750", listed)
    group = next(one for one in troubled.groups if one.group_id == "orders-app")
    assert [night["behind"] for night in group.history] == [0] * 5 + [250, 500, 750, 1000]
    assert [night["troubled"] for night in group.history] == [0] * 6 + [1] * 3
    said = [value for value in parsed.values("aria-label") if value.endswith("records behind.")]
    assert "Over 9 audits from 0 to 1,000 records behind." in said
    # Each group and share-partition leads to its card.
    assert {f"#p{place + 1}" for one in troubled.groups for place in one.places} <= set(parsed.values("href"))
    assert sorted(place for one in troubled.groups for place in one.places) == list(range(len(troubled.flagged)))


def test_findings_are_listed_with_what_should_hold_and_an_example(parsed: ParsedPage):
    listed = parsed.texts["findings"]
    assert "No offset is missing between the log start and the log end." in listed
    assert "offsets 41 to 57 are missing" in listed
    assert listed.index("START_ OFFSET_ INVALID") < listed.index("OFFSET_ GAP") < listed.index("UNKNOWN_ TAG")


def test_poison_cutoffs_and_runs_are_there(parsed: ParsedPage):
    assert "AVAILABLE".lower() in parsed.texts["poison"]
    assert "100 to 103" in parsed.texts["poison"]
    assert "a state is suspect" in parsed.texts["cutoff"]
    assert "48,000 records, 5.2 MB" in parsed.texts["cutoff"]
    assert "<i>pin</i>" in parsed.texts["cutoff"]
    assert "0000000000000008" in parsed.texts["runs"]
    assert "0000000000000000" in parsed.texts["runs"]


def test_names_of_any_characters_are_text_and_nothing_else(parsed: ParsedPage):
    assert "script" not in parsed.tags
    assert "i" in parsed.tags  # ours: the word "new"
    assert not parsed.unclosed
    cards = " ".join(parsed.texts.values())
    for name in HOSTILE:
        assert " ".join((escape_unprintable(name) or '""').split()) in cards
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in parsed.text
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]


def test_nothing_refers_outside_the_page(text: str, parsed: ParsedPage):
    for outside in ("http://", "https://", "src=", "@import", "<link", "<base", "//cdn"):
        assert outside not in text
    assert all(reference.startswith("#") for reference in re.findall(r"url\(([^)]*)\)", text))
    assert set(parsed.tags).isdisjoint({"script", "link", "img", "iframe", "object", "embed", "form", "base"})
    links = list(parsed.values("href"))
    assert links
    assert all(link.startswith("#") for link in links)


def test_every_id_is_there_once_and_every_link_finds_one(text: str, parsed: ParsedPage):
    ids = Counter(parsed.values("id"))
    assert set(ids.values()) == {1}
    referred = {link.removeprefix("#") for link in parsed.values("href")}
    referred |= set(re.findall(r"url\(#([^)]+)\)", text))
    assert referred <= set(ids)


def test_a_healthy_warehouse_gives_a_short_page_that_says_so(tmp_path: Path):
    made = MadeWarehouse(tmp_path / "w")
    rows = [share_partition(f"g{n}") for n in range(3000)]
    text = render_page(read_report(str(made.audit(rows, [], [cutoff(n) for n in range(50)]))))
    parsed = ParsedPage(text)
    assert "All 3,000 share-partitions are OK, no errors, no warnings" in parsed.texts[""]
    assert set(parsed.texts) == {"", "all-groups", "cutoff", "runs"}
    assert "The worst 200 of 3,000 groups." in parsed.texts["all-groups"]
    assert "svg" not in parsed.tags
    assert len(text) < 240_000
    assert 'class="ok"' in text


def test_an_empty_warehouse_has_a_page(tmp_path: Path):
    parsed = ParsedPage(render_page(read_report(str(MadeWarehouse(tmp_path / "w").audit([])))))
    assert "0 share-partitions, no errors, no warnings" in parsed.texts[""]


@nightly("draws many cards")
def test_what_is_left_out_is_said(troubled_folder: Path):
    report = read_report(str(troubled_folder), most=5)
    parsed = ParsedPage(render_page(report))
    assert f"The worst 5; {report.flagged_left_out} more are in the table" in parsed.texts["troubled"]
    assert len([name for name in parsed.texts if re.fullmatch(r"p\d+", name)]) == 5


@nightly("hundreds of windows")
def test_a_page_of_many_full_windows_stays_small(tmp_path: Path):
    ranges = [(n, n, "AVAILABLE" if n % 2 else "ACKNOWLEDGED", 1 + n % 4) for n in range(2000)]
    rows = [share_partition("g", n, start_offset=0, ranges=ranges, verdict="STOP") for n in range(4)]
    text = render_page(read_report(str(MadeWarehouse(tmp_path / "w").audit(rows))))
    assert text.count("<svg") == 8
    assert len(text) < 360_000


@nightly("a dozen pages, killed")
def test_the_file_is_there_whole_or_not_at_all(troubled: AuditReport, text: str, tmp_path: Path):
    place = tmp_path / "report.html"
    place.write_text("yesterday's")
    broken = replace(troubled, run={name: value for name, value in troubled.run.items() if name != "notes"})
    with pytest.raises(Exception, match="notes"):
        write_page(str(place), broken)
    assert place.read_text() == "yesterday's"
    write_page(str(place), troubled)
    # The same report gives the same bytes.
    assert place.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [place]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path):
    report = read_report(str(MadeWarehouse(tmp_path / "w").audit([])))
    with pytest.raises(ReportError, match=r"the folder .* does not exist; create it, or give another file"):
        write_page(str(tmp_path / "no" / "report.html"), report)
    with pytest.raises(ReportError, match="is a folder; give the name of a file"):
        write_page(str(tmp_path), report)


def test_an_error_without_a_share_partition_is_the_first_thing_to_do(tmp_path: Path):
    made = MadeWarehouse(tmp_path / "w")
    report = read_report(
        str(made.audit([share_partition()], [finding("CRC_MISMATCH", "error", "a batch at 12 is broken")]))
    )
    parsed = ParsedPage(render_page(report))
    assert parsed.texts["to-do"].startswith("What to do 1 finding of CRC_MISMATCH: a batch at 12 is broken")
    assert "troubled" not in parsed.texts
    assert "All 1 share-partition" not in parsed.texts[""]
