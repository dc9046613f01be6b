"""Whatever happens to a copy: no cutoff is called safe that would lose state, and no state is wrong in silence.

Each example damages the export of a simulated or real broker, and judges it as `cutoff` and `reconstruct` do. Then
every cutoff that is called safe is carried out on the whole logs, and every state is compared with that of the whole
logs. What no reader can detect is listed in `UNDETECTABLE`, each with the condition on the bytes that makes it so.
"""

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, mkdtemp

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from share_state.errors import InputError
from share_state.pipeline.result import EXTENT_NOTES
from share_state.simulator.log_writer import LogWriter
from share_state.simulator.simulation import simulate
from tests.damage.damage import KINDS, NotApplicableError
from tests.damage.exports import (
    DRAFT,
    HISTORIES,
    Export,
    Log,
    base_offset,
    batches,
    dialect_of,
    last_offset,
    whole_export,
    with_right_crc,
)
from tests.damage.judged import Judged, losses_by_cutoffs, unnamed_differences, write_and_judge
from tests.profiles import by_profile, some_of


def _bytes_of(log: Log) -> bytes:
    return b"".join(log.segments[base] for base in sorted(log.segments))


def _is_made_earlier(whole: Export, damaged: Export) -> bool:
    """Whether a copy that was made earlier has the same bytes, and no high watermark says that it was made later."""
    return damaged.high_watermarks is None and all(
        name in whole.logs and _bytes_of(whole.logs[name]).startswith(_bytes_of(log))
        and min(log.segments) == min(whole.logs[name].segments)
        for name, log in damaged.logs.items()
    )  # fmt: skip


def _is_a_smaller_topic(whole: Export, damaged: Export) -> bool:
    """Whether the logs that are there are whole, and no checkpoint file lists others."""
    return damaged.high_watermarks is None and all(
        whole.logs[name].segments == log.segments for name, log in damaged.logs.items()
    )


def _is_beyond(name: str, damaged: Export) -> bool:
    """Whether a log partition is after the last one of its topic that is there."""
    topic, _, number = name.rpartition("-")
    kept = [int(other.rpartition("-")[2]) for other in damaged.logs if other.rpartition("-")[0] == topic]
    return int(number) > max(kept, default=-1)


def _is_another_history(whole: Export, damaged: Export) -> bool:
    """Whether every log is one that a broker could have written: whole batches without a gap between them."""
    del whole
    for log in damaged.logs.values():
        several = [batch for base in sorted(log.segments) for batch in batches(log.segments[base])]
        if any(with_right_crc(batch) != batch for batch in several):
            return False
        ends = [last_offset(batch) + 1 for batch in several]
        if any(base_offset(batch) != end for batch, end in zip(several[1:], ends[:-1], strict=True)):
            return False
    return True


@dataclass(frozen=True)
class Undetectable:
    """Damage that cannot be told from a whole export.

    Attributes:
        damage: what it is, in the words of docs/cutoff.md and docs/limits.md.
        reason: why not.
        kinds: kinds of damage that may be so.
        holds: whether it is so for a whole and a damaged export.
        misleads_cutoffs: whether a cutoff may be called safe that is not safe for the whole log.
        hides: whether it hides the states of a log partition.
    """

    damage: str
    reason: str
    kinds: tuple[str, ...]
    holds: Callable[[Export, Export], bool]
    misleads_cutoffs: bool = False
    hides: Callable[[str, Export], bool] = lambda name, damaged: bool(name and damaged)


UNDETECTABLE = (
    Undetectable(
        "A copy that ends early, without a recorded high watermark",
        "a copy that was made earlier has the same bytes",
        ("tail_segment_lost", "truncated_between_batches", "older_copy_instead", "segment_emptied"),
        _is_made_earlier,
    ),
    Undetectable(
        "The last partitions of a topic, where no checkpoint file lists them and fewer than 20 share-partitions are"
        " left",
        "a topic with fewer partitions has the same bytes",
        ("first_folder_lost", "middle_folder_lost", "last_folder_lost", "all_folders_but_one_lost"),
        _is_a_smaller_topic,
        hides=_is_beyond,
    ),
    Undetectable(
        "Control records of the draft in the folder of another topic-partition",
        "they do not name theirs",
        ("folders_swapped", "segment_of_another_log"),
        lambda whole, damaged: next(iter(whole.logs)).startswith("topic-") and _is_another_history(whole, damaged),
        misleads_cutoffs=True,
    ),
    Undetectable(
        "Records or offsets that were written anew, without a gap and with right checksums",
        "a broker that wrote these records has the same bytes",
        (
            "batch_removed_without_a_gap",
            "batch_repeated_at_new_offsets",
            "batches_swapped_and_renumbered",
            "bytes_flipped_with_a_right_crc",
            "segment_of_another_log_renumbered",
            "tail_of_another_replica",
            "offsets_shifted",
        ),
        _is_another_history,
        misleads_cutoffs=True,
    ),
)


