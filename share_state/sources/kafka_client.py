"""The properties file that says how to reach a secured cluster, in the form that Kafka's own tools take.

Its values are secrets: no message, `repr` or log of this package shows one.

Addresses of clusters: `kafka://host:port[,host:port…]`.

What a cluster's refusal means to the person who named the cluster: one line, and never a setting's value.

A running Kafka cluster as input: what its topics hold, read with confluent-kafka; knows nothing of Spark.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from share_state.errors import InputError, SetupError

if TYPE_CHECKING:
    from share_state.sources.kafka_admin import Answers
    from share_state.sources.kafka_cluster import LiveInput


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LOGINS = ("PlainLoginModule", "ScramLoginModule")
_LOGIN_FIELD = re.compile(r"(\w+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\s;]+))")
_STORE_TYPES = {"truststore": ("PEM",), "keystore": ("PEM", "PKCS12")}


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """What a properties file says; no file says nothing.

    Attributes:
        path: of the file.
        given: name -> value.
    """

    path: str | None = None
    given: Mapping[str, str] = field(default_factory=dict, repr=False)

    def for_librdkafka(self) -> dict[str, str]:
        """The same settings as librdkafka calls them; its own names may stand in the file too.

        Raises:
            InputError: if a setting has no counterpart there, by its name alone.
        """
        settings = {name: value for name, value in self.given.items() if name not in _TRANSLATED}
        if (login := self.given.get("sasl.jaas.config")) is not None:
            settings |= self._login(login)
        for store in ("truststore", "keystore"):
            settings |= self._store(store)
        chain, key = self.given.get("ssl.keystore.certificate.chain"), self.given.get("ssl.keystore.key")
        settings |= {"ssl.ca.pem": trusted} if (trusted := self.given.get("ssl.truststore.certificates")) else {}
        settings |= {"ssl.certificate.pem": chain} if chain else {}
        settings |= {"ssl.key.pem": key} if key else {}
        if settings.get("ssl.endpoint.identification.algorithm") == "":
            settings["ssl.endpoint.identification.algorithm"] = "none"
        return settings

    def hidden_in(self, text: str) -> list[str]:
        """Names of the settings whose values a text shows: it must not be told then."""
        return [name for name, value in self.given.items() if value and value in text]

    def _login(self, login: str) -> dict[str, str]:
        if not any(module in login for module in _LOGINS):
            raise self._refused("sasl.jaas.config", f"only {' and '.join(_LOGINS)} can be read from a cluster with")
        found = {name: double or single or bare for name, double, single, bare in _LOGIN_FIELD.findall(login)}
        if not {"username", "password"} <= found.keys():
            raise self._refused("sasl.jaas.config", "it names no username and password")
        return {f"sasl.{name}": re.sub(r"\\(.)", r"\1", found[name]) for name in ("username", "password")}

    def _store(self, store: str) -> dict[str, str]:
        place = self.given.get(f"ssl.{store}.location")
        if place is None:
            return {}
        kind = self.given.get(f"ssl.{store}.type", "JKS").upper()
        if kind not in _STORE_TYPES[store]:
            wanted = " or ".join(_STORE_TYPES[store])
            raise self._refused(f"ssl.{store}.location", f"a {kind} store cannot be read; give one of type {wanted}")
        if store == "truststore":
            return {"ssl.ca.location": place}
        if kind == "PEM":
            return {"ssl.certificate.location": place, "ssl.key.location": place}
        password = self.given.get("ssl.keystore.password", "")
        return {"ssl.keystore.location": place, "ssl.keystore.password": password}

    def _refused(self, name: str, why: str) -> InputError:
        return InputError(f"{self.path}: {name}: {why}")


_TRANSLATED = {
    "bootstrap.servers",
    "sasl.jaas.config",
    "ssl.truststore.certificates",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    *(f"ssl.{store}.{part}" for store in _STORE_TYPES for part in ("location", "password", "type")),
}


def read_client_properties(path: str | None) -> ClientProperties:
    """Read a properties file, as `kafka-share-groups.sh --command-config` takes it; none where no path is given.

    Raises:
        InputError: if it is missing or holds a line that is no property; the line itself is not shown.
    Source: java.util.Properties.load.
    """
    if path is None:
        return ClientProperties()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a file of client properties") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not text; give a file of client properties, NAME=VALUE a line") from None
    given = {}
    for number, line in _logical_lines(text):
        found = re.fullmatch(r"((?:[^\\=:\s]|\\.)+)\s*[=:]\s*(.*)", line, re.DOTALL)
        if found is None:
            raise InputError(f"{path}: line {number} is no NAME=VALUE; give a file of client properties")
        given[_unescaped(found[1])] = _unescaped(found[2])
    return ClientProperties(path, given)


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Number of its first line and text of each property; a backslash at a line's end joins the next to it."""
    lines, open_line, begun = [], "", 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.lstrip()
        if not open_line and (not stripped or stripped[0] in "#!"):
            continue
        begun = begun if open_line else number
        if (len(stripped) - len(stripped.rstrip("\\"))) % 2:
            open_line += stripped[:-1]
            continue
        lines.append((begun, open_line + stripped))
        open_line = ""
    return [*lines, *([(begun, open_line)] if open_line else [])]


def _unescaped(text: str) -> str:
    def meant(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9A-Fa-f]{4}|.)", meant, text)


SCHEME = "kafka://"
FORM = "kafka"
"""As `--format` calls a running cluster."""

