"""Addresses `kafka://host:port[,host:port…]`, and the properties files of Kafka's tools.

Works without the Kafka client library, which `kafka_cluster` and `kafka_source` import. Values of properties may be
secrets: no message, `repr` or log shows them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from share_state.errors import InputError
from share_state.stores.object_stores import read_errors
from share_state.stores.paths import regular_path, to_path

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LOGINS = ("PlainLoginModule", "ScramLoginModule")
_LOGIN_FIELD = re.compile(r"(\w+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\s;]+))")
_PEM_TEXTS = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
_STORE_TYPES = {"truststore": ("PEM",), "keystore": ("PEM", "PKCS12")}


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """The settings of a properties file, name -> value; empty without a file."""

    path: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def for_librdkafka(self) -> dict[str, str]:
        """The settings under librdkafka's names, which the file may also use directly.

        Raises:
            InputError: if librdkafka has no equivalent of a setting; the message has its name only.
        """
        settings = {name: value for name, value in self.settings.items() if name not in _TRANSLATED}
        if (login := self.settings.get("sasl.jaas.config")) is not None:
            settings |= self._login(login)
        for store in ("truststore", "keystore"):
            settings |= self._store(store)
        settings |= {
            librdkafka_name: self.settings[name]
            for name, librdkafka_name in _PEM_TEXTS.items()
            if self.settings.get(name)
        }
        if settings.get("ssl.endpoint.identification.algorithm") == "":
            settings["ssl.endpoint.identification.algorithm"] = "none"
        return settings

    def secrets_in(self, text: str) -> list[str]:
        """Names of the settings whose values occur in a text; such a text must not be shown."""
        return [name for name, value in self.settings.items() if value and value in text]

    def _login(self, login: str) -> dict[str, str]:
        if not any(module in login for module in _LOGINS):
            raise self._error("sasl.jaas.config", f"only {' and '.join(_LOGINS)} are supported")
        fields = {
            name: double or single or bare for name, double, single, bare in _LOGIN_FIELD.findall(login)
        }
        if not {"username", "password"} <= fields.keys():
            raise self._error("sasl.jaas.config", "it has no username and password")
        return {f"sasl.{name}": re.sub(r"\\(.)", r"\1", fields[name]) for name in ("username", "password")}

    def _store(self, store: str) -> dict[str, str]:
        location = self.settings.get(f"ssl.{store}.location")
        if location is None:
            return {}
        kind = self.settings.get(f"ssl.{store}.type", "JKS").upper()
        if kind not in _STORE_TYPES[store]:
            types = " or ".join(_STORE_TYPES[store])
            raise self._error(
                f"ssl.{store}.location", f"a {kind} store is not supported; give one of type {types}"
            )
        if store == "truststore":
            return {"ssl.ca.location": location}
        if kind == "PEM":
            return {"ssl.certificate.location": location, "ssl.key.location": location}
        password = self.settings.get("ssl.keystore.password", "")
        return {"ssl.keystore.location": location, "ssl.keystore.password": password}

    def _error(self, name: str, why: str) -> InputError:
        return InputError(f"{self.path}: {name}: {why}")


_TRANSLATED = {
    "bootstrap.servers",
    "sasl.jaas.config",
    *_PEM_TEXTS,
    *(f"ssl.{store}.{part}" for store in _STORE_TYPES for part in ("location", "password", "type")),
}


def read_client_properties(path: str | None) -> ClientProperties:
    """Read a properties file of Kafka's tools (`--command-config`); empty if no path is given.

    Raises:
        InputError: if it is missing or has an invalid line; the line itself is not shown.
    Source: java.util.Properties.load.
    """
    if path is None:
        return ClientProperties()
    try:
        with read_errors(path, "give a file of client properties"):
            text = regular_path(to_path(path)).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(
            f"{path}: not text; give a file of client properties, one NAME=VALUE per line"
        ) from None
    settings = {}
    for number, line in _logical_lines(text):
        match = re.fullmatch(r"((?:[^\\=:\s]|\\.)+)\s*[=:]\s*(.*)", line, re.DOTALL)
        if match is None:
            raise InputError(f"{path}: line {number} is not NAME=VALUE; give a file of client properties")
        settings[_unescaped(match[1])] = _unescaped(match[2])
    return ClientProperties(path, settings)


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Number of the first line and text of each property; a backslash at the end of a line continues it."""
    lines = []
    open_line = ""
    first = 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.lstrip()
        if not open_line and (not stripped or stripped[0] in "#!"):
            continue
        first = first if open_line else number
        if (len(stripped) - len(stripped.rstrip("\\"))) % 2:
            open_line += stripped[:-1]
            continue
        lines.append((first, open_line + stripped))
        open_line = ""
    return [*lines, *([(first, open_line)] if open_line else [])]


def _unescaped(text: str) -> str:
    def unescape(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9A-Fa-f]{4}|.)", unescape, text)


SCHEME = "kafka://"
KAFKA_FORM = "kafka"
"""The `--format` of a running cluster."""

_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s\[\]:/,@]+):(\d{1,5})")
ADDRESS_HINT = "give kafka://HOST:PORT, or several brokers of one cluster with commas between them"
"""What to give for an address, in messages."""


def bootstrap_servers(address: str) -> str:
    """The brokers of an address, in the form of `bootstrap.servers`: `host:port[,host:port…]`.

    Raises:
        InputError: if the address is invalid.
    """
    brokers = address.removeprefix(SCHEME).rstrip("/")
    if "@" in brokers:
        # Messages go to logs, and this may be a password.
        raise InputError(f"{SCHEME}…: an address must not contain a user or password; use a properties file")
    for broker in brokers.split(","):
        match = _BROKER.fullmatch(broker)
        if not address.startswith(SCHEME) or match is None or not 0 < int(match[2]) <= 0xFFFF:
            raise InputError(f"{address}: not the address of a cluster; {ADDRESS_HINT}")
    return brokers
