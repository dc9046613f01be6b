"""The installed command itself, as a process of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable

import share_state
from share_state.sources.discovery import find_logs
from tests.fold.groups.group_tables import rows_of
from tests.profiles import by_profile, nightly
from tests.sources.formats.tables import write
from tests.truth import DATA, without_topics

COMMAND = Path(sys.executable).parent / "share-state"


@pytest.mark.parametrize("options", by_profile([()], [(), ("--master", "local[1]")]))
def test_the_installed_command_reconstructs_and_shows(tmp_path: Path, options: tuple[str, ...]):
    export = without_topics(DATA / "4.3.1/happy", tmp_path / "export")
    made = _run(COMMAND, "reconstruct", export, "--out", tmp_path / "w", *options)
    # The JVM prints one line about a module that Spark adds; no option silences it.
    noise = "WARNING: Using incubator modules: jdk.incubator.vector\n"
    assert (made.returncode, made.stderr.replace(noise, "")) == (0, "")
    assert made.stdout.startswith("110 records of 3 log partitions hold 6 live share-partitions\n")
    shown = _run(sys.executable, "-m", "share_state", "show", tmp_path / "w")
    assert (shown.returncode, shown.stderr) == (0, "")
    rows, _, reasons = shown.stdout.partition("\n\n")
    assert len(rows.splitlines()) == 7
    assert "the ends of their topics are not known" in reasons


@nightly("three processes")
def test_a_reader_that_leaves_early_is_no_failure():
    with subprocess.Popen(
        [COMMAND, "decode", DATA / "4.3.1/fuzz"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        assert started.stdout.readline().startswith("{")
        started.stdout.close()
        assert started.stderr.read() == ""
    assert started.returncode == 0


@pytest.fixture
def heeding_interrupts() -> Iterator[None]:
    """Who starts tests in the background may let them ignore interrupts, and so whatever they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeding_interrupts")
def test_who_interrupts_a_command_is_told_what_that_left():
    with subprocess.Popen(
        [COMMAND, "decode", DATA / "4.3.1/fuzz"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline().startswith("{")
        # More is to come than a pipe holds, so it waits for this reader.
        started.send_signal(signal.SIGINT)
        _, said = started.communicate()
    assert (started.returncode, said) == (130, "share-state: stopped; nothing was committed\n")


@nightly("a process; the test above interrupts one")
def test_sigterm_ends_a_command_like_an_interrupt_and_leaves_no_file(tmp_path: Path):
    with subprocess.Popen(
        [COMMAND, "decode", DATA / "4.3.1/fuzz"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline().startswith("{")
        started.send_signal(signal.SIGTERM)
        _, said = started.communicate()
    assert (started.returncode, said) == (143, "share-state: stopped; nothing was committed\n")
    assert [*tmp_path.iterdir()] == []


@nightly("processes; test_without_extras blocks Spark")
@pytest.mark.parametrize("command", by_profile(["audit"], ["reconstruct", "audit"]))
def test_a_little_export_needs_no_java(no_java: Mapping[str, str], tmp_path: Path, command: str):
    made = _run(COMMAND, command, DATA / "4.3.1/happy", "--out", tmp_path / "w", env=no_java)
    assert made.returncode == 0
    found = DeltaTable(tmp_path / "w" / "share_partition_state").to_pyarrow_table()
    folded = share_state.reconstruct(DATA / "4.3.1/happy").share_partition_state
    order = [("group_id", "ascending"), ("topic_id", "ascending"), ("partition", "ascending")]
    assert found.sort_by(order).to_pylist() == folded.sort_by(order).to_pylist()
    assert len(found) == 6


@nightly("a process; segments need none either, in the test above")
def test_a_table_of_records_needs_no_java(no_java: Mapping[str, str], tmp_path: Path):
    made = _run(COMMAND, "decode", DATA / "4.3.1/happy", "--out", tmp_path / "records", env=no_java)
    assert (made.returncode, made.stderr) == (0, "")
    assert len(DeltaTable(tmp_path / "records").to_pyarrow_table()) == 110


@nightly("Spark in a process of its own")
@pytest.mark.parametrize("asked", [("--spark-conf", "spark.app.name=x"), *by_profile([], [("--master", "local[1]")])])
def test_spark_that_is_asked_for_is_used(no_java: Mapping[str, str], tmp_path: Path, asked: tuple[str, str]):
    made = _run(COMMAND, "reconstruct", DATA / "4.3.1/happy", "--out", tmp_path / "w", *asked, env=no_java)
    assert made.returncode == 2
    assert made.stderr == "share-state: no `java` on the PATH: install a Java 17 runtime\n"


@nightly("waits for a JVM")
@pytest.mark.parametrize("name", ["spark.driver.memory", *by_profile([], ["spark.sql.shuffle.partitions"])])
def test_spark_that_does_not_start_is_told_with_what_it_was_given(tmp_path: Path, name: str):
    setting = f"{name}=plenty"
    made = _run(COMMAND, "reconstruct", DATA / "4.3.1/happy", "--out", tmp_path / "w", "--spark-conf", setting)
    assert made.returncode == 2
    said = made.stderr.splitlines()[-1]
    assert said.startswith(f"share-state: Spark does not start with --master local[*] and --spark-conf {name}: ")
    # Settings of SQL are no secrets.
    assert ("plenty" in said) == name.startswith("spark.sql.")
    assert not (tmp_path / "w").exists()


def _run(*arguments: object, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False, env=env)


@nightly("a process with Spark")
def test_an_error_of_a_task_is_one_line_without_a_stack_trace(tmp_path: Path):
    damaged = write(rows_of(find_logs([str(DATA / "4.3.1/chaos")])), tmp_path / "records.parquet")
    content = bytearray(damaged.read_bytes())
    content[3000:6000] = b"\xff" * 3000
    damaged.write_bytes(content)
    options = ("--format", "table", "--out", tmp_path / "w", "--master", "local[1]", "--quiet")
    made = _run(sys.executable, "-m", "share_state", "reconstruct", damaged, *options)
    said = [line for line in made.stderr.splitlines() if "incubator modules" not in line]
    assert (made.returncode, made.stdout, len(said)) == (2, "", 1), said
    assert said[0].startswith(f"share-state: {damaged}: row group 0: cannot be read (")