@pytest.mark.parametrize("page", ["cutoff.md", "limits.md"])
def test_what_is_undetectable_is_listed_with_its_reason(page: str):
    text = " ".join((Path(__file__).parents[2] / "docs" / page).read_text().split())
    for one in UNDETECTABLE:
        assert one.damage in text
        assert one.reason in text.partition(one.damage)[2]


_PLACE = TemporaryDirectory(prefix="share_state-tests-")


@cache
def truth_of(history: str, seed: int) -> Judged:
    """A whole export as the product reads it."""
    folder = Path(_PLACE.name, f"{history} {seed}")
    return write_and_judge(whole_export(history, seed), folder / "logs", dialect_of(history))


@contextmanager
def _written(export: Export, history: str) -> Iterator[Judged | None]:
    """The judged export; None if it is refused."""
    folder = Path(mkdtemp(prefix="damaged-"))
    try:
        yield write_and_judge(export, folder / "logs", dialect_of(history))
    except InputError:
        yield None
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def figures() -> Iterator[Counter[str]]:
    """What the examples cover, printed at the end; docs/reliability.md has the figures of a nightly run."""
    counted = Counter[str]()
    yield counted
    for name in ("kind", "history", "kind and history"):
        counted[f"different: {name}"] = sum(text.startswith(f"{name}: ") for text in counted)
    for name, count in sorted(counted.items()):
        if not name.startswith(("kind", "history")):
            sys.stdout.write(f"{count:8,} {name}\n")


@settings(max_examples=by_profile(1, 3000))  # and the examples below
@given(
    kind=st.sampled_from(sorted(KINDS)),
    history=st.sampled_from(HISTORIES),
    seed=st.integers(0, 3),
    choice=st.integers(0, 2**32),
    has_checkpoints=st.booleans(),
)
@example(kind="tail_of_another_replica", history="4.4", seed=3, choice=0, has_checkpoints=True)
@example(kind="log_start_too_large", history="4.0 pruned", seed=2, choice=0, has_checkpoints=True)
@example(kind="all_folders_but_one_lost", history="4.4", seed=1, choice=0, has_checkpoints=True)
@example(kind="middle_folder_lost", history=DRAFT, seed=1, choice=0, has_checkpoints=True)
@example(kind="all_folders_but_one_lost", history="4.0", seed=1, choice=0, has_checkpoints=False)
@example(kind="head_segment_lost", history="4.3", seed=1, choice=0, has_checkpoints=False)
@example(kind="segment_of_another_log", history=DRAFT, seed=1, choice=759642256, has_checkpoints=False)
@example(kind="all_folders_but_one_lost", history=DRAFT, seed=1, choice=1558849070, has_checkpoints=True)
@example(kind="middle_folder_lost", history=DRAFT, seed=2, choice=1333401427, has_checkpoints=False)
@example(kind="segment_renamed", history="4.1 pruned", seed=0, choice=485066785, has_checkpoints=False)
def test_no_damage_makes_a_cutoff_unsafe_or_a_state_wrong_in_silence(
    figures: Counter[str], kind: str, history: str, seed: int, choice: int, has_checkpoints: bool
):
    whole = whole_export(history, seed)
    damaged = whole.copied() if has_checkpoints else whole.without_checkpoints()
    rng = Random(choice)
    name = rng.choice([name for name, log in sorted(damaged.logs.items()) if any(log.segments.values())])
    try:
        KINDS[kind](damaged, name, rng)
    except NotApplicableError:
        assume(condition=False)
    hidden = [one for one in UNDETECTABLE if kind in one.kinds and one.holds(whole, damaged)]
    truth = truth_of(history, seed)
    figures.update(("draws", f"kind: {kind}", f"history: {history}", f"kind and history: {kind}, {history}"))
    with _written(damaged, history) as judged:
        if judged is None:
            figures["draws that are refused"] += 1
            return
        if any(one.misleads_cutoffs for one in hidden):
            figures["draws with damage that may mislead cutoffs"] += 1
        else:
            assert losses_by_cutoffs(truth, judged, figures) == []
        unnamed = unnamed_differences(truth, judged, figures)
        figures["states that differ: undetectable"] += len(unnamed)
        assert [text for text, logs in unnamed.items()
                if not any(one.hides(name, damaged) for one in hidden for name in logs)] == []  # fmt: skip


