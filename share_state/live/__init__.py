"""A running Kafka cluster as input: what its topics hold, read with confluent-kafka; knows nothing of Spark."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from share_state.errors import SetupError

if TYPE_CHECKING:
    from share_state.live.answers import Answers
    from share_state.live.logs import LiveInput

EXTRA = "confluent-kafka is not installed here, and a cluster is read with it: run `pip install 'share-state[kafka]'`"


def ask_cluster(address: str, properties: str | None = None) -> "LiveInput":
    """What there is to fold of a running cluster, as `share_state.live.logs.live_logs` tells it.

    Args:
        address: `kafka://host:port[,host:port…]`.
        properties: path of a properties file, as Kafka's own tools take it with --command-config.
    Raises:
        InputError: if no broker answers, refuses, or has no `__share_group_state`.
        SetupError: if the client library is not installed.
    """
    with _extra():
        from share_state.live.logs import live_logs  # noqa: PLC0415  the client library is an extra
    return live_logs(address, properties)


def ask_broker(
    address: str, properties: str | None, class_path: Sequence[Path], groups: Collection[str] = ()
) -> "Answers":
    """What a running cluster says of its share-partitions, as `share_state.live.answers.broker_answers` tells it.

    Args:
        address: `kafka://host:port[,host:port…]`.
        properties: path of a properties file.
        class_path: jars of kafka-clients.
        groups: share groups to ask for beside those that the broker lists.
    Raises:
        InputError: if no broker answers, refuses, or has no `__share_group_state`.
        SetupError: if the client library or Java is not installed.
    """
    with _extra():
        from share_state.live.answers import broker_answers  # noqa: PLC0415
    return broker_answers(address, properties, class_path, groups)


@contextmanager
def _extra() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name != "confluent_kafka":
            raise
        raise SetupError(EXTRA) from None
