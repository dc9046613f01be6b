"""Dead letters matched with the state logs: what is lost, duplicate or unexpected, and what cannot be known."""

import json
import re
import shutil
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from share_state.cli.main import run
from share_state.config.input_spec import OPTIONS, input_spec
from share_state.delta.committed import CommittedTables
from share_state.delta.warehouse_place import DEAD_LETTER_TABLES
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.planning import build_plan
from share_state.pipeline.reconstruct import run_reconstruct
from share_state.report.audit_data import read_report
from share_state.report.page import render_page
from share_state.report.prometheus import write_metrics
from tests.kafka.batches import NOW, Batch, Record
from tests.log_writer import Key, batch, snapshot, update, write_log_folder, write_segment
from tests.profiles import nightly
from tests.truth import DATA

REAL = DATA / "4.4.0/dead-letters"
KEY: Key = ("app", "AAECAwQFBgcICQoLDA0ODw", 0)
ARCHIVING, ARCHIVED = 3, 4
SECRET = b"card 4929-7318"
"""In the key, the value and other headers of each dead letter: nothing may show it."""
STEP = 600_000
"""ms between two batches of a state log: longer than a dead letter may take."""


def letter(of: int, *, topic: str = "orders", time: float = 1, **changed: bytes | None) -> Record:
    """A dead letter of an offset of KEY, written `time` steps after the first record of the state log."""
    headers = {"topic": topic.encode(), "partition": b"0", "offset": str(of).encode(), "group": b"app",
               "delivery.count": b"5", "message": b"Offset rejected by client."}  # fmt: skip
    headers |= {name.replace("_", "."): text for name, text in changed.items()}
    named = [(f"__dlq.errors.{name}".encode(), text) for name, text in headers.items() if text is not None]
    return Record(
        b"key of " + SECRET, SECRET, [(b"other", SECRET), (SECRET, b"x"), *named], time_delta=int(time * STEP)
    )


class Export:
    """A state log and a dead-letter topic, and the tables of a run over them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.warehouse = folder, folder / "lake"
        (folder / "topics.json").write_text(json.dumps({KEY[1]: "orders"}))

    def state(self, *batches: Sequence[Record], base_offset: int = 0) -> "Export":
        """Write the state log, each batch a step after the one before it."""
        timed = [batch(records, timestamp=NOW + STEP * number) for number, records in enumerate(batches)]
        shutil.rmtree(self.folder / "__share_group_state-0", ignore_errors=True)
        write_log_folder(self.folder, 0, timed, base_offset=base_offset)
        return self

    def letters(self, *records: Record, base_offset: int = 0) -> "Export":
        """Write the only segment of the dead-letter topic."""
        place = self.folder / "dlq.app-0"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        latest = NOW + max((record.time_delta for record in records), default=0)
        write_segment(place, [Batch(records, base_offset=base_offset, max_timestamp=latest)])
        return self

    def run(
        self, command: str = "reconstruct", dead_letters: str = "dlq.app-0", *, copied_last: bool = True
    ) -> "Export":
        """Run a command that writes the tables."""
        arguments = [command, self.folder / "__share_group_state-0", "--out", self.warehouse]
        arguments += ["--topics", self.folder / "topics.json", "--dead-letters", self.folder / dead_letters]
        arguments += ["--dead-letters-copied-last"] * copied_last
        self.code = run([str(one) for one in arguments])
        return self

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of a table."""
        return CommittedTables(str(self.warehouse)).read(table).to_pylist()

    @property
    def lost(self) -> list[tuple[int, int]]:
        """The ranges without a dead letter."""
        return [(row["first_offset"], row["last_offset"]) for row in self.rows("lost_dead_letters")]

    @property
    def rules(self) -> dict[str, str]:
        """The findings about dead letters: rule -> severity."""
        found = ((row["rule"], row["severity"]) for row in self.rows("findings"))
        return {rule: severity for rule, severity in found if rule.startswith("DEAD_LETTER")}

    @property
    def notes(self) -> str:
        """The notes of the run."""
        return " ".join(CommittedTables(str(self.warehouse)).run["notes"])


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path)


