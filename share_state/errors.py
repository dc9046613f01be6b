"""The one exception tree. A message is the whole line that the person who typed the command reads."""


class ShareStateError(Exception):
    """Raised when the call, the configuration or the input is unusable: exit code 2, nothing written."""


class InputError(ShareStateError):
    """Raised when an input cannot be read as an export of share-group state."""


class WarehouseError(ShareStateError):
    """Raised when the place for the tables cannot be used, or holds something else."""


class NothingCommittedError(WarehouseError):
    """Raised when no run was ever committed in the place that is read."""


class SetupError(ShareStateError):
    """Raised when something that `make setup` provides is missing."""


class DeclarationError(ShareStateError):
    """Raised when a file under schemas/ does not say what a table or a record is."""
