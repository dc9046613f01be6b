"""What a cluster's refusal means to the person who named the cluster: one line, and never a setting's value."""

import re
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from share_state.errors import InputError

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