def archived(first: int, last: int) -> list[list[Record]]:
    """The records of offsets that go through ARCHIVING."""
    return [[update(KEY, [(first, last, state, 5)])] for state in (ARCHIVING, ARCHIVED)]


def test_offsets_without_a_dead_letter_are_lost(export: Export):
    export.state([snapshot(KEY)], *archived(10, 14), *archived(20, 20)).letters(letter(10), letter(13), letter(14))
    assert export.run().lost == [(11, 12), (20, 20)]
    assert export.rules == {"DEAD_LETTER_LOST": "error"}
    assert export.code == 1
    (row, _) = export.rows("lost_dead_letters")
    assert (row["group_id"], row["topic"], row["record_count"], row["delivery_count"]) == ("app", "orders", 2, 5)


def test_offsets_that_wait_in_archiving_are_not_lost(export: Export):
    waiting = [update(KEY, [(10, 14, ARCHIVING, 5)])]
    export.state([snapshot(KEY)], waiting).letters(letter(10))
    assert export.run().lost == []
    assert [row["left_by"] for row in export.rows("archiving_ranges")] == [None]


def test_an_offset_that_the_start_passed_without_a_dead_letter_is_lost(export: Export):
    passed = [snapshot(KEY, start_offset=12, snapshot_epoch=1)]
    export.state([snapshot(KEY)], [update(KEY, [(10, 14, ARCHIVING, 5)])], passed, *archived(12, 14))
    assert export.letters(letter(12), letter(13), letter(14)).run().lost == [(10, 11)]


def test_a_dead_letter_written_again_is_a_duplicate(export: Export):
    export.state([snapshot(KEY)], *archived(10, 10)).letters(letter(10), letter(10, time=1.5))
    assert export.run().rules == {"DEAD_LETTER_DUPLICATE": "info"}
    assert [row["duplicate"] for row in export.rows("dead_letters")] == [False, True]


@nightly("three audits")
def test_a_warehouse_without_these_tables_is_continued_and_reports_no_loss(export: Export):
    noted, later = [[snapshot(KEY)], *archived(10, 14)], archived(20, 21)
    audit = ["audit", str(export.state(*noted).folder / "__share_group_state-0"), "--out", str(export.warehouse)]
    assert run(audit) == 0
    assert not [name for name in DEAD_LETTER_TABLES if (export.warehouse / name).exists()]
    export.state(*noted, *later).letters(letter(13), letter(20, time=3.5))
    assert export.run("audit").lost == [(21, 21)]
    assert [(row["offset"], row["archived"]) for row in export.rows("dead_letters")] == [(13, None), (20, True)]
    assert "whether the offsets of 1 dead letter were archived" in export.notes
    # An audit in between is given no dead letters, and 31 waits in ARCHIVING at its end.
    waits, left = archived(31, 31)
    export.state(*noted, *later, *archived(30, 30), waits)
    assert run(audit) == 0
    export.state(*noted, *later, *archived(30, 30), waits, left, *archived(40, 41)).letters(
        *(letter(of, time=time) for of, time in ((13, 1), (20, 3.5), (30, 5.5), (31, 7.5), (40, 9)))
    )
    assert export.run("audit").lost == [(41, 41)]
    assert {row["offset"]: row["archived"] for row in export.rows("dead_letters")}.items() >= {
        31: True,
        40: True,
    }.items()
    assert "DEAD_LETTER_UNEXPECTED" not in export.rules


@nightly("two audits")
def test_an_offset_archived_again_after_a_reset_needs_a_dead_letter_of_its_own(export: Export):
    reset = [snapshot(KEY, snapshot_epoch=1, state_epoch=1)]
    late = [[*one] for one in archived(10, 10)]
    export.state([snapshot(KEY)], *archived(10, 10), reset, *late)
    assert export.letters(letter(10)).run().lost == [(10, 10)]
    assert export.letters(letter(10), letter(10, time=4.5)).run().lost == []
    assert export.rules == {}


def test_a_dead_letter_of_an_offset_that_was_never_archived_is_unexpected(export: Export):
    export.state([snapshot(KEY)], *archived(10, 10)).letters(letter(10), letter(11))
    assert export.run().rules == {"DEAD_LETTER_UNEXPECTED": "warning"}
    assert [row["archived"] for row in export.rows("dead_letters")] == [True, False]


