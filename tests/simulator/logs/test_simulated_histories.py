"""Whole simulated histories: what we fold, and what Kafka loads, is the truth beside the logs, at any moment."""

import hashlib
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import share_state
from share_state.errors import ShareStateError
from share_state.fold.draft.control_log import fold_control_log
from share_state.fold.state_log import fold_log
from share_state.rules.breaches import INFO
from share_state.simulator.log_writer import batch_bounds
from share_state.simulator.simulation import Simulation, simulate
from share_state.simulator.types import SimulationError
from share_state.sources import jars
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs, find_topic_logs
from tests.fold.decoded_logs import decoded
from tests.kafka_classes import KafkaShard, read_segment
from tests.present import present
from tests.profiles import by_profile, nightly, some_of
from tests.truth import expected_states, runs, value_by_offset

STATE, CONTROL = "share_group_state", "control_records"
Key = tuple[str, str, int]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def state_rows(folder: Path) -> dict[Key, dict[str, Any]]:
    rows = [row for log in find_logs([str(folder)]) for row in fold_log(log).states.to_pylist()]
    return {(row["group_id"], row["topic_id"], row["partition"]): row for row in rows}


def control_rows(folder: Path) -> list[dict[str, Any]]:
    """Our rows in the words of control-truth.jsonl."""
    found = []
    for log in find_topic_logs([str(folder)]):
        folded = fold_control_log(log)
        assert not folded.suspect.any()
        found += [
            {
                "group": row["group_id"],
                "topic": row["topic"],
                "partition": row["partition"],
                "checkpointEpoch": row["snapshot_epoch"],
                "startOffset": row["start_offset"],
                "endOffset": row["end_offset"],
                "stateBatches": [list(batch.values()) for batch in row["state_batches"]],
                "checkpointOffset": row["snapshot_offset"],
                "lastRecordOffset": row["last_offset"],
                "nDeltas": row["updates_since_snapshot"],
            }
            for row in folded.states.to_pylist()
        ]
    return sorted(found, key=repr)


def assert_is_the_truth(folder: Path, done: Simulation, dialect: str) -> None:
    live = 0
    if dialect != CONTROL:
        expected, found = expected_states(folder / "truth.jsonl"), state_rows(folder)
        assert found.keys() == expected.keys()
        for key, row in expected.items():
            assert {name: found[key][name] for name in row} == row
        for truth in json.loads((folder / "redundant.json").read_text()):
            (log,) = find_logs([str(folder / f"__share_group_state-{truth['statePartition']}")])
            (limit,) = fold_log(log).cutoff.to_pylist()
            assert limit["cutoff_offset"] == truth["lastRedundantOffset"]
            assert (limit["log_start_offset"], limit["log_end_offset"]) == (
                truth["logStartOffset"],
                truth["nextOffset"],
            )
            assert limit["live_share_partitions"] == truth["liveKeys"]
        live += len(expected)
    if dialect != STATE:
        expected_control = sorted(lines(folder / "control-truth.jsonl"), key=repr)
        assert control_rows(folder) == expected_control
        live += len(expected_control)
    assert done.share_partitions == live > 0


HISTORIES = [
    {"release": "4.4"},
    {"release": "4.3", "codec": "zstd", "segment_bytes": 9_000},
    {"release": "4.2", "updates_per_snapshot": 3},
    {"release": "4.1", "updates_per_snapshot": 7},
    {"release": "4.0"},
    {
        "release": "4.4",
        "prunes": True,
        "minutes": 11,
        "groups": 3,
        "state_partitions": 1,
        "updates_per_snapshot": 5,
    },
    {"dialect": CONTROL},
    {"dialect": CONTROL, "version_prefix": True, "codec": "lz4", "segment_bytes": 9_000, "checkpoint_every": 3},
    {"dialect": CONTROL, "checkpoints_at_end": True},
    {"dialect": "both", "groups": 4},
]


@pytest.mark.parametrize("given", some_of(HISTORIES, 1), ids=lambda given: "-".join(map(str, given.values())))
def test_a_history_folds_to_its_truth(tmp_path, given):
    asked = {"seed": 11, "groups": 8, "minutes": 3, "state_partitions": 3} | given
    done = simulate(tmp_path, **asked)
    assert done.events > 500
    assert_is_the_truth(tmp_path, done, asked.get("dialect", STATE))
    if given.get("prunes"):
        assert json.loads((tmp_path / "redundant.json").read_text())[0]["logStartOffset"] > 0


