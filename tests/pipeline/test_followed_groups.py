"""A stream of segments follows the share groups beside them, as an audit of the folder reads them."""

import shutil
from pathlib import Path

import pytest

from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.fold.groups.group_tables import fold_groups
from share_state.fold.limits import Limits
from share_state.pipeline.followed_groups import SECONDS, AdjacentGroups
from share_state.sources.discovery import find_group_logs
from share_state.sources.segments import read_chunks
from share_state.sources.topics import Topics
from tests.truth import DATA

CHAOS = DATA / "4.3.1/chaos"


def members(folder: Path) -> dict[str, int]:
    """Share group -> members, by a replay of all records."""
    groups = fold_groups(find_group_logs([str(folder)])).live
    return {name: len(group.members) for name, group in groups.items()}


def followed(folder: Path) -> AdjacentGroups:
    return AdjacentGroups(str(folder), Limits(), frozenset(), [], None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(CHAOS, tmp_path / "broker")


def test_members_are_those_of_a_replay_after_each_part_of_a_growing_log(folder: Path):
    logs = {Path(log.segments[0].path): log for log in find_group_logs([str(folder)])}
    parts = {path: path.read_bytes() for path in logs}
    ends = {path: [*next(iter(read_chunks(log))).batches["file_position"].tolist()] for path, log in logs.items()}
    groups, seen = followed(folder), list[dict[str, int]]()
    for share in (1 / 4, 1 / 2, 1.0):
        for path, data in parts.items():
            # A last batch of which only a part is there is read later.
            end = ends[path][int(len(ends[path]) * share) - 1] + 20 if share < 1 else len(data)
            path.write_bytes(data[:end])
        groups.refresh(frozenset())
        seen.append(dict(groups.known.members))
        assert seen[-1] == members(folder)
    assert max(seen[0].values()) > max(seen[-1].values())
    assert groups.known.newest_time == fold_groups(find_group_logs([str(folder)])).newest_time


def test_a_folder_without_groups_is_not_listed_more_often_than_others(tmp_path: Path):
    shutil.copytree(CHAOS / "__share_group_state-0", tmp_path / "__share_group_state-0")
    groups = followed(tmp_path)
    groups.refresh(frozenset())
    assert not groups.known.members
    assert groups.pause == SECONDS
    assert groups.topics == Topics()


def test_a_log_that_the_cleaner_replaced_is_read_again(folder: Path):
    groups = followed(folder)
    groups.refresh(frozenset())
    before = dict(groups.known.members)
    for log in find_group_logs([str(folder)]):
        path = Path(log.segments[0].path)
        starts = next(iter(read_chunks(log))).batches["file_position"].tolist()
        path.write_bytes(path.read_bytes()[: starts[len(starts) // 3]])
    groups.refresh(frozenset())
    assert groups.known.members == members(folder) != before
    for log in find_group_logs([str(folder)]):
        shutil.rmtree(Path(log.segments[0].path).parent)
    for log in find_group_logs([str(DATA / "4.3.1/happy")]):
        shutil.copytree(Path(log.segments[0].path).parent, folder / log.name)
    groups.refresh(frozenset())
    assert groups.known.members == members(folder) != before


def test_verdicts_of_a_stream_of_a_folder_are_those_of_its_audit(folder: Path, tmp_path: Path):
    places = [str(tmp_path / name) for name in ("audit", "stream")]
    assert run(["audit", str(folder), "--out", places[0], "--fail-on", "off", "--quiet"]) == 0
    assert run(["stream", str(folder), "--once", "--out", places[1], "--fail-on", "off", "--quiet"]) == 0
    columns = ["group_id", "topic", "partition", "verdict", "reason", "time", "lag"]
    rows = [
        CommittedTables(place)
        .read("share_partition_history", columns=columns)
        .sort_by([("group_id", "ascending"), ("topic", "ascending"), ("partition", "ascending")])
        for place in places
    ]
    verdicts = rows[0]["verdict"].to_pylist()
    assert {"OK", "NO_MEMBERS", "REWIND"} <= {*verdicts}
    assert rows[1].to_pylist() == rows[0].to_pylist()
