"""Which logs of ordinary topics are found in what a person names."""

from pathlib import Path

import pytest

from share_state.errors import InputError
from share_state.sources.discovery import find_logs, find_topic_logs
from tests.fold.control_records.logs import at, checkpoint, user_data
from tests.kafka.batches import in_bytes

BYTES = in_bytes([user_data(0), *at({5: checkpoint("G", 1, 0, 0)})])


def place(folder: Path, *segments: str) -> Path:
    """Segments `<topic>-N/<offset>` under a folder."""
    for segment in segments:
        file = folder / segment.rpartition("/")[0] / f"{int(segment.rpartition('/')[2]):020}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(BYTES)
    return folder


def names(*inputs: Path | str) -> list[tuple[str, int | None, int]]:
    """(topic, partition, number of segments) of each log that is found."""
    return [(log.topic, log.partition, len(log.segments)) for log in find_topic_logs([str(path) for path in inputs])]


def test_a_brokers_folder_gives_the_ordinary_topics_only(tmp_path: Path):
    place(tmp_path, "orders-10/0", "orders-10/7", "orders-2/0", "a-b-0/0", "__cluster_metadata-0/0",
          "__consumer_offsets-3/0", "__share_group_state-0/0", "orders-3.0123abc-delete/0", "notes/0")  # fmt: skip
    assert names(tmp_path) == [("a-b", 0, 1), ("orders", 2, 1), ("orders", 10, 2)]
    assert [(log.topic, log.partition) for log in find_logs([str(tmp_path)])] == [("__share_group_state", 0)]


def test_folders_files_and_patterns_name_the_same_log_once(tmp_path: Path):
    place(tmp_path, "orders-0/0", "orders-1/0")
    file = tmp_path / "orders-0" / f"{0:020}.log"
    assert names(tmp_path / "orders-0", file, str(tmp_path / "orders-*")) == [("orders", 0, 1), ("orders", 1, 1)]


def test_several_brokers_copies_are_one_log(tmp_path: Path):
    place(tmp_path, "broker-1/orders-0/0", "broker-2/orders-0/0")
    (log,) = find_topic_logs([str(tmp_path)])
    assert (log.topic, log.partition, log.has_replicas, len(log.segments)) == ("orders", 0, True, 2)


def test_the_log_start_that_a_broker_noted_is_of_its_own_topic(tmp_path: Path):
    place(tmp_path, "orders-0/0", "other-0/0")
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n2\norders 0 4\n__share_group_state 0 9\n")
    assert [(log.topic, log.log_start_offset, log.start_is_recorded) for log in find_topic_logs([str(tmp_path)])] == [
        ("orders", 4, True),
        ("other", 0, False),
    ]


@pytest.mark.parametrize(
    ("segments", "given", "says"),
    [
        (["__cluster_metadata-0/0"], "__cluster_metadata-0", "a log of topic __cluster_metadata, not of an ordinary"),
        (["__cluster_metadata-0/0"], "", "found logs of __cluster_metadata"),
        (["stuff/deep/0"], "", "no log segments here"),
        (["stuff/0"], "stuff", "not named after an ordinary topic"),
        (["__cluster_metadata-0/0"], f"__cluster_metadata-0/{0:020}.log", "not of an ordinary topic"),
        ([], "gone", "no such file or folder; give the folder that holds <topic>-0"),
    ],
)
def test_what_holds_no_ordinary_topic_is_refused(tmp_path: Path, segments: list[str], given: str, says: str):
    place(tmp_path, *segments)
    with pytest.raises(InputError, match=says):
        find_topic_logs([str(tmp_path / given)])
