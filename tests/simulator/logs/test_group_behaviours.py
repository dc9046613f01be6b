"""Each stated behaviour of a simulated group shows in the records it leaves."""

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from share_state.simulator.simulation import simulate
from share_state.simulator.workload import BEHAVIOURS
from tests.profiles import nightly

pytestmark = nightly("simulates eleven minutes of all behaviours")

Line = dict[str, Any]
RELEASED, ACKED, ARCHIVING, ARCHIVED = 0, 2, 3, 4
DELIVERY_LIMIT = 5


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[str, list[Line]]:
    """The state behind every record of eleven minutes, by behaviour."""
    folder = tmp_path_factory.mktemp("behaviours")
    simulate(folder, seed=1, groups=len(BEHAVIOURS), minutes=11, state_partitions=1, traces=True)
    by_behaviour: dict[str, list[Line]] = {behaviour.name: [] for behaviour in BEHAVIOURS}
    for text in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        by_behaviour[line["group"].rpartition("-")[0]].append(line)
    return by_behaviour


def values(lines: list[Line]) -> set[tuple[int, int]]:
    """Every (delivery state, delivery count) that was ever durable."""
    return {(batch[2], batch[3]) for line in lines for batch in line.get("stateBatches", ())}


def chains(lines: list[Line]) -> list[list[Line]]:
    """The lines of each share-partition."""
    return [[line for line in lines if line["partition"] == one] for one in {line["partition"] for line in lines}]


def test_steady_groups_deliver_nearly_everything_once(told):
    assert max(count for _, count in values(told["steady"])) <= 3
    assert {line["kind"] for line in told["steady"]} == {"snapshot", "update"}


def test_slow_members_lose_their_locks_and_records_come_again(told):
    assert (RELEASED, 1) in values(told["slow"])
    assert max(count for _, count in values(told["slow"])) >= 3


def test_poison_is_archived_at_the_delivery_limit(told):
    assert {(ARCHIVED, DELIVERY_LIMIT), (RELEASED, DELIVERY_LIMIT - 1)} <= values(told["poison"])


def test_leaders_of_crashing_groups_move_more_often(told):
    crashing, steady = (max(line["leaderEpoch"] for line in told[name]) for name in ("crashing", "steady"))
    assert crashing > 2 * steady
    # What members held when they left is available again.
    assert (RELEASED, 1) in values(told["crashing"])


def test_the_start_of_a_stalled_group_waits_while_later_records_end(told):
    waits = Counter((line["partition"], line["startOffset"]) for line in told["stalled"])
    ((partition, start), _), *_ = waits.most_common()
    held = [line for line in told["stalled"] if (line["partition"], line["startOffset"]) == (partition, start)]
    assert held[-1]["timestamp"] - held[0]["timestamp"] > 300_000
    ended = [sum(last - first + 1 for first, last, state, _ in line["stateBatches"] if state == ACKED) for line in held]
    assert ended[-1] > ended[0] + 1000
    assert all(all(first > start for first, *_ in line["stateBatches"]) for line in held[1:-1])


def test_a_recreated_group_leaves_a_tombstone_and_begins_anew(told):
    for chain in chains(told["recreated"]):
        pairs = [(before, after) for before, after in pairwise(chain) if before["kind"] == "tombstone"]
        assert pairs
        for _, after in pairs:
            assert (after["kind"], after["snapshotEpoch"], after["startOffset"]) == ("snapshot", 0, -1)


def test_a_second_reset_of_an_empty_group_keeps_the_state_epoch(told):
    """A group that empties gets a new epoch; a reset raises none before 4.5."""
    for chain in chains(told["altered"]):
        resets = [one for one in chain if one["kind"] == "snapshot" and one["leaderEpoch"] == 0][1:]
        assert len(resets) >= 4
        for first, second in zip(resets[::2], resets[1::2], strict=True):
            assert second["stateEpoch"] == first["stateEpoch"]
        epochs = [one["stateEpoch"] for one in resets[::2]]
        assert epochs == [*range(epochs[0], epochs[0] + len(epochs))]


def test_hopeless_records_wait_for_the_dead_letter_queue(told):
    assert {(ARCHIVING, DELIVERY_LIMIT), (ARCHIVED, DELIVERY_LIMIT)} <= values(told["dead-letters"])
    others = [line for name, lines in told.items() if name != "dead-letters" for line in lines]
    assert ARCHIVING not in {state for state, _ in values(others)}


def test_only_groups_that_are_made_anew_have_several_state_epochs(told):
    several = {name for name, lines in told.items() if len({line.get("stateEpoch", 1) for line in lines}) > 1}
    assert several == {"recreated", "altered"}


def test_idle_share_partitions_are_snapshotted_again(told):
    cold = [
        line
        for lines in told.values()
        for line in lines
        if line["kind"] == "snapshot" and line["createTimestamp"] < line["writeTimestamp"]
    ]
    assert cold
    assert all(line["writeTimestamp"] - line["createTimestamp"] >= 300_000 for line in cold)
