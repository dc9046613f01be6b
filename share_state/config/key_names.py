"""How a key is written: with dots in a file and in `--set`, in capitals in a variable."""

PREFIX, NEST = "SHARE_STATE_", "__"

KeyPath = tuple[str | int, ...]
"""The names from the top of the configuration to a value; an item of a list goes by its number."""


def dotted(path: KeyPath) -> str:
    """A key as a file and `--set` have it: `limits.delivery_count`."""
    return ".".join(map(shown, path))


def variable(path: KeyPath) -> str:
    """The environment variable of a key: `SHARE_STATE_LIMITS__DELIVERY_COUNT`."""
    return PREFIX + NEST.join(map(str, path)).upper()


def shown(name: str | int) -> str:
    """A name as it can stand in a message, which is one line whatever a key is made of."""
    return str(name) if str(name).isprintable() else repr(name)
