"""Merges changed rows into Delta tables by key, once per application and batch (Delta's txnAppId and txnVersion)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.reader import open_table, refusal, warehouse_errors
from share_state.errors import WarehouseError
from share_state.schema.declarations import table_schema

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

GONE = "gone"
"""Column of changed rows: the row with this key is no longer in the table."""


def merge_rows(place: str, table: str, rows: pa.Table, key: Sequence[str], application: str, batch: int) -> int:
    """Insert rows, or replace those of the same key; delete those that are GONE.

    A batch that the application has merged before changes nothing, so a batch may be repeated.

    Args:
        place: folder or address of the table, which exists.
        table: its name.
        rows: its columns and GONE; no two with the same key.
        key: columns that are not null.
        application, batch: Delta's txnAppId and txnVersion; batches increase.
    Returns:
        The version of the table that holds the rows.
    Raises:
        WarehouseError: if the table is gone or cannot be written.
    """
    with _merge_errors(place):
        existing = _opened(place)
        if not len(rows) or _is_merged(existing, application, batch):
            return existing.version()
        names = table_schema(table).names
        same = " AND ".join(f"t.{name} = s.{name}" for name in key)
        once = _transaction(application, batch)
        merger = existing.merge(rows, same, source_alias="s", target_alias="t", commit_properties=once)
        columns = {name: f"s.{name}" for name in names}
        if pc.any(rows[GONE]).as_py():
            merger = merger.when_matched_delete(f"s.{GONE}")
        merger.when_matched_update(columns).when_not_matched_insert(columns, f"NOT s.{GONE}").execute()
        return existing.version()


def replace_rows(place: str, rows: pa.Table, application: str, batch: int) -> int:
    """Replace all rows of a table; otherwise as `merge_rows`."""
    from deltalake import write_deltalake  # noqa: PLC0415  slow to import

    with _merge_errors(place):
        existing = _opened(place)
        if not _is_merged(existing, application, batch):
            write_deltalake(existing, rows, mode="overwrite", commit_properties=_transaction(application, batch))
            existing.update_incremental()
        return existing.version()


def merged_batch(place: str, application: str) -> tuple[int, int]:
    """The latest batch that an application has merged into a table, -1 for none, and the table's version."""
    with _merge_errors(place):
        existing = _opened(place)
        merged = existing.transaction_version(application)
        return -1 if merged is None else merged, existing.version()


def _opened(place: str) -> "DeltaTable":
    if (existing := open_table(place)) is None:
        raise WarehouseError(f"{place}: the table is gone; start the stream again, it then writes all tables anew")
    return existing


def _is_merged(existing: "DeltaTable", application: str, batch: int) -> bool:
    merged = existing.transaction_version(application)
    return merged is not None and merged >= batch


def _transaction(application: str, batch: int) -> "CommitProperties":
    from deltalake import CommitProperties, Transaction  # noqa: PLC0415  slow to import

    return CommitProperties(app_transactions=[Transaction(application, batch)], max_commit_retries=0)


@contextmanager
def _merge_errors(place: str) -> Iterator[None]:
    from deltalake.exceptions import CommitFailedError, DeltaError  # noqa: PLC0415  slow to import

    try:
        with warehouse_errors(place):
            yield
    except CommitFailedError:
        raise WarehouseError(f"{place}: another writer committed here meanwhile; start the stream again") from None
    except DeltaError as error:
        reason, fix = refusal(error, "start the stream again, it then writes all tables anew")
        raise WarehouseError(f"{place}: cannot be written ({reason}); {fix}") from None
