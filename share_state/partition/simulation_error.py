"""What a simulation refuses."""

from share_state.errors import ShareStateError


class SimulationError(ShareStateError):
    """Raised when what is to be simulated, or the place for it, cannot be used."""
