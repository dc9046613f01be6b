"""A real Kafka broker for tests: one process, KRaft, from the artifacts that set-up fetched, on free local ports."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from share_state.errors import SetupError
from share_state.sources import jars
from share_state.sources.kafka_source import KafkaSource
from share_state.sources.log_partition import LogPartition
from tests.processes import die_with_parent

PASSWORDS = {"auditor": "auditor-s3cret", "stranger": "stranger-s3cret"}
"""SASL users of the secured listener; the stranger may see nothing."""

_KEYS, _KEYS_PASSWORD = "broker.p12", "k3ystore"
_PATIENCE = 40.0
_QUICK_START = ("-Xms256m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")


def skip_without_broker(release: str = jars.TEST_BROKER) -> None:
    """Skip what needs a broker of a release where none can run."""
    if shutil.which("java") is None:
        pytest.skip("no `java` on the PATH")
    try:
        jars.jars(release)
    except SetupError as error:
        pytest.skip(str(error))


def source_of(log: LogPartition) -> KafkaSource:
    """How a log partition of a running cluster is read."""
    assert isinstance(log.source, KafkaSource)
    return log.source


@dataclass(frozen=True)
class Broker:
    """A running broker.

    Attributes:
        address: host:port of the listener without security; whoever comes there may do anything.
        secured: host:port of the listener that speaks TLS and asks for a user of PASSWORDS.
        certificate: PEM file that clients of that listener trust.
        logs: its log directory.
    """

    address: str
    secured: str
    certificate: Path
    logs: Path


@contextmanager
def running(
    folder: Path, killed: Broker | None = None, *, release: str = jars.TEST_BROKER, share_version: int = 1, **more: int
) -> Iterator[Broker]:
    """Start a broker with its files under a folder, or one that was killed there; it is killed at the end.

    `more` are settings, with `_` for `.`.
    """
    settings, java = folder / "server.properties", _java(folder, release)
    broker = killed or _formatted(folder, settings, java, share_version, more)
    said = folder / "broker.out"
    with ExitStack() as stack:
        out = stack.enter_context(said.open("ab"))
        stack.callback(_stop, process := _start([*java, "kafka.Kafka", str(settings)], out))
        _wait_for(broker, process, said)
        yield broker


@contextmanager
def joined(folder: Path, first: Broker, *, release: str = jars.TEST_BROKER) -> Iterator[None]:
    """Start a second broker, number 2, of the cluster of a first one; or again if it was killed there."""
    settings, java = folder / "server.properties", _java(folder, release)
    if not settings.exists():
        given = dict(line.split("=", 1) for line in (first.logs.parent / settings.name).read_text("utf-8").splitlines())
        plaintext = f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]}"
        own = {"process.roles": "broker", "node.id": 2, "log.dirs": folder / "logs"}
        own |= {"listeners": plaintext, "advertised.listeners": plaintext}
        settings.write_text("".join(f"{name}={value}\n" for name, value in (given | own).items()), encoding="utf-8")
        cluster = re.search(r"cluster.id=(\S+)", (first.logs / "meta.properties").read_text("utf-8"))
        assert cluster is not None
        formatting = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster[1]}", "-c", str(settings)]
        subprocess.run([*java, *formatting], check=True, capture_output=True)
    with (folder / "broker.out").open("ab") as out, ExitStack() as stack:
        stack.callback(_stop, _start([*java, "kafka.Kafka", str(settings)], out))
        yield


def _formatted(folder: Path, settings: Path, java: list[str], share_version: int, more: dict[str, int]) -> Broker:
    ports = free_ports(3)
    certificate = _certificate(folder)
    broker = Broker(f"127.0.0.1:{ports[0]}", f"localhost:{ports[1]}", certificate, folder / "logs")
    own = "".join(f"{name.replace('_', '.')}={value}\n" for name, value in more.items())
    settings.write_text(_settings(broker, ports) + own, encoding="utf-8")
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # An id may begin with a dash, which would be taken for the next option.
    formatting = [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(settings)]
    subprocess.run([*formatting, "--feature", f"share.version={share_version}"], check=True, capture_output=True)
    return broker


def _certificate(folder: Path) -> Path:
    """A key of the broker's own, and the certificate that goes with it."""
    keytool, certificate = shutil.which("keytool") or "keytool", folder / "broker.pem"
    store = ["-alias", "broker", "-keystore", str(folder / _KEYS), "-storepass", _KEYS_PASSWORD]
    names = ["-dname", "CN=localhost", "-ext", "SAN=dns:localhost"]
    making = [keytool, "-genkeypair", "-keyalg", "EC", "-storetype", "PKCS12", "-validity", "2", *names, *store]
    subprocess.run(making, check=True, capture_output=True)
    telling = [keytool, "-exportcert", "-rfc", "-file", str(certificate), *store]
    subprocess.run(telling, check=True, capture_output=True)
    return certificate


