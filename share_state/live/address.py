"""Addresses of clusters: `kafka://host:port[,host:port…]`."""

import re
from collections.abc import Sequence

from share_state.errors import InputError

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
