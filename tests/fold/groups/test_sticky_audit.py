"""The audit of sticky assignors over logs of `__consumer_offsets`: the worked example (3.4), and one rule at a time."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from share_state.fold.groups.group_tables import FoldedGroups, fold_groups
from share_state.fold.groups.sticky import FoldedSticky, fold_sticky
from share_state.kafka.classic_groups import read_generations
from share_state.rules.findings import findings as judged
from share_state.rules.registry import Scope, registered
from share_state.sources.discovery import find_group_logs
from tests.fold.groups.group_writer import (
    assignment,
    classic_group,
    classic_member,
    subscription,
    user_data,
    write_group_log,
)
from tests.fold.groups.test_group_records import CLASSIC_V3
from tests.kafka.batches import Record

TOPICS = ("t1", "t2")


def resolved(folded: FoldedGroups, sizes=None, *, history=False) -> FoldedSticky:
    generations = read_generations(folded.classic, folded.sticky if history else ())
    return fold_sticky(*generations, sizes, history=history)


def sticky(tmp_path, *records: Record, sizes=None, history=False) -> FoldedSticky:
    place = write_group_log(tmp_path, records)
    folded = fold_groups(find_group_logs([str(place)]))
    assert folded.faults == []
    return resolved(folded, sizes, history=history)


def findings(audited: FoldedSticky) -> list[tuple]:
    """(rule, severity, topic, partition, member or members) of every finding."""
    rows = judged(Scope.CLAIMS, audited).to_pylist()
    evidence = [dict(row["evidence"]) for row in rows]
    return sorted(
        (row["rule"], row["severity"], row["topic"], row["partition"], more.get("member") or more.get("members"))
        for row, more in zip(rows, evidence, strict=True)
    )


def codes(audited: FoldedSticky) -> list[str]:
    return [rule for rule, *_ in findings(audited)]


def plain(name: str, claims, generation, assigned, *, subscribed=None, instance=None, topics=TOPICS) -> dict:
    """A member of a quiet sticky group; its subscription tells its claims' generation unless told otherwise."""
    data = None if claims is None else user_data(claims, generation)
    told = generation if subscribed is None and generation is not None else subscribed
    return classic_member(
        name, subscription(topics, data, generation=-1 if told is None else told), assignment(assigned), instance
    )


EXAMPLE = (
    ("c1", "000000020002743100000002000000000000000100027432000000010000000000000007", 7, {"t1": [0, 1]}),
    ("c2", "0000000200027431000000010000000100027432000000010000000100000005", -1, {"t2": [1, 0]}),
    ("c3", "000000010002743200000002000000000000000200000007", 7, {"t2": [2]}),
    ("c4", None, -1, {"t1": [2]}),
)


def members_of(members: Sequence[tuple]) -> list[dict]:
    return [
        classic_member(
            name,
            subscription(TOPICS, None if data is None else bytes.fromhex(data), generation=subscribed),
            assignment(assigned),
        )
        for name, data, subscribed, assigned in members
    ]


def example_of(folder: Path, members: Sequence[tuple]) -> FoldedSticky:
    """Section 3.4: group cg, generation 8, topics t1 and t2 of 3 partitions; assigned as Kafka did."""
    return sticky(folder, classic_group("cg", 8, members_of(members)), sizes={"t1": 3, "t2": 3})


@pytest.fixture
def example(tmp_path) -> FoldedSticky:
    return example_of(tmp_path, EXAMPLE)


def test_the_worked_example_has_seven_claims(example):
    """P3-33, P3-38: a row a claim, with all that it is grouped by."""
    rows = example.sticky_claim.to_pylist()
    assert [(row["member_id"], row["topic"], row["partition"], row["claim_generation"]) for row in rows] == [
        ("c1", "t1", 0, 7),
        ("c1", "t1", 1, 7),
        ("c1", "t2", 0, 7),
        ("c2", "t1", 1, 5),
        ("c2", "t2", 1, 5),
        ("c3", "t2", 0, 7),
        ("c3", "t2", 2, 7),
    ]
    assert {(row["subscription_generation"], row["userdata_version"]) for row in rows} == {(7, 1), (None, 1)}
    assert {(row["group_id"], row["group_generation"], row["record_offset"]) for row in rows} == {("cg", 8, 0)}


