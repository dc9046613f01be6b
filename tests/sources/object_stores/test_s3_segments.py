"""Segments on an object store: found, read and gone on with as local ones are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from share_state.config.input_spec import OPTIONS, input_spec
from share_state.errors import InputError
from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_log import fold_log
from share_state.kafka.record_batches import CHUNK_SIZE
from share_state.pipeline.planning import build_plan
from share_state.sources.discovery import find_group_logs, find_logs, find_logs_of_dialect
from share_state.sources.input_detection import adjacent_group_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.resume_point import ResumeStatus, digest_of_logs, resume
from share_state.sources.segment_frames import frame_segments
from share_state.sources.segments import read_chunks
from share_state.stores.object_stores import READ_SIZE, StorePath
from tests.sources.formats.tables import tables_of
from tests.sources.object_stores.s3 import BUCKET, client, put
from tests.truth import DATA

CHAOS = DATA / "4.3.1/chaos"
PRUNED = DATA / "4.3.1/pruneraw"


@pytest.fixture(scope="module")
def chaos(s3_address: str) -> str:
    """The address of a copy of 4.3.1/chaos."""
    return put(s3_address, CHAOS, "segments/chaos")


def plain(logs: list[LogPartition], root: str) -> list[LogPartition]:
    """Logs with paths below their root only."""
    return [
        replace(log, segments=tuple(replace(one, path=one.path.removeprefix(root)) for one in log.segments))
        for log in logs
    ]


def test_the_same_logs_are_found_and_fold_to_the_same(s3: str, chaos: str):
    local, stored = find_logs([str(CHAOS)]), find_logs([chaos])
    assert plain(stored, chaos) == plain(local, str(CHAOS))
    for one, other in zip(stored, local, strict=True):
        assert tables_of(fold_log(one)) == tables_of(fold_log(other))


def test_the_noted_log_start_is_read_there_too(s3: str):
    address = put(s3, PRUNED, "segments/pruned")
    stored = find_logs([address])
    assert plain(stored, address) == plain(find_logs([str(PRUNED)]), str(PRUNED))
    assert any(log.start_is_recorded for log in stored)


@pytest.mark.parametrize(
    "pattern", ["/__share_group_state-*", "/*state-*/*.log", "/**/__share*/*.log", "/__share*/0*[0-9].log", "/"]
)
def test_patterns_name_what_they_name_locally(s3: str, chaos: str, pattern: str):
    assert plain(find_logs([chaos + pattern]), chaos) == plain(find_logs([str(CHAOS) + pattern]), str(CHAOS))


def test_the_group_side_is_found_beside_them(s3: str, chaos: str):
    local = adjacent_group_logs([str(CHAOS)], find_logs([str(CHAOS)]))
    stored = adjacent_group_logs([chaos], find_logs([chaos]))
    assert plain(list(stored), chaos) == plain(list(local), str(CHAOS))
    assert len(stored) > 0
    one = f"{chaos}/__share_group_state-0"
    assert adjacent_group_logs([one], find_logs([one])) == ()


def test_a_scheme_may_be_in_capitals(s3: str, chaos: str):
    spec = input_spec(OPTIONS, sources=[{"path": chaos.replace("s3://", "S3://")}], groups={})
    plan = build_plan(spec, OPTIONS)
    assert plain(list(plan.logs), chaos) == plain(find_logs([chaos]), chaos)
    assert plan.groups is not None


def test_whether_the_group_side_is_new_is_seen_without_fetching_it(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one = CHAOS / "__consumer_offsets-0/00000000000000000000.log"
    (tmp_path / one.name).write_bytes(one.read_bytes()[:-1])
    address = put(s3, CHAOS / "__consumer_offsets-0", "segments/groups/__consumer_offsets-0")

    def never(*_: object) -> None:
        raise AssertionError("a file was fetched")

    def digest() -> str:
        logs = find_group_logs([address])
        with monkeypatch.context() as patched:
            patched.setattr(StorePath, "open", never)
            return digest_of_logs(logs)

    before = digest()
    assert digest() == before
    put(s3, tmp_path / one.name, f"segments/groups/__consumer_offsets-0/{one.name}")
    assert digest() != before


def test_a_group_log_that_went_away_is_told(s3: str):
    address = put(s3, CHAOS / "__consumer_offsets-0", "segments/gone/__consumer_offsets-0")
    logs = find_group_logs([address])
    client(s3).delete_dir(f"{BUCKET}/segments/gone/__consumer_offsets-0")
    with pytest.raises(InputError, match=r"s3://exports/segments/gone/.*\.log: "):
        digest_of_logs(logs)


def test_ordinary_topics_are_found_where_there_is_no_state_topic(s3: str):
    topic = "segments/ordinary/orders-0"
    put(s3, CHAOS / "__share_group_state-0/00000000000000000000.log", f"{topic}/00000000000000000000.log")
    assert [log.name for log in find_logs_of_dialect([put(s3, CHAOS / "topics.json", f"{topic}/x")[:-2]], "auto")] == [
        "orders-0"
    ]


@pytest.mark.parametrize("chunk", [1 << 10, 1 << 16])
def test_small_chunks_are_read_by_ranges(s3: str, chaos: str, chunk: int):
    stored, local = find_logs([chaos])[0], find_logs([str(CHAOS)])[0]
    of_both = [[part.data.tobytes() for part in read_chunks(log, chunk=chunk)] for log in (stored, local)]
    assert of_both[0] == of_both[1]
    assert len(of_both[0]) > 1 or stored.size < chunk


def test_much_is_asked_for_at_a_time(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = (CHAOS / "__share_group_state-0/00000000000000000000.log").read_bytes()
    large = tmp_path / "__share_group_state-0/00000000000000000000.log"
    large.parent.mkdir()
    large.write_bytes(whole * (1 + 2 * CHUNK_SIZE // len(whole)))
    (log,) = find_logs([put(s3, large.parent, "segments/large/__share_group_state-0")])
    opened, asked = StorePath.open, list[str]()

    def counted(path: StorePath, mode: str = "rb", buffering: int = READ_SIZE) -> Any:
        asked.append(str(path))
        return opened(path, mode, buffering)

    monkeypatch.setattr(StorePath, "open", counted)
    assert max(len(part.data) for part in frame_segments(log.segments)) == log.size > 2 * CHUNK_SIZE
    assert len(asked) == 1


def test_a_log_that_grew_is_gone_on_with(s3: str, tmp_path: Path):
    name, log = "segments/grown/__share_group_state-0/00000000000000000000.log", tmp_path / "log"
    whole = (CHAOS / "__share_group_state-0/00000000000000000000.log").read_bytes()
    log.write_bytes(whole[: len(whole) // 2])
    address = put(s3, log, name).rpartition("/")[0]
    carried = fold_log(find_logs([address])[0]).checkpoint
    assert carried is not None
    log.write_bytes(whole)
    put(s3, log, name)
    left, status = resume(find_logs([address])[0], carried.mark)
    assert status == ResumeStatus.GROWN
    assert 0 < left.size < len(whole)
    gone_on = fold_log(left, options=FoldOptions(restore=lambda: carried, resume_status=status))
    assert gone_on.states == fold_log(find_logs([address])[0]).states
