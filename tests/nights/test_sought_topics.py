"""Audits of control records that begin where a share snapshot file says write the tables of a whole read."""

import random
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from share_state.simulator.simulation import simulate
from tests.cli.commands import CommandResult, run_cli
from tests.fold.control_records.logs import checkpoint, control, delta, log_of, user_data
from tests.fold.control_records.test_edges import stamped
from tests.kafka.batches import Batch, Record
from tests.profiles import by_profile, nightly, some_of

TABLES = ("share_partition_state", "in_flight", "findings", "share_partition_history", "cutoff")
OF_READ_PART = ["redundant_records", "skipped_records", "unflagged_records"]
"""Counts of the cutoff that are those of the part that was read."""
NOTE = re.compile(r"orders-0: read from offset (\d+) on, ([\d,]+) bytes, by its share snapshot file")


def audit(capfd: pytest.CaptureFixture[str], logs: Path, lake: Path, *options: str) -> CommandResult:
    """An audit of logs into a warehouse, with a share snapshot file if a folder is given."""
    sets = [part for option in options for part in ("--set", option)]
    said = run_cli(capfd, "audit", logs, "--out", lake, "--json", "--quiet", "--fail-on", "off", *sets)
    assert said.code == 0, said.err
    return said


def notes(said: CommandResult) -> list[str]:
    """The notes of logs that were not read from their start."""
    return [note for note in said.json["run"]["notes"] if "by its share snapshot file" in note]


def tables(lake: Path) -> Mapping[str, list[dict[str, Any]]]:
    """The rows of an audit, without what identifies the run."""
    rows = dict[str, list[dict[str, Any]]]()
    for name in TABLES:
        table = DeltaTable(str(lake / name)).to_pyarrow_table()
        if name == "share_partition_history":
            table = table.filter(pc.equal(table["time"], pc.max(table["time"])))
        left_out = {"run_id", "first_seen_run", "last_seen_run", *OF_READ_PART}
        table = table.drop_columns([column for column in table.column_names if column in left_out])
        rows[name] = sorted(table.to_pylist(), key=repr)
    return rows