@nightly("hundreds of prunes")
@pytest.mark.parametrize("codec", some_of(["none", "lz4"], 1))
def test_pruning_control_records_keeps_the_user_data_and_the_state(tmp_path, codec):
    asked: dict[str, Any] = {"seed": 11, "groups": 3, "minutes": 6, "dialect": CONTROL, "codec": codec}
    asked |= {"checkpoint_every": 4, "segment_bytes": 9_000}
    whole = simulate(tmp_path / "whole", **asked)
    pruned = simulate(tmp_path / "pruned", prunes=True, **asked)
    assert_is_the_truth(tmp_path / "pruned", pruned, CONTROL)
    assert control_rows(tmp_path / "pruned") == control_rows(tmp_path / "whole")
    kept = 0
    for log in find_topic_logs([str(tmp_path / "whole")]):
        before, after = (
            [batch for path in sorted((tmp_path / name / log.name).glob("*.log")) for batch in batches_of(path)]
            for name in ("whole", "pruned")
        )
        (limit,) = fold_control_log(log).cutoff.to_pylist()
        gone = set(before) - set(after)
        assert gone
        assert all(is_control and offset < limit["cutoff_offset"] for offset, is_control, _ in gone)
        assert set(after) < set(before)
        kept += sum(is_control for _, is_control, _ in after)
    assert kept == pruned.records < whole.records
    of_whole, of_pruned = (
        {(row["rule"], row["severity"]) for row in share_state.reconstruct(tmp_path / name).findings.to_pylist()}
        for name in ("whole", "pruned")
    )
    assert of_pruned - of_whole == {("OFFSET_GAP", INFO)}


def batches_of(path: Path) -> list[tuple[int, bool, bytes]]:
    """Base offset, whether it is a control batch, and bytes of each batch of a segment."""
    data = path.read_bytes()
    batches = [data[begin:end] for begin, end in batch_bounds(data)]
    return [(int.from_bytes(one[:8]), bool(int.from_bytes(one[21:23]) & 0x20), one) for one in batches]


def told_before(history: list[dict[str, Any]], ends: Mapping[int | None, int]) -> dict[Key, dict[str, Any]]:
    """The last line of each live share-partition of a history, among the records before the offsets."""
    last: dict[Key, dict[str, Any]] = {}
    for line in history:
        if line["offset"] < ends[line["statePartition"]]:
            last[line["group"], line["topicId"], line["partition"]] = line
    return {key: line for key, line in last.items() if line["kind"] != "tombstone"}


@nightly("many folds of a long history")
@pytest.mark.parametrize("release", some_of(["4.4", "4.1", "4.3"], 1))
def test_a_history_folds_to_what_was_durable_at_any_moment(tmp_path, release):
    simulate(tmp_path, seed=5, groups=8, minutes=4, state_partitions=2, release=release, traces=True)
    history = lines(tmp_path / "history.jsonl")
    logs = {log.partition: log for log in find_logs([str(tmp_path)])}
    rng = random.Random(release)
    sizes = {number: fold_log(log).next_offset for number, log in logs.items()}
    assert sum(sizes.values()) == len(history) > 1000
    for _ in range(by_profile(10, 40)):
        ends = {number: rng.randint(0, size) for number, size in sizes.items()}
        rows = {}
        for number, log in logs.items():
            for row in fold_log(log, Window(until_offset=ends[number])).states.to_pylist():
                rows[row["group_id"], row["topic_id"], row["partition"]] = row
        expected = told_before(history, ends)
        assert rows.keys() == expected.keys()
        for key, line in expected.items():
            values = sorted(value_by_offset(line["stateBatches"]).items())
            batches = [(first, last, state, count) for first, last, (count, state) in runs(values)]
            row = rows[key]
            assert [tuple(batch.values()) for batch in row["state_batches"]] == batches
            assert row["start_offset"] == line["startOffset"]
            assert row["delivery_complete_count"] == line.get("deliveryCompleteCount", -1)
            assert (row["leader_epoch"], row["state_epoch"]) == (line["leaderEpoch"], line["stateEpoch"])
            assert (row["max_leader_epoch"], row["max_state_epoch"]) == (line["maxLeaderEpoch"], line["maxStateEpoch"])
            assert (row["snapshot_offset"], row["last_offset"]) == (line["lastSnapshotOffset"], line["offset"])


