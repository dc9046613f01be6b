"""The inputs of `share-state stream`: which kind INPUT is, what is known of its topics, and the dead letters."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

from share_state.config.input_spec import InputSpec
from share_state.errors import InputError
from share_state.fold.limits import Limits
from share_state.pipeline.dead_letter_checks import StreamLetters
from share_state.pipeline.facts import limits_of_groups, merge_topics, settle_live_limits
from share_state.pipeline.followed_groups import AdjacentGroups, FollowedGroups
from share_state.pipeline.growing_segments import GrowingSegments
from share_state.pipeline.stream_files import GrowingFolder, check_readable
from share_state.sources.input_contents import ask_limits
from share_state.sources.input_detection import find_cluster_address, find_dead_letters
from share_state.sources.kafka_client import read_client_properties
from share_state.sources.log_partition import STATE_TOPIC
from share_state.sources.new_records import StreamSource
from share_state.sources.topics import Topics, TopicSource, read_topics
from share_state.sources.topics_file import read_adjacent_topics

_TOPICS_SECONDS = 10.0
_Answer = TypeVar("_Answer")
_LOG = logging.getLogger("share_state")


def has_segments(source: str) -> bool:
    """Whether INPUT is a local folder of segments; one without files is none yet."""
    if find_cluster_address([source]) or "://" in source:
        return False
    folder = Path(source)
    return not any(folder.rglob("*.parquet")) and any(folder.rglob("*.log"))


def open_source(
    source: str,
    kafka_properties: str | None,
    state_partitions: int | None,
    *,
    most_records: int | None,
    most_files: int,
    is_begun: bool,
) -> StreamSource:
    """What a stream in this process reads.

    Args:
        source: INPUT.
        kafka_properties: path of a properties file for a cluster.
        state_partitions: as in InputSpec.
        most_records, most_files: as the call sets them.
        is_begun: whether the stream has read it before.
    Raises:
        InputError: if no file in the folder can be read.
        SetupError: if the Kafka client library is missing.
    """
    if address := find_cluster_address([source]):
        from share_state.sources.cluster_follower import ClusterFollower  # noqa: PLC0415  imports the client

        return ClusterFollower(address, read_client_properties(kafka_properties), most_records)
    if has_segments(source):
        return GrowingSegments(source, state_partitions)
    if not is_begun and "://" not in source:
        check_readable(source, source)
    return GrowingFolder(source, most_files)


@dataclass(frozen=True, slots=True)
class Live:
    """What changes while a stream runs, as functions that return what is known now.

    Attributes:
        topics: names and ends of topics.
        limits: the limits of the cluster when the stream began.
        groups: follows the share groups of a cluster, or those beside segments; None where they are not known.
        origins: where `limits` come from, as in SettledFacts.
    """

    topics: Callable[[], Topics]
    limits: Limits
    groups: FollowedGroups | None = None
    origins: Mapping[str, str] = field(default_factory=dict)

    def limits_now(self) -> Limits:
        """The limits of the cluster and of its groups that are known now."""
        return self.limits if self.groups is None else self.groups.limits

    def facts(self) -> dict[str, str]:
        """What is known of the cluster now, as options of a run."""
        origins = self.origins if self.groups is None else self.groups.origins
        return {**origins, **limits_of_groups(self.limits_now())}


class _Refreshed(Generic[_Answer]):
    """An answer of a cluster that is asked again after some seconds; the last one while no broker answers."""

    def __init__(self, ask: Callable[[], _Answer], seconds: float) -> None:
        self._ask = ask
        self._seconds = seconds
        self._lock = Lock()
        self._answer, self._asked = ask(), time.monotonic()

    def __call__(self) -> _Answer:
        with self._lock:
            if time.monotonic() - self._asked > self._seconds:
                with suppress(InputError):
                    self._answer = self._ask()
                self._asked = time.monotonic()
            return self._answer


def topics_and_limits(
    source: str, spec: InputSpec, kafka_properties: str | None, *, once: bool, on_spark: bool
) -> Live:
    """What is known of topics, groups and limits besides the log.

    Args:
        source: INPUT.
        spec: the options of the call.
        kafka_properties: path of a properties file for a cluster.
        once: refuse a cluster that has no `__share_group_state`.
        on_spark: whether Java is at hand, with which more can be asked.
    Raises:
        InputError: if a folder is missing, or no broker answers or denies access.
        SetupError: if the Kafka client library is missing.
    """
    limits, explicit = spec.limits.to_limits(), frozenset(spec.limits.model_fields_set)
    if not find_cluster_address([source]):
        return _live_folder(source, spec, limits)
    from share_state.sources.kafka_cluster import Cluster  # noqa: PLC0415  a live cluster alone needs it

    properties = read_client_properties(kafka_properties)
    cluster = Cluster(source, properties)
    if once:
        cluster.fetch_topic_offsets([STATE_TOPIC])
    named = read_topics(spec.topics) if spec.topics else Topics()
    topics = partial(_merged_topics, _Refreshed(cluster.topics, _TOPICS_SECONDS), named)
    if on_spark:
        asked, notes = ask_limits(source, kafka_properties)
        for note in notes:
            _LOG.info("%s", note)
        settled = settle_live_limits(asked, limits, explicit)
        return Live(topics, settled.limits, origins=settled.origins)
    from share_state.pipeline.live_groups import LiveGroups  # noqa: PLC0415  imports the client

    groups = LiveGroups(cluster, properties, limits, explicit)
    return Live(topics, groups.limits, groups)


def _live_folder(source: str, spec: InputSpec, limits: Limits) -> Live:
    """What is known of topics, groups and limits if the records are in a folder.

    Raises:
        InputError: if it is not such a folder.
    """
    if "://" not in source and not Path(source).is_dir():
        if Path(source).is_file():
            raise InputError(
                f"{source}: a file; a stream reads a folder that grows: "
                f"give the folder that holds {STATE_TOPIC}-0, or one of Parquet files"
            )
        raise InputError(
            f"{source}: no such folder; give a folder of Parquet files with Spark's Kafka columns"
        )
    adjacent, notes = (None, []) if spec.topics else read_adjacent_topics([source], [])
    for note in [*notes, *([adjacent.note] if adjacent else [])]:
        _LOG.info("%s", note)
    named = [TopicSource("topics file", read_topics(spec.topics), spec.topics)] if spec.topics else []
    if not has_segments(source):
        topics = next((one.topics for one in (*named, adjacent) if one), Topics())
        return Live(lambda: topics, limits)
    groups = AdjacentGroups(source, limits, frozenset(spec.limits.model_fields_set), named, adjacent)
    return Live(lambda: groups.topics, groups.limits, groups)


def _merged_topics(fetch: Callable[[], Topics], named: Topics) -> Topics:
    """The topics of a cluster, with what the call names where the cluster does not know it."""
    return merge_topics(fetch(), named)


def letters_of(spec: InputSpec, kafka_properties: str | None, *, once: bool) -> StreamLetters | None:
    """Matches the dead letters that a spec names; None for none."""
    if not spec.dead_letters:
        return None
    find = partial(find_dead_letters, spec.dead_letters, kafka_properties)
    find()
    return StreamLetters(
        find,
        severities=spec.rules,
        state_partitions=spec.state_partitions,
        copied_last=spec.dead_letters_copied_last,
        **({"seconds": inf} if once else {}),
    )