@pytest.mark.parametrize(
    ("base_offset", "time"), [(700, -6), (0, 2)], ids=["pruned before", "newer than the state log"]
)
def test_whether_an_offset_was_archived_outside_of_the_state_log_is_not_guessed(
    export: Export, base_offset: int, time: int
):
    export.state([snapshot(KEY)], *archived(10, 10), base_offset=base_offset)
    export.letters(letter(3, time=time), letter(10)).run()
    assert export.rules == {}
    assert "cannot be known whether the offsets of 1 dead letter were archived" in export.notes


def test_what_retention_may_have_deleted_is_not_lost(export: Export):
    export.state([snapshot(KEY)], *archived(10, 12), *archived(20, 22), *archived(30, 32))
    export.letters(letter(20, time=3), letter(21, time=3), letter(30, time=5), base_offset=40).run()
    assert export.lost == [(31, 32)]
    assert "were written for 4 archived offsets" in export.notes


@nightly("two audits")
def test_what_retention_deleted_between_two_audits_is_not_lost(export: Export):
    states = [[snapshot(KEY)], *archived(10, 11), *archived(20, 21), *archived(30, 31)]
    export.state(*states[:3]).letters(letter(10), letter(11)).run("audit")
    late = (letter(21, time=3), letter(30, time=5))
    export.state(*states).letters(*late, base_offset=3).run("audit")
    assert export.lost == [(31, 31)]
    assert "were written for 1 archived offset: records of that time were deleted" in export.notes
    export.state(*states, [update(KEY)]).letters(*late, base_offset=3).run("audit")
    assert export.lost == [(31, 31)]


@nightly("two audits")
def test_a_copy_that_may_be_older_than_the_state_log_proves_no_loss(export: Export):
    states = [[snapshot(KEY)], *archived(10, 11), *archived(20, 21), *archived(30, 31)]
    export.state(*states).letters(letter(10), letter(20, time=3)).run(copied_last=False)
    assert export.lost == [(11, 11)]
    assert "were written for 3 archived offsets: the dead-letter topic may have been copied before" in export.notes
    # What the start offset passed may be written until a dead letter can take no longer.
    export.state(
        [snapshot(KEY)], [update(KEY, [(10, 10, ARCHIVING, 5)])], [update(KEY, start_offset=11)], *archived(20, 20)
    )
    first = letter(1, partition=b"1", time=0.5)
    assert export.letters(first, letter(20, time=2.1)).run(copied_last=False).lost == []
    assert export.letters(first, letter(20, time=2.8)).run(copied_last=False).lost == [(10, 10)]


def test_a_group_without_a_dead_letter_in_the_copies_may_have_another_topic(export: Export):
    export.state([snapshot(KEY)], *archived(10, 14)).letters(
        letter(10, group=b"other"), letter(90, time=3, group=b"other")
    )
    assert (export.run().lost, export.code) == ([], 0)
    assert "were written for 5 archived offsets: the dead-letter topic of their group is unknown" in export.notes


def test_a_group_whose_topic_is_known_needs_no_dead_letter_to_be_judged(export: Export):
    export.state([snapshot(KEY)], *archived(10, 14)).letters(letter(10, group=b"other", time=0.5))
    spec = {
        "sources": [{"path": str(export.folder / "__share_group_state-0")}],
        "topics": str(export.folder / "topics.json"),
        "dead_letters": [str(export.folder / "dlq.app-0")],
        "dead_letters_copied_last": True,
    }
    plan = build_plan(input_spec(OPTIONS, **spec), OPTIONS)
    for topic, lost in {"dlq.app": [(10, 14)], "dlq.elsewhere": []}.items():
        configured = replace(plan, dead_letter_topics={"app": topic})
        run_reconstruct(LocalExecutor(), configured, str(export.warehouse))
        assert export.lost == lost
    assert "were written for 5 archived offsets: their partition of the dead-letter topic is not among the copies" in (
        export.notes
    )


