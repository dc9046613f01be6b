"""What one night's input did wrong, a later night mends; what was right once is not taken back."""

import json
import re
import shutil
from collections import Counter
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import cycle, product
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.compute as pc
import pytest

from share_state.config.input_spec import OPTIONS, input_spec
from share_state.delta.committed import CommittedTables
from share_state.delta.reader import open_table
from share_state.delta.warehouse_place import check_warehouse_path
from share_state.errors import InputError, WarehouseError
from share_state.pipeline import audit as audit_module
from share_state.pipeline.audit import NOTHING_NEW, OTHER_RULES, run_audit
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.planning import build_plan
from share_state.pipeline.reconstruct import run_reconstruct
from share_state.pipeline.result import RunResult
from share_state.pipeline.resume import ALL_LOGS, VACUUMED
from share_state.report.audit_data import read_report
from share_state.report.page import render_page
from share_state.sources.discovery import find_logs
from tests.fold.control_records.logs import at, checkpoint
from tests.fold.control_records.logs import log_of as control_log
from tests.kafka.batches import NOW, Batch, Record, in_bytes
from tests.log_writer import batch, snapshot, update, write_log_folder
from tests.profiles import by_profile, nightly, some_of
from tests.sources.formats.tables import table_of, write
from tests.truth import DATA, without_topics

FUZZ = DATA / "4.3.1/fuzz"
TOPIC = "AAAAAAAAAAAAAAAAAAAAAA"
KEY = ("g", TOPIC, 0)
MINUTE = 60_000

Tables = dict[str, list[dict[str, Any]]]


def audit(
    place: Path | list[Path],
    warehouse: Path,
    *,
    afresh: tuple[str, ...] = (),
    by_wall_clock: bool = False,
    **spec: Any,
) -> RunResult:
    """One night."""
    sources = [{"path": str(path)} for path in (place if isinstance(place, list) else [place])]
    plan = build_plan(input_spec(OPTIONS, sources=sources, **spec), OPTIONS)
    shaping = {"limits": str(spec.get("limits")), "rules": str(spec.get("rules")), "clock": str(by_wall_clock)}
    return run_audit(
        lambda _: nullcontext(LocalExecutor()),
        plan,
        str(warehouse),
        options=shaping,
        by_wall_clock=by_wall_clock,
        afresh=afresh,
    )


def tables(warehouse: Path) -> Tables:
    """State, in-flight and cutoff as a reader finds them."""
    committed = CommittedTables(str(warehouse))
    return {
        name: sorted(committed.read(name).to_pylist(), key=lambda row: json.dumps(row, default=str))
        for name in ("share_partition_state", "in_flight", "cutoff")
    }


def rules_found(warehouse: Path) -> Counter[str]:
    """How often each rule is in the table of findings."""
    return Counter(CommittedTables(str(warehouse)).read("findings")["rule"].to_pylist())


def once(place: Path | list[Path], tmp_path: Path, **spec: Any) -> Tables:
    """The tables of one audit."""
    warehouse = tmp_path / f"once-{len(list(tmp_path.glob('once-*')))}"
    audit(place, warehouse, **spec)
    return tables(warehouse)


def verdicts(warehouse: Path) -> dict[str, str]:
    """Verdict by group, of the latest audit."""
    committed = CommittedTables(str(warehouse))
    rows = committed.read("share_partition_history").to_pylist()
    return {row["group_id"]: row["verdict"] for row in rows if row["run_id"] == committed.run["run_id"]}


def _without_a_segment(folder: Path) -> None:
    sorted(folder.glob("__share_group_state-0/*.log"))[1].unlink()


def _with_a_damaged_batch(folder: Path) -> None:
    path = sorted(folder.glob("__share_group_state-0/*.log"))[0]
    data = path.read_bytes()
    path.write_bytes(data[:3000] + bytes([data[3000] ^ 1]) + data[3001:])


def _with_a_cut_segment(folder: Path) -> None:
    path = sorted(folder.glob("__share_group_state-0/*.log"))[0]
    path.write_bytes(path.read_bytes()[:3000])


