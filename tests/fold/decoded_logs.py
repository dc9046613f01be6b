"""Decoded records of whole logs: those of real brokers, drawn ones, and damaged ones."""

from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from share_state.fold.state_log import decode_log
from share_state.kafka.state_records import STATE_BATCH, STATE_RECORD, Fault, Kind, StateRecords
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from tests.fold.model import Written
from tests.fold.random_logs import folder_of
from tests.truth import DATA

LOGS = [f"{path.parent.parent.name}/{path.parent.name}" for path in sorted(DATA.glob("4.*/*/__share_group_state-0"))]


def decoded(inputs: Path) -> tuple[StateRecords, int]:
    """All records of the one log partition under a folder, and how many share-partitions it has."""
    (log,) = find_logs([str(inputs)])
    rows, batches, at, keys = [], [], 0, 0
    for records, table in decode_log(log, Window()):
        part = records.rows.copy()
        part["batches"] += at
        rows.append(part)
        batches.append(records.batches)
        at, keys = at + len(records.batches), len(table)
    none = np.zeros(0, STATE_RECORD), np.zeros(0, STATE_BATCH)
    return StateRecords(np.concatenate([none[0], *rows]), np.concatenate([none[1], *batches])), keys


def drawn_records(log: list[list[Written]], folder: Path) -> tuple[StateRecords, int]:
    folder_of(log, folder)
    return decoded(folder / "__share_group_state-0")


def damaged(data: st.DataObject, records: StateRecords) -> StateRecords:
    """The records, some unreadable, of no share-partition, cold, or with a range that ends before it begins."""
    rows, batches = records.rows.copy(), records.batches.copy()
    for row in rows:
        flaw = data.draw(
            st.sampled_from([0, 0, 0, 0, Fault.VALUE_MALFORMED, Fault.KEY_MALFORMED, Fault.INVERTED_RANGE])
        )
        if flaw == Fault.INVERTED_RANGE and row["batch_count"]:
            batches["last"][row["batches"]] = batches["first"][row["batches"]] - 1
        elif flaw == Fault.INVERTED_RANGE:
            continue
        if flaw == Fault.KEY_MALFORMED:
            row["key"], row["kind"] = -1, Kind.SKIPPED
        row["fault"] |= flaw
        row["write_time"] += data.draw(st.sampled_from([0, 0, 1])) if row["kind"] == Kind.SNAPSHOT else 0
    return StateRecords(rows, batches)