@nightly("two audits")
def test_a_topic_that_was_created_since_proves_no_loss(export: Export):
    export.state([snapshot(KEY)], *archived(10, 14), *archived(30, 31)).letters(letter(30, time=3))
    assert export.run().lost == [(31, 31)]
    assert (
        "were written for 5 archived offsets: records of that time were deleted from the dead-letter topic, or it"
        in (export.notes)
    )
    # A dead letter of another partition shows that the topic was there.
    export.letters(letter(1, partition=b"1", time=0.5), letter(30, time=3))
    assert export.run().lost == [(10, 14), (31, 31)]


@pytest.mark.parametrize(("pair", "is_known"), [((0, 0), False), ((1, 0), True), ((3, 0), False), ((2, 0), False)])
def test_the_partition_of_a_dead_letter_is_known_if_the_copies_show_their_number(
    pair: tuple[int, int], is_known: bool, export: Export
):
    """Only partition 0 was copied: a letter of source partition 1 in it shows that it is the only one."""
    key = (*KEY[:2], 1)
    records = [[snapshot(key)], *([update(key, [(10, 10, state, 5)])] for state in (ARCHIVING, ARCHIVED))]
    source = str(pair[0]).encode()
    export.state(*records).letters(letter(7, partition=source, time=0.5), letter(8, partition=source, time=3))
    assert export.run().lost == ([(10, 10)] if is_known else [])
    if not is_known:
        assert "their partition of the dead-letter topic is not among the copies" in export.notes


def test_a_reset_while_an_offset_waits_keeps_its_archivings_apart(export: Export):
    reset = [snapshot(KEY, snapshot_epoch=1, state_epoch=1)]
    export.state([snapshot(KEY)], [update(KEY, [(10, 10, ARCHIVING, 5)])], reset, *archived(10, 10))
    assert export.letters(letter(10, time=3.5)).run().lost == []
    assert "were written for 1 archived offset: they were reset" in export.notes
    assert [row["left_by"] for row in export.rows("archiving_ranges")] == ["RESET", "ARCHIVED"]
    assert export.letters(letter(10)).run().lost == [(10, 10)]


def test_a_partition_that_was_not_copied_proves_no_loss(export: Export):
    export.state([snapshot(KEY)], *archived(10, 10)).letters(letter(10, partition=b"1"))
    (export.folder / "dlq.app-0").rename(export.folder / "dlq.app-1")
    assert export.run(dead_letters="dlq.app-1").lost == []
    assert "were written for 1 archived offset: their partition of the dead-letter topic" in export.notes


@nightly("three audits; the test below has three nights")
def test_audits_of_two_nights_have_the_tables_of_one_run(export: Export):
    reset = [snapshot(KEY, snapshot_epoch=1, state_epoch=1)]
    waiting = [[snapshot(KEY)], *archived(10, 12), [update(KEY, [(20, 22, ARCHIVING, 5), (30, 31, ARCHIVING, 5)])]]
    later = [[update(KEY, [(20, 22, ARCHIVED, 5)])], reset, *archived(30, 30), [update(KEY, [(40, 40, ARCHIVING, 5)])]]
    letters = (letter(10), letter(12), letter(20, time=3.5), letter(31, time=3.6), letter(30, time=6.5))
    export.state(*waiting).letters(*letters[:2]).run("audit")
    assert export.lost == [(11, 11)]
    export.state(*waiting, *later).letters(*letters).run("audit")
    names = ("archiving_ranges", "dead_letters", "lost_dead_letters")
    audited, notes = [export.rows(name) for name in names], export.notes
    assert export.lost == [(11, 11), (21, 22)]
    shutil.rmtree(export.warehouse)
    assert export.run().notes == notes
    assert [export.rows(name) for name in names] == audited


def test_records_that_are_no_dead_letters_are_counted(export: Export):
    strangers = [Record(b"k", b"v"), letter(10, partition=b"x"), letter(10, group=None), letter(10, offset=b"9" * 30)]
    export.state([snapshot(KEY)], *archived(10, 10)).letters(*strangers, letter(10, message=None)).run()
    assert export.lost == []
    assert [row["reason"] for row in export.rows("dead_letters")] == [None]
    assert "skipped 4 records without the headers of dead letters" in export.notes