@pytest.mark.parametrize("spoil", some_of([_with_a_damaged_batch, _without_a_segment, _with_a_cut_segment], 1))
def test_a_bad_copy_heals_as_soon_as_the_copy_is_whole(tmp_path: Path, spoil: Any):
    shutil.copytree(FUZZ, tmp_path / "bad")
    spoil(tmp_path / "bad")
    audit(tmp_path / "bad", tmp_path / "w")
    assert False in CommittedTables(str(tmp_path / "w")).read("cutoff")["safe"].to_pylist()
    healed = audit(FUZZ, tmp_path / "w")
    assert any("__share_group_state-0 is read from its start again" in note for note in healed.notes)
    assert tables(tmp_path / "w") == once(FUZZ, tmp_path)
    assert audit(FUZZ, tmp_path / "w").records == 0


@nightly("three audits; a bad copy alone heals in the test above")
def test_a_bad_copy_heals_with_a_second_copy_beside_it(tmp_path: Path):
    shutil.copytree(FUZZ, tmp_path / "bad")
    _with_a_damaged_batch(tmp_path / "bad")
    audit(tmp_path / "bad", tmp_path / "w")
    audit([tmp_path / "bad", FUZZ], tmp_path / "w")
    found, expected = tables(tmp_path / "w"), once(FUZZ, tmp_path)
    assert found == expected


@nightly("three audits")
def test_damage_that_no_byte_of_the_input_has_changed_is_not_read_again(tmp_path: Path):
    without_topics(FUZZ, tmp_path / "bad")
    _with_a_damaged_batch(tmp_path / "bad")
    first = audit(tmp_path / "bad", tmp_path / "w")
    before, found = tables(tmp_path / "w"), rules_found(tmp_path / "w")
    shutil.move(tmp_path / "bad", tmp_path / "moved")
    assert first.findings["error", "CRC_MISMATCH"] == 1
    assert audit(tmp_path / "moved", tmp_path / "w").notes == (NOTHING_NEW,)
    grown = tmp_path / "moved/__share_group_state-1"
    (sorted(grown.glob("*.log"))[-1]).rename(tmp_path / "aside")
    assert audit(tmp_path / "moved", tmp_path / "w").records == 0
    assert (tables(tmp_path / "w"), rules_found(tmp_path / "w")["CRC_MISMATCH"]) == (before, found["CRC_MISMATCH"])


@nightly("six audits; test_table_nights names one")
def test_afresh_reads_what_it_names_from_its_start(tmp_path: Path):
    first = audit(FUZZ, tmp_path / "w")
    again = audit(FUZZ, tmp_path / "w", afresh=("__share_group_state-1",))
    assert 0 < again.records < first.records
    assert audit(FUZZ, tmp_path / "w", afresh=(ALL_LOGS,)).records == first.records
    assert tables(tmp_path / "w") == once(FUZZ, tmp_path)
    with pytest.raises(InputError, match="--afresh: __share_group_state-9 is not in the input; found __share_group"):
        audit(FUZZ, tmp_path / "w", afresh=("__share_group_state-9",))


REPLICAS = Path(__file__).parents[1] / "pipeline" / "replicas"


def test_a_stale_replica_takes_nothing_back(tmp_path: Path):
    audit(REPLICAS / "b1", tmp_path / "w", state_partitions=4)
    before = tables(tmp_path / "w")
    stale = audit(REPLICAS / "b2-stale", tmp_path / "w", state_partitions=4)
    assert stale.findings["info", "LOG_BEHIND"] == 1
    assert tables(tmp_path / "w") == before


