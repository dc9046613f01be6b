"""Plans that deliver lost, given-up and rejected records again: which offsets, what shows them, and the commands."""

import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from share_state import repair
from share_state.delta.committed import CommittedTables
from share_state.repairs.commands import MOST_COPIED, KafkaTools
from share_state.repairs.redrive import RedrivePlan
from tests.cli.commands import Command, run_cli
from tests.kafka.batches import NOW, Record
from tests.log_writer import Key, batch, snapshot, tombstone, update, write_log_folder
from tests.pipeline.test_dead_letter_topics import Export, letter
from tests.profiles import nightly
from tests.truth import DATA

KEY: Key = ("app", "AAECAwQFBgcICQoLDA0ODw", 0)
ACKNOWLEDGED, ARCHIVING, ARCHIVED = 2, 3, 4
REAL = DATA / "4.4.0/dead-letters"

POISON = [
    [snapshot(KEY)],
    [update(KEY, [(0, 9, ACKNOWLEDGED, 1), (10, 10, ARCHIVED, 5), (11, 12, ARCHIVED, 1)])],
    [update(KEY, [(13, 19, ACKNOWLEDGED, 1)], start_offset=13)],
    [update(KEY, [(20, 21, ARCHIVING, 5), (22, 24, ACKNOWLEDGED, 2)], start_offset=20)],
]
"""Record 10 is given up, 11 and 12 are rejected, the dead letters of 20 and 21 are being written."""


@pytest.fixture
def share_state(capfd: pytest.CaptureFixture[str]) -> Command:
    return partial(run_cli, capfd)


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Path]:
    """Writes a state log and the topics beside it, and returns its folder."""

    def write(batches: Sequence[Sequence[Record]], log_start: int | None = 0, base_offset: int = 0) -> Path:
        starts = {} if log_start is None else {"start_offsets": {"0": log_start}}
        topics = {KEY[1]: {"name": "orders", "partitions": 1, "end_offsets": {"0": 100}, **starts}}
        (tmp_path / "topics.json").write_text(json.dumps(topics))
        timed = [batch(records, timestamp=NOW + 1000 * at) for at, records in enumerate(batches)]
        shutil.rmtree(tmp_path / "__share_group_state-0", ignore_errors=True)
        write_log_folder(tmp_path, 0, timed, base_offset=base_offset)
        return tmp_path

    return write


def _plan(folder: Path, **options: Any) -> RedrivePlan:
    return repair(folder, redrive=True, topics=folder / "topics.json", **options)


def _rows(plan: RedrivePlan) -> list[tuple[Any, ...]]:
    """First and last offset, outcome, dead letter, record and retention of the only share-partition."""
    (one,) = plan.redrives
    return [
        (row.first_offset, row.last_offset, row.outcome, row.dead_letter, row.record, row.is_retained)
        for row in one.unprocessed.ranges
    ]


def test_a_poison_record_that_spso_has_passed_is_found_in_the_log(export: Callable[..., Path]) -> None:
    plan = _plan(export(POISON))
    assert _rows(plan) == [
        (10, 10, "given_up", "none", 1, True),
        (11, 12, "rejected", "none", 1, True),
        (20, 21, "given_up", "waiting", 3, True),
    ]
    copy, reset = plan.redrives[0].options
    assert (copy.action, reset.action) == ("COPY_ALL", "RESET_START")
    assert 'TopicPartition("orders", 0)' in copy.command
    assert "ranges = {{10L, 12L}}" in copy.command
    # 10 to 24 are finished, or in ARCHIVING: all of them come again.
    assert "15 offsets, of which only 3 are meant" in reset.what
    assert "--to-offset=10 --group=app --topic=orders:0" in reset.command


def test_a_limit_decides_what_was_given_up(export: Callable[..., Path]) -> None:
    outcomes = [row[2] for row in _rows(_plan(export(POISON), limits={"delivery_count": 6}))]
    assert outcomes == ["rejected"] * 3


