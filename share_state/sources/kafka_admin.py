"""What a broker answers about share groups, asked with Kafka's own Admin client: librdkafka has no such question.

A small JVM beside this process holds the client, so every way of security that Kafka knows works. It reads the
properties file itself: no secret crosses the connection to it.

What a running cluster says of its share-partitions, between two looks at how far its logs have come.
"""

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from share_state.errors import InputError, SetupError
from share_state.sources.kafka_client import ClientProperties, bootstrap_servers, read_client_properties
from share_state.sources.kafka_cluster import Cluster, Found

_PATIENCE_MS = 15_000
_QUICK_START = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx256m"]
_NO_SUCH_GROUP = "GroupIdNotFoundException"
_MEND = {
    "TimeoutException": "check that it is up, or security.protocol where it wants one",
    "SaslAuthenticationException": "check the properties file",
    "SslAuthenticationException": "check ssl.* in the properties file",
    "GroupAuthorizationException": "let this user have DESCRIBE on the groups",
    "ClusterAuthorizationException": "let this user have DESCRIBE on the cluster",
    "UnsupportedVersionException": "share groups are described by brokers of 4.1 and later",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the broker says of one share-partition.

    Attributes:
        group_id, topic, partition: which.
        start_offset: SPSO.
        leader_epoch: None where the broker does not tell.
        lag: records behind; None where the broker cannot tell.
    Source: Kafka Admin.listShareGroupOffsets (DescribeShareGroupOffsets).
    """

    group_id: str
    topic: str
    partition: int
    start_offset: int
    leader_epoch: int | None
    lag: int | None


def share_group_offsets(
    address: str, properties: ClientProperties, class_path: Sequence[Path], groups: Collection[str] = ()
) -> list[Answer]:
    """Every share-partition with a start offset, of every share group that this user may see.

    Args:
        address: `kafka://host:port[,host:port…]`.
        properties: how to reach the cluster.
        class_path: jars of kafka-clients 4.2 or later.
        groups: asked for in any case: a list leaves out what a user may not see, a question does not.
    Raises:
        InputError: if no broker answers, or it refuses.
        SetupError: if there is no Java.
    """
    with _jvm(class_path) as jvm:
        try:
            admin = _admin(jvm, address, properties)
            try:
                return list(_answers(jvm, admin, groups))
            finally:
                admin.close()
        except Py4JJavaError as error:
            raise _refusal(address, properties, error.java_exception) from None


def _answers(jvm: Any, admin: Any, groups: Collection[str]) -> Iterator[Answer]:
    clients, asked = jvm.org.apache.kafka.clients.admin, jvm.java.util.HashMap()
    listed = admin.listGroups(clients.ListGroupsOptions.forShareGroups()).all().get()
    names = sorted({found.groupId() for found in listed} | set(groups))
    for name in names:
        asked.put(name, clients.ListShareGroupOffsetsSpec())
    if not names:
        return
    answered = admin.listShareGroupOffsets(asked)
    for name in names:
        try:
            places = answered.partitionsToOffsetInfo(name).get()
        except Py4JJavaError as error:
            if _cause(error.java_exception).getClass().getSimpleName() == _NO_SUCH_GROUP:
                continue
            raise
        for place in places.entrySet():
            told = place.getValue()
            if told is not None and told.startOffset() >= 0:
                where, epoch, lag = place.getKey(), told.leaderEpoch().orElse(None), told.lag().orElse(None)
                yield Answer(name, where.topic(), where.partition(), told.startOffset(), epoch, lag)


def _admin(jvm: Any, address: str, properties: ClientProperties) -> Any:
    settings = jvm.org.apache.kafka.common.utils.Utils.loadProps(properties.path) if properties.path else None
    settings = settings or jvm.java.util.Properties()
    settings.put("bootstrap.servers", bootstrap_servers(address))
    settings.put("request.timeout.ms", str(_PATIENCE_MS // 2))
    settings.put("default.api.timeout.ms", str(_PATIENCE_MS))
    return jvm.org.apache.kafka.clients.admin.Admin.create(settings)


@contextmanager
def _jvm(class_path: Sequence[Path]) -> Iterator[Any]:
    java = shutil.which("java")
    if java is None:
        raise SetupError("no `java` on the PATH: install a Java 17 runtime")
    port, token, process = launch_gateway(
        jarpath=_py4j(), classpath=os.pathsep.join(map(str, class_path)), javaopts=_QUICK_START, java_path=java,
        die_on_exit=True, enable_auth=True, return_proc=True,
    )  # fmt: skip
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait()


def _py4j() -> str:
    import pyspark  # noqa: PLC0415  for the jar that it ships; no Spark is started

    return str(next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")))


def _cause(thrown: Any) -> Any:
    while thrown.getCause() is not None:
        thrown = thrown.getCause()
    return thrown


def _refusal(address: str, properties: ClientProperties, thrown: Any) -> InputError:
    cause = _cause(thrown)
    name, said = cause.getClass().getSimpleName(), str(cause.getMessage()).rstrip(".")
    if (mend := _MEND.get(name)) is not None:
        return InputError(f"{address}: {said}; {mend}")
    if properties.path is None:
        return InputError(f"{address}: {said} ({name})")
    # What a client says of a setting that it cannot use may quote it, and it may be a password.
    which = ", ".join(properties.hidden_in(said)) or "one of the settings"
    return InputError(f"{properties.path}: {which}: Kafka's client cannot use it ({name})")


@dataclass(frozen=True, slots=True)
class Answers:
    """A broker's answers.

    Attributes:
        share_partitions: those with a start offset.
        before, after: logs and topics when the question was put, and when it had been answered.
    """

    share_partitions: Sequence[Answer]
    before: Found
    after: Found


def broker_answers(
    address: str, properties: str | None, class_path: Sequence[Path], groups: Collection[str] = ()
) -> Answers:
    """Ask a running cluster about every share group.

    Args:
        address: `kafka://host:port[,host:port…]`.
        properties: path of a properties file, as Kafka's own tools take it with --command-config.
        class_path: jars of kafka-clients (`share_state.spark.jars.KAFKA_CLIENTS`).
        groups: share groups to ask for beside those that the broker lists.
    Raises:
        InputError: if no broker answers, refuses, or has no `__share_group_state`.
        SetupError: if there is no Java.
    """
    given = read_client_properties(properties)
    cluster = Cluster(address, given)
    before = cluster.look()
    answered = share_group_offsets(address, given, class_path, groups)
    return Answers(answered, before, cluster.look())
