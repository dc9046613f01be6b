"""What a share consumer keeps of its records, against Kafka's ShareInFlightBatch, step by step."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from share_state.simulator.acquisition import AcquiredRecords
from share_state.simulator.client import EXPLICIT, IllegalStateError, ShareClient
from share_state.simulator.settings import AckType
from share_state.simulator.types import ErrorCode

OFFSETS = st.integers(0, 5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), OFFSETS, st.booleans()),
        st.tuples(st.just("acknowledge"), OFFSETS, st.sampled_from([1, 2, 3, 4, 4])),
        st.tuples(st.just("accept_all")),
        st.tuples(st.just("send"), st.booleans()),
        st.tuples(st.just("take_renewals")),
    ),
    max_size=25,
)


def _acknowledge(client: ShareClient, offset: int, kind: int) -> bool:
    try:
        client.acknowledge(offset, AckType(kind))
    except IllegalStateError:
        return False
    return True


def _taken(client: ShareClient) -> tuple[str, list[int]]:
    """The acknowledgements of a client that are sent, as the Java class words them, and their offsets."""
    types = {
        offset: types[0] if len(types) == 1 else types[offset - first]
        for first, last, types in client.take_acknowledgements()
        for offset in range(first, last + 1)
    }
    return " ".join(f"{offset}:{kind:d}" for offset, kind in types.items()), [*types]


@settings(max_examples=max(8, settings().max_examples // 4), deadline=None)
@given(steps=STEPS)
def test_a_client_keeps_acknowledges_and_renews_what_kafkas_does(jvm: Any, steps: list[tuple[Any, ...]]):
    theirs = jvm.org.apache.kafka.clients.consumer.internals.DrivenShareInFlightBatch()
    ours = ShareClient("m", mode=EXPLICIT)
    for kind, *given_values in steps:
        match kind, given_values:
            case "deliver", [offset, is_gap]:
                known = offset in {*ours.in_flight, *ours.acknowledged, *ours.renewing, *ours.renewed}
                if not known:
                    ours.deliver((AcquiredRecords(offset, offset, 1),), (offset,) if is_gap else ())
                    (theirs.gap if is_gap else theirs.add)(offset)
            case "acknowledge", [offset, ack_type]:
                assert _acknowledge(ours, offset, ack_type) == theirs.acknowledge(offset, ack_type)
            case "accept_all", _:
                ours.accept_all()
                theirs.acceptAll()
            case "send", [succeeds]:
                said, offsets = _taken(ours)
                assert said == theirs.take()
                ours.end(offsets, ErrorCode.NONE if succeeds else ErrorCode.INVALID_RECORD_STATE)
                theirs.complete(succeeds)
            case _:
                ours.take_renewals()
                theirs.takeRenewals()
        assert " ".join(map(str, sorted(ours.in_flight))) == theirs.inFlight()
        assert (ours.in_flight.keys() <= ours.acknowledged.keys()) == theirs.allAcknowledged()
        assert bool(ours.renewed) == theirs.hasRenewals()
