"""Kernels are compiled at set-up, and never on the time of whoever runs a command."""

import os
import subprocess
import sys
from pathlib import Path

from tests.control.logs import checkpoint, control, delta, log_of
from tests.truth import DATA

FOLD = """
import sys
from numba.core.dispatcher import Dispatcher
from share_state.fold.control_log import fold_control_log
from share_state.fold.control_timeline import control_timeline_tables
from share_state.fold.log import fold_log
from share_state.fold.topics import Topics
from share_state.fold.verify import verify_cutoff
from share_state.fold.decoded import decoded_tables
from share_state.rules import judge, judge_records
from share_state.wire.log_folder import Window, find_logs
from share_state.wire.topic_folders import find_topic_logs
for log in find_topic_logs([sys.argv[1]]):
    fold_control_log(log), list(control_timeline_tables(log))
for inputs in sys.argv[2:]:
    for log in find_logs(inputs.split(",")):
        folded = fold_log(log, state_partitions=3, judge=judge_records)
        judge(folded), verify_cutoff(folded, Window(), Topics()), list(decoded_tables(log, Window(), Topics()))
kernels = {
    f"{module.__name__}.{name}": kernel
    for module in list(sys.modules.values()) if module.__name__.startswith("share_state.")
    for name, kernel in vars(module).items() if isinstance(kernel, Dispatcher) and kernel.signatures
}
print(len(kernels), sorted(name for name, kernel in kernels.items() if sum(kernel.stats.cache_misses.values())))
"""


def test_after_set_up_no_fold_compiles_anything(tmp_path: Path):
    _run("-m", "share_state.setup")
    damaged = tmp_path / "__share_group_state-0"
    damaged.mkdir()
    data = next((DATA / "4.3.1/chaos/__share_group_state-0").glob("*.log")).read_bytes()
    (damaged / f"{0:020}.log").write_bytes(data[:5000] + b"\2" * 99 + data[6000:-9])
    sound = [DATA / name for name in ("4.0.2/fuzz", "4.3.1/codec-lz4", "4.3.1/pruneraw", "4.4.0/fifty")]
    copies = f"{DATA / '4.3.1/chaos'},{damaged}"
    written = [checkpoint("a", 1, 0, 0), delta("a", 1, 0, [(0, 3, 0, 1)]), delta("a", 1, 1, [(1, 1, 2, 1)])]
    log_of(tmp_path / "control", [control(0, *written)])
    called, compiled = _run("-c", FOLD, str(tmp_path / "control"), *map(str, sound), str(damaged), copies).split(" ", 1)
    assert int(called) > 10
    assert compiled.strip() == "[]"


def _run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
