"""Audits that are killed at any time: the tables are right after the next one, and every alert is delivered once."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.errors import NothingCommittedError
from tests.cli.commands import flipped
from tests.profiles import by_profile, nightly
from tests.truth import DATA

TABLES = ("share_partition_state", "in_flight", "findings", "cutoff")
SPARK = ("--master", "local[1]")


def _tables(lake: Path) -> dict[str, list[str]]:
    tables = CommittedTables(str(lake))
    return {name: sorted(str(row | {"run_id": ""}) for row in tables.read(name).to_pylist()) for name in TABLES}


def _is_reported(lake: Path) -> bool:
    try:
        return CommittedTables(str(lake)).run["status"] == "reported"
    except NothingCommittedError:
        return False


@nightly("hundreds of processes; test_real_command interrupts one")
@pytest.mark.parametrize(("options", "kills"), by_profile([((), 2)], [((), 200), (SPARK, 40)]))
def test_whenever_an_audit_is_killed_its_alert_is_delivered_once(tmp_path: Path, options: tuple[str, ...], kills: int):
    source = DATA / "4.3.1/happy/__share_group_state-0" / f"{0:020}.log"
    log = tmp_path / "logs/__share_group_state-0"
    log.mkdir(parents=True)
    (log / source.name).write_bytes(flipped(source.read_bytes(), batch=-2))

    def audit(lake: Path) -> list[str]:
        return ["audit", str(tmp_path / "logs"), "--out", str(lake), "--quiet", *options]

    command, began = [sys.executable, "-m", "share_state"], time.monotonic()
    assert (
        subprocess.run([*command, *audit(tmp_path / "undisturbed")], check=False, capture_output=True).returncode == 1
    )
    lasts, expected, draw = time.monotonic() - began, _tables(tmp_path / "undisturbed"), random.Random(7)
    for number in range(kills):
        lake, delivered = tmp_path / f"lake-{number}", 0
        with subprocess.Popen(
            [*command, *audit(lake)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        ) as victim:
            # Most of it is imports, before anything is written.
            time.sleep(lasts * draw.uniform(0.4, 1))
            os.killpg(victim.pid, signal.SIGKILL)
        # Once it is reported, it may be killed before its exit code is seen.
        delivered += victim.returncode == 1 or _is_reported(lake)
        codes = [run(audit(lake)), run(audit(lake))]
        assert (delivered + codes.count(1), codes[1]) == (1, 0)
        assert _tables(lake) == expected