@nightly("an audit")
def test_offsets_that_a_reset_delivers_again_need_no_redrive(export: Callable[..., Path]) -> None:
    reset = [snapshot(KEY, start_offset=11, snapshot_epoch=1, state_epoch=1)]
    (one,) = _plan(export([*POISON, reset, [update(KEY, [(11, 11, ACKNOWLEDGED, 1)])]])).redrives
    assert [(row.first_offset, row.last_offset) for row in one.unprocessed.ranges] == [(10, 10)]
    assert one.unprocessed.returned == ((11, 12), (20, 21))
    again = [update(KEY, [(11, 11, ARCHIVED, 5)])]
    (one,) = _plan(export([*POISON, reset, again])).redrives
    assert [(row.first_offset, row.last_offset) for row in one.unprocessed.ranges] == [(10, 10), (11, 11)]
    # 11 was counted twice.
    assert one.unprocessed.only_counted == 0
    text = _plan(export([*POISON, [tombstone(KEY)]])).markdown()
    assert "left out, because a reset or a deletion made them deliverable again: 5 offsets: 10-12, 20-21" in text
    assert "```bash" not in text


@pytest.mark.parametrize(
    ("log_start", "rows", "copied"),
    [
        (11, [(10, 10, False), (11, 12, True), (20, 21, True)], "{{11L, 12L}}"),
        (12, [(10, 10, False), (11, 11, False), (12, 12, True), (20, 21, True)], "{{12L, 12L}}"),
        (None, [(10, 10, None), (11, 12, None), (20, 21, None)], "{{10L, 12L}}"),
    ],
)
def test_only_records_that_the_topic_may_hold_are_copied(
    export: Callable[..., Path], log_start: int | None, rows: list[tuple[Any, ...]], copied: str
) -> None:
    plan = _plan(export(POISON, log_start))
    assert [(first, last, is_retained) for first, last, *_, is_retained in _rows(plan)] == rows
    copy = plan.redrives[0].options[0]
    assert f"ranges = {copied};" in copy.command
    assert ("The log start of the topic is unknown" in copy.what) == (log_start is None)


@nightly("two audits")
def test_what_only_audits_have_counted_is_a_number_without_offsets(
    export: Callable[..., Path], share_state: Command, tmp_path: Path
) -> None:
    """The broker prunes the records that showed it."""
    lake = tmp_path / "lake"
    audit = ("audit", tmp_path / "__share_group_state-0", "--out", lake, "--quiet", "--fail-on", "off")
    export(POISON)
    share_state(*audit)
    window = [(20, 21, ARCHIVED, 5), (22, 24, ACKNOWLEDGED, 2)]
    export([[snapshot(KEY, window, start_offset=20, snapshot_epoch=1)]], base_offset=4)
    share_state(*audit)
    found = share_state("repair", lake, "--redrive", "--json", "--quiet").json["share_partitions"][0]
    assert [(row["first_offset"], row["last_offset"], row["record"]) for row in found["ranges"]] == [(20, 21, 4)]
    assert found["only_counted"] == 3
    text = share_state("repair", lake, "--redrive", "--quiet").out
    assert "3 more were given up or rejected by the count of audits; which offsets is not known" in text


