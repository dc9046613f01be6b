"""Kernels are compiled at set-up, and never on the time of whoever runs a command."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from share_state.sources.discovery import find_logs
from tests.fold.control_records.logs import checkpoint, control, delta, log_of
from tests.profiles import nightly
from tests.sources.formats.tables import table_of, write
from tests.truth import DATA

SET_UP = """
from share_state.cli.kernels import warm_up_kernels
warm_up_kernels(Path(sys.argv[1]))
"""

FOLD = """
from share_state.fold.draft.control_log import fold_control_log
from share_state.fold.timeline import timeline_tables
from share_state.fold.state_log import fold_log
from share_state.fold.fold_options import FoldOptions
from share_state.fold.dialect import verify_cutoff
from share_state.fold.timeline import decoded_tables
from share_state.rules.findings import judge, judge_records
from share_state.sources.as_of import Window
from share_state.sources.dead_letter_topics import SegmentLetters
from share_state.sources.discovery import find_logs
from share_state.sources.discovery import find_topic_logs
from share_state.sources.partition_count import PartitionCount
from tests.sources.formats.tables import found
SegmentLetters(find_topic_logs([sys.argv[2]])).read({})
for log in find_topic_logs([sys.argv[1]]):
    fold_control_log(log), list(timeline_tables(log))
for log in [*found(sys.argv[3]), *(log for inputs in sys.argv[4:] for log in find_logs(inputs.split(",")))]:
    folded = fold_log(log, options=FoldOptions(partition_count=PartitionCount(3), judge=judge_records))
    judge(folded), verify_cutoff(folded, Window(), FoldOptions()), list(decoded_tables(log, Window()))
"""

ENDED = """
import json, sys
from pathlib import Path
from numba.core.dispatcher import Dispatcher
{}
kernels = [
    kernel for module in list(sys.modules.values()) if module.__name__.startswith("share_state.")
    for name, kernel in vars(module).items() if isinstance(kernel, Dispatcher) and kernel.signatures
]
print(json.dumps([
    [
        kernel.py_func.__qualname__ + str(signature), kernel.targetoptions["_nrt"], str(signature.return_type),
        sum(kernel.stats.cache_misses.values()) > 0,
    ]
    for kernel in kernels for signature in kernel.nopython_signatures
]))
"""
"""Tells at the end of a program which kernels ran."""


@dataclass(frozen=True)
class Kernel:
    """A kernel that ran: whether it counts references, what it returns, whether it had to be compiled."""

    counts: bool
    returns: str
    compiled: bool


@pytest.fixture(scope="module")
def of_set_up(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    """The kernels that set-up runs."""
    return _kernels(SET_UP, str(tmp_path_factory.mktemp("set-up")))


@nightly("folds every fixture in a process of its own")
def test_no_fold_has_to_compile_what_set_up_did_not(tmp_path: Path, of_set_up: dict[str, Kernel]):
    damaged = tmp_path / "__share_group_state-0"
    damaged.mkdir()
    data = next((DATA / "4.3.1/chaos/__share_group_state-0").glob("*.log")).read_bytes()
    (damaged / f"{0:020}.log").write_bytes(data[:5000] + b"\2" * 99 + data[6000:-9])
    sound = [DATA / name for name in ("4.0.2/fuzz", "4.3.1/codec-lz4", "4.3.1/pruneraw", "4.4.0/fifty")]
    copies = f"{DATA / '4.3.1/chaos'},{damaged}"
    written = [checkpoint("a", 1, 0, 0), delta("a", 1, 0, [(0, 3, 0, 1)]), delta("a", 1, 1, [(1, 1, 2, 1)])]
    log_of(tmp_path / "control", [control(0, *written)])
    rows = table_of(find_logs([str(DATA / "4.3.1/chaos")]))
    table = write(rows, tmp_path / "rows.parquet")
    ran = _kernels(FOLD, *map(str, (tmp_path / "control", DATA / "4.4.0/dead-letters", table, *sound, damaged, copies)))
    assert len(ran) > 10
    assert sorted(set(ran) - set(of_set_up)) == []
    # It was kept, too.
    assert sorted(name for name, kernel in ran.items() if kernel.compiled) == []


@nightly("compiles")
def test_what_counts_no_references_returns_no_array(of_set_up: dict[str, Kernel]):
    # One that it returned would be let go once too often.
    uncounted = {name: kernel for name, kernel in of_set_up.items() if not kernel.counts}
    assert len(uncounted) > 10
    assert [name for name, kernel in uncounted.items() if "array" in kernel.returns] == []


def _kernels(program: str, *arguments: str) -> dict[str, Kernel]:
    """Those that a program runs, by signature."""
    command = [sys.executable, "-c", ENDED.format(program), *arguments]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name: Kernel(*told) for name, *told in json.loads(done.stdout)}
