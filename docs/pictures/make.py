"""`python docs/pictures/make.py [FOLDER]`: draw the plots of README and docs, each with one `share-state plot`."""

import sys
from pathlib import Path

from share_state.cli.main import run

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "tests" / "data"
DLQ = ("4.4.0/dlq", "--topic", "t0", "--partition", "0")

PICTURES = {
    "window-stuck.svg": ("window", *DLQ, "--group", "dq-off"),
    "window-well.svg": ("window", *DLQ, "--group", "dq-ok"),
    "offsets-stuck.svg": ("offsets", *DLQ, "--group", "dq-off"),
    "deliveries.svg": ("deliveries", "4.4.0/dlq", "--group", "dq-off", "--limit", "delivery_count=3"),
    "cutoff.svg": ("cutoff", "4.3.1/chaos"),
}
"""File -> kind of plot, log below tests/data, options."""


def make(folder: Path) -> int:
    """Draw all plots into a folder.

    Returns:
        The exit code of the first command that failed, or 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    codes = []
    for name, (what, log, *options) in PICTURES.items():
        topics = ["--topics", str(DATA / log / "topics.json")]
        codes.append(run(["plot", what, str(DATA / log), *options, *topics, "--out", str(folder / name)]))
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(make(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE))
