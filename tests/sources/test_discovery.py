"""What a person may name as an input, and what is found there."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from share_state.errors import InputError
from share_state.fold.state_log import fold_log
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_group_logs, find_logs, find_topic_logs
from share_state.sources.log_partition import STATE_TOPIC, LogPartition
from tests.kafka.batches import Batch, Record, consecutive, in_bytes, key, snapshot
from tests.kafka.judged import judged

BATCHES = consecutive([Batch([Record(key(partition=number), snapshot())]) for number in range(6)])


def _segment(folder: Path, batches: list[Batch], name: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / (name or f"{batches[0].base_offset:020}.log")
    file.write_bytes(in_bytes(batches))
    return file


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """A broker's log directory: two state partitions, one of two segments, beside what else lies there."""
    folder = tmp_path / "broker"
    _segment(folder / f"{STATE_TOPIC}-0", BATCHES[:2])
    _segment(folder / f"{STATE_TOPIC}-0", BATCHES[2:])
    _segment(folder / f"{STATE_TOPIC}-11", BATCHES[:1])
    _segment(folder / "orders-0", BATCHES)
    _segment(folder / "__consumer_offsets-3", BATCHES)
    for name in ("00000000000000000000.index", "00000000000000000000.timeindex", "00000000000000000000.log.deleted",
                 "leader-epoch-checkpoint", "00000000000000000006.snapshot", "0.log", "notes.txt"):  # fmt: skip
        (folder / f"{STATE_TOPIC}-0" / name).write_bytes(b"\xff" * 100)
    return folder


def _found(*inputs: object) -> list[tuple[int | None, list[str]]]:
    return [
        (log.partition, [Path(segment.path).name for segment in log.segments])
        for log in find_logs([str(given) for given in inputs])
    ]


FIRST = (0, [f"{0:020}.log", f"{2:020}.log"])
SECOND = (11, [f"{0:020}.log"])


def test_a_broker_s_log_directory_holds_the_state_partitions_in_its_folders(broker: Path):
    assert _found(broker) == [FIRST, SECOND]


@pytest.mark.parametrize("find", [find_logs, find_topic_logs, find_group_logs])
def test_one_path_in_place_of_a_list_is_that_path(broker: Path, find: Callable[[str | list[str]], list[LogPartition]]):
    assert find(str(broker)) == find([str(broker)])


def test_a_folder_above_it_will_do(broker: Path):
    assert _found(broker.parent) == [FIRST, SECOND]


def test_a_log_folder_is_one_state_partition(broker: Path):
    assert _found(broker / f"{STATE_TOPIC}-11") == [SECOND]


def test_a_file_is_the_part_of_its_state_partition_that_it_holds(broker: Path):
    assert _found(broker / f"{STATE_TOPIC}-0" / f"{2:020}.log") == [(0, [f"{2:020}.log"])]


@pytest.mark.parametrize(
    "pattern", [f"{STATE_TOPIC}-*", f"{STATE_TOPIC}-*/*.log", f"{STATE_TOPIC}-*/*", "**/*.log", f"{STATE_TOPIC}-[01]*"]
)
def test_a_glob_is_all_that_it_matches(broker: Path, pattern: str):
    shutil.rmtree(broker / "orders-0")
    shutil.rmtree(broker / "__consumer_offsets-3")
    (broker / f"{STATE_TOPIC}-0" / "0.log").unlink()
    assert _found(f"{broker}/{pattern}") == [FIRST, SECOND]


def test_a_path_with_the_characters_of_a_glob_is_a_path(tmp_path: Path):
    _segment(tmp_path / "[a]*" / f"{STATE_TOPIC}-4", BATCHES)
    assert _found(tmp_path / "[a]*") == [(4, [f"{0:020}.log"])]


def test_what_is_named_twice_is_read_once(broker: Path):
    folder = broker / f"{STATE_TOPIC}-0"
    assert _found(broker, broker, folder, folder / f"{2:020}.log", f"{broker}/*/*2.log") == [FIRST, SECOND]


