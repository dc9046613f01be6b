"""Every command on damaged logs, odd histories and odd micro-batches: an answer or one line, never exit code 3.

profiles.py says how many examples are drawn.
"""

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from share_state.cli.main import COMMANDS
from share_state.errors import InputError
from share_state.pipeline.stream_changes import LogChanges
from share_state.pipeline.stream_state import from_ipc
from share_state.simulator.simulation import simulate
from share_state.sources.new_records import LogFacts
from share_state.spark.streaming import pack_rows
from tests.cli.commands import CommandResult, run_cli
from tests.cli.test_odd_files import NewBytes, NewNumbers, changed, is_read_or_refused, numbers, patches
from tests.damage.damage import KINDS, NotApplicableError
from tests.damage.exports import DRAFT, HISTORIES, dialect_of, whole_export
from tests.damage.test_damaged_exports import truth_of
from tests.fold.test_fuzz import TABLE_ROWS
from tests.pipeline.test_stream_tables import Stream
from tests.profiles import SLOW, by_profile, nightly
from tests.simulator.test_requests import LOG as REQUESTS
from tests.sources.formats.tables import write

KEY = ["--group", "{group}", "--topic", "{topic}", "--partition", "{partition}"]
CALLS = {
    "reconstruct": ["{log}", "--out", "w", "--timeline"],
    "audit": ["{log}", "--out", "w"],
    "cutoff": ["{log}", "--verify", "--delete-records", "offsets.json"],
    "repair": ["{log}"],
    "why": ["{group}", "{log}"],
    "offsets": ["{log}", "--out", "offsets.csv"],
    "explain": ["{log}", *KEY, "--offset", "{offset}"],
    "diff": ["{log}", "--as-of-time", "2023-11-14T22:13:50Z"],
    "decode": ["{log}"],
    "plot": ["window", "{log}", *KEY, "--out", "p.svg"],
    "topics": ["{log}"],
    "show": ["w"],
    "groups": ["w"],
}
"""Command -> a call of it with a damaged log, or with the warehouse of an audit of that log."""

ELSEWHERE = {
    "stream": "test_a_micro_batch_of_any_rows_is_folded",
    "simulate": "test_an_odd_history_is_simulated_or_refused",
    "compare": "asks a running cluster",
    "rules": "reads nothing",
    "setup": "reads nothing",
}
"""Command -> what tries it, or why it is not tried."""


def test_every_command_is_tried():
    assert CALLS.keys() | ELSEWHERE.keys() == COMMANDS.keys()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, emptied for each example."""
    place = Path(mkdtemp(prefix="odd-"))
    monkeypatch.chdir(place)
    yield place
    shutil.rmtree(place)


def _emptied(folder: Path) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


@SLOW
@given(
    command=st.sampled_from(sorted(CALLS)),
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3),
    history=st.sampled_from(HISTORIES),
    seed=st.integers(0, 3),
    choice=st.integers(0, 2**32),
    as_json=st.booleans(),
)
def test_every_command_reads_a_damaged_log_or_refuses_it(
    capfd: pytest.CaptureFixture[str],
    folder: Path,
    command: str,
    kinds: list[str],
    history: str,
    seed: int,
    choice: int,
    as_json: bool,
):
    _emptied(folder)
    rng, damaged, done = Random(choice), whole_export(history, seed).copied(), 0
    for kind in kinds:
        name = rng.choice(sorted(damaged.logs))
        try:
            KINDS[kind](damaged, name, rng)
        except (NotApplicableError, ValueError, IndexError, struct.error):
            continue  # what another damage has left is too little for this one
        done += 1
    assume(done)
    damaged.write(folder / "log")
    group, topic_id, topic, partition = rng.choice(sorted(truth_of(history, seed).states, key=str))
    given_as = {"log": "log", "group": group, "topic": topic_id or topic, "partition": partition}
    call = [part.format(**given_as, offset=rng.randrange(600)) for part in CALLS[command]]
    dialect = ["--dialect", dialect_of(history)] if history == DRAFT and "log" in call else []
    if command in ("show", "groups"):
        dialect = []
        is_read_or_refused(capfd, "audit", "log", "--out", "w", "--quiet")
    json_option = ["--json"] if as_json and command != "topics" else []
    is_read_or_refused(capfd, command, *call, *dialect, *json_option)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The events of a simulated minute."""
    place = tmp_path_factory.mktemp("simulated") / "s"
    simulate(place, seed=1, groups=1, minutes=1, state_partitions=2, traces=True)
    return b"".join((place / "events.jsonl").read_bytes().splitlines(keepends=True)[:60])