@nightly("three audits")
def test_the_cutoff_is_safe_again_once_the_log_start_has_passed_a_loss(tmp_path: Path):
    records = [
        batch([snapshot(("g", TOPIC, number), start_offset=number, snapshot_epoch=epoch)])
        for epoch in range(3)
        for number in range(3)
    ]
    place = write_log_folder(tmp_path / "logs", 0, records, a_segment=1)
    (place / f"{1:020}.log").unlink()
    audit(tmp_path / "logs", tmp_path / "w")
    assert [row["safe"] for row in tables(tmp_path / "w")["cutoff"]] == [False]
    for offset in (0, 2):
        (place / f"{offset:020}.log").unlink()
    audit(tmp_path / "logs", tmp_path / "w")
    # Segments may be missing from the copy, until a file of the broker shows that its log begins there.
    assert [row["safe"] for row in tables(tmp_path / "w")["cutoff"]] == [False]
    (place / "leader-epoch-checkpoint").write_text("0\n1\n0 3\n")
    audit(tmp_path / "logs", tmp_path / "w", afresh=(ALL_LOGS,))
    assert [row["safe"] for row in tables(tmp_path / "w")["cutoff"]] == [True]


def test_a_loss_before_the_recorded_log_start_makes_nothing_unsafe(tmp_path: Path):
    records = [batch([snapshot(("g", TOPIC, number))]) for number in (0, 1, 0, 1)]
    place = write_log_folder(tmp_path / "logs", 0, records)
    (segment,) = place.iterdir()
    data = segment.read_bytes()
    segment.write_bytes(data[:80] + bytes([data[80] ^ 1]) + data[81:])
    (tmp_path / "logs/log-start-offset-checkpoint").write_text("0\n1\n__share_group_state 0 2\n")
    audit(tmp_path / "logs", tmp_path / "w")
    assert [row["safe"] for row in tables(tmp_path / "w")["cutoff"]] == [True]


@nightly("two audits")
@pytest.mark.parametrize("count", some_of([1, 3], 1))
def test_a_log_is_known_by_its_number_never_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int):
    source = {1: tmp_path / "made/__share_group_state-0", 3: FUZZ / "__share_group_state-2"}[count]
    write_log_folder(tmp_path / "made", 0, [batch([snapshot(KEY)])])
    for name in ("monday", "tuesday", "__share_group_state-2" if count == 3 else "__share_group_state-0"):
        shutil.copytree(source, tmp_path / name)
    audit(tmp_path / "monday", tmp_path / "w", state_partitions=count)
    before = tables(tmp_path / "w")
    assert before["cutoff"][0]["partition"] == count - 1
    monkeypatch.chdir(tmp_path)
    for place in (Path("monday"), tmp_path / "tuesday", tmp_path / source.name, [Path("monday"), Path("tuesday")]):
        audit(place, tmp_path / "w", state_partitions=count)
        assert tables(tmp_path / "w") == before


def test_a_log_known_by_its_path_in_an_earlier_release_is_forgotten(tmp_path: Path):
    audit(FUZZ, tmp_path / "w")
    table = open_table(str(tmp_path / "w/carried_logs"))
    rows = CommittedTables(str(tmp_path / "w")).read("carried_logs").to_pylist()
    assert table is not None
    assert {row["log"] for row in rows} == {f"__share_group_state-{number}" for number in range(3)}


@nightly("three audits; as many partitions in tests/spark/test_audit")
@pytest.mark.parametrize("has_ids", some_of([True, False], 1))
def test_a_topic_made_anew_with_fewer_partitions_leaves_nothing_of_the_old(tmp_path: Path, has_ids: bool):
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, count, time in ((old, 4, NOW), (new, 1, NOW + MINUTE)):
        for number in range(count):
            record = snapshot((f"g{number}", TOPIC, 0))
            place = write_log_folder(folder, number, [batch([record], timestamp=time) for _ in range(3)])
            if has_ids:
                (place / "partition.metadata").write_text(f"version: 0\ntopic_id: {folder.name}\n")
    audit(old, tmp_path / "w", rules={"WRONG_PARTITION": "off"})
    again = audit(new, tmp_path / "w")
    assert again.findings["info", "LOG_BEGUN_AGAIN"] == 1
    assert tables(tmp_path / "w") == once(new, tmp_path)
    assert "STATE_PARTITION_MISSING" not in rules_found(tmp_path / "w")


