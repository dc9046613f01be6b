"""Ids that control a terminal, in every command: nothing of them reaches stdout or stderr as it is.

Columns stay aligned, and one long id does not pad every row.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from share_state.cli.main import COMMANDS, run
from tests.cli.commands import Command, CommandResult
from tests.kafka.batches import Batch, Record, consecutive, in_bytes
from tests.log_writer import snapshot, tombstone, update
from tests.profiles import some_of

HOSTILE = {
    "a colour": "red\x1b[31mRED",
    "a title": "\x1b]0;title\x07",
    "a C1 sequence": "c1\x9b31m\x9d0;title\x9c",
    "an override": "a\u202eb\u2066c\u200fd",
    "a line break": "first\nsecond: SAFE",
    "a carriage return": "SAFE\rno",
    "a NUL": "a\0b",
    "tabs": "a\tb",
    "a line separator": "a\u2028b\x85c",
    "an invisible character": "a\u200bb\ufeff",
    "wide characters": "日本語のグループ",
}
TOPIC = "MmskRbHCTvP4WReRuBpdnw"
PLAIN = "plain"
NUMBER = 0
LOG, SEGMENT = f"__share_group_state-{NUMBER}", f"{0:020}.log"


def _records(groups: list[str]) -> list[Record]:
    """Of each group a snapshot and updates that leave offsets in flight, acknowledged, and at the delivery limit."""
    records = [update((groups[0] + "-orphan", TOPIC, 0), [(0, 4, 0, 2)], start_offset=0)]
    for group in groups:
        key = (group, TOPIC, 0)
        records.append(snapshot(key, [(0, 9, 0, 4), (10, 19, 2, 1)]))
        records.append(update(key, [(20, 29, 0, 1)], start_offset=0))
        records.append(update(key, [(30, 30, 9, 1)], start_offset=-1, snapshot_epoch=3))
    records.append(snapshot((groups[0] + "-gone", TOPIC, 0)))
    records.append(tombstone((groups[0] + "-gone", TOPIC, 0)))
    return records


def _write_log(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(parents=True)
    batches = [
        replace(batch, base_offset=number) for number, batch in enumerate(map(Batch, ([one] for one in records)))
    ]
    (folder / SEGMENT).write_bytes(in_bytes(consecutive(batches)))
    return folder.parent


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log of hostile group ids, a file of hostile topic names, and warehouses of two moments."""
    folder = tmp_path_factory.mktemp("place")
    records = _records([*HOSTILE.values(), PLAIN])
    _write_log(folder / "export" / LOG, records)
    _write_log(folder / "earlier" / LOG, records[: len(records) // 2])
    topics = {TOPIC: {"name": "topic\x1b[2J\u202e\n", "partitions": 1, "end_offsets": {"0": 100}}}
    (folder / "topics.json").write_text(json.dumps(topics))
    for name in ("export", "earlier"):
        out = str(folder / f"lake-{name}")
        assert run(["audit", str(folder / name), "--out", out, "--topics", str(folder / "topics.json"), "--quiet"]) == 1
    return folder


def _key(group: str) -> list[str]:
    return ["--group", group, "--topic", TOPIC, "--partition", "0"]


CALLS = {
    "reconstruct": [["export", "--out", "w1", "--topics", "topics.json"]],
    "audit": [["export", "--out", "w2", "--topics", "topics.json"]],
    "stream": [["export\x1b[31m", "--out", "w3", "--checkpoint", "c", "--once"]],
    "cutoff": [["export", "--verify", "--topics", "topics.json"]],
    "repair": [["export", "--topics", "topics.json"], ["lake-export"]],
    "offsets": [["export", "--topics", "topics.json"], ["lake-export"]],
    "why": [
        *(["--", group, "export"] for group in HOSTILE.values() if "\0" not in group),
        [PLAIN, "lake-export", "--picture"],
    ],
    "show": [["lake-export"], ["lake-export", "--group", "no\x1b[31m\u202esuch"]],
    "explain": [["export", *_key(group), "--offset", "0"] for group in HOSTILE.values() if "\0" not in group],
    "diff": [["lake-earlier", "lake-export"], ["export", "--as-of-offset", "0=5"]],
    "groups": [["lake-export"], ["lake-export", "--group", "no\x9bsuch"]],
    "decode": [["export"]],
    "simulate": [["--out", "s", "--minutes", "1", "--fault", "no\x1b[31msuch"]],
    "compare": [["lake-export\x1b[31m", "kafka://localhost:1"]],
    "rules": [[]],
    "plot": [["window", "export", *_key(HOSTILE["an override"]), "--out", "p\x1b[31m.svg"]],
    "topics": [["export\x1b[31m"], ["export"]],
    "setup": [["\x1b[31m"]],
}
WITHOUT_JSON = {"rules", "setup", "topics"}


def _calls() -> Iterator[list[str]]:
    for name, calls in CALLS.items():
        for call in calls:
            yield [name, *call]
            if name not in WITHOUT_JSON:
                yield [name, *call, "--json"]


def test_every_command_is_called():
    assert CALLS.keys() == COMMANDS.keys()


@pytest.mark.parametrize("call", some_of(_calls(), 4), ids=ascii)
def test_no_name_controls_the_terminal(
    cli: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: list[str]
):
    monkeypatch.chdir(tmp_path)
    for shared in place.iterdir():
        (tmp_path / shared.name).symlink_to(shared)
    said = cli(*call)
    assert said.code in (0, 1, 2), said
    for text in (said.out, said.err):
        odd = {character for line in text.split("\n") for character in line if not character.isprintable()}
        assert not odd, (call, odd)
    if "--json" in call and said.code < 2:
        _ = said.json if call[0] != "decode" else [json.loads(line) for line in said.out.splitlines()]


def test_json_has_every_id_as_it_is(cli: Command, place: Path):
    said = cli("show", place / "lake-export", "--json")
    groups = {row["group_id"] for row in said.json["share_partitions"]}
    assert {*HOSTILE.values(), PLAIN} <= groups
    decoded = {json.loads(line)["group_id"] for line in cli("decode", place / "export").out.splitlines()}
    assert {*HOSTILE.values(), PLAIN} <= decoded


def _widths(said: CommandResult) -> list[int]:
    return [len(line) for line in said.lines]


def test_one_long_group_id_does_not_pad_every_row(cli: Command, place: Path, tmp_path: Path):
    length = 10_000
    records = [snapshot((group, TOPIC, 0), [(0, 9, 0, 4)]) for group in ("g" * length, PLAIN)]
    export = _write_log(tmp_path / "export" / LOG, records)
    assert cli("reconstruct", export, "--out", tmp_path / "lake").code in (0, 1)
    for call in (["show", tmp_path / "lake"], ["cutoff", export], ["diff", export, "--as-of-offset", "0=0"]):
        said = cli(*call)
        assert said.code in (0, 1), said
        assert max(_widths(said)) < 1200, call
        assert f"({length:,} characters)" in said.out, call
    said = cli("show", tmp_path / "lake", "--json")
    assert "g" * length in {row["group_id"] for row in said.json["share_partitions"]}
    refused = cli("show", tmp_path / "lake", "--group", "x" * length)
    assert refused.code == 2
    assert len(refused.err) < 1000
    shutil.rmtree(tmp_path / "lake")