@pytest.mark.parametrize("history", some_of(HISTORIES, 3))
def test_every_cutoff_of_a_whole_export_is_safe(history: str):
    truth = truth_of(history, 1)
    assert [note for note in truth.notes if note.startswith(EXTENT_NOTES)] == []
    assert [row["reason"] for row in truth.cutoffs.values() if not row["safe"]] == []
    assert [rule for rule, _ in truth.findings if rule in ("STATE_PARTITION_MISSING", "FOREIGN_BATCH")] == []


# What is listed as undetectable: two histories, one of them damaged, have the same bytes.


def _written_log(folder: Path, numbers: list[int]) -> bytes:
    """A log of records that a broker writes in this order, one a batch; each record always has the same time."""
    log = LogWriter(folder, batch_bytes=0)
    for number in numbers:
        log.append(1_700_000_000_000 + number * 1000, b"key", f"value {number}".encode())
    log.flush()
    (segment,) = folder.glob("*.log")
    return segment.read_bytes()


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("batch_removed_without_a_gap", [[1, 2, 3, 4], [0, 2, 3, 4], [0, 1, 3, 4], [0, 1, 2, 4], [0, 1, 2, 3]]),
        ("batches_swapped_and_renumbered", [[1, 0, 2, 3, 4], [0, 2, 1, 3, 4], [0, 1, 3, 2, 4], [0, 1, 2, 4, 3]]),
        ("batch_repeated_at_new_offsets",
         [[*range(last + 1), first, *range(last + 1, 5)] for last in range(5) for first in range(last + 1)]),
    ],
)  # fmt: skip
def test_a_log_written_anew_has_the_bytes_of_another_history(tmp_path: Path, kind: str, others: list[list[int]]):
    histories = [_written_log(tmp_path / str(number), numbers) for number, numbers in enumerate(others)]
    whole = _written_log(tmp_path / "whole", [0, 1, 2, 3, 4])
    seen = set[int]()
    for choice in range(300):
        export = Export({"__share_group_state-0": Log({0: whole})})
        KINDS[kind](export, "__share_group_state-0", Random(choice))
        seen.add(histories.index(_bytes_of(export.logs["__share_group_state-0"])))
    assert len(seen) == len(histories)


def test_a_log_without_its_end_has_the_bytes_of_an_earlier_copy(tmp_path: Path):
    log = LogWriter(tmp_path / "__share_group_state-0", batch_bytes=0)
    for number in range(20):
        log.append(number, b"key", b"value")
    log.flush()
    (segment,) = log.folder.glob("*.log")
    earlier = segment.read_bytes()
    log.append(20, b"key", b"value")
    log.flush()
    whole = Export({"__share_group_state-0": Log({0: segment.read_bytes()})})
    damaged = whole.copied()
    damaged.logs["__share_group_state-0"].segments[0] = earlier
    assert _is_made_earlier(whole, damaged)
    assert whole.logs["__share_group_state-0"].segments[0] != earlier


def test_a_topic_without_its_last_partition_has_the_bytes_of_a_smaller_topic(tmp_path: Path):
    for seed in range(50):
        exports = list[dict[str, bytes]]()
        for count in (1, 2):
            folder = tmp_path / f"{seed}-{count}"
            simulate(folder, seed=seed, groups=1, minutes=1, state_partitions=count)
            exports.append({str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.log")})
        smaller, larger = exports
        if not larger["__share_group_state-1/00000000000000000000.log"]:
            # Every key hashes to partition 0 of two, so the partition that is left out could have held others.
            del larger["__share_group_state-1/00000000000000000000.log"]
            assert smaller == larger
            return
    raise AssertionError("no seed puts every share-partition into partition 0")


def test_control_records_do_not_name_their_topic():
    export = whole_export(DRAFT, 1)
    assert len(export.logs) > 1
    for name, log in export.logs.items():
        assert name.rpartition("-")[0].encode() not in _bytes_of(log)
