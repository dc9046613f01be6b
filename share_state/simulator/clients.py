"""Plays the events of the client's model: the consumers of share groups, and the requests that they send."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from share_state.simulator import events as ev
from share_state.simulator.client import IMPLICIT, IllegalStateError, ShareClient
from share_state.simulator.settings import RENEW_SINCE_VERSION, AckType, PlayerSettings
from share_state.simulator.types import ErrorCode, SharePartitionKey

OffsetLookup = Callable[[SharePartitionKey, int, int], Sequence[int]]
"""Offsets of a kind in a share-partition, from one offset to another, both inclusive."""

Request = Callable[[ev.Ack | ev.Acquire], None]
"""Applies a request to the leader; its outcome goes into the result of the event that sends it."""


class DueClient(NamedTuple):
    """A consumer whose membership ends after a time, in ms."""

    deadline_ms: int
    key: SharePartitionKey
    member: str
    reason: str


class Clients:
    """The consumers of all share-partitions.

    Args:
        settings: of the player; release and configs of the brokers.
        gaps: the offsets that a fetch acquires and the client acknowledges as gaps; None for none.
    """

    def __init__(self, settings: PlayerSettings, gaps: OffsetLookup | None) -> None:
        self._settings = settings
        self._gaps = gaps
        self._clients: dict[tuple[SharePartitionKey, str], ShareClient] = {}

    def first_due(self, until_ms: int) -> DueClient | None:
        """The consumer whose membership ends first, if that is before a time."""
        due = [
            DueClient(client.deadline_ms, *place, client.reason_to_leave)
            for place, client in self._clients.items()
            if client.deadline_ms < until_ms
        ]
        return min(due, default=None)

    def forget(self, key: SharePartitionKey, member: str) -> None:
        """A membership has ended."""
        self._clients.pop((key, member), None)

    def apply(self, event: ev.ClientEvent, result: ev.EventResult, request: Request) -> None:
        """Apply an event; what the consumer sends is applied by `request`."""
        if isinstance(event, ev.Join):
            self._join(event, result)
            return
        client = self._clients.get((event.key, event.member))
        try:
            if client is None:
                raise IllegalStateError(f"{event.member} is no member: it did not join, or has left")
            match event:
                case ev.Poll():
                    self._poll(event, client, result, request)
                case ev.Acknowledge():
                    client.acknowledge(event.offset, event.type)
                case ev.Commit():
                    if client.mode == IMPLICIT:
                        client.accept_all()
                    self._send(event, client, result, request, "acknowledge")
                case ev.Heartbeat():
                    client.last_heartbeat_ms = event.ts_ms
        except IllegalStateError as error:
            result.exception = "IllegalStateException"
            result.message = str(error)

    def _join(self, event: ev.Join, result: ev.EventResult) -> None:
        members = {member for key, member in self._clients if key.group == event.group}
        configs = self._settings.configs
        if event.member not in members and len(members) >= configs.max_size:
            result.error = ErrorCode.GROUP_MAX_SIZE_REACHED
            result.message = f"the group has {configs.max_size} members (group.share.max.size)"
            return
        self._clients[event.key, event.member] = ShareClient(
            event.member,
            event.mode,
            event.max_poll_interval_ms,
            configs.session_timeout_ms,
            event.has_background_heartbeats,
            event.renew_every_ms,
            event.version,
            event.ts_ms,
            event.ts_ms,
        )

    def _poll(self, event: ev.Poll, client: ShareClient, result: ev.EventResult, request: Request) -> None:
        """Callbacks, acknowledgements, then records: renewed ones again, else those of a fetch."""
        client.last_poll_ms = client.last_heartbeat_ms = event.ts_ms
        result.committed = client.take_committed()
        client.acknowledge_last_poll()
        # Records whose lock is being renewed are returned first, so nothing is fetched with them.
        fetches = not client.has_renewals
        self._send(event, client, result, request, "fetch" if fetches else "acknowledge")
        if client.renewed:
            result.returned = client.take_renewals()
        elif fetches and event.log_batches:
            common = _common_fields(event)
            request(ev.Acquire(**common, log_batches=event.log_batches, max_records=event.max_records))
            gaps = ()
            if self._gaps and result.acquired:
                gaps = self._gaps(event.key, result.acquired[0].first_offset, result.acquired[-1].last_offset)
            result.returned = client.deliver(result.acquired, gaps)
        if fetches and result.lock_timeout_ms is not None:
            client.lock_timeout_ms = result.lock_timeout_ms
        result.lock_timeout_ms = client.lock_timeout_ms
        if client.renews_too_late and not result.message:
            result.message = (
                f"RENEW_TOO_LATE: the application renews every {client.renew_every_ms} ms, and locks last "
                f"{client.lock_timeout_ms} ms"
            )

    def _send(
        self,
        event: ev.Poll | ev.Commit,
        client: ShareClient,
        result: ev.EventResult,
        request: Request,
        route: ev.Route,
    ) -> None:
        """Send what a consumer has acknowledged, and tell it the outcome."""
        batches = client.take_acknowledgements()
        if not batches:
            return
        offsets = [offset for first, last, _ in batches for offset in range(first, last + 1)]
        is_renewal = any(AckType.RENEW in types for _, _, types in batches)
        renews = self._settings.release.renews and client.version >= RENEW_SINCE_VERSION
        if is_renewal and not renews:
            # Source: Kafka ShareAcknowledgeRequest.Builder.build: the whole request is not sent.
            client.end(offsets, ErrorCode.UNSUPPORTED_VERSION)
            return
        common = _common_fields(event)
        request(
            ev.Ack(**common, batches=batches, route=route, is_renew_ack=is_renewal, version=client.version)
        )
        client.end(offsets, result.error)


def _common_fields(event: ev.Poll | ev.Commit) -> dict[str, Any]:
    names = ("seq", "ts_ms", "group", "topic", "partition", "member")
    return {name: getattr(event, name) for name in names}
