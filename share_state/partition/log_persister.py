"""The persister of simulated leaders: share coordinators that write real logs."""

from collections.abc import Callable

from share_state.partition.coordinator import ShareCoordinator
from share_state.partition.error_codes import ErrorCode
from share_state.partition.recorded import SharePartitionKey
from share_state.partition.state_records import StateKey
from share_state.partition.state_topic import StateTopic
from share_state.partition.writes import StateRead, StateWrite


class LogPersister:
    """Sends each request to the coordinator of its share-partition; `share_state.partition.recorded.Persister`.

    Args:
        topic: the state topic.
        topic_id: the id, in Kafka's text, of a topic.
    Source: Kafka DefaultStatePersister.
    """

    def __init__(self, topic: StateTopic, topic_id: Callable[[str], str]) -> None:
        self.topic, self.topic_id = topic, topic_id

    def _at(self, key: SharePartitionKey) -> tuple[ShareCoordinator, StateKey]:
        known = StateKey(key.group, self.topic_id(key.topic), key.partition)
        return self.topic.coordinator_of(known), known

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int, now_ms: int) -> ErrorCode:
        """Begin a state, or begin it anew."""
        coordinator, known = self._at(key)
        return coordinator.initialize(known, state_epoch, start_offset, now_ms).error

    def read(self, key: SharePartitionKey, leader_epoch: int, now_ms: int) -> StateRead | ErrorCode:
        """The state, for a leader that loads it."""
        coordinator, known = self._at(key)
        answer = coordinator.read(known, leader_epoch, now_ms)
        return answer.error if answer.state is None else answer.state

    def write(self, key: SharePartitionKey, write: StateWrite, now_ms: int) -> ErrorCode:
        """Record what one operation changed."""
        coordinator, known = self._at(key)
        return coordinator.write(known, write, now_ms).error

    def delete(self, key: SharePartitionKey, now_ms: int) -> ErrorCode:
        """Forget the state."""
        coordinator, known = self._at(key)
        return coordinator.delete(known, now_ms).error

    def cold_snapshot(self, key: SharePartitionKey, now_ms: int) -> None:
        """Have the state recorded whole, unchanged."""
        coordinator, known = self._at(key)
        if known in coordinator.held:
            coordinator.repeat(known, now_ms)

    def prune(self, now_ms: int) -> None:
        """Delete what is redundant in every state partition."""
        self.topic.prune()
