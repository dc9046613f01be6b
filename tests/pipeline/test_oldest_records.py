"""The age of the oldest unfinished record, and the warning that brokers will delete it."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from tests.profiles import nightly, some_of
from tests.sources.test_record_times import FOLDER, expected
from tests.truth import DATA

RETENTION_S = 127
"""The newest record of the export is 120 to 128 s after the first records of its topics."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker's data folder; topics keep their records for RETENTION_S."""
    copy = tmp_path_factory.mktemp("broker") / "data"
    shutil.copytree(FOLDER, copy)
    with (copy / "server.properties").open("a") as file:
        file.write(f"log.retention.ms={RETENTION_S * 1000}\n")
    return copy


def audit(export: Path, warehouse: Path, *options: str) -> CommittedTables:
    code = run(["audit", str(export), "--out", str(warehouse), "--limit", "export_age=0", "--quiet", *options])
    assert code in (0, 1)
    return CommittedTables(str(warehouse))


@pytest.fixture(scope="module")
def audited(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> CommittedTables:
    lake = tmp_path_factory.mktemp("lake")
    return audit(folder, lake / "tables", "--prometheus", str(lake / "metrics.prom"), "--limit", "retention_ratio=1")


def log_starts() -> dict[tuple[str, int], int]:
    """Topic and partition -> log start offset, as the broker wrote it down."""
    lines = (FOLDER / "log-start-offset-checkpoint").read_text().splitlines()[2:]
    return {(topic, int(number)): int(offset) for topic, number, offset in map(str.split, lines)}


def true_records(rows: list[dict]) -> dict[tuple[str, int, int], tuple[int, int]]:
    """Offset and time of the first record of each share-partition that is not deleted, by reading whole logs."""
    starts = log_starts()
    records = dict[tuple[str, int, int], tuple[int, int]]()
    for topic, number, effective in {(row["topic"], row["partition"], row["effective_start_offset"]) for row in rows}:
        folder = FOLDER / f"{topic}-{number}"
        if folder.is_dir():
            first = max(effective, starts.get((topic, number), 0))
            for record in expected(folder, [first]).values():
                records[topic, number, effective] = record
    return records


def ms(time) -> int:
    return round(time.timestamp() * 1000)


def test_the_oldest_unfinished_record_has_the_time_of_its_topic(audited):
    rows = audited.read("share_partition_history").to_pylist()
    records = true_records([row for row in rows if row["start_offset"] >= 0])
    # Records before the log start are in the segments, but deleted.
    assert any(offset > place[2] for place, (offset, _) in records.items())
    shown = 0
    for row in rows:
        unfinished = row["lag"] if row["lag"] is not None else row["waiting_records"] + row["archiving_records"]
        place = row["topic"], row["partition"], row["effective_start_offset"]
        if row["start_offset"] < 0 or not unfinished:
            assert row["oldest_unfinished_time"] is None
        elif place in records:
            assert row["oldest_unfinished_from"] == "record"
            assert ms(row["oldest_unfinished_time"]) == records[place][1]
            shown += 1
        else:
            assert row["oldest_unfinished_from"] != "record"
    assert shown > 300


def test_records_that_brokers_will_delete_unfinished_are_a_warning(audited):
    history = [row for row in audited.read("share_partition_history").to_pylist() if row["oldest_unfinished_time"]]
    due = {
        (row["group_id"], row["topic"], row["partition"]): row
        for row in history
        if (row["time"] - row["oldest_unfinished_time"]).total_seconds() >= RETENTION_S
    }
    assert 0 < len(due) < len(history)
    found = audited.read("findings", pc.field("rule") == "RETENTION_AHEAD").to_pylist()
    assert {(row["group_id"], row["topic"], row["partition"]) for row in found} == due.keys()
    records = true_records(history)
    for one in found:
        row = due[one["group_id"], one["topic"], one["partition"]]
        offset, _ = records[row["topic"], row["partition"], row["effective_start_offset"]]
        assert (one["severity"], one["settled"]) == ("warning", False)
        assert dict(one["evidence"])["written_ms"] == str(ms(row["oldest_unfinished_time"]))
        written = f"{row['oldest_unfinished_time']:%Y-%m-%d %H:%M:%S} UTC"
        assert f"offset {offset}, was written at {written}" in one["message"]
        assert "retention.ms of the topic is 2 min 7 s" in one["message"]


def test_the_metrics_have_the_age_of_the_oldest_record_of_each_group(audited):
    history = audited.read("share_partition_history")
    ages = pc.divide(pc.subtract(history["time"], history["oldest_unfinished_time"]).cast(pa.int64()), 1e6)
    grouped = history.append_column("age", ages).group_by("group_id").aggregate([("age", "max")]).to_pylist()
    oldest = {row["group_id"]: row["age_max"] for row in grouped if row["age_max"] is not None}
    lines = (Path(audited.root).parent / "metrics.prom").read_text().splitlines()
    name = 'share_state_group_oldest_unfinished_seconds{group_id="'
    told = {
        line.removeprefix(name).partition('"')[0]: float(line.split()[-1]) for line in lines if line.startswith(name)
    }
    assert told == pytest.approx(oldest)


@nightly("three audits")
@pytest.mark.parametrize(
    ("setting", "warns"),
    some_of(
        [
            ("log.retention.hours=168", False),
            ("log.retention.minutes=2", True),
            ("log.retention.ms=-1", False),
            ("log.cleanup.policy=compact\nlog.retention.ms=1000", False),
            ("log.retention.ms=100000\nlog.retention.minutes=9999", True),
            ("", False),
        ],
        3,
    ),
)
def test_the_broker_setting_that_counts_decides(tmp_path, setting, warns):
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("__cluster_metadata-0", "__share_group_state-2", "a-0"):
        shutil.copytree(FOLDER / name, folder / name)
    (folder / "server.properties").write_text(f"node.id=1\n{setting}\n")
    tables = audit(folder, tmp_path / "lake")
    assert bool(len(tables.read("findings", pc.field("rule") == "RETENTION_AHEAD"))) == warns
    assert "record" in tables.read("share_partition_history")["oldest_unfinished_from"].to_pylist()


def test_without_the_logs_of_topics_the_first_delivery_is_the_least_age(tmp_path):
    rows = audit(DATA / "4.3.1" / "chaos", tmp_path / "lake").read("share_partition_history").to_pylist()
    told = [row for row in rows if row["oldest_unfinished_time"] is not None]
    assert told
    assert {row["oldest_unfinished_from"] for row in told} == {"delivery"}
    assert all(row["effective_start_offset"] == row["start_offset"] for row in told)
    assert all(row["oldest_unfinished_time"] <= row["time"] for row in told)
