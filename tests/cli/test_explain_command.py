"""`share-state explain`: the records that touched an offset, and the sentence."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands import Command, CommandResult
from tests.kafka.batches import NOW, Batch, Record
from tests.log_writer import Key, snapshot, tombstone, update, write_log_folder
from tests.truth import DATA

KEY: Key = ("app", "AAAAAAAAAAEAAAAAAAAAAg", 3)
CHAOS = DATA / "4.3.1/chaos"


@pytest.fixture
def told(cli: Command, tmp_path: Path) -> Callable[..., str]:
    """The closing sentence about offset 14 of a log of these records, without its beginning."""

    def sentence(*records: Record, options: tuple[str, ...] = (), offset: int = 14) -> str:
        stamped = [Batch([one], base_timestamp=NOW + 1000 * at) for at, one in enumerate(records)]
        write_log_folder(tmp_path / str(len(list(tmp_path.iterdir()))), 0, stamped)
        folder = max(tmp_path.iterdir(), key=lambda path: int(path.name))
        said = _explain(cli, folder, offset, *options)
        assert (said.code, said.err) == (0, "")
        (beginning, end) = said.lines[-1].split(": ", 1)
        assert beginning == f"Offset {offset}"
        return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "THEN", end)

    return sentence


def _explain(cli: Command, folder: Path, offset: int, *options: str) -> CommandResult:
    group, topic, partition = KEY
    return cli("explain", folder, "--group", group, "--topic", topic, "--partition", partition, "--offset", offset,
                 *options)  # fmt: skip


BEGUN = snapshot(KEY, start_offset=10)


def test_an_offset_that_waits_says_for_which_delivery(told):
    waits = update(KEY, [(12, 14, 0, 2)], start_offset=-1)
    assert told(BEGUN, waits) == (
        "waiting for delivery 3 of 5 or acquired right now, since THEN (record 1)"
        " (the group's limit is unknown; 5 is assumed)."
    )
    assert told(BEGUN, waits, options=("--delivery-limit", "3")) == (
        "waiting for delivery 3 of 3 or acquired right now, since THEN (record 1)."
    )
    assert told(BEGUN, waits, options=("--delivery-limit", "2")).startswith("available since THEN")


def test_an_archived_offset_says_whether_the_limit_did_it(told):
    five = ("--delivery-limit", "5")
    assert told(BEGUN, update(KEY, [(12, 14, 4, 5)], start_offset=-1), options=five) == (
        "archived in delivery 5 of 5 (at the delivery limit, or rejected) at THEN (record 1);"
        " SPSO is 10 and waits for offset 10."
    )
    archived = update(KEY, [(10, 14, 4, 1)], start_offset=-1)
    assert told(BEGUN, archived).startswith(
        "archived in delivery 1 (it was rejected, or there was no record to deliver,"
        " or 1 is the group's delivery limit, which is unknown; Kafka's default is 5) at THEN (record 1); "
    )
    assert told(BEGUN, archived, options=five) == (
        "archived in delivery 1 of 5 (it was rejected, or there was no record to deliver) at THEN (record 1); "
        "a leader that loads this state starts after it, at 15."
    )


def test_an_archiving_offset_waits_for_its_dead_letter_write(told):
    said = told(BEGUN, update(KEY, [(10, 14, 3, 5)], start_offset=-1))
    assert (
        said == "being archived since THEN (record 1): its dead-letter write has not finished, and SPSO cannot pass it."
    )


def test_an_offset_below_the_start_says_since_when_and_how_it_ended(told):
    acknowledged = update(KEY, [(14, 14, 2, 2)], start_offset=-1)
    moved = update(KEY, start_offset=20)
    since = "below SPSO since THEN (record 2), which moved SPSO from 10 to 20"
    assert told(BEGUN, acknowledged, moved) == f"acknowledged in delivery 2; {since}."
    assert told(BEGUN, moved, moved) == f"{since.replace('record 2', 'record 1')}; no earlier record is about it."
    assert told(BEGUN, update(KEY, [(14, 14, 0, 1)], start_offset=-1), moved) == (
        f"{since}; before that it was AVAILABLE (1), and no record shows how it ended."
    )
    assert told(BEGUN, offset=5) == (
        "below SPSO since THEN (record 0), which began the state with SPSO 10; the log holds nothing older about it."
    )
    assert told(snapshot(KEY, start_offset=-1), moved).endswith("set the first SPSO, 20: the group starts after it.")


def test_an_offset_that_was_never_delivered_says_why(told):
    apart = update(KEY, [(10, 11, 0, 1), (17, 17, 2, 1)], start_offset=-1)
    assert told(BEGUN, apart) == (
        "no delivery is recorded: inside a gap (12 to 16), which a leader hands out as available;"
        " it may be acquired right now."
    )
    assert told(BEGUN) == (
        "no delivery is recorded: beyond SPEO, the in-flight window ends at 10; it may be acquired right now, or not"
        " exist yet: the end of the topic is not known; give --topics topics.json, which `share-state topics"
        " kafka://HOST:PORT --out topics.json` writes."
    )
    assert told(snapshot(KEY, start_offset=-1)) == (
        "no delivery is recorded: the share-partition has no start offset yet; it may be acquired right now."
    )


def test_a_deleted_state_keeps_nothing(told):
    assert told(BEGUN, update(KEY, [(14, 14, 2, 2)], start_offset=-1), tombstone(KEY)) == (
        "acknowledged in delivery 2 at THEN (record 1); the state was deleted at THEN (record 2);"
        " no state is kept for it now."
    )
    assert told(BEGUN, tombstone(KEY)) == (
        "no state is kept for it; the state of the share-partition was deleted at THEN (record 1)."
    )


ARCHIVED = update(KEY, [(10, 14, 4, 1)], start_offset=-1)
_FIVE = ("--delivery-limit", "5")
_WAS = "archived in delivery 1 of 5 (it was rejected, or there was no record to deliver) at THEN (record 1)"


def test_a_state_that_was_created_again_does_not_deny_what_was_before(told):
    again = snapshot(KEY, start_offset=12)
    assert told(BEGUN, ARCHIVED, tombstone(KEY), again, options=_FIVE) == (
        f"{_WAS}; the state was deleted at THEN (record 2); the state was created again with SPSO 12 at THEN"
        " (record 3); no delivery is recorded since: beyond SPEO, the in-flight window ends at 12; it may be acquired"
        " right now."
    )
    later = snapshot(KEY, start_offset=40)
    assert told(BEGUN, ARCHIVED, tombstone(KEY), later, options=_FIVE) == (
        f"{_WAS}; the state was deleted at THEN (record 2); the state was created again with SPSO 40 at THEN"
        " (record 3); below SPSO since THEN (record 3); no record since is about it."
    )


def test_a_reset_of_one_epoch_later_is_told_even_if_it_goes_forward_or_nowhere(told):
    held = update(KEY, [(12, 14, 0, 1)], start_offset=-1)
    nowhere = snapshot(KEY, start_offset=10, snapshot_epoch=1, state_epoch=1)
    assert told(BEGUN, held, nowhere).startswith(
        "it was AVAILABLE (1) at THEN (record 1); the offsets were reset from 10 to 10 at THEN (record 2);"
        " no delivery is recorded since: beyond SPEO"
    )
    forward = snapshot(KEY, start_offset=20, snapshot_epoch=1, state_epoch=1)
    assert "; below SPSO since THEN (record 2), which reset SPSO from 10 to 20; " in told(BEGUN, held, forward)


def test_a_record_that_drops_a_delivery_is_told(told):
    held = update(KEY, [(12, 14, 0, 1)], start_offset=-1)
    dropped = snapshot(KEY, [(15, 16, 0, 1)], start_offset=10, snapshot_epoch=1)
    said = told(BEGUN, held, dropped)
    assert "it was AVAILABLE (1) at THEN (record 1); the snapshot at THEN (record 2) no longer holds it; " in said
    assert "no delivery is recorded since: SPSO waits at a gap (10 to 14)" in said


def test_deliveries_that_failed_are_told_with_the_time_between_them(told):
    failed = [update(KEY, [(12, 14, 0, count)], start_offset=-1) for count in (1, 2, 3)]
    assert told(BEGUN, *failed, options=_FIVE).endswith("; 3 deliveries failed, 1.0 s apart.")


def test_a_gap_at_spso_is_called_so(cli: Command):
    """Nothing is said of failed deliveries or renewals, and no --offset is needed."""
    one = ("--group", "gs1", "--topic", "YDceSjdmT8S9BTxbi7vQIA", "--partition", 0)
    said = cli("explain", DATA / "cases/gap-stall", *one).lines[-1]
    assert said.startswith(
        "Offset 21: no delivery is recorded: SPSO waits at a gap (21 to 30), which a leader hands out"
    )
    assert "renew" not in said


def test_without_an_offset_the_first_unfinished_one_is_explained(cli: Command, tmp_path: Path):
    finished = update(KEY, [(10, 11, 2, 1), (12, 12, 0, 2), (13, 14, 2, 1)], start_offset=10)
    write_log_folder(tmp_path / "a", 0, [Batch([BEGUN, finished])])
    group, topic, partition = KEY
    words = ("--group", group, "--topic", topic, "--partition", partition)
    assert cli("explain", tmp_path / "a", *words).lines[-1].startswith("Offset 12: waiting for delivery 3")
    for records, error in (
        ([snapshot(KEY, start_offset=-1)], "has no start offset yet; give --offset"),
        ([BEGUN, tombstone(KEY)], "was deleted; give --offset"),
    ):
        write_log_folder(tmp_path / error[:5], 0, [Batch(records)])
        refused = cli("explain", tmp_path / error[:5], *words)
        assert (refused.code, error in refused.err) == (2, True)


def test_each_record_is_told_with_what_it_changed(cli: Command):
    topic = "TVjhhz0IRnqs1P4GOySw0A"
    arguments = ("explain", CHAOS, "--group", "g0", "--topic", topic, "--partition", 1, "--offset", 24)
    found = cli(*arguments, "--json").json
    expected = [
        (297, "snapshot", "uninitialised", None, 0, None),
        (331, "update", "in_flight", 0, 1, 0),
        (374, "update", "in_flight", 2, 2, 24),
        (385, "update", "below_start", None, 2, 69),
        (430, "tombstone", "deleted", None, 0, None),
    ]
    columns = ("offset", "kind", "place", "delivery_state", "deliveries", "start_offset")
    assert [tuple(record[name] for name in columns) for record in found["records"]] == expected
    assert (found["log"], found["topic"], found["topic_id"]) == ("__share_group_state-0", "t3", topic)
    header, *rows = cli(*arguments).out.split("\n\n")[1].splitlines()
    assert header.split()[:4] == ["RECORD", "TIME", "KIND", "CONTENTS"]
    assert [int(row.split()[0]) for row in rows] == [record["offset"] for record in found["records"]]
    named = cli("explain", CHAOS, "--group", "g0", "--topic", "t3", "--partition", 1, "--offset", 24, "--json")
    assert named.json["sentence"] == found["sentence"]
    as_of = cli(*arguments, "--as-of-offset", "0=375", "--json").json
    assert [record["offset"] for record in as_of["records"]] == [297, 331, 374]
    assert as_of["sentence"].startswith("Offset 24: acknowledged in delivery 2 at 2026-11-21 03:07:24 UTC (record 374)")


def test_the_members_that_had_the_partition_are_told_where_their_log_is_there(cli: Command):
    arguments = ("--group", "g0", "--topic", "TVjhhz0IRnqs1P4GOySw0A", "--partition", 1, "--offset", 24, "--json")
    with_groups = cli("explain", CHAOS, *arguments).json["records"]
    assert [record["members"] for record in with_groups] == [None, *[["agaA5V4wQS-IoU7h3Hfwaw"]] * 3, []]
    alone = cli("explain", CHAOS / "__share_group_state-0", *arguments).json
    assert {record["members"] for record in alone["records"]} == {None}
    assert (alone["topic"], len(alone["records"])) == (None, 5)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("nobody", "t3", 1, 24), "group nobody: not found; the nearest of 6 are g5, g4, g3"),
        (("g0", "t9", 1, 24), "topic t9 of group g0: not found; the nearest of 4 are t3, t2, t1"),
        (("g0", "t3", 9, 24), "partition 9 of topic t3 of group g0: not found; there are 0, 1"),
        (("g0", "t3", 1, -1), "--offset -1: give at least 0"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(cli: Command, wrong: tuple, said: str):
    group, topic, partition, offset = wrong
    found = cli("explain", CHAOS, "--group", group, "--topic", topic, "--partition", partition, f"--offset={offset}")
    assert (found.code, found.out, found.err) == (2, "", f"share-state: {said}\n")


def test_charts_know_the_topic_names_of_the_group_side(cli: Command, tmp_path: Path):
    arguments = ("plot", "deliveries", DATA / "4.4.0/dlq", "--out", tmp_path / "chart.svg")
    assert "Records in flight: " in cli(*arguments, "--group", "dq-auto", "--topic", "t0").out


@pytest.mark.parametrize("chart", ["window", "offsets", "deliveries"])
def test_a_chart_of_an_unknown_share_partition_is_refused(cli: Command, tmp_path: Path, chart: str):
    arguments = ("plot", chart, DATA / "4.4.0/dlq", "--out", tmp_path / "chart.svg", "--group", "dq-auto")
    said = cli(*arguments, "--topic", "t9", "--partition", 0)
    error = "topic t9 of group dq-auto: not found; there is t0"
    assert (said.code, said.out, said.err) == (2, "", f"share-state: {error}\n")


def test_a_record_without_a_timestamp_is_named_alone(cli: Command):
    text = DATA / "4.3.1/happy/console-consumer-formatter.txt"
    row = json.loads(next(line for line in cli("decode", text).lines if '"state_batches": [{' in line))
    key = f"--group={row['group_id']}", f"--topic={row['topic_id']}", f"--partition={row['partition']}"
    said = cli("explain", text, *key, f"--offset={row['state_batches'][0]['first_offset']}")
    assert said.code == 0
    assert re.search(r"(since|at) record \d+", said.lines[-1]), said.lines[-1]


@pytest.mark.parametrize("typed", [["--offset", "1,460"], ["--offset=1,460"], ["--offset", "1460"]])
def test_an_offset_may_be_typed_as_it_is_printed(cli: Command, typed: list[str]):
    place = ["--group", "g3", "--topic", "t0", "--partition", "2"]
    found = cli("explain", DATA / "4.3.1/chaos", *place, *typed, "--json")
    assert found.json["offset"] == 1460


@pytest.mark.parametrize("typed", ["14,60", "1,46", ",460", "1,,460", "0,460,00"])
def test_other_commas_are_no_number(cli: Command, typed: str):
    place = ["--group", "g3", "--topic", "t0", "--partition", "2"]
    refused = cli("explain", DATA / "4.3.1/chaos", *place, "--offset", typed)
    assert (refused.code, refused.out) == (2, "")
    assert typed in refused.err


def test_offsets_and_limits_in_pairs_may_be_typed_as_they_are_printed(cli: Command):
    typed, plain, wrong = (
        cli("cutoff", CHAOS, "--as-of-offset", f"0={offset}", "--limit", limit)
        for offset, limit in (
            ("1,000", "record_locks=2,000"),
            ("1000", "record_locks=2000"),
            ("1,00", "record_locks=2,000"),
        )
    )
    assert typed.code == 0
    assert typed.out == plain.out
    assert (wrong.code, wrong.out) == (2, "")