def test_control_records_fold_to_what_was_durable_at_any_moment(tmp_path):
    simulate(tmp_path, seed=5, groups=6, minutes=2, dialect=CONTROL, traces=True, checkpoint_every=4)
    history = lines(tmp_path / "control-history.jsonl")
    rng = random.Random(1)
    for log in find_topic_logs([str(tmp_path)]):
        own = [line for line in history if (line["topic"], line["partition"]) == (log.topic, log.partition)]
        for _ in range(15):
            end = rng.randint(0, own[-1]["lastRecordOffset"] + 2)
            expected = {line["group"]: line for line in own if line["lastRecordOffset"] < end}
            rows = fold_control_log(log, Window(until_offset=end)).states.to_pylist()
            assert {row["group_id"] for row in rows} == expected.keys()
            for row in rows:
                line = expected[row["group_id"]]
                assert [list(batch.values()) for batch in row["state_batches"]] == line["stateBatches"]
                assert (row["start_offset"], row["end_offset"]) == (line["startOffset"], line["endOffset"])
                assert (row["snapshot_epoch"], row["last_offset"]) == (
                    line["checkpointEpoch"],
                    line["lastRecordOffset"],
                )


WRITERS = [
    ("4.2", jars.KAFKA_BEFORE_SWEEP, "snappy"),
    ("4.3", jars.KAFKA_BEFORE_SWEEP, "lz4"),
    ("4.4", jars.KAFKA, "none"),
]


@nightly("a long history; test_against_kafka draws short ones")
@pytest.mark.parametrize(("release", "kafka", "codec"), by_profile(WRITERS[:1], WRITERS))
def test_kafka_loads_a_history_and_holds_the_truth(tmp_path, spark, release, kafka, codec):
    limit = 15
    simulate(
        tmp_path,
        seed=2,
        groups=8,
        minutes=3,
        state_partitions=2,
        release=release,
        codec=codec,
        updates_per_snapshot=limit,
        segment_bytes=20_000,
    )
    truth = lines(tmp_path / "truth.jsonl")
    redundant = {row["statePartition"]: row for row in json.loads((tmp_path / "redundant.json").read_text())}
    for number, row in redundant.items():
        shard, count = KafkaShard(spark._jvm, jars.jars(kafka), limit), 0
        for segment in sorted((tmp_path / f"__share_group_state-{number}").glob("*.log")):
            for offset, _, key, value in read_segment(spark._jvm, jars.jars(kafka), segment):
                assert offset == count
                shard.replay(offset, present(key), value)
                count += 1
        assert (count, shard.redundant_offset()) == (row["nextOffset"], row["lastRedundantOffset"])
        held = shard.states()
        expected = [line for line in truth if line["statePartition"] == number]
        assert len(held) == len(expected) > 0
        for line in expected:
            state = held[line["group"], line["topicId"], line["partition"]]
            # The very lists, as Kafka's own merge of this release cuts them.
            assert state["state_batches"] == [tuple(batch) for batch in line["stateBatches"]]
            assert state["start_offset"] == line["startOffset"]
            assert state["snapshot_epoch"] == line["snapshotEpoch"]
            assert state["delivery_complete_count"] == line["deliveryCompleteCount"]
            assert (state["create_timestamp"], state["write_timestamp"]) == (
                line["createTimestamp"],
                line["writeTimestamp"],
            )
            assert state["max_leader_epoch"] == line["maxLeaderEpoch"]
            assert state["max_state_epoch"] == line["maxStateEpoch"]
            assert state["snapshot_update_count"] == line["snapshotUpdateCount"]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@nightly("six histories")
@pytest.mark.parametrize("dialect", some_of(["both", STATE, CONTROL], 1))
def test_the_same_seed_gives_the_same_bytes_and_so_do_the_events_alone(tmp_path, dialect):
    asked: dict[str, Any] = {"dialect": dialect, "state_partitions": 3, "seed": 7}
    first = simulate(tmp_path / "first", groups=8, minutes=1, **asked)
    again = simulate(tmp_path / "again", groups=8, minutes=1, **asked)
    other = simulate(tmp_path / "other", groups=8, minutes=1, dialect=dialect, state_partitions=3, seed=8)
    replayed = simulate(tmp_path / "replayed", events=tmp_path / "first" / "events.jsonl", **asked)
    told = digests(first.folder)
    assert digests(again.folder) == told
    assert digests(other.folder) != told
    # How far producers had got is no event.
    del told["topics.json"]
    assert {name: digest for name, digest in digests(replayed.folder).items() if name != "topics.json"} == told