def test_a_link_to_a_log_folder_is_that_folder(broker: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(broker / f"{STATE_TOPIC}-11")
    assert _found(tmp_path / "link") == [SECOND]


def test_archives_and_copies_deeper_inside_are_left_alone(broker: Path):
    _segment(broker / "archive" / f"{STATE_TOPIC}-7", BATCHES)
    assert _found(broker) == [FIRST, SECOND]
    assert _found(broker / "archive") == [(7, [f"{0:020}.log"])]


def test_the_folders_of_several_brokers_are_copies_of_one_log(tmp_path: Path):
    for name in ("a", "b"):
        _segment(tmp_path / name / f"{STATE_TOPIC}-0", BATCHES)
    (log,) = find_logs([str(tmp_path / "a"), str(tmp_path / "b")])
    assert log.has_replicas
    assert log.size == 2 * len(in_bytes(BATCHES))


def test_logs_without_a_number_are_kept_apart(tmp_path: Path):
    for name in ("a", "b"):
        _segment(tmp_path / name, BATCHES)
    assert _found(tmp_path / "a", tmp_path / "b") == [(None, [f"{0:020}.log"])] * 2


def test_a_file_of_another_name_begins_at_the_offset_of_its_first_batch(tmp_path: Path):
    file = _segment(tmp_path, BATCHES[3:], "segment.bin")
    (log,) = find_logs([str(file)])
    assert (log.partition, log.log_start_offset, log.segments[0].base_offset) == (None, 3, 3)
    assert not judged(log).findings


@pytest.mark.parametrize("noted", [0, 1, 3, 6])
def test_records_before_the_log_start_that_the_broker_noted_are_not_state(tmp_path: Path, noted: int):
    folder = tmp_path / f"{STATE_TOPIC}-0"
    _segment(folder, BATCHES)
    checkpoint = tmp_path / "log-start-offset-checkpoint"
    checkpoint.write_text(f"0\n3\norders 0 999\n{STATE_TOPIC} 1 888\n{STATE_TOPIC} 0 {noted}\n")
    (log,) = find_logs([str(folder)])
    assert (log.log_start_offset, log.start_is_recorded) == (noted, noted > 0)
    folded = fold_log(log)
    assert sorted(folded.states["partition"].to_pylist()) == list(range(noted, 6))
    assert folded.cutoff["log_start_offset"].to_pylist() == [noted]


def test_a_noted_log_start_below_the_first_segment_is_out_of_date(tmp_path: Path):
    _segment(tmp_path / f"{STATE_TOPIC}-0", BATCHES[4:])
    (tmp_path / "log-start-offset-checkpoint").write_text(f"0\n1\n{STATE_TOPIC} 0 2\n")
    (log,) = find_logs([str(tmp_path)])
    assert (log.log_start_offset, log.start_is_recorded) == (4, False)


@pytest.mark.parametrize(
    "noted", ["", "0\n", "0\n1\n", "x\n\xff\n\n__share_group_state 0 x\n", "0\n1\n__share_group_state 0\n"]
)
def test_a_damaged_checkpoint_is_no_checkpoint(tmp_path: Path, noted: str):
    _segment(tmp_path / f"{STATE_TOPIC}-0", BATCHES)
    (tmp_path / "log-start-offset-checkpoint").write_bytes(noted.encode("latin-1"))
    (log,) = find_logs([str(tmp_path)])
    assert log.log_start_offset == 0


def test_the_whole_batch_that_holds_the_log_start_is_loaded(tmp_path: Path):
    # As the broker's loader reads it: from the batch, not from the record.
    one = Batch([Record(key(partition=number), snapshot()) for number in range(4)])
    _segment(tmp_path / f"{STATE_TOPIC}-0", [one])
    (tmp_path / "log-start-offset-checkpoint").write_text(f"0\n1\n{STATE_TOPIC} 0 2\n")
    (log,) = find_logs([str(tmp_path)])
    found = judged(log)
    assert len(found.states) == 4
    assert found.folded.first_offset == 2
    assert not found.findings


def test_a_window_names_the_offsets_that_count(tmp_path: Path):
    _segment(tmp_path / f"{STATE_TOPIC}-0", BATCHES)
    (log,) = find_logs([str(tmp_path)])
    folded = fold_log(log, Window(from_offset=1, until_offset=4))
    assert sorted(folded.states["partition"].to_pylist()) == [1, 2, 3]
    assert (folded.first_offset, folded.next_offset) == (1, 4)


def _refused(given: object) -> str:
    with pytest.raises(InputError) as refused:
        find_logs([str(given)])
    message = str(refused.value)
    assert "\n" not in message
    assert str(given) in message
    return message


def test_a_path_that_is_not_there_is_refused(tmp_path: Path):
    assert "no such file or folder" in _refused(tmp_path / "nowhere")


def test_a_glob_that_matches_nothing_is_refused(tmp_path: Path):
    assert "no such file or folder" in _refused(tmp_path / "*")
    (tmp_path / "notes.txt").write_text("hello")
    assert "no such file or folder" in _refused(tmp_path / "*")


def test_an_empty_folder_is_refused(tmp_path: Path):
    assert "no log segments here" in _refused(tmp_path)


def test_a_folder_of_other_topics_is_refused_with_their_names(broker: Path):
    for path in broker.glob(f"{STATE_TOPIC}-*"):
        shutil.rmtree(path)
    assert "found logs of __consumer_offsets, orders" in _refused(broker)
    assert "a log of topic orders" in _refused(broker / "orders-0")


@pytest.mark.parametrize("given", ["orders-0/*.log", f"orders-0/{0:020}.log", "**/*.log"])
def test_a_file_of_another_topic_is_refused_as_its_folder_is(broker: Path, given: str):
    with pytest.raises(
        InputError, match=f"{0:020}.log: a log of topic (orders|__consumer_offsets), not of {STATE_TOPIC}"
    ):
        find_logs([str(broker / given)])


def test_the_folder_of_another_topic_is_refused_from_within(broker: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(broker / "orders-0")
    assert "a log of topic orders" in _refused(".")


@pytest.mark.parametrize("content", [b"", b"short", b"text that is long enough to hold a header\n" * 9, bytes(16)])
def test_a_file_that_is_no_segment_is_refused(tmp_path: Path, content: bytes):
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    assert "not a log segment" in _refused(file)


def test_a_link_to_nothing_is_refused(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert "no such file" in _refused(tmp_path / "link")


def test_a_segment_that_cannot_be_opened_is_refused(tmp_path: Path):
    folder = tmp_path / f"{STATE_TOPIC}-0"
    folder.mkdir()
    (folder / f"{0:020}.log").symlink_to(tmp_path / "gone")
    assert "cannot be read" in _refused(folder)


def test_a_folder_in_place_of_a_segment_is_refused(tmp_path: Path):
    (tmp_path / f"{STATE_TOPIC}-0" / f"{0:020}.log").mkdir(parents=True)
    assert "cannot be read" in _refused(tmp_path)


def test_a_path_with_a_null_byte_is_refused():
    with pytest.raises(InputError):
        find_logs(["/exports\0/broker"])


def test_an_object_store_is_refused():
    assert "ftp:// cannot be read" in _refused("ftp://host/exports")


def test_a_segment_that_shrinks_while_it_is_read_is_refused(tmp_path: Path):
    file = _segment(tmp_path / f"{STATE_TOPIC}-0", BATCHES)
    (log,) = find_logs([str(tmp_path)])
    file.write_bytes(b"")
    with pytest.raises(InputError, match="became shorter while it was read"):
        fold_log(log)


def test_a_segment_that_vanishes_before_it_is_read_is_refused(tmp_path: Path):
    file = _segment(tmp_path / f"{STATE_TOPIC}-0", BATCHES)
    (log,) = find_logs([str(tmp_path)])
    file.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        fold_log(log)


def test_an_empty_segment_is_an_empty_log(tmp_path: Path):
    folder = tmp_path / f"{STATE_TOPIC}-0"
    folder.mkdir()
    (folder / f"{0:020}.log").touch()
    (log,) = find_logs([str(tmp_path)])
    found = judged(log)
    assert not found.states
    assert not found.findings