@nightly("three audits")
def test_a_log_that_was_pruned_and_has_not_grown_is_news(tmp_path: Path):
    records = [batch([snapshot(KEY, snapshot_epoch=epoch)]) for epoch in range(6)]
    place = write_log_folder(tmp_path / "logs", 0, records, a_segment=1)
    audit(tmp_path / "logs", tmp_path / "w")
    assert tables(tmp_path / "w")["cutoff"][0]["redundant_records"] == 5
    for offset in range(5):
        (place / f"{offset:020}.log").unlink()
    assert NOTHING_NEW not in audit(tmp_path / "logs", tmp_path / "w").notes
    assert tables(tmp_path / "w")["cutoff"][0]["redundant_records"] == 0
    assert tables(tmp_path / "w") == once(tmp_path / "logs", tmp_path)


@nightly("five audits")
@pytest.mark.parametrize("number", some_of([1, 2], 1))
def test_a_log_that_is_away_does_not_change_how_many_there_are(tmp_path: Path, number: int):
    shutil.copytree(FUZZ, tmp_path / "logs")
    shutil.rmtree(tmp_path / "logs/__share_group_state-2")
    empty = tmp_path / "logs/__share_group_state-2"
    empty.mkdir()
    # An empty log has nothing to resume from, and counts nevertheless.
    (empty / f"{7:020}.log").write_bytes(b"")
    audit(tmp_path / "logs", tmp_path / "w")
    before, found = tables(tmp_path / "w"), rules_found(tmp_path / "w")
    shutil.move(tmp_path / f"logs/__share_group_state-{number}", tmp_path / "elsewhere")
    for _ in range(3):
        audit(tmp_path / "logs", tmp_path / "w")
        assert rules_found(tmp_path / "w") == found + Counter(STATE_PARTITION_MISSING=1)
        assert tables(tmp_path / "w") == before


@nightly("three audits")
def test_the_last_run_is_the_one_that_committed_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write_log_folder(tmp_path / "logs", 0, [batch([snapshot(KEY)]) for _ in range(4)], a_segment=1)
    last = folder / f"{3:020}.log"
    data = last.read_bytes()
    last.unlink()
    audit(tmp_path / "logs", tmp_path / "w")
    last.write_bytes(data)

    class Earlier(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2020, 1, 1, tzinfo=UTC)

    with monkeypatch.context() as patch:
        patch.setattr("share_state.delta.warehouse.datetime", Earlier)
        patch.setattr(audit_module, "datetime", Earlier)
        later = audit(tmp_path / "logs", tmp_path / "w")
    committed = CommittedTables(str(tmp_path / "w"))
    assert committed.run["run_id"] == later.run_id
    assert committed.runs["sequence"].to_pylist() == [1, 0]
    assert tables(tmp_path / "w")["cutoff"][0]["log_end_offset"] == 4
    # By the clock of today the export is old, which the first audit says.
    audit(tmp_path / "logs", tmp_path / "w")
    assert audit(tmp_path / "logs", tmp_path / "w").notes == (NOTHING_NEW,)


@nightly("four audits; the logs do the same")
def test_a_table_without_one_of_its_partitions_keeps_what_it_held(tmp_path: Path):
    rows = table_of(find_logs([str(FUZZ)]))
    for name, kept in (("whole", rows), ("part", rows.filter(pc.field("partition") != 1))):
        write(kept, tmp_path / name / "rows.parquet")
    audit(tmp_path / "whole", tmp_path / "w", state_partitions=3)
    before = tables(tmp_path / "w")
    missing = audit(tmp_path / "part", tmp_path / "w", state_partitions=3)
    assert missing.findings["error", "STATE_PARTITION_MISSING"] == 1
    assert tables(tmp_path / "w") == before
    audit(tmp_path / "whole", tmp_path / "w", state_partitions=3)
    assert tables(tmp_path / "w") == before
    # Segments after a table are read from their start: a table has no positions.
    audit(FUZZ, tmp_path / "w", state_partitions=3)
    assert tables(tmp_path / "w") == once(FUZZ, tmp_path)


