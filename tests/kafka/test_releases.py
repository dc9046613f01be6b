"""The table of Kafka releases: in order, and the texts that are made from it."""

import ast

import pytest

from docs.reference_pages import releases_page
from share_state.errors import ShareStateError
from share_state.kafka.releases import (
    LATEST,
    RELEASE_HISTORY,
    RELEASES,
    SIMULATED,
    UNRELEASED,
    Release,
    facts,
    first_with,
    line_of,
    release_of,
    versions_with,
)
from share_state.repairs.repair_plan import check_release
from share_state.schema.declarations import layout, record
from share_state.simulator.types import find_release
from tests.profiles import nightly
from tests.truth import DATA


def test_releases_are_in_order_and_the_last_one_of_a_line_stands_for_it():
    patches = [[*map(int, release.patch.split("."))] for release in RELEASE_HISTORY]
    assert patches == sorted(patches)
    assert [*RELEASES] == sorted({release.patch.rpartition(".")[0] for release in RELEASE_HISTORY})
    assert LATEST is RELEASES["4.4"]
    assert SIMULATED == ("4.0", "4.1", "4.2", "4.2.0", "4.2.1", "4.3", "4.4")
    known = [release_of(version) for version in ("4.2", "4.2.0", "4.2.1", "4.2.2", "4.2.7", "4.5")]
    assert [one and one.patch for one in known] == ["4.2.2", "4.2.0", "4.2.1", "4.2.2", "4.2.2", None]


@pytest.mark.parametrize(
    ("fact", "since", "versions"),
    [
        ("limits_values", "4.2.2", "4.2.2 and 4.4"),
        ("counts_first_update", "4.2.1", "4.2.1"),
        ("counts_completed", "4.2", "4.2"),
        ("dead_letters", "4.4", "4.4"),
        ("leave_decrements_count", "4.1", "4.1"),
        ("uses_request_epochs", "4.0", "4.0"),
    ],
)
def test_texts_name_the_versions_that_have_something(fact: str, since: str, versions: str):
    def has(release: Release) -> bool:
        return getattr(release, fact)

    assert (first_with(has), versions_with(has)) == (since, versions)


def test_each_release_has_a_layout_that_is_declared():
    declared = {one.releases for one in record("share_snapshot_value").layouts}
    assert {release.layout for release in RELEASE_HISTORY} == declared
    for release in RELEASE_HISTORY:
        fields = {one.name for one in layout("share_snapshot_value", release.layout).fields}
        assert ("write_timestamp" in fields) == release.has_times


def test_every_release_with_logs_of_a_broker_is_known():
    logged = {path.name for path in DATA.glob("4.*")}
    assert {line_of(version) for version in logged} == {*RELEASES}
    assert all(release_of(version) for version in logged)


def test_what_is_merged_for_the_next_release_is_ready():
    assert UNRELEASED is not None
    assert UNRELEASED.name not in SIMULATED
    merged = {one.name for one in facts() if getattr(UNRELEASED, one.name) != getattr(LATEST, one.name)}
    assert merged == {"skips_cold_job", "reset_raises_epoch", "skips_equal_initialize"}


@pytest.mark.parametrize("version", ["4.5", "3.9", "four"])
def test_a_command_and_a_call_refuse_a_release_in_the_same_words(version: str):
    with pytest.raises(ShareStateError) as called:
        check_release(version)
    with pytest.raises(ShareStateError) as commanded:
        find_release(version)
    assert str(commanded.value) == f"--{called.value}"
    assert str(called.value).startswith(f"release {version}: ")
    assert str(called.value).endswith("give one of 4.0, 4.1, 4.2, 4.2.0, 4.2.1, 4.3, 4.4")
    assert ("4.5 is not out" in str(called.value)) == (version == "4.5")


def test_the_page_of_releases_has_every_fact():
    page = (DATA.parent.parent / "docs/releases.md").read_text(encoding="utf-8")
    assert page == releases_page(), "run: python -m docs.reference_pages"
    assert "| state 3 in a loaded state: refused, kept for ever, or resumed" in page
    assert "| refused | refused | refused | refused | refused | kept | resumed | resumed |" in page
    assert all(one.metadata["doc"] in page for one in facts())


@nightly("parses the package")
def test_no_other_module_compares_releases():
    """They ask a release for what it does; layouts are compared by the names in schemas/records."""
    names = {release.name for release in RELEASE_HISTORY} | {release.patch for release in RELEASE_HISTORY}
    compared = list[str]()
    for path in sorted((DATA.parent.parent / "share_state").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare | ast.Subscript):
                literals = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
                compared += [f"{path.name}:{node.lineno}"] * bool(literals & names)
    assert compared == []
