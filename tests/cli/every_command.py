"""One call of each command, in an order in which later calls read what earlier ones wrote."""

from pathlib import Path

from tests.sources.formats.tables import found, table_of, write
from tests.truth import DATA

EXPORT = str(DATA / "4.3.1/chaos")
TOPICS = ("--topics", f"{EXPORT}/topics.json")
SHARE_PARTITION = ("--group", "g3", "--topic", "t0", "--partition", "2")
# Nothing listens on this port.
CLUSTER = "kafka://127.0.0.1:1"

CALLS: dict[str, tuple[str, ...]] = {
    "reconstruct": (EXPORT, *TOPICS, "--out", "reconstructed"),
    "audit": (EXPORT, *TOPICS, "--out", "audited"),
    "stream": ("growing", "--out", "streamed", "--once"),
    "cutoff": (EXPORT, *TOPICS, "--verify"),
    "why": ("g3", EXPORT, *TOPICS),
    "repair": (EXPORT, *TOPICS),
    "offsets": (EXPORT, *TOPICS, "--out", "offsets.csv"),
    "show": ("reconstructed",),
    "explain": (EXPORT, *TOPICS, *SHARE_PARTITION, "--offset", "470"),
    "diff": ("reconstructed", "audited"),
    "groups": ("audited",),
    "decode": (EXPORT,),
    "simulate": ("--out", "simulated", "--groups", "1", "--minutes", "1"),
    "compare": ("audited", CLUSTER),
    "rules": (),
    "plot": ("window", EXPORT, *TOPICS, *SHARE_PARTITION, "--out", "window.svg"),
    "topics": (str(DATA.parent / "sources/cluster_facts/whole-broker"),),
    "setup": (),
}
"""Command -> its arguments; relative paths are those of the working directory."""


def prepare(folder: Path) -> None:
    """Make what the calls read in the folder that is to be their working directory."""
    write(table_of(found(EXPORT)), folder / "growing/records.parquet")