def test_a_warehouse_without_its_logs_has_what_is_in_flight(
    export: Callable[..., Path], share_state: Command, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    folder = export([*POISON, [update(KEY, [(20, 21, ARCHIVED, 5), (26, 26, ARCHIVED, 1)])]])
    share_state("audit", folder / "__share_group_state-0", "--out", lake, "--quiet", "--fail-on", "off")
    (folder / "__share_group_state-0").rename(tmp_path / "elsewhere")
    said = share_state("repair", lake, "--redrive", "--json", "--quiet").json
    (found,) = said["share_partitions"]
    assert [(row["first_offset"], row["last_offset"], row["dead_letter"]) for row in found["ranges"]] == [
        (20, 21, "unknown"),
        (26, 26, "unknown"),
    ]
    assert found["only_counted"] == 3
    assert said["notes"][0].startswith("Only what the tables hold is known, because the logs of its last run")


def test_dead_letters_of_a_broker_are_named_with_their_offsets(share_state: Command, tmp_path: Path) -> None:
    """Each letter that the tables hold, but of offsets that the state still delivers, is in the plan once."""
    lake = tmp_path / "lake"
    letters = ("--dead-letters", REAL / "dlq.*", "--dead-letters-copied-last")
    share_state("reconstruct", REAL, "--out", lake, "--quiet", *letters)
    plan = share_state("repair", lake, "--redrive", "--json", "--quiet", "--most", 1000).json
    named, returned = set[tuple[Any, ...]](), set[tuple[Any, ...]]()
    for one in plan["share_partitions"]:
        key = (one["group_id"], one["topic"], one["partition"])
        returned |= {(*key, offset) for first, last in one["returned"] for offset in range(first, last + 1)}
        for row in one["ranges"]:
            places = [
                (copy["topic"], copy["partition"], offset)
                for copy in row["copies"]
                for offset in range(copy["first_offset"], copy["last_offset"] + 1)
            ]
            assert bool(places) == (row["dead_letter"] == "written")
            offsets = range(row["first_offset"], row["last_offset"] + 1)
            named |= {(*key, offset, *place) for offset, place in zip(offsets, places, strict=bool(places))}
    rows = CommittedTables(str(lake)).read("dead_letters").to_pylist()
    held = {
        tuple(row[name] for name in ("group_id", "topic", "partition", "offset", "dead_letter_topic",
                                     "dead_letter_partition", "dead_letter_offset"))
        for row in rows if not row["duplicate"] and row["archived"] is not False
    }  # fmt: skip
    assert len(named) > 1000
    assert named == {row for row in held if row[:4] not in returned}


def test_lost_dead_letters_come_first_and_dead_letters_can_be_copied(export: Callable[..., Path]) -> None:
    """Of 30 to 32 in ARCHIVING, 31 has no dead letter, and the topic holds none of them any more."""
    folder = export(POISON, 31)
    archived = [[update(KEY, [(30, 32, state, 5)])] for state in (ARCHIVING, ARCHIVED)]
    topics = (folder / "topics.json").read_text()
    made = Export(folder).state([snapshot(KEY)], *archived, [update(KEY, start_offset=33)])
    made.letters(letter(30), letter(32))
    (folder / "topics.json").write_text(topics)
    plan = _plan(folder, dead_letters=[folder / "dlq.app-0"], dead_letters_copied_last=True)
    assert [(first, dead, held) for first, _, _, dead, _, held in _rows(plan)] == [
        (30, "written", False), (31, "lost", True), (32, "written", True),
    ]  # fmt: skip
    by_action = {option.action: option for option in plan.redrives[0].options}
    assert list(by_action) == ["COPY_LOST", "COPY_ALL", "COPY_DEAD_LETTERS", "RESET_START"]
    assert "{{31L, 31L}}" in by_action["COPY_LOST"].command
    assert "{{31L, 32L}}" in by_action["COPY_ALL"].command
    dead = by_action["COPY_DEAD_LETTERS"]
    assert 'TopicPartition("dlq.app", 0)' in dead.command
    assert "{{0L, 1L}}" in dead.command
    assert "It is the only way for 1 offset that the topic no longer holds." in dead.what
    assert plan.markdown().index("the dead letter is lost: 1 offset: 31") < plan.markdown().index("was written: 2 off")


def test_a_plan_is_a_script_and_bad_calls_are_refused(
    export: Callable[..., Path], share_state: Command, tmp_path: Path
) -> None:
    folder = export(POISON)
    script = tmp_path / "plan.sh"
    said = share_state("repair", folder, "--redrive", "--out", script, "--quiet")
    assert said.out == f"{script}: 1 share-partition with records that were not processed\n"
    text = script.read_text(encoding="utf-8")
    assert '1.1)  # COPY_ALL\n: "${BOOTSTRAP:?host:port of a broker}"; export BOOTSTRAP' in text
    assert ': "${REDRIVE_TOPIC:?topic to which records are copied}"; export REDRIVE_TOPIC' in text
    refused = share_state("repair", folder, "--redrive", "--group", "ap")
    assert refused.code == 2
    assert "ap" in refused.err
    nothing = share_state("repair", export([[snapshot(KEY, [(0, 3, ACKNOWLEDGED, 1)])]]), "--redrive", "--quiet")
    assert "shows no record that was given up or rejected. What records that are pruned" in nothing.out


def test_many_ranges_are_copied_by_several_calls() -> None:
    ranges = [(2 * at, 2 * at) for at in range(MOST_COPIED + 1)]
    command = KafkaTools("b:9092").copy_records('o"\n', 3, ranges)
    assert command.count("jshell") == 2
    assert command.count("{1000L, 1000L}") == 1
    assert 'TopicPartition("o\\"\\n", 3)' in command