_AUTO = "auto"
_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s\[\]:/,@]+):(\d{1,5})")
_WANTED = "give kafka://HOST:PORT, or several brokers of one cluster with commas between them"


def is_live(given: str) -> bool:
    """Whether an input names a cluster."""
    return given.startswith(SCHEME)


def live_input(inputs: Sequence[str], form: str = _AUTO) -> str | None:
    """The cluster that a command is to read, None where its inputs are files.

    Args:
        inputs: what the person named.
        form: what it is said to be, as `--format` takes it.
    Raises:
        InputError: if a cluster is named beside other inputs or as another form, or its address is none.
    """
    clusters = [given for given in inputs if is_live(given)]
    if not clusters:
        if form == FORM:
            raise InputError(f"{' '.join(inputs)}: not the address of a cluster; {_WANTED}")
        return None
    if form not in (_AUTO, FORM):
        raise InputError(f"{clusters[0]}: a cluster is not read as {form}; leave --format out")
    bootstrap_servers(clusters[0])
    if len(inputs) > 1:
        raise InputError(f"{clusters[0]}: a cluster is read alone; take the other {len(inputs) - 1} inputs out")
    return clusters[0]


def bootstrap_servers(address: str) -> str:
    """The brokers of an address, as Kafka clients take them.

    Args:
        address: `kafka://host:port[,host:port…]`.
    Returns:
        `host:port[,host:port…]`.
    Raises:
        InputError: if it is no such address.
    """
    brokers = address.removeprefix(SCHEME).rstrip("/")
    if "@" in brokers:
        # What is written here may be a password, and an error message goes to logs.
        raise InputError(f"{SCHEME}…: no user or password in an address; put them into a properties file")
    for broker in brokers.split(","):
        found = _BROKER.fullmatch(broker)
        if not is_live(address) or found is None or not 0 < int(found[2]) <= 0xFFFF:
            raise InputError(f"{address}: not the address of a cluster; {_WANTED}")
    return brokers


_NOT_ALLOWED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "DESCRIBE and READ on the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "DESCRIBE on the cluster",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "DESCRIBE on the groups",
}
_NOT_LET_IN = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
}
_NO_ANSWER = {
    KafkaError._TRANSPORT,
    KafkaError._RESOLVE,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
}
_GONE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_UNKNOWN_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}


class Complaints:
    """What librdkafka complained of on the way: a call that times out does not say why itself."""

    def __init__(self) -> None:
        self._latest: dict[int, KafkaError] = {}

    def __call__(self, error: KafkaError) -> None:
        """Take a complaint; librdkafka's `error_cb`."""
        self._latest[error.code()] = error

    @property
    def are_final(self) -> bool:
        """Whether waiting would not help: a broker refuses this user, or this connection."""
        return bool(self._latest.keys() & {KafkaError._SSL, *_NOT_LET_IN})

    @property
    def say_down(self) -> bool:
        """Whether no broker at all could be reached."""
        return KafkaError._ALL_BROKERS_DOWN in self._latest

    def worst(self, otherwise: KafkaError) -> KafkaError:
        """The complaint that explains a failure best."""
        telling = [*_NOT_LET_IN, KafkaError._SSL, KafkaError._RESOLVE, KafkaError._TRANSPORT]
        return next((self._latest[code] for code in telling if code in self._latest), otherwise)


def refusal(where: str, error: KafkaException | KafkaError, complaints: Complaints | None = None) -> InputError:
    """The error that a person reads in place of librdkafka's.

    Args:
        where: the cluster, and what of it was asked for.
        error: as librdkafka raised or returned it.
        complaints: what it complained of before.
    """
    found = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(found, KafkaError):
        return InputError(f"{where}: {_plain(found)}")
    code = found.code()
    if code in _NO_ANSWER and complaints is not None:
        found = complaints.worst(found)
        code = found.code()
    if code in _NOT_ALLOWED:
        return InputError(f"{where}: not authorised ({_plain(found)}); let this user have {_NOT_ALLOWED[code]}")
    if code in _NOT_LET_IN:
        return InputError(f"{where}: the broker refuses this user ({_plain(found)}); check the properties file")
    if code == KafkaError._SSL:
        return InputError(f"{where}: no TLS connection ({_plain(found)}); check ssl.* in the properties file")
    if code in _UNKNOWN_TOPIC:
        return InputError(f"{where}: no such topic; a cluster has it once a share group was used on it")
    if code in _GONE:
        return InputError(f"{where}: the broker deleted records while they were read; run the command again")
    if code in _NO_ANSWER:
        mend = "check that it is up, or security.protocol where it wants one"
        return InputError(f"{where}: no broker answers ({_plain(found)}); {mend}")
    return InputError(f"{where}: {_plain(found)}")


def _plain(error: Any) -> str:
    """What librdkafka says, without the name of its own client and thread in front."""
    said = error.str() if isinstance(error, KafkaError) else str(error)
    said = re.sub(r"^(\[thrd:[^\]]*\]: ?)+", "", said)
    said = re.sub(r"^(\w+://)?[\w.\[\]:-]+:\d+/\w+: ", "", said)
    return re.sub(r" \(after \d+ms in state [\w_]+(, [^)]*)?\)", "", said).strip().rstrip(".")


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
        from share_state.sources.kafka_cluster import live_logs  # noqa: PLC0415  the client library is an extra
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
        from share_state.sources.kafka_admin import broker_answers  # noqa: PLC0415
    return broker_answers(address, properties, class_path, groups)


@contextmanager
def _extra() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name != "confluent_kafka":
            raise
        raise SetupError(EXTRA) from None