@nightly("six audits; settings of later nights are judged in tests/spark/test_audit, too")
def test_findings_of_a_rule_that_is_off_go_and_changed_limits_name_what_stays(tmp_path: Path):
    first = audit(FUZZ, tmp_path / "w")
    assert first.findings["error", "TERMINAL_STATE_LEFT"]
    assert rules_found(tmp_path / "w")["TERMINAL_STATE_LEFT"]
    off = audit(FUZZ, tmp_path / "w", rules={"TERMINAL_STATE_LEFT": "off"})
    assert OTHER_RULES in off.notes
    assert "TERMINAL_STATE_LEFT" not in rules_found(tmp_path / "w")
    limits = {"delivery_count": 2}
    assert OTHER_RULES in audit(FUZZ, tmp_path / "w", limits=limits).notes
    again = audit(FUZZ, tmp_path / "w", limits=limits, afresh=(ALL_LOGS,))
    assert OTHER_RULES not in again.notes
    audit(FUZZ, tmp_path / "other", limits=limits)
    assert rules_found(tmp_path / "w") == rules_found(tmp_path / "other")


@nightly("three audits")
@pytest.mark.parametrize("afresh", [(), (ALL_LOGS,)])
def test_a_rewind_is_seen_even_if_the_log_is_read_anew(tmp_path: Path, afresh: tuple[str, ...]):
    records = [batch([snapshot(KEY, start_offset=100)]), batch([snapshot(KEY, start_offset=48)])]
    write_log_folder(tmp_path / "before", 0, records[:1])
    write_log_folder(tmp_path / "after", 0, records)
    audit(tmp_path / "before", tmp_path / "w")
    assert verdicts(tmp_path / "w") == {"g": "OK"}
    audit(tmp_path / "after", tmp_path / "w", afresh=afresh)
    assert verdicts(tmp_path / "w") == {"g": "REWIND"}


IN_FLIGHT = [(0, 9, 2, 1), (10, 19, 0, 1)]


def _log_of(folder: Path, number: int, *minutes: float) -> Path:
    """A share-partition with offsets that wait, written to at some minutes."""
    records = [
        batch(
            [update((f"g{number}", TOPIC, 0), [(20 + place, 20 + place, 2, 1)])], timestamp=NOW + int(minute * MINUTE)
        )
        for place, minute in enumerate(minutes[1:])
    ]
    first = batch([snapshot((f"g{number}", TOPIC, 0), IN_FLIGHT)], timestamp=NOW + int(minutes[0] * MINUTE))
    return write_log_folder(folder, number, [first, *records], a_segment=1)


@nightly("three audits")
def test_share_partitions_of_a_log_that_is_missing_do_not_seem_to_stop(tmp_path: Path):
    for folder in ("before", "after"):
        _log_of(tmp_path / folder, 1, 0, 1, *((120,) if folder == "after" else ()))
    _log_of(tmp_path / "before", 0, 0, 1)
    audit(tmp_path / "before", tmp_path / "w")
    audit(tmp_path / "after", tmp_path / "w")
    assert verdicts(tmp_path / "w")["g0"] == "OK"


def test_a_record_stamped_in_the_future_does_not_make_others_seem_to_stop(tmp_path: Path):
    future = 60 * 24 * 365 * 100
    place = _log_of(tmp_path / "logs", 0, 0, 1, future)
    extra = write_log_folder(
        tmp_path / "more",
        0,
        [batch([snapshot(("g0", TOPIC, 0), IN_FLIGHT)], timestamp=NOW + 2 * MINUTE)],
        base_offset=3,
    )
    shutil.copy(next(extra.iterdir()), place)
    audit(tmp_path / "logs", tmp_path / "w")
    assert verdicts(tmp_path / "w") == {"g0": "OK"}
    assert CommittedTables(str(tmp_path / "w")).run["log_time"] == datetime.fromtimestamp(NOW / 1000 + 120, UTC)


def test_a_log_that_ends_in_the_future_is_judged_by_the_clock_of_the_audit(tmp_path: Path):
    now = (datetime.now(UTC).timestamp() * 1000 - NOW) / MINUTE
    _log_of(tmp_path / "logs", 0, now - 1, now + 60 * 24)
    audit(tmp_path / "logs", tmp_path / "w")
    assert verdicts(tmp_path / "w") == {"g0": "OK"}


