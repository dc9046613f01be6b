"""`share-state simulate --fault all`, then `share-state audit`: every fault is found where it was planted."""

import json
from pathlib import Path

import pytest

from share_state.simulator.group_faults import GROUP_FAULTS
from tests.cli.commands import Command
from tests.profiles import nightly
from tests.warehouses import WrittenTables


@nightly("each fault alone is in tests/simulator")
@pytest.mark.parametrize("seed", range(1, 21))
def test_an_audit_that_knows_nothing_of_the_writer_finds_every_fault(cli: Command, tmp_path: Path, seed: int):
    logs, lake = tmp_path / "logs", tmp_path / "lake"
    asked = ("--seed", seed, "--groups", 60, "--fault", "all", "--consumer-offsets")
    assert cli("simulate", "--out", logs, *asked).code == 0
    done = cli("audit", logs, "--out", lake, "--json")
    assert done.code == 1
    tables = WrittenTables(lake)
    (note,) = [note for note in tables.run["notes"] if note.startswith("writer of ")]
    assert note.startswith("writer of __share_group_state: Kafka 4.4 or later since 2023-11-14 22:")
    assert note in done.json["run"]["notes"]
    rows = tables.read("findings").to_pylist()
    found = {(row["rule"], f"__share_group_state-{row['state_partition']}", row["offset"]) for row in rows}
    of_group = {(row["rule"], row["group_id"], row["topic_id"], row["offset"]) for row in rows}
    every = [json.loads(line) for line in (logs / "faults.jsonl").read_text().splitlines()]
    planted = [one for one in every if one["log"].startswith("__share_group_state-")]
    assert (len(planted), len(every)) == (41, 41 + len(GROUP_FAULTS))
    about_groups = {(row["rule"], row["group_id"]) for row in rows}
    assert not [one for one in every if "group" in one and (one["finding"], one["group"]) not in about_groups]
    assert not [one for one in planted if (one["finding"], one["log"], one["offset"]) not in found]
    names = ("finding", "group", "topicId", "offset")
    assert not [one for one in planted if "group" in one and tuple(one[name] for name in names) not in of_group]
    assert sum(dict(tables.run["findings"]).values()) == len(rows)