def test_a_topic_without_a_known_id_is_named(export: Export):
    export.state([snapshot(KEY)], *archived(10, 10)).letters(letter(10), letter(1, topic="gone")).run()
    assert export.rules == {}
    assert "the ids of gone are unknown" in export.notes


def test_an_audit_reads_what_is_new_and_forgets_what_was_found(export: Export):
    first = [[snapshot(KEY)], *archived(10, 12)]
    export.state(*first).letters(letter(10), letter(11)).run("audit")
    assert export.lost == [(12, 12)]
    # The next night: the topic has deleted its first records, the late dead letter has arrived, another one is lost.
    export.state(*first, *archived(30, 31)).letters(letter(12, time=1.5), letter(30, time=3), base_offset=2)
    export.run("audit")
    assert export.lost == [(31, 31)]
    assert [row["offset"] for row in export.rows("dead_letters")] == [10, 11, 12, 30]
    assert [row["dead_letter_offset"] for row in export.rows("dead_letters")] == [0, 1, 2, 3]
    export.letters(*(letter(offset, time=3) for offset in (12, 30, 31)), base_offset=2).run("audit")
    assert (export.lost, export.rules) == ([], {})
    export.run("audit")
    assert "nothing new" in export.notes
    assert len(export.rows("dead_letters")) == 5


@nightly("three audits")
def test_what_was_archived_before_the_dead_letters_were_given_stays_unknown(export: Export):
    """The audits before have not noted which offsets went through ARCHIVING."""
    log, offsets = [[snapshot(KEY)], *archived(10, 12)], [10, 11, 12]
    export.state(*log)
    given = [str(export.folder / "__share_group_state-0"), "--topics", str(export.folder / "topics.json")]
    assert run(["audit", *given, "--out", str(export.warehouse)]) == 0
    for night in (1, 2):
        log += archived(20 * night, 20 * night)
        offsets.append(20 * night)
        letters = [letter(one, time=1.5 if one < 20 else 2 * one / 20 + 1.5) for one in offsets]
        export.state(*log).letters(*letters).run("audit")
        assert (export.rules, export.lost) == ({}, [])
        known = {row["offset"]: row["archived"] for row in export.rows("dead_letters")}
        assert known == dict.fromkeys((10, 11, 12)) | dict.fromkeys(offsets[3:], True)
    export.run("audit")
    assert "nothing new" in export.notes


@pytest.mark.parametrize("original_is_last", [False, True])
def test_a_dead_letter_of_a_dead_letter_counts_by_the_headers_of_its_own_broker(export: Export, original_is_last: bool):
    """The topic `orders` is the dead-letter topic of another group, whose headers each record keeps."""
    original = letter(3, topic="origin", group=b"before").headers[2:]
    own = [letter(offset) for offset in (10, 12)]
    records = [
        replace(one, headers=[*one.headers, *original] if original_is_last else [*original, *one.headers])
        for one in own
    ]
    export.state([snapshot(KEY)], *archived(10, 12), *archived(20, 20)).letters(*records, letter(20)).run()
    assert export.lost == [(11, 11)]
    assert {row["group_id"] for row in export.rows("dead_letters")} == {"app"}
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = [
        [{"key": name.decode(), "value": value} for name, value in one.headers if name.startswith(b"__dlq")]
        for one in (*records, letter(20))
    ]
    columns = {
        "topic": pa.repeat("dlq.app", 3),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), 3),
        "offset": pa.array([0, 1, 2]),
        "timestamp": pa.array([NOW + STEP] * 3, pa.timestamp("ms", "UTC")),
        "headers": pa.array(headers, kind),
    }
    pq.write_table(pa.table(columns), export.folder / "dlq.parquet")
    assert export.run(dead_letters="dlq.parquet").lost == [(11, 11)]