@nightly("three audits")
def test_by_the_wall_clock_all_durations_end_at_the_audit(tmp_path: Path):
    began = int(datetime.now(UTC).timestamp() * 1000) - 90 * MINUTE
    waiting = batch([snapshot(KEY, [(0, 4, 3, 5), (5, 9, 0, 1)])], timestamp=began)
    write_log_folder(tmp_path / "logs", 0, [waiting])
    for by_wall_clock, verdict, is_stuck in ((False, "OK", False), (True, "STOP", True), (False, "OK", False)):
        audit(tmp_path / "logs", tmp_path / "w", by_wall_clock=by_wall_clock)
        assert verdicts(tmp_path / "w") == {"g": verdict}
        assert ("ARCHIVING_STUCK" in rules_found(tmp_path / "w")) is is_stuck


@pytest.mark.parametrize(
    ("count", "timestamp"), some_of([(-128, NOW), (127, NOW), (1, 2**63 - 1), (1, 253_402_300_800_000)], 2)
)
def test_extreme_counts_and_timestamps_stop_no_audit(tmp_path: Path, count: int, timestamp: int):
    odd = batch([update(KEY, [(0, 1, 0, count), (2, 3, 3, count)])], timestamp=timestamp)
    write_log_folder(tmp_path / "logs", 0, [batch([snapshot(KEY)], timestamp=NOW), odd])
    audit(tmp_path / "logs", tmp_path / "w")
    assert [row["delivery_count"] for row in tables(tmp_path / "w")["in_flight"]] == [count, count]
    time = CommittedTables(str(tmp_path / "w")).run["log_time"]
    assert time == (datetime.fromtimestamp(NOW / 1000, UTC) if timestamp == NOW else None)
    assert "</html>" in render_page(read_report(str(tmp_path / "w")))


def test_a_checkpoint_without_a_start_offset_stops_no_audit(tmp_path: Path):
    control_log(tmp_path / "logs", at({0: checkpoint("g", 1, -1, 5), 1: checkpoint("h", 1, 0, 5)}), topic="orders")
    audit(tmp_path / "logs", tmp_path / "w")
    assert verdicts(tmp_path / "w") == {"g": "OK", "h": "OK"}


def test_a_stop_is_still_seen(tmp_path: Path):
    _log_of(tmp_path / "logs", 0, 0, 1)
    other = batch([snapshot(("other", TOPIC, 0))], timestamp=NOW + 120 * MINUTE)
    write_log_folder(tmp_path / "more", 0, [other], base_offset=2)
    shutil.copy(next((tmp_path / "more/__share_group_state-0").iterdir()), tmp_path / "logs/__share_group_state-0")
    audit(tmp_path / "logs", tmp_path / "w")
    assert verdicts(tmp_path / "w") == {"g0": "STOP", "other": "OK"}
    rows = CommittedTables(str(tmp_path / "w")).read("share_partition_history").to_pylist()
    (reason,) = {row["reason"] for row in rows} - {None}
    assert re.fullmatch(r"\d+ records wait, and no consumer has changed the state for (2 h|1 h 5\d min)", reason)


@nightly("three audits")
def test_a_log_that_is_missing_keeps_its_log_start(tmp_path: Path):
    records = [batch([snapshot(KEY)]) for _ in range(3)]
    for number in (0, 1):
        write_log_folder(tmp_path / "logs", number, records, base_offset=500)
    audit(tmp_path / "logs", tmp_path / "w")
    before = tables(tmp_path / "w")
    shutil.rmtree(tmp_path / "logs/__share_group_state-1")
    for _ in range(2):
        audit(tmp_path / "logs", tmp_path / "w")
        assert tables(tmp_path / "w")["cutoff"] == before["cutoff"]


