"""What an audit takes for the same group side: of each form, and of a cluster, without reading a record."""

from dataclasses import replace
from pathlib import Path

import pytest

from share_state.errors import InputError
from share_state.sources.discovery import find_group_logs
from share_state.sources.formats import ExportPaths
from share_state.sources.input_detection import read_group_export
from share_state.sources.kafka_client import read_client_properties
from share_state.sources.kafka_source import KafkaSource
from share_state.sources.log_partition import GROUP_TOPIC, LogPartition
from share_state.sources.resume_point import digest_of_logs
from tests.fold.groups.group_tables import rows_of
from tests.sources.formats.tables import write
from tests.truth import DATA

CHAOS = DATA / "4.3.1/chaos"
PRINTED = Path(__file__).parent / "printed"
TEXTS = ("dump-offsets.txt", "share-group-formatter.txt")


def digest(*inputs: Path) -> str:
    return digest_of_logs(read_group_export(ExportPaths([str(one) for one in inputs])))


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_the_same_wherever_it_lies_until_a_byte_of_it_changes(name: str, tmp_path: Path):
    text = (PRINTED / name).read_bytes()
    (tmp_path / "copy.txt").write_bytes(text)
    before = digest(PRINTED / name)
    assert digest(tmp_path / "copy.txt") == before
    (tmp_path / "copy.txt").write_bytes(text.replace(b'"epoch":', b'"epoch": '))
    assert digest(tmp_path / "copy.txt") != before


def test_every_log_partition_of_a_table_counts_and_its_file_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    table = rows_of(find_group_logs([str(CHAOS)]))
    logs = read_group_export(ExportPaths([str(write(table, tmp_path / "rows.parquet", row_group=200))]))
    assert len(logs) == 3
    assert len({segment.path for log in logs for segment in log.segments}) == 1
    opened, whole = list[Path](), Path.open
    monkeypatch.setattr(Path, "open", lambda path, *mode: [opened.append(path), whole(path, *mode)][1])
    told = digest_of_logs(logs)
    assert opened == [tmp_path / "rows.parquet"]
    assert digest_of_logs(logs[:2]) != told
    assert digest_of_logs(logs) == told


def test_the_same_records_in_another_form_are_read_anew(tmp_path: Path):
    table = rows_of(find_group_logs([str(CHAOS)]))
    assert digest(write(table, tmp_path / "rows.parquet")) != digest(CHAOS)


def test_of_a_cluster_it_counts_how_far_each_log_partition_is_read():
    """No broker is asked."""
    source = KafkaSource("kafka://nowhere:9", 20, read_client_properties(None))
    log = LogPartition(GROUP_TOPIC, 0, (), 3, topic_id="id", source=source)
    told = digest_of_logs([log])
    assert digest_of_logs([replace(log, source=replace(source, address="kafka://elsewhere:9"))]) == told
    others = [
        replace(log, source=replace(source, end_offset=21)),
        replace(log, log_start_offset=4),
        replace(log, partition=1),
        replace(log, topic_id="another"),
    ]
    assert len({told, *(digest_of_logs([other]) for other in others)}) == 5


def test_a_file_that_went_away_is_told(tmp_path: Path):
    table = write(rows_of(find_group_logs([str(CHAOS)])), tmp_path / "rows.parquet")
    logs = read_group_export(ExportPaths([str(table)]))
    table.unlink()
    with pytest.raises(InputError, match=r"rows\.parquet: cannot be read"):
        digest_of_logs(logs)
