"""The group side from tables and printed texts folds to the same tables as from segments.

The texts beside this file are of `__consumer_offsets-2` of 4.3.1 `chaos`, as Kafka 4.3.1's own classes print it:
`kafka-dump-log --offsets-decoder`, and the console consumer's ShareGroupMessageFormatter and
GroupMetadataMessageFormatter; and of a log of `classic_groups` below, as `kafka-dump-log --offsets-decoder` prints it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from share_state.config.input_spec import OPTIONS, input_spec
from share_state.delta.warehouse_place import CLAIM_TABLES, GROUP_TABLES
from share_state.fold.groups.group_tables import FoldedGroups, fold_groups
from share_state.fold.groups.sticky import FoldedSticky, fold_sticky
from share_state.fold.state_log import fold_log
from share_state.kafka.classic_groups import read_generations
from share_state.kafka.primitives import partition_for
from share_state.kafka.text_records import TextRecordError, encode_group_record
from share_state.pipeline.plan import FoldPlan, GroupInput
from share_state.pipeline.planning import build_plan
from share_state.rules.group_context import AuditedGroups
from share_state.rules.share_groups import orphan_share_state
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_group_logs, find_logs
from share_state.sources.dump_text import dump_logs
from share_state.sources.formats import ExportPaths
from share_state.sources.input_detection import read_export, read_group_export
from share_state.sources.log_partition import GROUP_TOPIC, STATE_TOPIC, Export, LogPartition
from share_state.spark.sorted_tables import SparkSorter
from tests.fold.groups.described import scenarios
from tests.fold.groups.group_tables import both_topics, json_lines, rows_of
from tests.fold.groups.group_writer import (
    assignment,
    classic_group,
    classic_member,
    group_metadata,
    subscription,
    user_data,
    write_group_log,
)
from tests.kafka.batches import Record
from tests.profiles import nightly, some_of
from tests.sources.formats.tables import shuffled, tables_of, write
from tests.truth import DATA

PRINTED = Path(__file__).parent / "printed"
PRINTED_OF = DATA / "4.3.1/chaos/__consumer_offsets-2"

SCENARIOS = pytest.mark.parametrize(
    "scenario", some_of([one.folder for one in scenarios()], 4), ids=lambda f: f"{f.parent.name}/{f.name}"
)


def export(*inputs: Path) -> ExportPaths:
    return ExportPaths([str(one) for one in inputs])


def planned(source: Path, *named: Path, **groups: Any) -> FoldPlan:
    """The plan of an input whose group side may be named."""
    paths = [str(one) for one in named] or None
    spec = input_spec(OPTIONS, sources=[{"path": str(source)}], groups={"paths": paths} | groups)
    return build_plan(spec, OPTIONS)


def claims(folded: FoldedGroups) -> FoldedSticky:
    return fold_sticky(*read_generations(folded.classic))


def assert_same_groups(read: Iterable[LogPartition], expected: Iterable[LogPartition]) -> FoldedGroups:
    """Two exports of the group side tell the same."""
    one, other = (fold_groups(list(logs), partition_count=3) for logs in (read, expected))
    for name in GROUP_TABLES:
        assert getattr(one, name).equals(getattr(other, name)), name
    assert (one.names, one.places, one.newest_time) == (other.names, other.places, other.newest_time)
    assert (one.epoch_steps, one.sticky, one.classic) == (other.epoch_steps, other.sticky, other.classic)
    for name in CLAIM_TABLES:
        assert getattr(claims(one), name).equals(getattr(claims(other), name)), name
    return one


def assert_same_state(found: Export, state: Iterable[LogPartition]) -> None:
    expected = {log.partition: log for log in state}
    assert [log.topic for log in found.logs] == [STATE_TOPIC] * len(found.logs)
    for log in found.logs:
        here, there = tables_of(fold_log(log)), tables_of(fold_log(expected[log.partition]))
        assert here["share_partition_state"] == there["share_partition_state"]


@SCENARIOS
def test_a_table_of_both_topics_gives_both_sides(scenario: Path, tmp_path: Path):
    state, groups, table = both_topics(scenario)
    half = len(table) // 2
    write(table.slice(0, half), tmp_path / "a.parquet", row_group=400)
    write(shuffled(table.slice(half)), tmp_path / "b.parquet", row_group=500)
    found = read_export(export(tmp_path))
    assert_same_state(found, state)
    folded = assert_same_groups(found.groups, groups)
    assert folded.live
    assert any("orders" in note for note in found.notes)
    assert not any(GROUP_TOPIC in note for note in found.notes)


def test_a_table_of_the_group_topic_alone_is_named_as_the_group_side(tmp_path: Path):
    groups = find_group_logs([str(DATA / "4.3.1/chaos")])
    table = rows_of(groups)
    write(table, tmp_path / "named/a.parquet")
    write(table.drop_columns(["topic"]), tmp_path / "unnamed/a.parquet")
    renamed = table.rename_columns({"key": "k", "value": "v"})
    write(renamed, tmp_path / "renamed/a.parquet")
    state = DATA / "4.3.1/chaos"
    for named in (tmp_path / "named", tmp_path / "unnamed"):
        side = planned(state, named, partitions=3).groups
        assert side is not None
        assert side.partitions == 3
        assert_same_groups(side.logs, groups)
    side = planned(state, tmp_path / "renamed", partitions=3, columns={"key": "k", "value": "v"}).groups
    assert_same_groups(side.logs if side else (), groups)


def test_a_delta_table_of_both_topics_gives_both_sides(tmp_path: Path):
    from deltalake import write_deltalake  # noqa: PLC0415  slow to import

    state, groups, table = both_topics(DATA / "4.3.1/happy")
    write_deltalake(str(tmp_path / "table"), table, partition_by=["topic"])
    found = read_export(export(tmp_path / "table"))
    assert_same_state(found, state)
    assert_same_groups(found.groups, groups)


@nightly("Spark puts the lines in order")
def test_json_of_both_topics_gives_both_sides(spark: SparkSession, tmp_path: Path):
    state, groups, table = both_topics(DATA / "4.3.1/chaos")
    json_lines(shuffled(table), tmp_path / "rows.json")
    found = read_export(ExportPaths([str(tmp_path)], sorter=SparkSorter(spark)))
    assert_same_state(found, state)
    assert_same_groups(found.groups, groups)


def test_what_came_with_the_input_is_its_group_side_unless_another_is_named(tmp_path: Path):
    _, _, table = both_topics(DATA / "4.3.1/chaos")
    write(table, tmp_path / "a.parquet")
    found = read_export(export(tmp_path))
    assert planned(tmp_path, partitions=3).groups == GroupInput(found.groups, 3)
    write_group_log(tmp_path / "elsewhere", [group_metadata("other", 3)], partition=1)
    named = planned(tmp_path / "a.parquet", tmp_path / "elsewhere").groups
    assert named is not None
    assert [log.source for log in named.logs] == [None]


def test_a_table_does_not_tell_how_many_partitions_there_are(tmp_path: Path):
    """A partition without a record is in no table, so a group may be missing because its partition is."""
    write(rows_of(find_group_logs([str(DATA / "4.3.1/chaos")])), tmp_path / "a.parquet")
    logs = read_group_export(export(tmp_path))
    assert [log.partition for log in logs] == [0, 1, 2]
    assert fold_groups(logs).partition_count is None


def test_the_dump_tools_text_gives_the_group_side():
    (log,) = read_group_export(export(PRINTED / "dump-offsets.txt"))
    assert (log.partition, log.topic) == (2, GROUP_TOPIC)
    folded = assert_same_groups([log], find_group_logs([str(PRINTED_OF)]))
    assert folded.faults == []
    assert list(folded.classic) == ["console-consumer-2078"]
    assert folded.record_counts == fold_groups(find_group_logs([str(PRINTED_OF)])).record_counts


def test_dumps_of_both_topics_give_both_sides(tmp_path: Path):
    (state,) = (DATA / "4.3.1/happy").glob("dump-log-*.txt")
    found = read_export(export(state, PRINTED / "dump-offsets.txt"))
    assert [log.topic for log in found.logs] == [STATE_TOPIC]
    assert [log.name for log in found.groups] == [f"{GROUP_TOPIC}-2"]
    logs, others = dump_logs([state, PRINTED / "dump-offsets.txt"])
    assert ([log.topic for log in logs], others) == ([STATE_TOPIC], {GROUP_TOPIC})


def test_the_console_consumers_texts_give_the_group_side():
    """They tell neither offsets nor times: everything else is as from the segments."""
    texts = [PRINTED / "share-group-formatter.txt", PRINTED / "group-metadata-formatter.txt"]
    (log,) = read_group_export(export(*texts))
    told_here, expected = fold_groups([log]), fold_groups(find_group_logs([str(PRINTED_OF)]))
    assert told_here.faults == expected.faults == []
    half = Window(until_offset=60)
    members = [fold_groups(logs, half).share_group_members for logs in ([log], find_group_logs([str(PRINTED_OF)]))]
    assert members[0].num_rows > 2
    assert members[0].equals(members[1])
    assert told_here.names == expected.names
    untold = {
        "share_groups": ["group_partition", "group_epoch_time", "last_offset"],
        "share_group_partitions": ["since", "offset"],
    }
    for name, columns in untold.items():
        one, other = getattr(told_here, name), getattr(expected, name)
        assert one.num_rows > 0
        assert one.drop_columns(columns).equals(other.drop_columns(columns)), name
        assert [one[column].null_count for column in columns] == [one.num_rows] * len(columns)
    (group,) = told_here.classic.values()
    assert group.value == expected.classic[group.group_id].value


def test_a_dump_without_the_decoder_is_refused(tmp_path: Path):
    text = (PRINTED / "dump-offsets.txt").read_text().splitlines()
    bare = [line.partition(" key: ")[0] if line.startswith("| ") else line for line in text]
    (tmp_path / "bare.txt").write_text("\n".join(bare) + "\n")
    logs = read_group_export(export(tmp_path / "bare.txt"))
    with pytest.raises(Exception, match="dump with --share-group-state-decoder or --offsets-decoder"):
        fold_groups(logs)


def test_records_that_the_tool_could_not_read_are_findings(tmp_path: Path):
    """As 4.3.1 prints groups of 4.0, and types and versions that are newer than it."""
    text = (PRINTED / "dump-offsets.txt").read_text().splitlines(keepends=True)
    flaws = {
        1: "Error at offset 1, skipping. Could not read record with version 0 from value's buffer due to: null.\n",
        2: "Error at offset 2, skipping. unknown record version 9 for 13 type\n",
        3: "Unknown record type 77 at offset 3, skipping.\n",
    }
    for number, line in enumerate(text):
        for offset, said in flaws.items():
            if line.startswith(f"| offset: {offset} "):
                text[number] = line.partition(" key: ")[0] + " key: " + said
    (tmp_path / "dump.txt").write_text("".join(text))
    folded = fold_groups(read_group_export(export(tmp_path / "dump.txt")))
    assert [(fault.code, fault.offset) for fault in folded.faults] == [
        ("VALUE_MALFORMED", 1),
        ("VALUE_VERSION_UNKNOWN", 2),
        ("UNKNOWN_RECORD_TYPE", 3),
    ]
    assert folded.live


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ({"data": {}}, None, "the key has no type"),
        ({"type": "11"}, None, "the key has no data"),
        ({"type": "11", "data": {}}, None, "group_id"),
        ({"type": "11", "data": {"groupId": 3}}, None, "group_id"),
        ({"type": "11", "data": {"groupId": "G"}}, {"version": "0", "data": {"epoch": "x"}}, "epoch"),
        ({"type": "11", "data": {"groupId": "G"}}, {"version": "1", "data": {"epoch": 1}}, "version 1 is unknown"),
        ({"type": "11", "data": {"groupId": "G"}}, {"data": {"epoch": 1}}, "the value has no version"),
        (
            {"type": "13", "data": {"groupId": "G", "memberId": "m"}},
            {"version": 0, "data": {"topicPartitions": 3}},
            "not a list",
        ),
        (
            {"type": "13", "data": {"groupId": "G", "memberId": "m"}},
            {"version": 0, "data": {"topicPartitions": [3]}},
            "not an object",
        ),
    ],
)
def test_a_printed_record_that_cannot_be_is_refused(key, value, message):
    with pytest.raises(TextRecordError, match=message):
        encode_group_record(key, value)


def test_committed_offsets_are_known_by_their_type_alone():
    printed = {"type": "1", "data": {"group": "g", "topic": "t", "partition": 0}}
    assert encode_group_record(printed, {"version": "4", "data": {"offset": 1}}) == (b"\0\1", None)


@pytest.mark.parametrize(
    ("numbers", "count", "note"),
    [
        ([0], None, "found partition 0, but not how many there are"),
        ([1, 2], None, "found partition 1, 2, but not how many there are"),
        ([0], 1, ""),
        ([0, 1, 2], None, ""),
    ],
)
def test_who_gives_some_partitions_is_asked_how_many_there_are(
    tmp_path: Path, numbers: list[int], count: int | None, note: str
):
    for number in numbers:
        write_group_log(tmp_path, [group_metadata("G", 3)], partition=number)
    notes = planned(DATA / "4.3.1/happy", tmp_path, partitions=count).notes
    assert len(notes) == bool(note)
    assert all(note in one and "--group-partitions N" in one for one in notes)


def test_state_whose_groups_may_lie_in_other_partitions_is_no_orphan(tmp_path: Path):
    """Of the first two of 50 partitions, every group looks as if it lay in one of two."""
    states = pa.concat_tables(fold_log(log).states for log in find_logs([str(DATA / "4.3.1/fifty")]))
    there = sorted({name for name in states["group_id"].to_pylist() if partition_for(name, 50) < 2})
    for number in (0, 1):
        here = [name for name in there if partition_for(name, 50) == number]
        assert here
        write_group_log(tmp_path, [group_metadata(name, 3) for name in here], partition=number)
    logs = find_group_logs([str(tmp_path)])
    inferred = fold_groups(logs)
    assert inferred.partition_count == 2
    assert orphan_share_state(AuditedGroups(inferred, states)) == []
    assert orphan_share_state(AuditedGroups(fold_groups(logs, partition_count=50), states)) == []
    wrongly_told = orphan_share_state(AuditedGroups(fold_groups(logs, partition_count=2), states))
    assert len({one.group_id for one in wrongly_told}) == len(set(states["group_id"].to_pylist())) - len(there)


def classic_groups() -> list[Record]:
    """Groups of the classic protocol, with every version of a subscription, and with bytes that are none."""
    owned = {"t2": [3]}
    groups = []
    for version in range(4):
        told_version = {
            "version": version,
            "generation": 4 if version >= 2 else -1,
            "owned": owned if version else None,
        }
        claims = user_data({"t1": [0, 1]}, 4)
        first = classic_member("m1", subscription(["t1", "t2"], claims, **told_version), assignment({"t1": [0]}))
        second = classic_member("m2", subscription(["t1"], None, version=version), assignment({}), "inst")
        groups.append(classic_group(f"c{version}", 5, [first, second]))
    of_connect = classic_member("w", b"\0\1\2", b"\0")
    return [
        *groups,
        classic_group("con", 3, [of_connect], protocol="default", kind="connect"),
        classic_group("bad", 3, [classic_member("w", b"\0\3\0", b"")]),
        classic_group("raw", 3, [classic_member("w", subscription(["t"], None), b"")]),
    ]


def test_the_dump_tools_text_of_classic_groups_gives_their_claims(tmp_path: Path):
    """The tool prints a member's subscription as an object where it is one, without its version, else as base64."""
    write_group_log(tmp_path, classic_groups(), partition=1)
    folded = assert_same_groups(
        read_group_export(export(PRINTED / "dump-classic.txt")), find_group_logs([str(tmp_path)])
    )
    assert sorted(folded.classic) == ["bad", "c0", "c1", "c2", "c3", "con", "raw"]
    claimed = claims(folded).sticky_claim
    assert sorted(set(claimed["subscription_version"].to_pylist())) == [0, 1, 2, 3]