@nightly("four runs")
def test_a_warehouse_whose_audit_was_replaced_and_vacuumed_is_read_anew(tmp_path: Path):
    audit(FUZZ, tmp_path / "w")
    counted = CommittedTables(str(tmp_path / "w")).read("group_outcomes")
    assert len(counted)
    plan = build_plan(input_spec(OPTIONS, sources=[{"path": str(DATA / "4.3.1/happy")}]), OPTIONS)
    run_reconstruct(LocalExecutor(), plan, str(tmp_path / "w"))
    for name in ("findings", "in_flight", "share_partition_state", "cutoff"):
        table = open_table(str(tmp_path / "w" / name))
        assert table is not None
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert VACUUMED in audit(FUZZ, tmp_path / "w").notes
    assert tables(tmp_path / "w") == once(FUZZ, tmp_path)
    # No delivery is counted twice.
    assert CommittedTables(str(tmp_path / "w")).read("group_outcomes").equals(counted)
    assert audit(FUZZ, tmp_path / "w").records == 0


@nightly("five audits")
def test_settled_findings_are_kept_once(tmp_path: Path):
    found = []
    for place in (DATA / "4.3.1/codec-lz4", FUZZ, FUZZ):
        audit(place, tmp_path / "w", afresh=(ALL_LOGS,) * (place != FUZZ))
        found.append(rules_found(tmp_path / "w"))
    audit(FUZZ, tmp_path / "once")
    assert found[1] - Counter(LOG_BEGUN_AGAIN=3, LOG_DIVERGED=3) == found[2] - Counter(
        LOG_BEGUN_AGAIN=3, LOG_DIVERGED=3
    )
    assert found[2] - Counter(LOG_BEGUN_AGAIN=3, LOG_DIVERGED=3) == rules_found(tmp_path / "once")


def test_a_path_that_deltalake_cannot_read_is_refused_before_anything_is_written(tmp_path: Path):
    with pytest.raises(WarehouseError, match="deltalake cannot read %20 in a path"):
        check_warehouse_path(str(tmp_path / "a%20b/w"))
    check_warehouse_path(str(tmp_path / "100% of it"))


def _random_with_a_large_length(data: bytes) -> bytes:
    noise = Random(7).randbytes(len(data))
    return noise[:8] + b"\x7f\0\0\0" + noise[12:]


@nightly("four audits")
@pytest.mark.parametrize("overwritten", some_of([lambda data: bytes(len(data)), _random_with_a_large_length], 1))
def test_an_overwritten_log_is_an_error_every_night_until_it_is_whole(tmp_path: Path, overwritten: Any):
    shutil.copytree(DATA / "4.3.1/happy", tmp_path / "logs")
    audit(tmp_path / "logs", tmp_path / "w")
    before = tables(tmp_path / "w")
    (segment,) = (tmp_path / "logs/__share_group_state-0").glob("*.log")
    whole = segment.read_bytes()
    segment.write_bytes(overwritten(whole))
    for _ in range(2):
        audit(tmp_path / "logs", tmp_path / "w")
        assert (rules_found(tmp_path / "w")["LOG_UNREADABLE"], tables(tmp_path / "w")) == (1, before)
        assert read_report(str(tmp_path / "w")).failing >= 1
    fresh = audit(tmp_path / "logs", tmp_path / "fresh")
    assert fresh.findings["error", "LOG_UNREADABLE"] == 1
    assert False in CommittedTables(str(tmp_path / "fresh")).read("cutoff")["safe"].to_pylist()
    segment.write_bytes(whole)
    audit(tmp_path / "logs", tmp_path / "w")
    assert (rules_found(tmp_path / "w")["LOG_UNREADABLE"], tables(tmp_path / "w")) == (0, before)


@nightly("four audits; one night of each is in tests/kafka")
def test_noise_at_the_resume_point_is_unreadable_and_a_few_zeros_are_a_torn_tail(tmp_path: Path):
    shutil.copytree(FUZZ, tmp_path / "logs")
    audit(tmp_path / "logs", tmp_path / "w")
    segment = max((tmp_path / "logs/__share_group_state-0").glob("*.log"))
    whole = segment.read_bytes()
    for added, rule in ((_random_with_a_large_length(bytes(300)), "LOG_UNREADABLE"), (bytes(8), "TORN_TAIL")):
        segment.write_bytes(whole + added)
        audit(tmp_path / "logs", tmp_path / "w")
        assert rules_found(tmp_path / "w")[rule] == 1


