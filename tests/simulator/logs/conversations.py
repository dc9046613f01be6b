"""Requests to a share coordinator, drawn at random: those that a broker sends, and those that it refuses."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from share_state.simulator.coordinator import CoordinatorResponse, ShareCoordinator
from share_state.simulator.state_values import StateKey
from share_state.simulator.types import StateBatch, StateWrite
from tests.simulator.state_batches import state_batch

TOPICS = ("AAAAAAAAAAEAAAAAAAAAAg", "5Y2VfE9xTOSVmSFbWg1sdQ")
KEYS = [StateKey(group, topic, part) for group in ("g1", "gé:1", "😀") for topic in TOPICS for part in (0, 7)]
NOW = 1_700_000_000_000


@dataclass(frozen=True)
class Request:
    """One call of a coordinator's method, `after_ms` after the one before."""

    method: str
    arguments: tuple[Any, ...]
    after_ms: int = 1

    def ask(self, coordinator: ShareCoordinator, now_ms: int) -> CoordinatorResponse | list[int]:
        if self.method == "snapshot_cold":
            return snapshot_cold(coordinator, now_ms)
        return getattr(coordinator, self.method)(*self.arguments, now_ms)


def snapshot_cold(coordinator: ShareCoordinator, now_ms: int) -> list[int]:
    """The offsets of the cold snapshots that are due."""
    return [coordinator.write_cold_snapshot(key, now_ms) for key in coordinator.cold_keys(now_ms)]


@st.composite
def state_batches(draw: st.DrawFn) -> StateBatch:
    first = draw(st.integers(0, 30))
    last = first + draw(st.integers(0, 9))
    return state_batch(first, last, draw(st.sampled_from([0, 2, 3, 4])), draw(st.integers(0, 4)))


EPOCHS = st.sampled_from([-1, 0, 0, 1, 1, 2, 3])
STARTS = st.just(-1) | st.integers(0, 40)


@st.composite
def requests(draw: st.DrawFn, keys: list[StateKey]) -> Request:
    after = draw(st.sampled_from([0, 1, 1, 6, 200_000, 300_000]))
    key = draw(st.sampled_from(keys))
    method = draw(st.sampled_from(["initialize", *["write"] * 6, "read", "read", "delete", "snapshot_cold"]))
    if method == "initialize":
        return Request(method, (key, draw(EPOCHS), draw(STARTS)), after)
    if method == "write":
        batches = tuple(draw(st.lists(state_batches(), max_size=4)))
        write = StateWrite(draw(EPOCHS), draw(EPOCHS), draw(STARTS), draw(st.integers(-1, 20)), batches)
        return Request(method, (key, write), after)
    if method == "read":
        return Request(method, (key, draw(EPOCHS)), after)
    return Request(method, (key,) if method == "delete" else (), after)


@st.composite
def conversations(draw: st.DrawFn, *, max_size: int = 30) -> list[Request]:
    """Requests about few share-partitions, so that they meet; each is initialized first."""
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True))
    first = [Request("initialize", (key, 0, draw(STARTS))) for key in keys]
    return first + draw(st.lists(requests(keys), min_size=1, max_size=max_size))