@pytest.mark.parametrize("order", [(3, 2, 1, 0), (1, 3, 0, 2)])
def test_the_order_of_the_members_changes_nothing(example, tmp_path, order):
    again = example_of(tmp_path / "again", [EXAMPLE[number] for number in order])
    by_place = [(name, "ascending") for name in ("topic", "partition", "member_id")]
    assert again.sticky_claim.sort_by(by_place).equals(example.sticky_claim.sort_by(by_place))
    left_out = ["other_claims"]
    assert again.effective_previous_assignment.drop_columns(left_out).equals(
        example.effective_previous_assignment.drop_columns(left_out)
    )
    assert findings(again) == findings(example)


def test_the_worked_example_resolves_as_it_says(example):
    """S-08: generation 7 beats 5 on t1-1."""
    rows = example.effective_previous_assignment.to_pylist()
    assert [
        (
            f"{row['topic']}-{row['partition']}",
            row["owner"],
            row["owner_generation"],
            row["status"],
            [f"{claim['member_id']}@{claim['claim_generation']}" for claim in row["other_claims"]],
        )
        for row in rows
    ] == [
        ("t1-0", "c1", 7, "UNCONTESTED", []),
        ("t1-1", "c1", 7, "WON_BY_GENERATION", ["c2@5"]),
        ("t1-2", None, None, "UNCLAIMED", []),
        ("t2-0", None, 7, "INVALIDATED_SAME_GENERATION", ["c1@7", "c3@7"]),
        ("t2-1", "c2", 5, "STALE_UNCONTESTED", []),
        ("t2-2", "c3", 7, "UNCONTESTED", []),
    ]
    assert {row["kafka_order_dependent"] for row in rows} == {False}


def test_the_worked_example_has_exactly_its_findings(example):
    assert findings(example) == [
        ("DOUBLE_CLAIM", "warning", "t2", 0, "c1, c3"),
        ("LOST_TO_NEWER", "info", "t1", 1, "c2"),
        ("NEW_MEMBER", "info", None, None, "c4"),
        ("STALE_CLAIM", "warning", "t1", 1, "c2"),
        ("STALE_CLAIM", "warning", "t2", 1, "c2"),
    ]
    rows = judged(Scope.CLAIMS, example).to_pylist()
    lags = [dict(row["evidence"])["lag"] for row in rows if row["rule"] == "STALE_CLAIM"]
    assert lags == ["2", "2"]


def test_kafka_s_own_record_has_three_claims_and_no_finding(tmp_path):
    """P3-9, P3-38."""
    record = Record(bytes.fromhex("000200026367"), bytes.fromhex(CLASSIC_V3))
    audited = sticky(tmp_path, record)
    rows = audited.sticky_claim.to_pylist()
    assert [(row["topic"], row["partition"], row["claim_generation"]) for row in rows] == [
        ("t1", 0, 7),
        ("t1", 1, 7),
        ("t2", 3, 7),
    ]
    assert {(row["group_generation"] - 1 - row["claim_generation"]) for row in rows} == {0}
    assert findings(audited) == []


QUIET = (
    plain("m1", {"t1": [0, 1]}, 7, {"t1": [0, 1]}),
    plain("m2", {"t1": [2], "t2": [0]}, 7, {"t1": [2], "t2": [0]}),
)


def test_a_quiet_group_has_no_finding(tmp_path):
    """S-01, S-02, S-09."""
    audited = sticky(tmp_path, classic_group("cg", 8, QUIET))
    assert len(audited.sticky_claim) == 4
    assert findings(audited) == []


def test_deleted_and_empty_groups_say_nothing(tmp_path):
    gone = classic_group("gone", 8, QUIET)
    records = [gone, Record(gone.key, None), classic_group("empty", 8, [], protocol=None)]
    audited = sticky(tmp_path, *records, history=False)
    assert audited.generations == ()
    assert findings(audited) == []