@pytest.mark.parametrize(
    ("size", "index", "found"), [(1 << 20, bytes(800), 0), (1 << 20, b"\0\0\0\x09", 1), (1000, b"", 1)]
)
def test_a_newest_segment_of_zeros_is_preallocated_if_it_is_large_and_not_indexed(
    tmp_path: Path, size: int, index: bytes, found: int
):
    place = write_log_folder(tmp_path / "logs", 0, [batch([snapshot(KEY)])])
    (place / f"{1:020}.log").write_bytes(bytes(size))
    (place / f"{1:020}.index").write_bytes(index)
    assert audit(tmp_path / "logs", tmp_path / "w").findings.get(("error", "LOG_UNREADABLE"), 0) == found


def test_many_findings_are_a_thousand_rows_and_one_that_counts_the_others(tmp_path: Path):
    gaps = [snapshot(KEY, snapshot_epoch=2 * number) for number in range(1501)]
    folder = write_log_folder(tmp_path / "logs", 0, [batch(gaps)])
    unreadable = Batch([Record(b"\0\0\0", b"") for _ in range(2500)], base_offset=1501)
    with next(folder.glob("*.log")).open("ab") as segment:
        segment.write(in_bytes([unreadable]))
    result = audit(tmp_path / "logs", tmp_path / "w")
    expected = {"SNAPSHOT_EPOCH_GAP": 1500, "KEY_MALFORMED": 2500}
    assert {rule: result.findings["error", rule] for rule in expected} == expected
    assert {rule: rules_found(tmp_path / "w")[rule] for rule in expected} == dict.fromkeys(expected, 1001)
    rows = CommittedTables(str(tmp_path / "w")).read("findings").to_pylist()
    rest = {row["rule"]: (row["offset"], dict(row["evidence"])["findings"]) for row in rows
            if "findings" in dict(row["evidence"])}  # fmt: skip
    assert rest == {"SNAPSHOT_EPOCH_GAP": (1500, "500"), "KEY_MALFORMED": (4000, "1500")}
    found = {one.rule: (one.count, one.failing) for one in read_report(str(tmp_path / "w")).findings}
    assert {rule: found[rule] for rule in expected} == {rule: (count, count) for rule, count in expected.items()}


def _remove(folder: Path) -> None:
    shutil.rmtree(folder)


def _remove_files(folder: Path) -> None:
    for file in folder.glob("*.parquet"):
        file.unlink()


def _cut_files(folder: Path) -> None:
    for file in folder.glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:-20])


DAMAGES = (_remove, _remove_files, _cut_files)
TABLES = (
    "runs", "share_partition_history", "carried_logs", "carried_share_partitions", "in_flight", "findings", "cutoff",
)  # fmt: skip


@pytest.mark.parametrize(
    ("table", "damage"), by_profile([*zip(TABLES[1::3], cycle(DAMAGES))], [*product(TABLES, DAMAGES)])
)
def test_lost_tables_are_made_anew_from_the_logs(tmp_path: Path, table: str, damage: Any):
    write_log_folder(tmp_path / "logs", 0, [batch([snapshot(KEY), update(KEY, [(0, 4, 2, 1)], snapshot_epoch=7)])])
    audit(tmp_path / "logs", tmp_path / "w")
    before, found = tables(tmp_path / "w"), rules_found(tmp_path / "w")
    damage(tmp_path / "w" / table)
    notes = audit(tmp_path / "logs", tmp_path / "w").notes
    assert VACUUMED in notes or any(f"{table} lost rows" in note for note in notes) or table == "runs"
    assert (tables(tmp_path / "w"), rules_found(tmp_path / "w")) == (before, found)
    assert read_report(str(tmp_path / "w")).failing
    again = audit(tmp_path / "logs", tmp_path / "w")
    assert (again.records, VACUUMED in again.notes) == (0, False)
    if table not in ("runs", "share_partition_history"):
        history = CommittedTables(str(tmp_path / "w")).read("share_partition_history")
        assert len(history["run_id"].unique()) == 3
