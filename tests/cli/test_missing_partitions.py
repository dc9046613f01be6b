"""State partitions and ends of logs that are not in the input: a finding or a note, never exit code 0 in silence."""

import shutil
import tracemalloc
from pathlib import Path

import pytest

from share_state.kafka.primitives import partition_for
from tests.cli.commands import Command, CommandResult
from tests.kafka.batches import Batch, in_bytes
from tests.log_writer import snapshot
from tests.profiles import some_of
from tests.truth import DATA
from tests.warehouses import WrittenTables

CHAOS = DATA / "4.3.1/chaos"
TOPIC = "MmskRbHCTvP4WReRuBpdnw"
LOG = "__share_group_state-{}"
MISSING = "STATE_PARTITION_MISSING"


def _copy(folder: Path, *numbers: int) -> Path:
    for number in numbers:
        shutil.copytree(CHAOS / LOG.format(number), folder / LOG.format(number))
    return folder


def _with_checkpoint(folder: Path, **ends: int) -> Path:
    lines = [f"__share_group_state {name.removeprefix('p')} {end}" for name, end in ends.items()]
    (folder / "replication-offset-checkpoint").write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    return folder


def _between_two_others(folder: Path) -> list[object]:
    return [_copy(folder, 0, 2)]


def _named_by_the_checkpoint(folder: Path) -> list[object]:
    return [_with_checkpoint(_copy(folder, 0, 1), p0=546, p1=446, p2=500)]


def _named_by_the_option(folder: Path) -> list[object]:
    return [_copy(folder, 0, 1), "--state-partitions", 3]


def _shown_by_the_keys(folder: Path) -> list[object]:
    """One log with the 25 share-partitions that hash to partition 0 of 3."""
    keys = [("g", TOPIC, number) for number in range(200) if partition_for(f"g:{TOPIC}:{number}", 3) == 0][:25]
    assert len(keys) == 25
    place = folder / LOG.format(0)
    place.mkdir(parents=True)
    batches = [Batch([snapshot(key, [(0, 9, 0, 1)])], base_offset=number) for number, key in enumerate(keys)]
    (place / f"{0:020}.log").write_bytes(in_bytes(batches))
    return [folder]


@pytest.mark.parametrize(
    "make", some_of([_between_two_others, _shown_by_the_keys, _named_by_the_checkpoint, _named_by_the_option], 2)
)
def test_a_state_partition_that_is_not_in_the_input_is_an_error(cli: Command, tmp_path: Path, make):
    call = make(tmp_path / "logs")
    for command, out in (
        ("cutoff", []),
        ("reconstruct", ["--out", tmp_path / "r"]),
        ("audit", ["--out", tmp_path / "a"]),
    ):
        said = cli(command, *call, *out, "--json", "-q")
        assert said.code == 1, (command, said.err)
        assert _severities(said) == {"error"}, command
    assert not _severities(cli("cutoff", CHAOS, "--json", "-q"))


def _severities(said: CommandResult) -> set[str]:
    return {one["severity"] for one in said.json["findings"] if one["rule"] == MISSING}


def test_a_copy_that_ends_before_its_recorded_end_is_noted(cli: Command, tmp_path: Path):
    folder = _with_checkpoint(_copy(tmp_path / "logs", 0, 1, 2), p0=10_000)
    note = f"tail of {LOG.format(0)}: the copy ends at offset 546, 9,454 records before the high watermark recorded"
    assert note in cli("cutoff", folder).err
    for command in ("reconstruct", "audit"):
        cli(command, folder, "--out", tmp_path / command, "-q")
        (found,) = [one for one in WrittenTables(tmp_path / command).run["notes"] if one.startswith("tail of")]
        assert found.startswith(note)
    _with_checkpoint(folder, p0=546)
    assert "tail of" not in cli("cutoff", folder).err


def test_a_partition_number_of_a_damaged_file_takes_no_memory(cli: Command, tmp_path: Path):
    # A set of all numbers below it took 17 GB.
    folder = _with_checkpoint(_copy(tmp_path / "logs", 0), p2147483647=9)
    tracemalloc.start()
    try:
        said = cli("cutoff", folder, "--json", "-q")
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()
    assert said.code == 1
    assert [one["count"] for one in said.json["findings"] if one["rule"] == MISSING] == [1000]
    (_copy(tmp_path / "named", 0) / LOG.format(0)).rename(tmp_path / "named" / LOG.format(2**31 - 1))
    assert cli("cutoff", tmp_path / "named", "-q").code == 1
