"""Converts logged ShareFetch and ShareAcknowledge requests (JSON) to events."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from share_state.errors import ShareStateError
from share_state.simulator.acquisition import NO_LIMIT, AcquireMode, LogBatch
from share_state.simulator.events import Ack, Acquire, Event, MemberLeave
from share_state.simulator.settings import AckBatch

FINAL_EPOCH = -1
"""Session epoch of a request that closes the share session."""


class RequestError(ShareStateError):
    """Raised when a logged request cannot be parsed."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)


class AcknowledgementBatch(_Message):
    """Acknowledgements of adjacent offsets."""

    first_offset: int
    last_offset: int
    acknowledge_types: tuple[int, ...]


class RequestPartition(_Message):
    """One partition of a request."""

    partition_index: int
    acknowledgement_batches: tuple[AcknowledgementBatch, ...] = ()


class RequestTopic(_Message):
    """One topic of a request."""

    topic_id: str
    partitions: tuple[RequestPartition, ...] = ()


class _Request(_Message):
    group_id: str
    member_id: str
    share_session_epoch: int = Field(description="0 opens a session, -1 closes it")
    is_renew_ack: bool = Field(default=False, description="since version 2")
    topics: tuple[RequestTopic, ...] = ()
    version: int = Field(default=2, ge=1, le=2, description="of the request; not part of the message")


class ShareFetchRequest(_Request):
    """Fetches, and may contain acknowledgements. Source: Kafka ShareFetchRequest.json (key 78)."""

    key: Literal[78] = 78
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    max_records: int = 500
    batch_size: int = NO_LIMIT
    share_acquire_mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED


class ShareAcknowledgeRequest(_Request):
    """Acknowledges only. Source: Kafka ShareAcknowledgeRequest.json (key 79)."""

    key: Literal[79] = 79


Request = Annotated[ShareFetchRequest | ShareAcknowledgeRequest, Field(discriminator="key")]

_REQUEST: TypeAdapter[Request] = TypeAdapter(Request)


def read_request(line: str | bytes) -> Request:
    """Parse one logged request: the message's JSON plus `key` (78 or 79) and `version`.

    Raises:
        RequestError: names the invalid field.
    """
    try:
        return _REQUEST.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the line"
        raise RequestError(f"logged request: {where}: {first['msg']}") from None


def events_of(
    request: Request,
    *,
    seq: int,
    ts_ms: int,
    topics: Mapping[str, str],
    fetched: Mapping[tuple[str, int], tuple[LogBatch, ...]] | None = None,
) -> Iterator[Event]:
    """Yield a request's events per share-partition: acknowledgements, fetch, end of the session.

    Args:
        seq: of the first event.
        ts_ms: when the request was handled.
        topics: topic id -> name.
        fetched: (topic name, partition) -> log batches read, for a ShareFetch.
    Raises:
        RequestError: a topic id has no name.
    Source: Kafka KafkaApis.handleShareFetchRequest, handleShareAcknowledgeRequest; KIP-1222: a fetch that renews
    returns no records.
    """
    for topic in request.topics:
        if topic.topic_id not in topics:
            raise RequestError(f"logged request: topic id {topic.topic_id}: no name for it is known")
    made = (
        event
        for step in (_acknowledgements, _fetch, _close)
        for topic in request.topics
        for part in topic.partitions
        for event in step(request, part, _about(request, topics[topic.topic_id], part, ts_ms), fetched or {})
    )
    for number, event in enumerate(made, seq):
        yield event.model_copy(update={"seq": number})


_Fetched = Mapping[tuple[str, int], tuple[LogBatch, ...]]


def _about(request: Request, topic: str, part: RequestPartition, ts_ms: int) -> dict[str, Any]:
    """Fields that all events of one partition share; `events_of` sets seq."""
    return {
        "seq": 0,
        "ts_ms": ts_ms,
        "group": request.group_id,
        "topic": topic,
        "partition": part.partition_index,
        "member": request.member_id,
    }


def _acknowledgements(
    request: Request, part: RequestPartition, about: Mapping[str, Any], fetched: _Fetched
) -> Iterator[Event]:
    if not part.acknowledgement_batches:
        return
    is_fetch = isinstance(request, ShareFetchRequest)
    limits = request.model_dump(include={"max_wait_ms", "min_bytes", "max_bytes", "max_records"}) if is_fetch else {}
    yield Ack(
        **about,
        batches=tuple(
            AckBatch(batch.first_offset, batch.last_offset, batch.acknowledge_types)
            for batch in part.acknowledgement_batches
        ),
        route="fetch" if is_fetch else "acknowledge",
        is_renew_ack=request.is_renew_ack,
        version=request.version,
        **limits,
    )


def _fetch(request: Request, part: RequestPartition, about: Mapping[str, Any], fetched: _Fetched) -> Iterator[Event]:
    log_batches = fetched.get((about["topic"], part.partition_index))
    if not isinstance(request, ShareFetchRequest) or request.is_renew_ack or not log_batches:
        return
    yield Acquire(
        **about,
        log_batches=log_batches,
        max_records=request.max_records,
        batch_size=request.batch_size,
        mode=request.share_acquire_mode,
    )


def _close(request: Request, part: RequestPartition, about: Mapping[str, Any], fetched: _Fetched) -> Iterator[Event]:
    if request.share_session_epoch == FINAL_EPOCH:
        yield MemberLeave(**about)
