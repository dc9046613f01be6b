"""Replays the ShareFetch and ShareAcknowledge requests of a broker's request log and compares their outcomes."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from share_state.kafka.delivery_states import DeliveryState
from share_state.simulator.acquisition import NO_LIMIT, AcquiredRecords, AcquireMode, LogBatch
from share_state.simulator.cluster import SimulatedCluster
from share_state.simulator.events import (
    MOST_OFFSETS,
    Ack,
    Acquire,
    Config,
    EventError,
    EventResult,
    Init,
    MemberLeave,
    Open,
    invalid_field,
)
from share_state.simulator.settings import AckBatch
from share_state.simulator.types import (
    NO_START_OFFSET,
    ErrorCode,
    SharePartitionKey,
    StateBatch,
    merge_adjacent,
)

_FETCH, _FINAL_EPOCH = 78, -1
_COMPLETED = re.compile(rb'\[(.*?)\].*?Completed request:(\{.*?"requestApiKey":(?:78|79),.*\})')


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)


class LoggedRange(_Message):
    """Adjacent offsets that a request acknowledges, or that a response has acquired with one delivery count."""

    first_offset: int
    last_offset: int
    acknowledge_types: tuple[int, ...] = ()
    delivery_count: int = 0


class LoggedPartition(_Message):
    """One partition of a request or a response."""

    partition_index: int
    acknowledgement_batches: tuple[LoggedRange, ...] = ()
    error_code: int = 0
    acknowledge_error_code: int = 0
    acquired_records: tuple[LoggedRange, ...] = ()


class LoggedTopic(_Message):
    """One topic of a request or a response."""

    topic_id: str
    partitions: tuple[LoggedPartition, ...] = ()


class ShareRequest(_Message):
    """A ShareFetch or ShareAcknowledge.

    Source: Kafka ShareFetchRequest.json, ShareAcknowledgeRequest.json.
    """

    group_id: str
    member_id: str
    share_session_epoch: int
    is_renew_ack: bool = False
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 0
    max_records: int = 0
    batch_size: int = NO_LIMIT
    share_acquire_mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED
    topics: tuple[LoggedTopic, ...] = ()


class ShareResponse(_Message):
    """The response. Source: Kafka ShareFetchResponse.json, ShareAcknowledgeResponse.json."""

    error_code: int
    acquisition_lock_timeout_ms: int = 0
    responses: tuple[LoggedTopic, ...] = ()


class RequestHeader(_Message):
    """The request's key (78 or 79) and version."""

    request_api_key: int
    request_api_version: int


class LoggedRequest(_Message):
    """A request and its response; null or absent if the log has none."""

    request_header: RequestHeader
    request: ShareRequest
    response: ShareResponse | None = None

    @property
    def is_fetch(self) -> bool:
        """True for ShareFetch, which may also acknowledge."""
        return self.request_header.request_api_key == _FETCH


def read_requests(lines: Iterable[bytes]) -> Iterator[tuple[int, int, LoggedRequest]]:
    """Yield line number, time in ms and request of each ShareFetch and ShareAcknowledge of a request log.

    Args:
        lines: `[2026-11-23 06:59:58,648] DEBUG Completed request:{...} (kafka.request.logger)`, as brokers
            write them with kafka.request.logger at DEBUG; others are skipped. Times are taken as UTC.
    Raises:
        EventError: names the line and the invalid field.
    Source: Kafka RequestChannel.Request.updateRequestMetrics, RequestConvertToJson; config/log4j2.yaml.
    """
    for number, line in enumerate(lines, 1):
        if (match := _COMPLETED.search(line)) is None:
            continue
        text = match[1].decode(errors="replace")
        try:
            time = datetime.fromisoformat(text).replace(tzinfo=UTC)
            request = LoggedRequest.model_validate_json(match[2])
        except ValidationError as error:
            raise EventError(f"line {number}: {invalid_field(error)}") from None
        except ValueError:
            raise EventError(
                f"line {number}: {text!r} is not a time such as 2026-11-23 06:59:58,648"
            ) from None
        yield number, round(time.timestamp() * 1000), request


@dataclass(frozen=True, slots=True)
class OutcomeMismatch:
    """A logged outcome that the state machine contradicts.

    Attributes:
        line: line number in the request log.
        request: ShareFetch or ShareAcknowledge.
        logged, simulated: an error name, or acquired offsets with their delivery count.
        reason: the machine's message, or empty.
    """

    line: int
    request: str
    group: str
    topic_id: str
    partition: int
    logged: str
    simulated: str
    reason: str

    def to_json(self) -> str:
        """One JSON line without newline."""
        return json.dumps({"finding": "OUTCOME_MISMATCH"} | asdict(self), ensure_ascii=False)


