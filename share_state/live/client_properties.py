"""The properties file that says how to reach a secured cluster, in the form that Kafka's own tools take.

Its values are secrets: no message, `repr` or log of this package shows one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from share_state.errors import InputError

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
