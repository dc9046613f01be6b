"""Which records of transactions count, and where a log is stable, against Kafka 4.4.0's own log and loader."""

from pathlib import Path

import pytest
from hypothesis import given
from pyspark.errors import IllegalArgumentException

from share_state.fold.groups.group_tables import fold_groups
from share_state.fold.state_log import decode_log, fold_log
from share_state.sources import jars
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_group_logs, find_logs
from tests.differential.kafka_loader import KafkaLoader
from tests.fold.groups.group_writer import T, share_group
from tests.fold.transaction_logs import ABORT, COMMIT, Step, batches_of, marker, steps, written
from tests.kafka.batches import Record, consecutive, in_bytes
from tests.kafka_classes import RefusedByKafkaError
from tests.log_writer import snapshot, write_log_folder


@pytest.fixture(scope="module")
def kafka(spark) -> KafkaLoader:
    return KafkaLoader(spark._jvm, jars.jars(jars.KAFKA_TOOLS))


@given(told=steps)
def test_the_records_that_count_are_those_of_kafka_s_loader(kafka: KafkaLoader, told: list[Step], tmp_path_factory):
    folder = write_log_folder(tmp_path_factory.mktemp("log"), 0, batches_of(told))
    loaded = kafka.load(folder)
    (log,) = find_logs([str(folder.parent)])
    found = [at for records, _ in decode_log(log, Window()) for at in records.rows["offset"].tolist()]
    assert found == loaded.offsets
    folded = fold_log(log)
    stable_end = folded.observations.open_records[0]
    assert (stable_end if stable_end >= 0 else folded.next_offset) == loaded.last_stable_offset
    assert folded.next_offset == loaded.end_offset


@pytest.mark.parametrize("key", [b"\0\0\0\x09", b"\0\0\0", b"\xff\xff\0\1"])
def test_kafka_refuses_what_is_named_unknown(kafka: KafkaLoader, tmp_path: Path, key: bytes):
    batches = [written(7, snapshot(("g", "AAAAAAAAAAEAAAAAAAAAAg", 0))), marker(7, COMMIT, key=key)]
    folder = write_log_folder(tmp_path, 0, batches)
    (log,) = find_logs([str(tmp_path)])
    assert len(fold_log(log).observations.unknown_markers) == 1
    with pytest.raises((RefusedByKafkaError, IllegalArgumentException)):
        kafka.load(folder)


def test_groups_are_those_of_a_log_with_transactions_of_offsets(kafka: KafkaLoader, tmp_path: Path):
    """Group coordinators commit offsets in transactions, and write the records of groups outside of them."""
    group = share_group("G", {"m": {T: (0,)}}, ready={T: (0,)})
    offset = Record(b"\0\1\0\1C\0\1t\0\0\0\0", b"\0\3" + bytes(8) + b"\xff\xff\xff\xff\0\0" + bytes(8))
    batches = consecutive(
        [
            written(7, offset),
            written(-1, *group[:3]),
            marker(7, COMMIT),
            written(8, offset),
            marker(8, ABORT),
            written(-1, *group[3:]),
            written(9, offset),
        ]
    )
    folder = tmp_path / "__consumer_offsets-0"
    folder.mkdir()
    (folder / f"{0:020}.log").write_bytes(in_bytes(batches))
    loaded = kafka.load(folder, is_of_groups=True)
    groups = [at for at in loaded.offsets if loaded.types[at] > 1]
    assert (len(groups), loaded.last_stable_offset) == (len(group), batches[-1].base_offset)
    folded = fold_groups(find_group_logs([str(tmp_path)]))
    assert [*folded.groups] == ["G"]
    assert folded.groups["G"].last_offset == max(groups)
    assert folded.faults == []
