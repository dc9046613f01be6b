"""`share-state decode`: which records, with names of states and the batch that holds each."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.kafka.batches import Batch
from tests.log_writer import Key, batch, snapshot, update, write_log_folder
from tests.truth import DATA

DLQ = DATA / "4.4.0/dlq"
KEY: Key = ("app", "AAAAAAAAAAEAAAAAAAAAAg", 3)
OTHER: Key = ("other", "AAAAAAAAAAEAAAAAAAAAAg", 0)


def _lines(cli: Command, *arguments: object) -> list[dict]:
    said = cli("decode", *arguments)
    assert (said.code, said.err) == (0, "")
    return [json.loads(line) for line in said.lines]


def test_records_are_chosen_by_their_share_partition_and_counted(cli: Command):
    named = ("--topics", DLQ / "topics.json")
    records = _lines(cli, DLQ, *named)
    chosen = [one for one in records if (one["group_id"], one["topic"], one["partition"]) == ("dq-isr", "t0", 1)]
    assert chosen
    words = ("--group", "dq-isr", "--topic", "t0", "--partition", 1)
    assert _lines(cli, DLQ, *named, *words) == chosen
    assert _lines(cli, DLQ, *named, *words, "--most", 3) == chosen[:3]
    assert _lines(cli, DLQ, *named, "--most", len(records) - 1) == records[:-1]
    refused = cli("decode", DLQ, "--group", "nobody")
    assert (refused.code, "group nobody: not found" in refused.err) == (2, True)


def test_states_have_names(cli: Command):
    ranges = [one for record in _lines(cli, DLQ) for one in record.get("state_batches", ())]
    assert {(one["delivery_state"], one["state"]) for one in ranges} == {
        (0, "AVAILABLE"), (2, "ACKNOWLEDGED"), (3, "ARCHIVING"), (4, "ARCHIVED"),
    }  # fmt: skip


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_each_record_names_its_batch(cli: Command, tmp_path: Path, codec: str):
    first = batch([snapshot(KEY), snapshot(OTHER)], codec=codec)
    second = Batch([update(KEY, [(0, 4, 2, 1)])], leader_epoch=7)
    folder = write_log_folder(tmp_path, 0, [first, second])
    (path,) = folder.glob("*.log")
    records = _lines(cli, tmp_path)
    batches = [one["batch"] for one in records]
    assert [one["position"] for one in batches] == [0, 0, batches[0]["size"]]
    assert sum({one["position"]: one["size"] for one in batches}.values()) == path.stat().st_size
    assert [one["codec"] for one in batches] == [codec, codec, "none"]
    assert [one["leader_epoch"] for one in batches] == [0, 0, 7]
    assert {one["segment"] for one in batches} == {path.name}


def test_positions_of_a_real_log_are_those_of_its_batches(cli: Command):
    """The base offset at each position in the file is that of the batch."""
    records = _lines(cli, DLQ / "__share_group_state-0")
    for record in records[:: max(1, len(records) // 50)]:
        data = (DLQ / "__share_group_state-0" / record["batch"]["segment"]).read_bytes()
        place = record["batch"]["position"]
        base, length = (
            int.from_bytes(data[place : place + 8], "big"),
            int.from_bytes(data[place + 8 : place + 12], "big"),
        )
        last = base + int.from_bytes(data[place + 23 : place + 27], "big")
        assert base <= record["offset"] <= last
        assert record["batch"]["size"] == length + 12


def test_text_has_no_batches(cli: Command):
    said = cli("decode", DATA / "4.3.1/happy/console-consumer-formatter.txt", "--most", 2)
    records = [json.loads(line) for line in said.lines]
    assert len(records) == 2
    assert not any("batch" in record for record in records)


def test_a_table_holds_all_records(cli: Command, tmp_path: Path):
    refused = cli("decode", DLQ, "--group", "dq-isr", "--out", tmp_path / "records")
    assert (refused.code, "--out writes all records" in refused.err) == (2, True)
