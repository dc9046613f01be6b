"""Delta tables opened by their place, a folder or an address in an object store."""

from contextlib import suppress

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from share_state.table_files import asking
from share_state.wire.stores import delta_options


def table_at(place: str, version: int | None = None) -> DeltaTable | None:
    """A Delta table; None where there is none.

    Args:
        place: path or address of its folder.
        version: as it was then; by default as it is.
    Raises:
        WarehouseError: if a store says no.
        DeltaError: if what is there cannot be read as one.
    """
    with asking(place), suppress(TableNotFoundError):
        return DeltaTable(place, version=version, storage_options=delta_options(place))
