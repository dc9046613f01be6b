"""Every transition of a live share-partition against kafka.server.share.SharePartition of 4.3.1, step by step."""

from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st

from share_state.kafka.delivery_states import DeliveryState
from share_state.simulator.acquisition import AcquireMode
from share_state.simulator.settings import PartitionSettings
from share_state.simulator.types import StateBatch, StateRead
from tests.differential.share_partition_twins import Leave, LogStart, Read, Say, Step, Twins, Wait
from tests.profiles import by_profile

MEMBERS = ("M1", "M2")
LOCK_MS = 1_000


member = st.sampled_from(MEMBERS)
reads = st.builds(
    Read, member, st.integers(1, 4), st.integers(1, 12), st.integers(1, 8), st.sampled_from(AcquireMode),
    st.sampled_from([False] * 5 + [True]),
)  # fmt: skip
kinds = st.sampled_from([1, 1, 2, 2, 3, 4, 0])
says = st.builds(
    Say, member, st.integers(0, 12), st.integers(1, 8),
    st.one_of(kinds.map(lambda kind: (kind,)), st.lists(kinds, min_size=2, max_size=8).map(tuple)),
    st.sampled_from([False] * 5 + [True]),
    st.sampled_from([False] * 3 + [True]),
)  # fmt: skip
steps = st.one_of(
    reads, reads, reads, says, says, says, says,
    st.builds(Leave, member), st.builds(LogStart, st.integers(1, 8)), st.builds(Wait, st.sampled_from([1, 400, 1_001])),
)  # fmt: skip
answers = st.sampled_from(["written"] * 6 + ["failed", "silent", "silent"])


@st.composite
def recorded(draw: st.DrawFn) -> StateRead:
    """What a new leader may load: ascending batches with gaps between some."""
    start = at = draw(st.integers(0, 9))
    batches = []
    for gap, size, state, count in draw(
        st.lists(
            st.tuples(
                st.sampled_from([0, 0, 0, 1, 4]), st.integers(1, 6), st.sampled_from([0, 0, 2, 4]), st.integers(1, 4)
            ),
            max_size=4,
        )
    ):
        batches.append(StateBatch(at + gap, at + gap + size - 1, DeliveryState(state), count))
        at += gap + size
    return StateRead(7, start, -1, tuple(batches))


@given(
    read=recorded(),
    limits=st.builds(PartitionSettings, st.integers(2, 5), st.just(LOCK_MS), st.sampled_from([12, 24, 2_000])),
    log=st.lists(st.tuples(st.sampled_from([0, 0, 0, 0, 2]), st.integers(1, 6)), min_size=1, max_size=8),
    history=st.lists(st.tuples(steps, answers), min_size=1, max_size=40),
)
# Drawn anew by the nightly profile only: whoever changes something else must not meet a rare history of this machine.
@settings(max_examples=2 * settings().max_examples, derandomize=by_profile(True, False))
def test_every_transition_is_kafkas(
    jvm: Any,
    read: StateRead,
    limits: PartitionSettings,
    log: list[tuple[int, int]],
    history: list[tuple[Step, str]],
):
    twins = Twins(jvm, read, limits, log)
    for step, answer in history:
        note(f"{step} -> {answer}")
        twins.apply(step)
        twins.answer(answer)
    twins.answer("written")
