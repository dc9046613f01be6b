"""Batches whose leader epoch is not that of the log are not its own."""

from dataclasses import replace
from pathlib import Path

import pytest

from share_state.fold.state_log import FoldedLog, fold_log
from share_state.rules.findings import judge
from share_state.sources.discovery import find_logs
from tests.damage.exports import in_epoch
from tests.fold.model import SNAPSHOT_KIND, Written
from tests.fold.random_logs import as_kafka_writes, folder_of

SNAPSHOT = Written(SNAPSHOT_KIND, 0, ((0, 3, 2, 1),), start=0)


def _fold(folder: Path, epochs: list[int], recorded: list[tuple[int, int]] | None = None) -> FoldedLog:
    """Fold a log with one snapshot a batch, in leader epochs, beside a leader-epoch-checkpoint."""
    written = as_kafka_writes([[SNAPSHOT] for _ in epochs])
    folder = folder / "__share_group_state-0"
    folder_of(written, folder)
    (segment,) = folder.rglob("*.log")
    data = segment.read_bytes()
    size = len(data) // len(epochs)
    parts = [in_epoch(data[number * size : (number + 1) * size], epoch) for number, epoch in enumerate(epochs)]
    segment.write_bytes(b"".join(parts))
    if recorded is not None:
        lines = [f"{epoch} {start}" for epoch, start in recorded]
        (segment.parent / "leader-epoch-checkpoint").write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    (log,) = find_logs([str(segment.parent)])
    return fold_log(replace(log, partition=0))


@pytest.mark.parametrize(
    ("epochs", "recorded"),
    [
        ([0, 0, 0, 0], None),
        ([0, 2, 2, 5], None),
        ([0, 2, 2, 5], [(0, 0), (2, 1), (5, 3)]),
        # The file is older than the segments, or the log began before its first epoch.
        ([0, 2, 2, 5], [(0, 0), (2, 1)]),
        ([0, 2, 2, 5], [(2, 1)]),
        ([0, 2, 2, 5], []),
    ],
)
def test_leader_epochs_of_one_log_only_increase(tmp_path: Path, epochs: list[int], recorded: list | None):
    folded = _fold(tmp_path, epochs, recorded)
    assert folded.cutoff["safe"].to_pylist() == [True]
    assert "FOREIGN_BATCH" not in judge(folded)["rule"].to_pylist()


@pytest.mark.parametrize(
    ("epochs", "recorded", "first", "count"),
    [
        ([0, 2, 1, 1], None, 2, 1),
        ([3, 2, 1, 0], None, 1, 3),
        ([0, 0, 0, 2], [(0, 0), (2, 1)], 1, 2),
        ([0, 1, 1, 1], [(0, 0), (2, 2)], 1, 3),
        ([4, 4, 4, 4], [(0, 0), (4, 2)], 0, 2),
    ],
)
def test_batches_of_another_replica_are_found(
    tmp_path: Path, epochs: list[int], recorded: list | None, first: int, count: int
):
    folded = _fold(tmp_path, epochs, recorded)
    (row,) = folded.cutoff.to_pylist()
    assert not row["safe"]
    assert f"from offset {first} on, leader epochs or file names are not those of this log" in row["reason"]
    (finding,) = [found for found in judge(folded).to_pylist() if found["rule"] == "FOREIGN_BATCH"]
    assert (finding["offset"], finding["severity"]) == (first, "error")
    assert dict(finding["evidence"])["batches"] == str(count)


def test_a_file_is_named_after_its_first_batch_or_an_earlier_one(tmp_path: Path):
    _fold(tmp_path, [0, 0, 0, 0])
    (segment,) = tmp_path.rglob("*.log")
    data = segment.read_bytes()
    size = len(data) // 4
    (segment.parent / f"{0:020}.log").write_bytes(data[: 2 * size])
    for name, first in ((2, -1), (1, -1), (3, 2), (7, 2)):
        for old in segment.parent.glob("*[1-9].log"):
            old.unlink()
        (segment.parent / f"{name:020}.log").write_bytes(data[2 * size :])
        (log,) = find_logs([str(segment.parent)])
        folded = fold_log(replace(log, partition=0))
        assert folded.observations.counts.foreign[0] == first, name
        assert ("FOREIGN_BATCH" in judge(folded)["rule"].to_pylist()) == (first >= 0)
        assert folded.cutoff["safe"].to_pylist() == [first < 0]
