"""Whether the brokers of a cluster can write the dead letters of a share group (KIP-1191)."""

from collections.abc import Collection
from dataclasses import dataclass

PREFIX = "errors.deadletterqueue."
"""Begins the names of the configs about dead letters."""

TOPIC = f"{PREFIX}topic.name"
"""Group config: the topic to which the dead letters of a share group are written."""

ENABLED = f"{PREFIX}group.enable"
"""Topic config: whether the topic accepts dead letters."""

TOPIC_PREFIX = f"{PREFIX}topic.name.prefix"
"""Broker config: with what the names of dead-letter topics begin."""

DEFAULT_TOPIC_PREFIX = "dlq."

CREATES_TOPICS = f"{PREFIX}auto.create.topics.enable"
"""Broker config: whether brokers create a dead-letter topic that is missing."""

_SHARE_VERSION = 2
"""Level of the feature share.version from which on brokers write dead letters."""


@dataclass(frozen=True, slots=True)
class DeadLetterSettings:
    """What a cluster's settings say of dead letters.

    Attributes:
        share_version: level of the feature share.version.
        existing: topics that exist, at least those that groups name.
        enabled: topics that accept dead letters.
        topic_prefix: value of TOPIC_PREFIX.
        creates_topics: value of CREATES_TOPICS.
    """

    share_version: int
    existing: Collection[str]
    enabled: Collection[str]
    topic_prefix: str
    creates_topics: bool

    def fault_of(self, topic: str) -> str | None:
        """Why brokers write no dead letters to a topic that a group names; None if they do.

        Source: Kafka ShareGroupDLQStateManager.ProduceRequestHandler.validateDlqTopic.
        """
        if self.share_version < _SHARE_VERSION:
            return f"share.version is {self.share_version}; dead letters need {_SHARE_VERSION}"
        if topic.startswith("__"):
            return f"the name of {topic} begins with __"
        if topic in self.existing and topic not in self.enabled:
            return f"{topic} does not set {ENABLED}=true"
        if topic not in self.existing and not self.creates_topics:
            return f"{topic} does not exist, and the brokers do not create it ({CREATES_TOPICS})"
        if not topic.startswith(self.topic_prefix):
            return f"the name of {topic} does not begin with {self.topic_prefix} ({TOPIC_PREFIX})"
        return None