@given(st.sampled_from(["--events", "--requests"]), numbers, patches)
def test_an_odd_history_is_simulated_or_refused(
    capfd: pytest.CaptureFixture[str],
    folder: Path,
    events: bytes,
    option: str,
    new_numbers: NewNumbers,
    new_bytes: NewBytes,
):
    _emptied(folder)
    content = events if option == "--events" else REQUESTS.read_bytes()
    (folder / "history").write_bytes(changed(content, new_numbers, new_bytes))
    is_read_or_refused(capfd, "simulate", "--out", "s", option, "history", "--state-partitions", "3")


def _table(rows: list) -> pa.Table:
    partitions, offsets, times, keys, values = zip(*rows, strict=True) if rows else ((),) * 5
    return pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(["__share_group_state"] * len(rows), pa.string()),
            "partition": pa.array(partitions, pa.int64()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
        }
    )


@given(st.lists(TABLE_ROWS, min_size=1, max_size=3), st.sampled_from([True] + [False] * 7))
def test_a_micro_batch_of_any_rows_is_folded(folder: Path, batches: list[list], is_written: bool):
    _emptied(folder)
    stream = Stream(folder / "lake")
    micro_batches = list[list[LogChanges]]()
    for rows in batches:
        packed, problems = list[dict[str, Any]](), list[str]()
        try:
            packed = [row for batch in pack_rows(_table(rows), "rows") for row in batch.to_pylist()]
        except InputError as error:
            # Times that are plausible in another unit only.
            problems.append(str(error))
        problems += [row["problem"] for row in packed if row["problem"] is not None]
        records = [(row["state_partition"], from_ipc(row["rows"])) for row in packed if row["problem"] is None]
        assert len(problems) + sum(len(own) for _, own in records) <= len(rows)
        changes = [LogChanges("", problems=problems)] if problems else []
        for number, own in records:
            changed = stream.fold_log(number, own, LogFacts())
            changes += [changed] if changed is not None else []
        micro_batches.append(changes)
    if is_written:
        stream.write(micro_batches)


VALUES = ["0", "-1", "1", "1.5", "0x10", "٣", "inf", "9" * 30, "9" * 5000, "2147483648", "", " ", "x", "a\0b", "\n"]
VALUES += ["/dev/null", "nowhere/x", "in", "lake", "..", "~", "kafka://h:1", "s3://", "file://", "\x1b]0;t\x07", "1ms"]
OPTIONS = ["--trigger", "--max-records", "--max-files", "--prometheus-address", "--prometheus-share-partitions"]
OPTIONS += ["--topics", "--state-partitions", "--dead-letters", "--rule", "--fail-on", "--kafka-properties", "--out"]
OPTIONS += ["--checkpoint"]


@nightly("each value that is accepted is a micro-batch in Spark")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("value", VALUES, ids=ascii)
def test_a_stream_with_an_odd_option_is_refused_or_ends(
    capfd: pytest.CaptureFixture[str], folder: Path, option: str, value: str
):
    write(_table([(0, 0, 0, b"k", b"v"), (0, 1, 0, b"k", None)]), folder / "in/a.parquet")
    said = _streamed(capfd, option, value)
    assert said.code in (0, 1, 2), said
    if said.code == 2:
        assert said.err.splitlines()[-1].startswith("share-state: "), said


@nightly("some seconds in Spark each")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("seed", range(by_profile(0, 40)))
def test_a_stream_over_odd_files_is_read_or_refused(capfd: pytest.CaptureFixture[str], folder: Path, seed: int):
    rng = Random(seed)
    texts = [None, b"", b"k", rng.randbytes(30)]
    records = [
        (rng.randrange(4), rng.randrange(9), rng.randrange(2**45), rng.choice(texts), rng.choice(texts))
        for _ in range(8)
    ]
    write(_table(records), folder / "in/a.parquet")
    content = bytearray((folder / "in/a.parquet").read_bytes())
    content[rng.randrange(len(content) // 2)] ^= 1 << rng.randrange(8)
    (folder / "in/b.parquet").write_bytes(content)
    said = _streamed(capfd)
    assert said.code in (0, 1, 2), said


def _streamed(capfd: pytest.CaptureFixture[str], *options: str) -> CommandResult:
    places = [part for name, place in (("--out", "lake"), ("--checkpoint", "cp")) if name not in options
              for part in (name, place)]  # fmt: skip
    said = run_cli(capfd, "stream", "in", *places, "--once", "--quiet", *options)
    assert "Traceback" not in said.err, said
    assert json.dumps(said.err).isprintable()
    return said