def test_a_worked_example_given_as_events_is_written_as_kafka_wrote_it(tmp_path):
    at = 1_700_000_000_000
    events = [
        ("init", 0, {"state_epoch": 1, "start_offset": 100}),
        ("open", 0, {"leader_epoch": 0}),
        ("acquire", 0, {"member": "m", "log_batches": [[100, 109]]}),
        ("ack", 0, {"member": "m", "batches": [[100, 109, [1]]]}),
        ("acquire", 0, {"member": "m", "log_batches": [[110, 119]]}),
        ("ack", 0, {"member": "m", "batches": [[110, 110, [2]]]}),
        ("ack", 0, {"member": "m", "batches": [[119, 119, [1]]]}),
        ("acquire", 1000, {"member": "m", "log_batches": [[110, 120]]}),
        ("ack", 1000, {"member": "m", "batches": [[113, 118, [4]]], "is_renew_ack": True}),
        ("advance", 30_001, {}),
        ("ack", 30_001, {"member": "m", "batches": [[113, 118, [1]]]}),
        ("acquire", 30_001, {"member": "m", "log_batches": [[111, 112]]}),
        ("ack", 30_001, {"member": "m", "batches": [[110, 110, [1]]]}),
        ("ack", 30_001, {"member": "m", "batches": [[111, 112, [1]]]}),
    ]
    told = [
        {"event": kind, "seq": seq, "ts_ms": at + after, "group": "G1", "topic": "T"} | fields
        for seq, (kind, after, fields) in enumerate(events)
    ]
    file = tmp_path / "events.jsonl"
    file.write_text("".join(f"{json.dumps(event)}\n" for event in told))
    # Not with control records: they would take offsets of the topic that the example gives to user data.
    done = simulate(tmp_path / "out", events=file, state_partitions=1, release="4.3", traces=True)
    assert (done.events, done.records) == (14, 9)
    history = lines(done.folder / "history.jsonl")
    assert [(line["startOffset"], line["deliveryCompleteCount"]) for line in history] == [
        (100, 0), (100, 10), (110, 0), (110, 1), (110, 1), (110, 1), (110, 7), (110, 8), (111, 9),
    ]  # fmt: skip
    assert history[-1]["stateBatches"] == [[111, 112, 2, 2], [113, 119, 2, 1]]
    segment = (done.folder / "__share_group_state-0" / f"{0:020}.log").read_bytes()
    for value in (
        "000000000000000000010000000000000000000000640000018bcfe568000000018bcfe568000101000400000000",
        "000000000000000000000000000000000064020000000000000064000000000000006d020001000100040000000a",
        "00000000000000000000000000000000006e02000000000000006f000000000000006f0000010001000400000001",
        "00000000000000000000000000000000006f02000000000000006f00000000000000700200020001000400000009",
    ):
        assert bytes.fromhex(value) in segment
    results = lines(done.folder / "results.jsonl")
    assert [one["cause"] for one in results].count("lock_timeout") == 1
    assert_is_the_truth(done.folder, done, "share_group_state")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"dialect": "draft"}, "--dialect draft: give one of share_group_state, control_records, both"),
        ({"release": "3.9"}, "--release 3.9: give one of 4.0, "),
        (
            {"release": "4.5"},
            "--release 4.5: Kafka 4.5 is not out, so what its brokers will write is not known; give one of 4.0, ",
        ),
        ({"groups": 0}, "--groups 0: give at least 1"),
        ({"dialect": CONTROL, "groups": 101}, "--groups 101: the draft allows at most 100"),
        ({"codec": "lzo"}, "--codec lzo: give one of none, gzip, snappy, lz4, zstd"),
    ],
)
def test_what_cannot_be_simulated_is_refused_before_anything_is_written(tmp_path, given, why):
    with pytest.raises(ShareStateError, match=why):
        simulate(tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(SimulationError, match="is not empty; give a new or empty folder"):
        simulate(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_events_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(SimulationError, match=r"events\.jsonl: cannot be read \(No such file"):
        simulate(tmp_path / "out", events=tmp_path / "events.jsonl")
    assert not (tmp_path / "out").exists()


def test_an_event_that_cannot_be_read_leaves_nothing_behind(tmp_path):
    good = {"event": "init", "seq": 0, "ts_ms": 1, "group": "G", "topic": "T", "state_epoch": 1, "start_offset": 0}
    events, out = tmp_path / "events.jsonl", tmp_path / "out"
    events.write_text(json.dumps(good) + "\n" + json.dumps(good | {"partition": -1}) + "\n")
    out.mkdir()
    with pytest.raises(ShareStateError, match=r"event line 2: init\.partition: "):
        simulate(out, events=events)
    assert list(out.iterdir()) == []


def played_over_control_records(folder: Path, *acks: list[Any], gaps: bool) -> list[dict[str, Any]]:
    """The results of a fetch of 0-9 and acknowledgements, where offset 0 holds the group's first checkpoint."""
    common = {"ts_ms": 0, "group": "g", "topic": "t"}
    events = [
        {"event": "init", "state_epoch": 1, "start_offset": 0},
        {"event": "open", "leader_epoch": 0},
        {"event": "acquire", "member": "m", "log_batches": [[0, 9]]},
        *({"event": "ack", "member": "m", "batches": [ack]} for ack in acks),
    ]
    text = [json.dumps(event | common | {"seq": seq}) for seq, event in enumerate(events)]
    (folder / "events").write_text("\n".join(text))
    options: dict[str, Any] = {"dialect": CONTROL, "release": "4.3", "traces": True, "control_offsets_as_gaps": gaps}
    simulate(folder / "out", events=folder / "events", **options)
    return lines(folder / "out/results.jsonl")[2:]


def test_no_fetch_of_the_draft_acquires_a_control_record(tmp_path):
    fetch, refused, ack = played_over_control_records(tmp_path, [0, 9, [1]], [1, 9, [1]], gaps=False)
    assert fetch["acquired"] == [[1, 9, 1]]
    assert (refused["error"], refused["message"]) == ("INVALID_RECORD_STATE", "offsets 0-0 are ARCHIVED, not ACQUIRED")
    assert (ack["error"], ack["delta"]) == ("NONE", [[0, 0, 4, 1], [1, 9, 2, 1]])
    assert (ack["start_offset"], ack["end_offset"]) == (10, 10)


def test_control_offsets_can_be_acknowledged_as_gaps(tmp_path):
    fetch, ack = played_over_control_records(tmp_path, [0, 9, [1]], gaps=True)
    assert fetch["acquired"] == [[0, 9, 1]]
    assert (ack["error"], ack["delta"]) == ("NONE", [[0, 0, 4, 1], [1, 9, 2, 1]])
    assert lines(tmp_path / "out/events.jsonl")[-1]["batches"] == [[0, 9, [0, *[1] * 9]]]


@pytest.mark.parametrize("gaps", [True, False])
def test_a_group_of_the_draft_moves_on_over_its_control_records(tmp_path, gaps):
    simulate(tmp_path, seed=1, groups=1, minutes=2, dialect=CONTROL, control_offsets_as_gaps=gaps)
    acks = [event for event in lines(tmp_path / "events.jsonl") if event["event"] == "ack"]
    types = {kind for event in acks for _, _, kinds in event["batches"] for kind in kinds}
    assert (0 in types) == gaps
    topics = json.loads((tmp_path / "topics.json").read_text())
    ends = {(one["name"], part["partition"]): part["highWatermark"] for one in topics for part in one["partitions"]}
    for row in lines(tmp_path / "control-truth.jsonl"):
        assert row["startOffset"] > ends[row["topic"], row["partition"]] - 300


def test_a_leader_of_the_draft_may_also_write_a_checkpoint_at_the_end(tmp_path: Path):
    """O-2: after so many deltas, or also when SPSO = SPEO."""
    early = list[int]()
    for at_end in (False, True):
        folder = tmp_path / str(at_end)
        simulate(folder, seed=2, groups=1, minutes=2, dialect=CONTROL, traces=True, checkpoints_at_end=at_end)
        deltas = [one for one in lines(folder / "results.jsonl") if "delta" in one]
        of_end = [one["checkpoint"] for one in deltas if "checkpoint" in one]
        early.append(sum(one["start_offset"] == one["end_offset"] for one in of_end))
        assert any("checkpoint" not in one for one in deltas)
    assert early[0] * 2 < early[1]


@pytest.mark.parametrize(
    ("release", "begin"), [("4.1", "SuuuSuuS"), ("4.2.0", "SuuuSuuS"), ("4.2", "SuuSuuSu"), ("4.3.1", "SuuSuuSu")]
)
def test_releases_keep_their_patch_level_where_it_matters(tmp_path: Path, release: str, begin: str):
    """K-45, C-29: up to 4.2.0 the first cycle has one more update. Source: ShareCoordinatorShard.handleShareUpdate."""
    simulate(tmp_path, seed=7, groups=1, minutes=1, release=release, updates_per_snapshot=2)
    kinds = set[str]()
    for folder in sorted(tmp_path.glob("__share_group_state-*")):
        records, keys = decoded(folder)
        for number in range(keys):
            of_key = records.rows["kind"][records.rows["key"] == number]
            kinds.add("".join("Su"[kind] for kind in of_key[:8].tolist()))
    assert begin in kinds