def bytes_read() -> int:
    """The bytes that this process has read from files so far."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def large(offset: int, minute: float) -> Batch:
    """64 kB of user data at one offset."""
    return stamped(Batch([Record(b"k", random.Random(offset).randbytes(64_000))], base_offset=offset), minute)


def night(batches: Sequence[Batch], folder: Path) -> Path:
    log_of(folder, batches, topic="orders")
    return folder


FIRST = [
    *[large(offset, 0) for offset in range(300)],
    stamped(control(300, checkpoint("done", 1, 0, 0)), 1),
    stamped(control(301, delta("done", 1, 300, [(0, 299, 2, 1)])), 2),
    stamped(control(302, checkpoint("done", 2, 300, 300)), 3),
    stamped(control(303, checkpoint("other", 1, 300, 300)), 4),
    stamped(user_data(304, 4), 5),
]
SECOND = [
    *FIRST,
    stamped(user_data(308, 10), 20),
    stamped(control(318, delta("done", 2, 302, [(304, 306, 2, 1), (307, 307, 0, 1)])), 30),
    stamped(control(319, checkpoint("new", 1, 310, 310)), 31),
    stamped(control(320, delta("new", 1, 319, [(310, 311, 2, 1)])), 32),
]


def test_the_second_audit_reads_a_hundredth_and_writes_the_same_tables(capfd, tmp_path: Path):
    index = f"control_records.index={tmp_path / 'index'}"
    logs = night(FIRST, tmp_path / "broker")
    audit(capfd, logs, tmp_path / "whole")
    assert not notes(audit(capfd, logs, tmp_path / "sought", index))
    assert (tmp_path / "index/earliest-share-offset-checkpoint").read_text() == "0\n1\norders 0 302\n"
    size = (night(SECOND, logs) / "orders-0" / f"{0:020}.log").stat().st_size
    read = dict[str, int]()
    for name, options in (("whole", ()), ("sought", (index,))):
        before = bytes_read()
        said = audit(capfd, logs, tmp_path / name, *options)
        read[name] = bytes_read() - before
    (note,) = notes(said)
    found = NOTE.fullmatch(note)
    assert found
    assert (int(found[1]), int(found[2].replace(",", ""))) < (303, size // 100)
    # Both read the same tables, and only one of them the topic.
    assert read["whole"] - read["sought"] > 0.98 * size
    assert tables(tmp_path / "sought") == tables(tmp_path / "whole")
    assert (tmp_path / "index/earliest-share-offset-checkpoint").read_text() == "0\n1\norders 0 302\n"


def _misplaced(folder: Path) -> None:
    file = folder / "orders-0.share-snapshot"
    file.write_text(file.read_text().replace("done 302 2", "done 301 2"))


def _without_earliest(folder: Path) -> None:
    (folder / "earliest-share-offset-checkpoint").unlink()


def _lacking(folder: Path) -> None:
    file = folder / "orders-0.share-snapshot"
    file.write_text("0\n1\nother 303 1 303\n")


ORPHAN = stamped(control(321, delta("late", 1, 40, [(310, 310, 2, 1)])), 33)
DAMAGED = stamped(control(321, Record(checkpoint("x", 1, 0, 0).key, b"\0")), 33)


@pytest.mark.parametrize(
    ("change", "more"),
    some_of(
        [
            pytest.param(_misplaced, [], id="contradicted"),
            pytest.param(_lacking, [], id="lacks a group"),
            pytest.param(None, [ORPHAN], id="group without base"),
            pytest.param(_without_earliest, [], id="no earliest offset"),
            pytest.param(None, [DAMAGED], id="unreadable"),
        ],
        2,
    ),
)
def test_what_the_files_cannot_vouch_for_is_read_whole(capfd, tmp_path: Path, change, more):
    index = f"control_records.index={tmp_path / 'index'}"
    logs = night(FIRST[200:], tmp_path / "broker")
    audit(capfd, logs, tmp_path / "sought", index)
    if change:
        change(tmp_path / "index")
    night([*SECOND[200:], *more], logs)
    assert not notes(said := audit(capfd, logs, tmp_path / "sought", index))
    assert said.json["run"]["records"] >= 7


@nightly("three audits")
def test_every_so_many_audits_reads_all(capfd, tmp_path: Path):
    sets = [f"control_records.index={tmp_path / 'index'}", "control_records.full_read_every=3"]
    logs = night(FIRST[298:], tmp_path / "broker")
    assert [len(notes(audit(capfd, logs, tmp_path / "lake", *sets))) for _ in range(5)] == [0, 1, 1, 0, 1]


@nightly("three audits")
def test_a_start_that_moved_back_and_forth_moved_when_it_last_did(capfd, tmp_path: Path):
    index = f"control_records.index={tmp_path / 'index'}"
    more = [
        stamped(control(308, checkpoint("done", 3, 200, 200)), 20),
        stamped(control(309, delta("done", 3, 308, [(200, 299, 2, 1)])), 30),
        stamped(user_data(310), 31),
    ]
    for name, options in (("whole", ()), ("sought", (index,))):
        audit(capfd, night(FIRST[290:], tmp_path / "broker"), tmp_path / name, *options)
        audit(capfd, night([*FIRST[290:], *more], tmp_path / "broker"), tmp_path / name, *options)
    assert tables(tmp_path / "sought") == tables(tmp_path / "whole")
    moved = {row["group_id"]: row["moved_time"] for row in tables(tmp_path / "sought")["share_partition_history"]}
    assert (moved["done"] - moved["other"]).total_seconds() == 26 * 60


@nightly("two audits")
def test_a_group_whose_window_stays_is_read_whole_for_its_times(capfd, tmp_path: Path):
    """The checkpoint of minute 40 does not say that the start has not moved since minute 6."""
    index = f"control_records.index={tmp_path / 'index'}"
    window = [(300, 305, 0, 1), (306, 307, 2, 1)]
    first = [
        *FIRST[:303],
        stamped(user_data(303, 5), 5),
        stamped(control(308, delta("done", 2, 302, window)), 6),
        stamped(control(309, checkpoint("done", 3, 300, 308, window)), 40),
        stamped(user_data(310), 41),
    ]
    audit(capfd, night(first, tmp_path / "broker"), tmp_path / "sought", index)
    more = [*first, stamped(control(311, delta("done", 3, 309, [(308, 310, 2, 1)])), 42)]
    said = audit(capfd, night(more, tmp_path / "broker"), tmp_path / "sought", index)
    assert not notes(said)
    (stall,) = [one for one in said.json["findings"] if one["rule"] == "SPSO_STALL"]
    assert "has not moved for 40 min" in stall["examples"][0]["message"]


@pytest.mark.parametrize("seed", by_profile([], range(12)))
def test_nights_of_a_simulated_topic_end_in_the_tables_of_whole_reads(capfd, tmp_path: Path, seed: int):
    simulate(tmp_path / "all", seed=seed, groups=4, minutes=3, dialect="control_records", checkpoint_every=4)
    (tmp_path / "broker").mkdir()
    index, sought = f"control_records.index={tmp_path / 'index'}", 0
    rng, files = random.Random(seed), sorted((tmp_path / "all").glob("*-*/*.log"))
    shares = [0.5, 0.75, 1.0]
    for share in shares:
        for file in files:
            place = tmp_path / "broker" / file.parent.name
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            data, end = file.read_bytes(), 0
            until = len(data) if share == 1 else len(data) * (share - rng.random() / 8)
            while end < until:
                end += 12 + int.from_bytes(data[end + 8 : end + 12], "big")
            (place / file.name).write_bytes(data[:end])
        audit(capfd, tmp_path / "broker", tmp_path / "whole")
        sought += len(notes(audit(capfd, tmp_path / "broker", tmp_path / "sought", index)))
        assert tables(tmp_path / "sought") == tables(tmp_path / "whole")
    assert sought
