"""A state that does not fit into memory is told before the logs are read whole."""

import logging
from pathlib import Path

import pytest

import share_state
from share_state.pipeline import memory
from share_state.pipeline.memory import available_memory, memory_note
from share_state.sources.discovery import find_logs
from tests.truth import DATA

GB = 1 << 30


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """The files of a machine with 8 GB available, whose process is in some control groups."""
    every = {
        "proc/meminfo": f"MemTotal: 9 kB\nMemAvailable: {8 * GB // 1024} kB\n",
        "proc/self/cgroup": cgroup,
        **files,
    }
    for name, text in every.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def group(path: str, limit: object, used: int, cache: int = 0, *, version: int = 2) -> dict[str, str]:
    names = {
        2: ("memory.max", "memory.current", "inactive_file"),
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    }
    limit_name, used_name, cache_name = names[version]
    folder = f"sys/fs/cgroup/{'memory/' if version == 1 else ''}{path}"
    return {
        f"{folder}/{limit_name}": f"{limit}\n",
        f"{folder}/{used_name}": f"{used}\n",
        f"{folder}/memory.stat": f"anon 1\n{cache_name} {cache}\n",
    }


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("", {}, 8 * GB),
        ("0::/\n", group("", "max", GB), 8 * GB),
        ("0::/\n", group("", 3 * GB, 2 * GB, GB // 2), 3 * GB // 2),
        ("0::/pod/job\n", group("pod", 2 * GB, GB) | group("pod/job", "max", GB), GB),
        ("4:memory:/job\n1:cpu:/job\n0::/\n", group("job", 2 * GB, GB, version=1), GB),
        ("4:memory:/job\n", group("job", 2**63 - 4096, GB, version=1), 8 * GB),
        ("4:memory:/elsewhere\n", group("", GB, 2 * GB, version=1), 0),
    ],
)
def test_memory_is_that_of_the_machine_within_its_control_groups(
    tmp_path: Path, cgroup: str, files: dict[str, str], expected: int
):
    assert available_memory(machine(tmp_path, cgroup, files)) == expected


def test_without_the_files_of_linux_nothing_is_known(tmp_path: Path):
    assert available_memory(tmp_path) is None


def test_a_state_that_does_not_fit_is_told_once_before_the_fold(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    source = DATA / "4.3.1/chaos"
    logs = find_logs([str(source)])
    assert memory_note(logs) is None
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << 16)
    with caplog.at_level(logging.WARNING, "share_state"):
        tables = share_state.reconstruct(source)
    told = [record.message for record in caplog.records if "of memory are available" in record.message]
    assert len(told) == 1
    least = int(told[0].split("about ")[1].split(" ")[0].replace(",", ""))
    assert least > 0
    # Some are deleted since.
    assert least >= len(tables.share_partition_state)