def _java(folder: Path, release: str) -> list[str]:
    quiet = folder / "log4j2.properties"
    quiet.write_text(
        "appender.console.type=Console\nappender.console.name=console\nappender.console.layout.type=PatternLayout\n"
        "appender.console.layout.pattern=%d %p %c %m%n\nrootLogger.level=warn\nrootLogger.appenderRef.c.ref=console\n",
        encoding="utf-8",
    )
    class_path = os.pathsep.join(str(jar) for jar in jars.jars(release))
    java = shutil.which("java") or "java"
    return [java, *_QUICK_START, f"-Dlog4j2.configurationFile={quiet.as_uri()}", "-cp", class_path]


def _settings(broker: Broker, ports: list[int]) -> str:
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    controller = f"127.0.0.1:{ports[2]}"
    listeners = f"PLAINTEXT://{broker.address},SASL_SSL://127.0.0.1:{ports[1]}"
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"{listeners},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{broker.address},SASL_SSL://{broker.secured}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": broker.logs.parent / _KEYS,
        "ssl.keystore.password": _KEYS_PASSWORD,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:auditor",
        "log.dirs": broker.logs,
        "auto.create.topics.enable": "false",
        "log.index.size.max.bytes": 65536,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "share.coordinator.state.topic.num.partitions": 3,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.snapshot.update.records.per.snapshot": 5,
        "group.share.partition.max.record.locks": 1500,  # not Kafka's default
        "group.share.heartbeat.interval.ms": 1000,
        "group.share.min.heartbeat.interval.ms": 1000,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _start(command: list[str], out: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, preexec_fn=die_with_parent)  # noqa: PLW1509


def _wait_for(broker: Broker, process: subprocess.Popen[bytes], said: Path) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end and process.poll() is None:
        try:
            if admin.list_topics(timeout=1).brokers:
                return
        except KafkaException:
            time.sleep(0.1)
    raise TimeoutError(f"no broker after {_PATIENCE} s: {said.read_text(errors='replace')[-2000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of this host that no one uses now."""
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in taken]


def properties_of(broker: Broker, user: str, folder: Path) -> str:
    """A properties file as Kafka's own tools take it."""
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{user}" \\\n'
    login += f'    password="{PASSWORDS[user]}";'
    file = folder / f"{user}.properties"
    file.write_text(
        f"# how {user} comes in\nsecurity.protocol=SASL_SSL\nsasl.mechanism : PLAIN\nsasl.jaas.config={login}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={broker.certificate}\n",
        encoding="utf-8",
    )
    return str(file)


def carry_out(environment: Mapping[str, str], script: Path, option: str) -> None:
    """Run one option of a repair plan; Kafka's tools exit with 0 even if they fail."""
    words = ["bash", str(script), option]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stdout + done.stderr


@contextmanager
def allowed(broker: Broker, user: str, operation: AclOperation, topic: str) -> Iterator[None]:
    """Meanwhile a user may do this with a topic."""
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    rule = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*", operation)
    for future in admin.create_acls([AclBinding(*rule, AclPermissionType.ALLOW)]).values():
        future.result(30)
    try:
        yield
    finally:
        for future in admin.delete_acls([AclBindingFilter(*rule, AclPermissionType.ALLOW)]).values():
            future.result(30)