def test_a_table_with_headers_is_read_as_segments_are(export: Export, capfd: pytest.CaptureFixture[str]):
    names = ("topic", "partition", "offset", "group", "delivery.count", "message")
    values = [[b"orders", b"0", str(offset).encode(), b"app", b"5", b"why"] for offset in (10, 12)]
    headers = [[{"key": f"__dlq.errors.{name}", "value": one} for name, one in zip(names, row, strict=True)]
               for row in values]  # fmt: skip
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {
        "key": pa.nulls(3, pa.binary()),
        "value": pa.nulls(3, pa.binary()),
        "topic": pa.repeat("dlq.app", 3),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), 3),
        "offset": pa.array([0, 1, 2]),
        "timestamp": pa.array([NOW + STEP] * 3, pa.timestamp("ms", "UTC")),
        "headers": pa.array([headers[0], None, headers[1]], kind),
    }
    pq.write_table(pa.table(columns), export.folder / "dlq.parquet")
    export.state([snapshot(KEY)], *archived(10, 12)).run(dead_letters="dlq.parquet")
    assert export.lost == [(11, 11)]
    pq.write_table(pa.table(columns).drop_columns(["headers"]), export.folder / "dlq.parquet")
    assert export.run(dead_letters="dlq.parquet").code == 2
    write_deltalake(str(export.folder / "dlq.delta"), pa.table(columns))
    assert export.run(dead_letters="dlq.delta").lost == [(11, 11)]
    first = export.folder / "dlq.delta/_delta_log" / f"{0:020}.json"
    needed = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["ofTomorrow"],
                           "writerFeatures": ["ofTomorrow"]}}  # fmt: skip
    first.write_text("\n".join(json.dumps(needed) if '"protocol"' in line else line
                               for line in first.read_text().splitlines()))  # fmt: skip
    capfd.readouterr()
    assert export.run(dead_letters="dlq.delta").code == 2
    assert "ofTomorrow" in capfd.readouterr().err


@pytest.mark.parametrize("dropped", [False, True])
def test_of_a_real_broker_exactly_the_dropped_dead_letters_are_lost(dropped: bool, tmp_path: Path):
    """The dead-letter topic as it is loses nothing; without one of its batches, exactly what that batch holds."""
    arguments = ["--topics", str(REAL / "topics.json"), "--dead-letters"]
    state, whole = str(REAL / "__share_group_state-2"), tmp_path / "whole"
    assert run(["reconstruct", state, "--out", str(whole), *arguments, str(REAL)]) == 0
    letters = CommittedTables(str(whole)).read("dead_letters").to_pylist()
    assert CommittedTables(str(whole)).read("lost_dead_letters").num_rows == 0
    assert sum(bool(row["archived"]) for row in letters) > 200
    if not dropped:
        return
    copy = tmp_path / "copy"
    shutil.copytree(REAL, copy)
    (path,) = (copy / "dlq.all-0").glob("*.log")
    data, batches, at = path.read_bytes(), list[tuple[int, int, bytes]](), 0
    while at < len(data):
        base, length, last = *struct.unpack_from(">qi", data, at), *struct.unpack_from(">i", data, at + 23)
        batches.append((base, base + last, data[at : at + 12 + length]))
        at += 12 + length
    archived_by = {row["dead_letter_offset"] for row in letters if row["archived"] and not row["duplicate"]
                   and row["dead_letter_partition"] == 0}  # fmt: skip
    first, last, _ = max(batches[1:], key=lambda one: len(archived_by & {*range(one[0], one[1] + 1)}))
    path.write_bytes(b"".join(content for base, _, content in batches if base != first))
    assert run(["reconstruct", state, "--out", str(tmp_path / "less"), *arguments, str(copy)]) == 1
    gone = {
        (row["group_id"], row["topic_id"], row["partition"], row["offset"])
        for row in letters
        if row["dead_letter_partition"] == 0 and row["archived"] and first <= row["dead_letter_offset"] <= last
    }
    lost = CommittedTables(str(tmp_path / "less")).read("lost_dead_letters").to_pylist()
    assert gone == {
        (row["group_id"], row["topic_id"], row["partition"], offset)
        for row in lost
        for offset in range(row["first_offset"], row["last_offset"] + 1)
    }