class RequestReplay:
    """Plays logged requests; a share-partition starts at its first offset in the log.

    A log has the records that a fetch acquired, not those that it read. The state machine therefore reads the
    acquired records or, without a response, `max_records` offsets from the next fetch offset.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.mismatches: list[OutcomeMismatch] = []
        self._line, self._now_ms = 0, 0
        self._sessions: dict[tuple[str, str], dict[SharePartitionKey, None]] = {}
        self._lock_ms: dict[str, int] = {}

    def play(self, line: int, ts_ms: int, logged: LoggedRequest) -> None:
        """Play a request: acknowledgements, fetch, end of the session.

        Requests that the broker rejected as a whole, for example for their session epoch, change nothing.
        Source: Kafka KafkaApis.handleShareFetchRequest, handleShareAcknowledgeRequest; KIP-1222: a fetch that
        renews returns no records.
        """
        request, response = logged.request, logged.response
        # Lines are in the order of the responses, which two threads may write a little out of order.
        self._line, self._now_ms = line, max(self._now_ms, ts_ms)
        if response is not None and response.error_code:
            return
        requested = _by_share_partition(request.group_id, request.topics)
        answered = _by_share_partition(request.group_id, response.responses) if response else {}
        for key in requested | answered:
            parts = [part for part in (requested.get(key), answered.get(key)) if part]
            ranges = [
                one for part in parts for one in (*part.acquired_records, *part.acknowledgement_batches)
            ]
            if self.cluster.player.leader(key) is None and (ranges or not response):
                self._apply(Init, key, state_epoch=0, start_offset=NO_START_OFFSET)
                first = min((one.first_offset for one in ranges), default=0)
                self._apply(Open, key, leader_epoch=0, reset_offset=first)
            if response and response.acquisition_lock_timeout_ms not in {0, self._lock_ms.get(key.group)}:
                self._lock_ms[key.group] = lock_ms = response.acquisition_lock_timeout_ms
                self._apply(Config, key, name="share.record.lock.duration.ms", value=lock_ms)
        for key, part in requested.items():
            if part.acknowledgement_batches:
                self._acknowledge(key, part, answered.get(key), logged)
        if logged.is_fetch and not request.is_renew_ack:
            for key in answered if response else requested:
                self._fetch(key, answered.get(key), logged)
        if request.share_session_epoch == _FINAL_EPOCH:
            for key in self._sessions.pop((request.group_id, request.member_id), ()):
                self._apply(MemberLeave, key, member=request.member_id)

    def _apply(self, kind: type, key: SharePartitionKey, **fields: object) -> EventResult:
        try:
            return self.cluster.play(kind, key, self._now_ms, **fields)
        except ValidationError as error:
            raise EventError(f"line {self._line}: {invalid_field(error)}") from None

    def _acknowledge(
        self,
        key: SharePartitionKey,
        part: LoggedPartition,
        answer: LoggedPartition | None,
        logged: LoggedRequest,
    ) -> None:
        request = logged.request
        limits = request.model_dump(include={"max_wait_ms", "min_bytes", "max_bytes", "max_records"})
        result = self._apply(
            Ack,
            key,
            member=request.member_id,
            batches=tuple(
                AckBatch(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                for batch in part.acknowledgement_batches
            ),
            route="fetch" if logged.is_fetch else "acknowledge",
            is_renew_ack=request.is_renew_ack,
            # Version 0, of 4.0, has the same acknowledgements as version 1.
            version=max(logged.request_header.request_api_version, 1),
            **limits,
        )
        if answer is not None:
            code = answer.acknowledge_error_code if logged.is_fetch else answer.error_code
            self._compare(key, logged, _error_name(code), result.error.name, result.message)

    def _fetch(self, key: SharePartitionKey, answer: LoggedPartition | None, logged: LoggedRequest) -> None:
        request = logged.request
        if answer is not None:
            batches = tuple(
                LogBatch(logged.first_offset, logged.last_offset) for logged in answer.acquired_records
            )
        else:
            leader = self.cluster.player.leader(key)
            first = leader.next_fetch_offset() if leader else 0
            count = min(max(request.max_records, 1), MOST_OFFSETS)
            batches = (LogBatch(first, first + count - 1),)
        acquired: tuple[AcquiredRecords, ...] = ()
        if batches:
            acquired = self._apply(
                Acquire,
                key,
                member=request.member_id,
                log_batches=batches,
                max_records=request.max_records or NO_LIMIT,
                batch_size=request.batch_size,
                mode=request.share_acquire_mode,
            ).acquired
            self._sessions.setdefault((request.group_id, request.member_id), {})[key] = None
        if answer is not None:
            logged_ranges = [
                (logged.first_offset, logged.last_offset, logged.delivery_count)
                for logged in answer.acquired_records
            ]
            self._compare(key, logged, _ranges(logged_ranges), _ranges(acquired), "")

    def _compare(
        self, key: SharePartitionKey, logged: LoggedRequest, expected: str, simulated: str, why: str
    ) -> None:
        if expected != simulated:
            name = "ShareFetch" if logged.is_fetch else "ShareAcknowledge"
            self.mismatches.append(OutcomeMismatch(self._line, name, *key, expected, simulated, why))


def _by_share_partition(
    group: str, topics: Iterable[LoggedTopic]
) -> dict[SharePartitionKey, LoggedPartition]:
    return {
        SharePartitionKey(group, topic.topic_id, part.partition_index): part
        for topic in topics
        for part in topic.partitions
    }


def _error_name(code: int) -> str:
    return ErrorCode(code).name if code in set(ErrorCode) else f"error {code}"


def _ranges(acquired: Iterable[tuple[int, int, int]]) -> str:
    """Acquired offsets, each range with its delivery count, for example 0-3 (1), 4-5 (2)."""
    batches = [
        StateBatch(first, last, DeliveryState.ACQUIRED, count) for first, last, count in sorted(acquired)
    ]
    texts = [f"{first}-{last} ({count})" for first, last, _, count in merge_adjacent(batches)]
    return "acquired " + (", ".join(texts) or "nothing")
