"""A delivery limit that the log shows is said once, and holds in later audits."""

import shutil
from pathlib import Path

import pytest

from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.report.audit_data import read_report
from tests.kafka.batches import Record
from tests.log_writer import Key, batch, snapshot, update, write_log_folder
from tests.profiles import nightly, some_of

KEY: Key = ("app", "AAECAwQFBgcICQoLDA0ODw", 0)
AVAILABLE, ACKNOWLEDGED = 0, 2


def _night(folder: Path, records: list[Record], *options: str) -> CommittedTables:
    shutil.rmtree(folder / "logs", ignore_errors=True)
    write_log_folder(folder / "logs", 0, [batch([record]) for record in records])
    assert run(["audit", str(folder / "logs/__share_group_state-0"), "--out", str(folder / "w"), *options, "-q"]) == 0
    return CommittedTables(str(folder / "w"))


def _rules(tables: CommittedTables) -> list[str]:
    return sorted(tables.read("findings")["rule"].to_pylist())


@nightly("three audits")
@pytest.mark.parametrize("nights", some_of([1, 2, 3], 2))
def test_a_higher_limit_is_said_once_over_nights(nights: int, tmp_path: Path):
    records = [snapshot(KEY)]
    for delivery in range(1, 10):
        records.append(update(KEY, [(0, 3, AVAILABLE, delivery)]))
    records.append(update(KEY, [(0, 3, ACKNOWLEDGED, 10)], start_offset=4))
    for night in range(nights):
        if night:
            first = 4 * night
            records.append(update(KEY, [(first, first + 3, AVAILABLE, 8)], start_offset=first))
        tables = _night(tmp_path, records)
    assert _rules(tables).count("DELIVERY_COUNT_OVER_LIMIT") == 1
    assert "POISON_RECORDS" not in _rules(tables)
    history = tables.read("share_partition_history").to_pylist()
    assert all(row["poison_records"] == 0 for row in history)
    report = read_report(str(tmp_path / "w"))
    assert (report.limits.of_group("delivery_count", "app"), report.poison.records) == (10, 0)


@nightly("three audits")
def test_a_log_in_which_the_limit_rises_further_says_so_again(tmp_path: Path):
    records = [snapshot(KEY), update(KEY, [(0, 3, ACKNOWLEDGED, 7)], start_offset=4)]
    assert _rules(_night(tmp_path, records)).count("DELIVERY_COUNT_OVER_LIMIT") == 1
    records.append(update(KEY, [(4, 4, ACKNOWLEDGED, 9)], start_offset=5))
    found = _night(tmp_path, records).read("findings").to_pylist()
    counts = [dict(row["evidence"])["delivery_count"] for row in found if row["rule"] == "DELIVERY_COUNT_OVER_LIMIT"]
    assert sorted(counts) == ["7", "9"]