def test_explain_says_where_the_dead_letter_is(export: Export, capfd: pytest.CaptureFixture[str]):
    export.state([snapshot(KEY)], *archived(10, 11)).letters(letter(10))
    command = ["explain", str(export.folder / "__share_group_state-0"), "--group", "app", "--topic", KEY[1]]
    command += ["--topics", str(export.folder / "topics.json"), "--partition", "0"]
    command += ["--dead-letters", str(export.folder / "dlq.app-0"), "--offset"]
    assert run([*command, "10"]) == 0
    assert "Dead letter: dlq.app-0 offset 0, 2023-11-14 22:23:20" in capfd.readouterr().out
    assert run([*command, "11"]) == 0
    assert "no dead letter for this offset" in capfd.readouterr().out


@nightly("an audit and its page")
def test_metrics_and_the_page_count_dead_letters_by_group_and_reason(export: Export):
    export.state([snapshot(KEY)], *archived(10, 12)).letters(letter(10), letter(11, message=None)).run("audit")
    path, report = export.folder / "share_state.prom", read_report(str(export.warehouse))
    write_metrics(str(path), report, 10)
    lines = path.read_text().splitlines()
    assert 'share_state_group_dead_letters{group_id="app",reason="Offset rejected by client."} 1.0' in lines
    assert 'share_state_group_dead_letters{group_id="app",reason=""} 1.0' in lines
    assert 'share_state_group_lost_dead_letters{group_id="app"} 1.0' in lines
    page = render_page(report)
    section = page[page.index('<section id="dead-letters">') : page.index('<section id="poison">')]
    cells = re.findall(r"<td.*?>(.*?)</td>", section, re.DOTALL)
    texts = ["".join(re.sub(r"<[^>]*>", "", one).split()) for one in cells]
    assert texts == ["app", "-", "1", "0", "1", "app", "Offsetrejectedbyclient.", "1", "0", "0"]
    assert "<svg" in section
    shutil.rmtree(export.warehouse)
    assert run(["audit", str(export.folder / "__share_group_state-0"), "--out", str(export.warehouse)]) in (0, 1)
    assert 'id="dead-letters"' not in render_page(read_report(str(export.warehouse)))


def test_keys_values_and_other_headers_are_in_no_output(export: Export, capfd: pytest.CaptureFixture[str]):
    stranger = Record(SECRET, SECRET, [(b"__dlq.errors.topic", b"orders"), (b"other", SECRET)])
    letters = (letter(10), letter(11), letter(11), letter(90), stranger)
    export.state([snapshot(KEY)], *archived(10, 14), [update(KEY, [(20, 20, ARCHIVING, 5)])]).letters(*letters)
    out, lake, dlq = export.folder / "out", str(export.warehouse), str(export.folder / "dlq.app-0")
    out.mkdir()
    export.run("audit")
    report = read_report(lake)
    (out / "page.html").write_text(render_page(report))
    write_metrics(str(out / "metrics.prom"), report, 10)
    source = [str(export.folder / "__share_group_state-0"), "--topics", str(export.folder / "topics.json")]
    place = ["--group", "app", "--topic", "orders", "--partition", "0"]
    for words in (["--offset", "10"], ["--offset", "11", "--json"], ["--offset", "12"]):
        assert run(["explain", *source, *place, *words, "--dead-letters", dlq]) == 0
    for name in ("plan.md", "plan.sh", "plan.json"):
        assert (
            run(
                [
                    "repair",
                    *source,
                    "--dead-letters",
                    dlq,
                    "--set",
                    "limits.archiving_seconds=0",
                    "--out",
                    str(out / name),
                ]
            )
            == 0
        )
    assert run(["repair", lake, "--json"]) == 0
    assert run(["show", lake, "--json"]) == 0
    tables, said = CommittedTables(lake), capfd.readouterr()
    rows = {
        name: str(tables.read(name).to_pylist()) for name in (*DEAD_LETTER_TABLES, "findings", "share_partition_state")
    }
    written = [path.read_bytes() for folder in (out, export.warehouse) for path in folder.rglob("*") if path.is_file()]
    shown = "\n".join([*rows.values(), str(tables.run), said.out, said.err]).encode() + b"".join(written)
    assert SECRET not in shown
    # The one text of a dead letter that is shown is the broker's own.
    assert shown.count(b"Offset rejected by client.") > 5
    assert "ARCHIVING_STUCK" in (out / "plan.md").read_text()
