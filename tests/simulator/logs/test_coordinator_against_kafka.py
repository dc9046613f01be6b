"""Every decision of our coordinator against Kafka's own, of two releases: answers, and records byte for byte."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_state.kafka.releases import RELEASES
from share_state.simulator.coordinator import CoordinatorResponse
from share_state.simulator.state_values import encode_record
from share_state.simulator.types import ErrorCode
from share_state.sources import jars
from tests.present import present
from tests.simulator.logs.conversations import NOW, conversations
from tests.simulator.logs.kafka_coordinator import answers
from tests.simulator.logs.kept_records import coordinator_of

KAFKA = {"4.4": jars.KAFKA, "4.3": jars.KAFKA_BEFORE_SWEEP}


@pytest.mark.parametrize("release", KAFKA)
@settings(max_examples=3 * settings().max_examples)
@given(asked=conversations(max_size=60), limit=st.sampled_from([0, 1, 2, 3, 500]))
def test_the_coordinator_decides_as_kafka_does(spark, release, asked, limit):
    now, timed = NOW, []
    for request in asked:
        now += request.after_ms
        timed.append((now, request))
    coordinator, log = coordinator_of(release, updates_per_snapshot=limit)
    expected = answers(spark._jvm, jars.jars(KAFKA[release]), timed, limit)
    for (at, request), (response, records) in zip(timed, expected, strict=True):
        before = len(log.records)
        answer = request.ask(coordinator, at)
        made = [encode_record(record, RELEASES[release]) for record in log.records[before:]]
        # What is written for many share-partitions at once comes in the order of a hash map.
        assert sorted(made, key=repr) == sorted(records, key=repr)
        if isinstance(answer, CoordinatorResponse):
            assert answer.error == present(response)["errorCode"]
        if request.method == "read" and answer.error == ErrorCode.NONE:
            kafka, state = present(response), present(answer.state)
            assert (state.state_epoch, state.start_offset) == (kafka["stateEpoch"], kafka["startOffset"])
            assert [tuple(batch.values()) for batch in kafka["stateBatches"]] == list(state.batches)
