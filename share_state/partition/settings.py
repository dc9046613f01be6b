"""What a share group is configured to do, as far as a share-partition asks for it."""

from dataclasses import dataclass

from share_state.partition.acknowledgements import AckType
from share_state.partition.writes import DeliveryState


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """Limits in force; a new one takes effect on the next transition, locks that run keep their deadline.

    Args:
        delivery_count_limit: how often a record is delivered before it is archived.
        record_lock_duration_ms: how long a member holds a record.
        max_record_locks: how wide the window may become before nothing new is fetched.
        renews: whether members may renew their locks.
        has_dead_letter_queue: whether rejected and exhausted records go to a dead letter queue.
        reads_committed: whether records of aborted transactions are kept from members.
    Source: Kafka ShareGroupConfig, GroupConfig; KIP-1191 for the dead letter queue.
    """

    delivery_count_limit: int = 5
    record_lock_duration_ms: int = 30_000
    max_record_locks: int = 2_000
    renews: bool = True
    has_dead_letter_queue: bool = False
    reads_committed: bool = False

    @property
    def throttle_from(self) -> int:
        """From how many deliveries on a batch is delivered in parts. Source: shouldThrottleRecordsDelivery."""
        return max(2, (self.delivery_count_limit + 1) // 2)

    def state_after_release(self, count: int) -> DeliveryState:
        """What becomes of a record that was not processed.

        Args:
            count: how often it was delivered.
        Source: Kafka InFlightState.tryUpdateState.
        """
        return DeliveryState.AVAILABLE if count < self.delivery_count_limit else self._discarded

    def state_after(self, ack: AckType, count: int) -> DeliveryState:
        """What becomes of an acquired record that is acknowledged, other than by RENEW.

        Args:
            ack: how.
            count: how often it was delivered.
        Source: KIP-932; with a dead letter queue KIP-1191.
        """
        if ack is AckType.ACCEPT:
            return DeliveryState.ACKNOWLEDGED
        if ack is AckType.RELEASE:
            return self.state_after_release(count)
        return self._discarded if ack is AckType.REJECT else DeliveryState.ARCHIVED

    @property
    def _discarded(self) -> DeliveryState:
        return DeliveryState.ARCHIVING if self.has_dead_letter_queue else DeliveryState.ARCHIVED