def test_the_latest_record_of_a_group_counts_unless_history_is_asked_for(tmp_path):
    records = [classic_group("cg", 8, QUIET), classic_group("cg", 9, [plain("m1", {"t1": [0]}, 8, {"t1": [0]})])]
    place = write_group_log(tmp_path, records)
    folded = fold_groups(find_group_logs([str(place)]))
    assert {row["record_offset"] for row in resolved(folded).sticky_claim.to_pylist()} == {1}
    assert {row["record_offset"] for row in resolved(folded, history=True).sticky_claim.to_pylist()} == {0, 1}


def test_a_partition_of_two_members_is_found(tmp_path):
    """S-03, the symptom of KAFKA-7026."""
    members = [plain("m1", {"t1": [0]}, 7, {"t1": [0]}), plain("m2", {"t1": [1]}, 7, {"t1": [0, 1]})]
    audited = sticky(tmp_path, classic_group("cg", 8, members))
    assert findings(audited) == [
        ("DOUBLE_ASSIGNED", "warning", "t1", 0, "m1, m2"),
        ("MOVED", "info", "t1", 0, None),
    ]


def test_double_assignment_is_found_under_any_assignor_but_that_of_streams(tmp_path):
    members = [classic_member(name, subscription(["t1"]), assignment({"t1": [0]})) for name in ("m1", "m2")]
    records = [classic_group("plain", 8, members, "range"), classic_group("streams", 8, members, "stream")]
    rows = judged(Scope.CLAIMS, sticky(tmp_path, *records)).to_pylist()
    assert [(row["rule"], row["group_id"]) for row in rows] == [("DOUBLE_ASSIGNED", "plain")]


def test_a_claim_to_what_was_not_assigned_is_found(tmp_path):
    """S-06, P3-37: m1 claims t1-1 as of generation 5, in which it had t1-0 alone."""
    records = [
        classic_group("cg", 5, [plain("m1", None, None, {"t1": [0]})]),
        classic_group("cg", 6, [plain("m1", {"t1": [1]}, 5, {"t1": [1]})]),
    ]
    audited = sticky(tmp_path, *records, history=True)
    assert ("FALSE_CLAIM", "warning", "t1", 1, None) in findings(audited)
    assert codes(audited) == ["FALSE_CLAIM", "NEW_MEMBER"]


def test_a_static_member_is_known_by_its_instance(tmp_path):
    records = [
        classic_group("cg", 5, [plain("m1", None, None, {"t1": [0]}, instance="i")]),
        classic_group("cg", 6, [plain("m2", {"t1": [0]}, 5, {"t1": [0]}, instance="i")]),
        classic_group("cg", 7, [plain("m3", {"t1": [0]}, 6, {"t1": [0]}, instance="j")]),
    ]
    assert codes(sticky(tmp_path, *records, history=True)) == ["FALSE_CLAIM", "NEW_MEMBER"]


def test_a_claim_whose_generation_is_gone_cannot_be_checked(tmp_path):
    audited = sticky(tmp_path, classic_group("cg", 8, QUIET), history=True)
    assert findings(audited) == [
        ("UNVERIFIABLE", "info", None, None, "m1"),
        ("UNVERIFIABLE", "info", None, None, "m2"),
    ]


def test_a_generation_that_falls_is_found(tmp_path):
    """S-16: 7, then 1."""
    records = [
        classic_group("cg", 8, [plain("m1", {"t1": [0]}, 7, {"t1": [0]})]),
        classic_group("cg", 9, [plain("m1", {"t1": [0]}, 1, {"t1": [0]})]),
    ]
    found = sticky(tmp_path, *records, history=True)
    rows = [row for row in judged(Scope.CLAIMS, found).to_pylist() if row["rule"] == "GENERATION_RESET"]
    assert [(row["offset"], row["message"]) for row in rows] == [(1, "m1 names generation 1 after 7")]


@pytest.mark.parametrize(
    ("protocol", "severity"), [("range", "warning"), ("roundrobin", "warning"), ("my-own", "info"), ("stream", None)]
)
def test_user_data_of_an_assignor_without_state_is_found(tmp_path, protocol, severity):
    """S-12, S-15: they claim nothing; 4 bytes of user data are not theirs. Streams has a state of its own."""
    member = classic_member("m1", subscription(["t1"], b"data"), assignment({"t1": [0]}))
    audited = sticky(tmp_path, classic_group("cg", 8, [member], protocol))
    assert len(audited.sticky_claim) == 0
    expected = [("UNEXPECTED_USER_DATA", severity, None, None, "m1")] if severity else []
    assert findings(audited) == expected


