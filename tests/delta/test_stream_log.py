"""The log of a stream's table: its old entries go, but never a version that `runs` may name."""

import os
import time
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from share_state.delta.merge import keep_short_log, restore_version
from share_state.delta.replaced_files import shorten_log

_AN_HOUR = 3600


def _write_up_to(place: str, version: int) -> None:
    # A checkpoint is due with every tenth version.
    while not DeltaTable.is_deltatable(place) or DeltaTable(place).version() < version:
        configuration = {"delta.checkpointInterval": "10"}
        write_deltalake(place, pa.table({"a": [1]}), mode="overwrite", configuration=configuration)
        if DeltaTable(place).version() == 0:
            keep_short_log(DeltaTable(place))


def test_the_version_before_an_idle_hour_is_kept_until_no_run_names_it(tmp_path: Path):
    place, log = str(tmp_path / "table"), tmp_path / "table/_delta_log"
    _write_up_to(place, 18)
    before = time.time() - _AN_HOUR
    for entry in log.iterdir():
        os.utime(entry, (before, before))
    _write_up_to(place, 19)
    assert list(log.glob("*19.checkpoint.parquet"))
    shorten_log(place, DeltaTable(place), [18, 19])
    assert restore_version(place, 18) > 19
    latest = DeltaTable(place).version()
    shorten_log(place, DeltaTable(place), [latest])
    assert min(int(entry.name[:20]) for entry in log.glob("0*")) == 19
    assert len(DeltaTable(place, version=latest).to_pyarrow_table()) == 1
