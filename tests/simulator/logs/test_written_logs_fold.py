"""What a coordinator holds is what the fold makes of the log it wrote, after every record."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_state.fold.state_log import fold_log
from share_state.kafka.releases import RELEASES
from share_state.simulator.coordinator import CoordinatorEntry
from share_state.simulator.log_writer import CODECS, StateTopic, StateTopicSettings, flush_logs
from share_state.simulator.state_values import StateKey, StateRecord
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from tests.present import present
from tests.simulator.logs.conversations import NOW, conversations
from tests.truth import runs, value_by_offset

Row = dict[str, Any]


def row_of(held: CoordinatorEntry) -> Row:
    """What our row of a share-partition must say."""
    state = held.state
    values = value_by_offset([list(batch) for batch in state.batches])
    return {
        "start_offset": state.start_offset,
        "snapshot_epoch": state.snapshot_epoch,
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "delivery_complete_count": state.delivery_complete_count,
        "state_batches": [(*span, *value[::-1]) for *span, value in runs(sorted(values.items()))],
        "create_time": time_of(state.create_timestamp),
        "write_time": time_of(state.write_timestamp),
        "max_leader_epoch": held.max_leader_epoch,
        "max_state_epoch": held.max_state_epoch,
        "snapshot_offset": held.snapshot_offset,
        "last_offset": held.last_offset,
    }


def time_of(milliseconds: int) -> datetime | None:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds) if milliseconds else None


def folded_rows(folder: Path, until: dict[int, int] | None = None) -> dict[StateKey, Row]:
    """Our rows of every state partition, of the records before the offsets."""
    rows = {}
    for log in find_logs([str(folder)]):
        window = Window(until_offset=until[present(log.partition)]) if until else None
        for row in fold_log(log, window).states.to_pylist():
            row["state_batches"] = [tuple(batch.values()) for batch in row["state_batches"]]
            rows[StateKey(row["group_id"], row["topic_id"], row["partition"])] = row
    return rows


def assert_same(rows: dict[StateKey, Row], held: dict[StateKey, Row]) -> None:
    assert rows.keys() == held.keys()
    for key, expected in held.items():
        assert {name: rows[key][name] for name in expected} == expected


@pytest.mark.parametrize("release", RELEASES)
@settings(max_examples=max(1, settings().max_examples // 3))
@given(
    conversations(),
    st.sampled_from([0, 1, 2, 5, 500]),
    st.sampled_from(CODECS),
    st.sampled_from([0, 16_384]),
    st.integers(0, 30),
)
def test_a_prefix_of_the_log_folds_to_what_the_coordinator_held(release, asked, limit, codec, batch_bytes, cut):
    kept = StateTopicSettings(
        RELEASES[release], 2, updates_per_snapshot=limit, codec=codec, batch_bytes=batch_bytes, segment_bytes=900
    )
    history: list[tuple[dict[int, int], dict[StateKey, Row]]] = [({0: 0, 1: 0}, {})]

    def observe(partition: int, offset: int, now_ms: int, record: StateRecord, held: CoordinatorEntry | None) -> None:
        ends, rows = history[-1]
        others = {key: row for key, row in rows.items() if key != record.key}
        history.append((ends | {partition: offset + 1}, others | ({record.key: row_of(held)} if held else {})))

    with TemporaryDirectory() as folder:
        topic, now = StateTopic(Path(folder), kept, observe), NOW
        for request in asked:
            now += request.after_ms
            key = request.arguments[0] if request.arguments else None
            is_about_one = isinstance(key, StateKey)
            for coordinator in [topic.coordinator_of(key)] if is_about_one else topic.coordinators:
                request.ask(coordinator, now)
        flush_logs(Path(folder), topic.logs)
        assert_same(folded_rows(Path(folder)), history[-1][1])
        ends, rows = history[cut % len(history)]
        assert_same(folded_rows(Path(folder), ends), rows)
        logs = {log.partition: fold_log(log) for log in find_logs([folder])}
        for partition, coordinator in enumerate(topic.coordinators):
            assert logs[partition].cutoff["cutoff_offset"][0].as_py() == coordinator.last_redundant_offset()
            assert not logs[partition].observations.gaps
            assert not len(logs[partition].observations.batches)
