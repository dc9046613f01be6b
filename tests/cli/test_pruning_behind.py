"""PRUNING_BEHIND: a log that starts before the cutoff that its broker knew half an hour ago."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from share_state.sources.log_partition import STATE_TOPIC
from tests.cli.commands import Command
from tests.kafka.batches import NOW, UPDATE, Batch, Record, consecutive, in_bytes, key, log_of, snapshot, update
from tests.profiles import nightly, some_of
from tests.truth import DATA
from tests.warehouses import WrittenTables

_MINUTE = 60_000


def _pruned_log(folder: Path, start: int, *, minutes_ago: int) -> Path:
    """Offsets 0 to 5: snapshots of two share-partitions, an update, their next snapshots, and a late update.

    The second snapshots make the cutoff 3, since some minutes before the last record.
    """
    then = NOW - minutes_ago * _MINUTE
    early = [Record(key(partition=number), snapshot()) for number in range(2)]
    early.append(Record(key(UPDATE), update()))
    later = [Record(key(partition=number), snapshot(epoch=1)) for number in range(2)]
    batches = [Batch([record], base_timestamp=then, max_timestamp=then) for record in (*early, *later)]
    batches.append(Batch([Record(key(UPDATE), update(epoch=1))]))
    log_of(folder, in_bytes(consecutive(batches)))
    (folder / "log-start-offset-checkpoint").write_text(f"0\n1\n{STATE_TOPIC} 0 {start}\n")
    return folder


def _findings(cutoff: Command, folder: Path, *options: str) -> list[tuple[str, str, int]]:
    found = cutoff("cutoff", folder, "--json", *options).json["findings"]
    return [(one["rule"], one["severity"], one["count"]) for one in found if one["rule"] == "PRUNING_BEHIND"]


def test_a_log_that_could_have_been_pruned_half_an_hour_ago_is_reported(cli: Command, tmp_path: Path):
    folder = _pruned_log(tmp_path, 1, minutes_ago=31)
    assert _findings(cli, folder) == [("PRUNING_BEHIND", "warning", 1)]
    assert "warning: PRUNING_BEHIND, 1 finding" in cli("cutoff", folder).out
    assert not _findings(cli, folder, "--rule", "PRUNING_BEHIND=off")
    assert cli("cutoff", folder).code == 0
    assert cli("cutoff", folder, "--fail-on", "warning").code == 1


@pytest.mark.parametrize(("start", "minutes_ago"), [(1, 29), (3, 31)])
def test_a_recent_cutoff_and_a_pruned_log_are_healthy(cli: Command, tmp_path: Path, start: int, minutes_ago: int):
    assert not _findings(cli, _pruned_log(tmp_path, start, minutes_ago=minutes_ago))


def test_an_earlier_state_says_nothing_about_pruning(cli: Command, tmp_path: Path):
    folder = _pruned_log(tmp_path, 1, minutes_ago=31)
    assert not _findings(cli, folder, "--as-of-offset", "0=5")


FIXTURES = ["4.3.1/chaos", "4.3.1/prune", "4.1.2/fuzz", "4.4.0/fifty", "4.4.0/dlq"]


@pytest.mark.parametrize("name", some_of(FIXTURES, 1))
def test_brokers_that_prune_are_not_reported(cli: Command, tmp_path: Path, name: str):
    assert not _findings(cli, DATA / name)
    assert not _audited(cli, DATA / name, tmp_path / "lake")


def _audited(cli: Command, folder: Path, lake: Path, command: str = "audit") -> list[str]:
    """The messages of PRUNING_BEHIND after a run."""
    assert cli(command, folder, "--out", lake, "--quiet").code in (0, 1)
    found = WrittenTables(lake).read("findings")
    return [row["message"] for row in found.to_pylist() if row["rule"] == "PRUNING_BEHIND"]


@pytest.mark.parametrize("command", ["audit", "reconstruct"])
def test_other_commands_report_it_in_the_same_words(cli: Command, tmp_path: Path, command: str):
    folder = _pruned_log(tmp_path / "behind", 1, minutes_ago=31)
    assert _audited(cli, folder, tmp_path / "lake", command) == [
        "the log starts at offset 1, but the broker could have pruned it up to 3 for 30 minutes"
    ]
    assert not _audited(cli, _pruned_log(tmp_path / "recent", 1, minutes_ago=29), tmp_path / "other", command)


def test_a_broker_that_has_never_pruned_is_reported(cli: Command, tmp_path: Path):
    folder = _pruned_log(tmp_path, 0, minutes_ago=31)
    (folder / "log-start-offset-checkpoint").unlink()
    assert not _findings(cli, folder)  # the copy does not show that the broker's log begins at 0
    (folder / f"{STATE_TOPIC}-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    assert _findings(cli, folder) == [("PRUNING_BEHIND", "warning", 1)]


def _grow(folder: Path, offset: int, minutes: int) -> None:
    """Append an update; later than NOW."""
    (segment,) = (folder / f"{STATE_TOPIC}-0").glob("*.log")
    then = NOW + minutes * _MINUTE
    batch = Batch([Record(key(UPDATE), update(epoch=1))], base_offset=offset, base_timestamp=then, max_timestamp=then)
    segment.write_bytes(segment.read_bytes() + in_bytes([batch]))


@nightly("three audits")
def test_an_audit_that_resumes_knows_the_cutoff_of_an_earlier_one(cli: Command, tmp_path: Path):
    folder, lake = _pruned_log(tmp_path / "logs", 1, minutes_ago=1), tmp_path / "lake"
    assert not _audited(cli, folder, lake)
    for offset, minutes in ((6, 10), (7, 25)):
        _grow(folder, offset, minutes)
        assert not _audited(cli, folder, lake)
    _grow(folder, 8, 31)
    assert _audited(cli, folder, lake) == [
        "the log starts at offset 1, but the broker could have pruned it up to 3 for 30 minutes"
    ]
    _grow(folder, 9, 32)
    (folder / "log-start-offset-checkpoint").write_text(f"0\n1\n{STATE_TOPIC} 0 3\n")
    assert not _audited(cli, folder, lake)


@nightly("simulates 90 minutes; the logs of the other tests grow as these do")
def test_simulated_brokers_are_reported_once_they_stop_pruning(cli: Command, tmp_path: Path):
    folder = tmp_path / "simulated"
    cli("simulate", "--out", folder, "--groups", "1", "--minutes", "90", "--state-partitions", "1")
    end = datetime.fromisoformat(cli("cutoff", folder, "--json").json["cutoff"][0]["limited_since"])
    cutoffs = [
        cli("cutoff", folder, "--as-of-time", (end - timedelta(minutes=minutes)).isoformat(), "--json").json["cutoff"]
        for minutes in (5, 70)
    ]
    for (row,), is_reported in zip(cutoffs, (False, True), strict=True):
        start = row["cutoff_offset"]
        (folder / "log-start-offset-checkpoint").write_text(f"0\n1\n{STATE_TOPIC} 0 {start}\n")
        (now,) = cli("cutoff", folder, "--json").json["cutoff"]
        assert 0 < start == now["log_start_offset"] < now["cutoff_offset"]
        assert bool(_findings(cli, folder)) == is_reported
