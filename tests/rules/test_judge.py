"""Every rule is broken by a log that breaks just it, and severities are the reader's to choose."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from share_state.errors import DeclarationError
from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_log import fold_log
from share_state.fold.states import SHARE_GROUP_STATE
from share_state.rules.breaches import ERROR, INFO, NOTHING, OFF, SEVERITIES, WARNING, Breaches
from share_state.rules.findings import judge
from share_state.rules.registry import Scope, registered, rule
from share_state.schema.declarations import table_schema
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.partition_count import PartitionCount
from share_state.sources.topics import Topics
from tests.kafka.batches import UPDATE, Batch, Record, consecutive, in_bytes, key, log_of, snapshot, update
from tests.rules.histories import BREACHES, STATE_SCOPES

SNAPSHOTS = consecutive([Batch([Record(key(partition=number), snapshot([(0, 4, 2, 1)]))]) for number in range(4)])
UPDATES = consecutive([Batch([Record(key(UPDATE, partition=number), update())]) for number in range(4)], 4)
LOG = [*SNAPSHOTS, *UPDATES]


def _in_place(number: int, **change: Any) -> bytes:
    return in_bytes([replace(batch, **change) if row == number else batch for row, batch in enumerate(LOG)])


def _put(record: Record) -> bytes:
    return _in_place(6, records=[record])


TAGGED = update()[:-7] + b"\2\0\4" + bytes(4) + b"\x09\0"
BREAKS = {
    "TORN_TAIL": (WARNING, in_bytes(LOG)[:-1]),
    "LOG_UNREADABLE": (ERROR, bytes(500)),
    "CRC_MISMATCH": (ERROR, _in_place(6, crc=1)),
    "MAGIC_UNSUPPORTED": (ERROR, _in_place(6, magic=1)),
    "BATCH_MALFORMED": (ERROR, _in_place(6, length=1)),
    "DUPLICATE_OFFSET_CONFLICT": (ERROR, in_bytes([*LOG, replace(LOG[6], base_timestamp=5)])),
    "OFFSET_GAP": (WARNING, in_bytes([*LOG[:6], LOG[7]])),
    "TRANSACTIONAL_BATCH": (WARNING, _in_place(6, attributes=0x10)),
    "CONTROL_RECORD_UNKNOWN": (ERROR, _in_place(6, attributes=0x30, records=[Record(b"\0\0\0", b"")])),
    "UNKNOWN_RECORD_TYPE": (INFO, _put(Record(key(9), b""))),
    "UNKNOWN_TAG": (INFO, _put(Record(key(UPDATE), TAGGED))),
    "LAYOUT_MIXED": (WARNING, _put(Record(key(UPDATE), update(early=True)))),
    "KEY_MALFORMED": (ERROR, _put(Record(b"\0\0\0", snapshot()))),
    "VALUE_MALFORMED": (ERROR, _put(Record(key(UPDATE), update()[:-1]))),
    "VALUE_VERSION_UNKNOWN": (ERROR, _put(Record(key(UPDATE), b"\0\1" + update()[2:]))),
    "UPDATE_TOMBSTONE": (ERROR, _put(Record(key(UPDATE), None))),
    "INVERTED_RANGE": (ERROR, _put(Record(key(UPDATE), update([(9, 8, 2, 1)])))),
    "ORPHAN_UPDATE": (ERROR, _put(Record(key(UPDATE, partition=9), update()))),
    "STATE_SUSPECT": (WARNING, _put(Record(key(UPDATE), None))),
}
"""Rule -> its severity here, and the bytes of a log that breaks it."""
ELSEWHERE = {
    "WRONG_PARTITION",
    "BASE_LOST",
    "UNREPLICATED_TAIL",
    "STATE_PARTITION_MISSING",
    "NO_STATE_RECORDS",
    "SHARE_PARTITION_VANISHED",
    "LOG_BEHIND",
    "LOG_BEGUN_AGAIN",
    "LOG_DIVERGED",
    "RESUME_STATE_CHANGED",
    "FOREIGN_BATCH",
}
"""Rules about what lies beside a log; their own tests break them."""


def test_a_sound_log_breaks_no_rule(tmp_path: Path):
    assert (
        len(judge(fold_log(log_of(tmp_path, in_bytes(LOG)), options=FoldOptions(partition_count=PartitionCount(1)))))
        == 0
    )


def test_every_rule_of_state_records_is_broken_by_a_test():
    codes = {code for code, declared in registered().items() if declared.checks.keys() & STATE_SCOPES}
    assert BREAKS.keys() | BREACHES.keys() | ELSEWHERE == codes


@pytest.mark.parametrize("code", BREAKS)
def test_a_broken_rule_is_found_with_its_severity(tmp_path: Path, code: str):
    severity, data = BREAKS[code]
    folded = fold_log(log_of(tmp_path, data))
    table = judge(folded)
    assert table.schema == table_schema("findings")
    found = [row for row in table.to_pylist() if row["rule"] == code]
    assert {row["severity"] for row in found} == {severity}
    for row in found:
        assert (row["dialect"], row["state_partition"], row["run_id"]) == (SHARE_GROUP_STATE, 0, None)
        assert row["message"]
        assert "\n" not in row["message"]
        assert row["offset"] is not None


@pytest.mark.parametrize("code", BREAKS)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_a_severity_that_is_chosen_takes_the_place_of_the_rule_s_own(tmp_path: Path, code: str, severity: str):
    table = judge(fold_log(log_of(tmp_path, BREAKS[code][1])), {code: severity})
    assert {row["severity"] for row in table.to_pylist() if row["rule"] == code} == {severity}


@pytest.mark.parametrize("code", BREAKS)
def test_a_rule_that_is_off_finds_nothing_and_leaves_the_others_alone(tmp_path: Path, code: str):
    folded = fold_log(log_of(tmp_path, BREAKS[code][1]))
    everything, rest = judge(folded).to_pylist(), judge(folded, {code: OFF}).to_pylist()
    assert rest == [row for row in everything if row["rule"] != code]


def test_a_finding_about_a_share_partition_names_it(tmp_path: Path):
    folded = fold_log(log_of(tmp_path, BREAKS["UPDATE_TOMBSTONE"][1]))
    names = pa.table({"topic_id": ["AAECAwQFBgcICQoLDA0ODw"], "topic": ["orders"]})
    (row,) = [row for row in judge(folded, topics=Topics(names)).to_pylist() if row["rule"] == "UPDATE_TOMBSTONE"]
    assert (row["group_id"], row["topic_id"], row["topic"], row["partition"]) == (
        "g", "AAECAwQFBgcICQoLDA0ODw", "orders", 0,
    )  # fmt: skip


def test_a_finding_about_no_share_partition_names_none(tmp_path: Path):
    (row, *_) = judge(fold_log(log_of(tmp_path, BREAKS["CRC_MISMATCH"][1]))).to_pylist()
    assert {row[name] for name in ("group_id", "topic_id", "topic", "partition")} == {None}


def test_the_findings_of_many_share_partitions_name_each_its_own(tmp_path: Path):
    records = [Record(key(UPDATE, group=f"g{number % 3}", partition=number), None) for number in range(50)]
    rows = judge(fold_log(log_of(tmp_path, Batch(records).written()))).to_pylist()
    assert [(row["group_id"], row["partition"], row["offset"]) for row in rows] == [
        (f"g{number % 3}", number, number) for number in range(50)
    ]


def test_every_rule_says_what_must_hold_and_where_that_comes_from():
    for code, declared in registered().items():
        assert code == declared.code == code.upper()
        assert declared.severity in SEVERITIES
        assert declared.statement.endswith(".")
        assert declared.source


def _nothing(_: object) -> Breaches:
    """Nothing is broken."""
    return NOTHING


def test_a_code_is_registered_once():
    with pytest.raises(DeclarationError, match="TORN_TAIL is registered twice"):
        rule("TORN_TAIL", Scope.RECORD_BATCHES, severity=WARNING, source="x")(_nothing)
    with pytest.raises(DeclarationError, match="TORN_TAIL is warning and error"):
        rule("TORN_TAIL", Scope.GROUPS, severity=ERROR, source="x")(_nothing)


def _hash(group: str, partition: int) -> int:
    """Where the coordinator would look for a share-partition of the tests' topic, of 50 state partitions."""
    value = 0
    for unit in f"{group}:AAECAwQFBgcICQoLDA0ODw:{partition}".encode("ascii"):
        value = (31 * value + unit) & 0xFFFFFFFF
    (signed,) = struct.unpack(">i", struct.pack(">I", value))
    return abs(signed) % 50


def _logs(folder: Path, partition: int) -> LogPartition:
    return log_of(folder, in_bytes(SNAPSHOTS), partition=partition)


def test_records_in_another_state_partition_than_their_key_s_are_found(tmp_path: Path):
    home = _hash("g", 2)
    found = judge(fold_log(_logs(tmp_path, home), options=FoldOptions(partition_count=PartitionCount(50)))).to_pylist()
    assert {row["rule"] for row in found} == {"WRONG_PARTITION"}
    strays = {row["partition"]: dict(row["evidence"]) for row in found}
    assert strays == {
        number: {"belongs_to": str(_hash("g", number))} for number in range(4) if _hash("g", number) != home
    }
    assert 2 not in strays


def test_where_the_number_of_state_partitions_is_not_known_no_record_is_misplaced(tmp_path: Path):
    assert len(judge(fold_log(_logs(tmp_path, 3)))) == 0
    nameless = tmp_path / "segment.log"
    nameless.write_bytes(in_bytes(SNAPSHOTS))
    (log,) = find_logs([str(nameless)])
    assert len(judge(fold_log(log, options=FoldOptions(partition_count=PartitionCount(50))))) == 0