@pytest.mark.parametrize("data", [None, b""])
def test_no_user_data_of_an_assignor_without_state_is_as_it_should_be(tmp_path, data):
    """Some clients write empty user data in place of none."""
    member = classic_member("m1", subscription(["t1"], data), assignment({"t1": [0]}))
    assert findings(sticky(tmp_path, classic_group("cg", 8, [member], "range"))) == []


def test_groups_of_others_than_consumers_are_left_alone(tmp_path):
    member = classic_member("m1", b"\xff\xff any", b"\xff\xff any")
    assert findings(sticky(tmp_path, classic_group("cg", 8, [member], "sticky", kind="connect"))) == []


def test_the_cooperative_assignor_claims_its_owned_partitions(tmp_path):
    """P3-32: by the generation of the subscription, else of the user data."""
    newer = classic_member("m1", subscription(["t1"], generation=7, owned={"t1": [0]}), assignment({"t1": [0]}))
    older = classic_member(
        "m2", subscription(["t1"], bytes.fromhex("00000006"), version=1, owned={"t1": [1]}), assignment({"t1": [1]})
    )
    new = classic_member("m3", subscription(["t1"], bytes.fromhex("ffffffff"), version=1), assignment({"t1": [2]}))
    audited = sticky(tmp_path, classic_group("cg", 8, [newer, older, new], "cooperative-sticky"))
    rows = audited.sticky_claim.to_pylist()
    assert [(row["member_id"], row["partition"], row["claim_generation"], row["userdata_version"]) for row in rows] == [
        ("m1", 0, 7, None),
        ("m2", 1, 6, None),
    ]
    assert codes(audited) == ["NEW_MEMBER", "STALE_CLAIM"]


def test_user_data_that_cannot_be_read_is_found_and_claims_nothing(tmp_path):
    member = classic_member("m1", subscription(TOPICS, bytes.fromhex("000000090102")), assignment({"t1": [0]}))
    audited = sticky(tmp_path, classic_group("cg", 8, [member]))
    assert findings(audited) == [("UNPARSEABLE_USER_DATA", "warning", None, None, "m1")]


def test_bytes_behind_user_data_are_told(tmp_path):
    data = user_data({"t1": [0]}, 7) + b"\1\2\3"
    member = classic_member("m1", subscription(TOPICS, data, generation=7), assignment({"t1": [0]}))
    assert findings(sticky(tmp_path, classic_group("cg", 8, [member]))) == [
        ("TRAILING_BYTES", "info", None, None, "m1")
    ]


def test_a_malformed_subscription_is_found_and_the_other_members_still_count(tmp_path):
    bad = classic_member("m1", b"\xff\xff\0\0\0\0", assignment({"t1": [0]}))
    audited = sticky(tmp_path, classic_group("cg", 8, [bad, plain("m2", {"t1": [1]}, 7, {"t1": [1]})]))
    assert findings(audited) == [("MALFORMED_SUBSCRIPTION", "warning", None, None, "m1")]
    assert len(audited.sticky_claim) == 1


def test_a_malformed_assignment_is_found(tmp_path):
    bad = classic_member("m1", subscription(TOPICS, user_data({"t1": [0]}, 7), generation=7), b"\0")
    assert findings(sticky(tmp_path, classic_group("cg", 8, [bad]))) == [
        ("MALFORMED_ASSIGNMENT", "warning", None, None, "m1")
    ]


@pytest.mark.parametrize("generation", [8, 9])
def test_a_claim_of_the_generation_that_only_begins_is_found(tmp_path, generation):
    record = classic_group("cg", 8, [plain("m1", {"t1": [0]}, generation, {"t1": [0]})])
    assert codes(sticky(tmp_path, record)) == ["CLAIM_AHEAD"]


def test_two_generations_of_one_member_are_told(tmp_path):
    """P3-35; absent against 5 is what a rejoining member tells, and is not."""
    differs = plain("m1", {"t1": [0]}, 5, {"t1": [0]}, subscribed=6)
    absent = plain("m2", {"t1": [1]}, 5, {"t1": [1]}, subscribed=-1)
    audited = sticky(tmp_path, classic_group("cg", 8, [differs, absent]))
    assert findings(audited) == [("GENERATION_MISMATCH", "info", None, None, "m1")]


def test_claims_to_what_does_not_exist_are_told(tmp_path):
    member = plain("m1", {"t1": [0, 5], "gone": [0, 1]}, 7, {"t1": [0]})
    audited = sticky(tmp_path, classic_group("cg", 8, [member]), sizes={"t1": 3, "t2": 3})
    assert findings(audited) == [
        ("PARTITION_OUT_OF_RANGE", "warning", "t1", 5, "m1"),
        ("UNKNOWN_TOPIC", "info", "gone", None, "m1"),
    ]


def test_a_partition_that_moved_is_told_with_what_was_kept(tmp_path):
    """P3-36, S-02: stickiness is kept over owned."""
    members = [plain("m1", {"t1": [0, 1]}, 7, {"t1": [0]}), plain("m2", {"t1": [2]}, 7, {"t1": [1, 2]})]
    (row,) = judged(Scope.CLAIMS, sticky(tmp_path, classic_group("cg", 8, members))).to_pylist()
    assert (row["rule"], row["message"]) == ("MOVED", "t1-1 goes from m1 to m2")
    evidence = dict(row["evidence"])
    assert (evidence["kept"], evidence["owned"], evidence["stickiness"]) == ("2", "3", "0.667")


@pytest.mark.parametrize(("sizes", "fair"), [((2, 2, 1, 1), True), ((3, 1), False), ((1, 1), True), ((2, 0), False)])
def test_members_that_want_the_same_get_as_many_give_or_take_one(tmp_path, sizes, fair):
    members, at = [], 0
    for number, size in enumerate(sizes):
        places = {"t1": list(range(at, at + size))}
        members.append(plain(f"m{number}", places, 7, places))
        at += size
    assert codes(sticky(tmp_path, classic_group("cg", 8, members))) == ([] if fair else ["UNFAIR_ASSIGNMENT"])


def test_an_outcome_that_depends_on_the_order_of_the_members_is_found(tmp_path):
    """P3-24, case C: subscriptions of an old version tell no generation."""
    members = [
        classic_member("A", subscription(["t"], user_data({"t": [0, 1]}, 7), version=1), assignment({"t": [0, 1]})),
        classic_member("B", subscription(["t"], user_data({"t": [1, 2]}, 5), version=1), assignment({"t": [2]})),
    ]
    audited = sticky(tmp_path, classic_group("cg", 8, members))
    assert ("ORDER_DEPENDENT_OUTCOME", "warning", "t", 1, "A, B") in findings(audited)
    dependent = {
        row["partition"] for row in audited.effective_previous_assignment.to_pylist() if row["kafka_order_dependent"]
    }
    assert dependent == {1}


def test_a_claim_without_a_generation_loses_to_any(tmp_path):
    """S-13, P3-12: version 0 counts as generation -1."""
    members = [
        plain("old", {"t1": [0, 1]}, None, {"t1": [0]}),
        plain("new", {"t1": [1, 2]}, 3, {"t1": [1, 2]}),
    ]
    audited = sticky(tmp_path, classic_group("cg", 4, members))
    rows = audited.effective_previous_assignment.to_pylist()
    assert [(row["partition"], row["owner"], row["owner_generation"]) for row in rows] == [
        (0, "old", None),
        (1, "new", 3),
        (2, "new", 3),
    ]
    assert [row["claim_generation"] for row in audited.sticky_claim.to_pylist()] == [None, None, 3, 3]


def test_every_rule_over_claims_is_broken_by_a_test():
    """Each code of the tables is named in this file."""
    text = Path(__file__).read_text(encoding="utf-8")
    assert [
        code for code, rule in registered().items() if Scope.CLAIMS in rule.checks and text.count(f'"{code}"') < 1
    ] == []
