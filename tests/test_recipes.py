"""The recipes of CONTRIBUTING.md, done in a copy of the package: each works through the command, with so few files."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from share_state.kafka.codec import encode
from share_state.schema.declarations import layout
from tests.fold.groups.group_writer import key, write_group_log
from tests.kafka.batches import Record
from tests.log_writer import batch, snapshot, update, write_segment
from tests.profiles import nightly
from tests.truth import DATA

ROOT = Path(__file__).parent.parent
HAPPY = DATA / "4.3.1/happy"


class Checkout:
    """A copy of what a contributor edits.

    Attributes:
        root: its folder.
        changed: the files that were edited or added.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.changed = root, set[str]()
        for name in ("share_state", "schemas", "conf", "docs"):
            shutil.copytree(ROOT / name, root / name)

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text that a file has once."""
        path = self.root / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, (name, old)
        path.write_text(text.replace(old, new), encoding="utf-8")
        self.changed.add(name)

    def append(self, name: str, text: str) -> None:
        """Add lines to a file, which need not exist."""
        with (self.root / name).open("a", encoding="utf-8") as file:
            file.write(text)
        self.changed.add(name)

    def run(self, module: str, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a module of the copy, and expect an exit code."""
        environment = os.environ | {"PYTHONPATH": str(self.root), "PYTHONSAFEPATH": "1"}
        call = [sys.executable, "-m", module, *map(str, arguments)]
        done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment, cwd=self.root)
        assert done.returncode == code, done.stderr
        return done

    def share_state(self, *arguments: object, code: int = 0) -> str:
        """What the command of the copy prints."""
        return self.run("share_state", *arguments, code=code).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


@nightly("compiles the rule in three processes")
def test_a_rule_is_a_function_and_its_section_of_the_docs(checkout: Checkout):
    checkout.append(
        "share_state/rules/operations.py",
        '''

@rule("UPDATE_IS_LAST", Scope.STATE_LOG, INFO, "KIP-932")
def update_is_last(folded: FoldedLog) -> Breaches:
    """The last record of a share-partition is a snapshot."""
    chains = folded.chains.chains
    rows = np.flatnonzero(chains["snapshot_offset"] != chains["last_offset"])
    return at_share_partitions(folded, rows, "its last record is an update", offset=chains["last_offset"][rows])
''',
    )
    found = json.loads(checkout.share_state("audit", HAPPY, "--out", checkout.root / "w", "--json", "--quiet"))
    (own,) = [one for one in found["findings"] if one["rule"] == "UPDATE_IS_LAST"]
    assert (own["severity"], own["new"] > 0) == ("info", True)
    off = ["--rule", "UPDATE_IS_LAST=off", "--json", "--quiet"]
    without = json.loads(checkout.share_state("audit", HAPPY, "--out", checkout.root / "v", *off))
    assert not [one for one in without["findings"] if one["rule"] == "UPDATE_IS_LAST"]
    # The generator asks for the section, and fills it.
    assert "add a section" in checkout.run("docs.reference_pages", code=1).stderr
    page = "docs/rules/operations.md"
    checkout.append(
        page, "\n## UPDATE_IS_LAST\n\n<!-- begin rule UPDATE_IS_LAST -->\n<!-- end rule UPDATE_IS_LAST -->\n"
    )
    assert len(checkout.changed) == 2
    checkout.run("docs.reference_pages")
    assert (
        "**info**: The last record of a share-partition is a snapshot. *(KIP-932)*"
        in (checkout.root / page).read_text()
    )
    assert "UPDATE_IS_LAST" in (checkout.root / "docs/rules/README.md").read_text()


@nightly("four commands in processes of their own")
def test_a_new_version_of_a_record_is_a_layout_in_its_declaration(checkout: Checkout, tmp_path: Path):
    current = encode(layout("share_group_metadata_value", "4.1+"), {"epoch": 7, "metadata_hash": 0})
    # Version 1 adds an int32 before the tagged fields.
    value = b"\0\1" + current[2:-1] + (90).to_bytes(4, "big") + b"\0"
    export = tmp_path / "export"
    shutil.copytree(HAPPY / "__share_group_state-0", export / "__share_group_state-0")
    write_group_log(export, [Record(key(11, "new"), value)])

    def audited(name: str) -> tuple[set[str], dict[str, int]]:
        checkout.share_state("audit", export, "--out", tmp_path / name, "--quiet", "--fail-on", "off")
        tables = [DeltaTable(str(tmp_path / name / table)).to_pyarrow_table().to_pylist() for table in
                  ("findings", "share_groups")]  # fmt: skip
        return {row["rule"] for row in tables[0]}, {row["group_id"]: row["group_epoch"] for row in tables[1]}

    findings, epochs = audited("before")
    assert "VALUE_VERSION_UNKNOWN" in findings
    assert epochs.get("new") != 7
    checkout.append(
        "schemas/records/share_group_metadata_value.yaml",
        '  - releases: "4.5+"\n    version: 1\n    flexible: true\n    fields:\n'
        '      - {name: epoch, type: int32, doc: "group epoch"}\n'
        '      - {name: metadata_hash, type: int64, doc: "hash of the subscribed topics"}\n'
        '      - {name: rebalance_delay, type: int32, doc: "seconds until the next assignment"}\n',
    )
    findings, epochs = audited("after")
    assert "VALUE_VERSION_UNKNOWN" not in findings
    assert epochs["new"] == 7
    checkout.run("docs.reference_pages")
    assert "rebalance_delay" in (checkout.root / "docs/records.md").read_text()
    assert len(checkout.changed) == 1


@nightly("compiles the kernels of the copy; the generic codec shows the same of records of groups")
def test_a_new_version_of_a_state_record_is_four_files(checkout: Checkout, tmp_path: Path):
    record = snapshot(("g", "AAAAAAAAAAAAAAAAAAAAKg", 0), start_offset=5)
    assert record.value is not None
    logs = tmp_path / "__share_group_state-0"
    logs.mkdir()
    # Version 1 has the fields of version 0.
    write_segment(logs, [batch([replace(record, value=b"\0\1" + record.value[2:])])])

    def reconstructed(name: str, *options: str) -> tuple[list[str], list[int]]:
        checkout.share_state("reconstruct", logs, "--out", tmp_path / name, "--quiet", "--fail-on", "off", *options)
        rows = {table: DeltaTable(str(tmp_path / name / table)).to_pyarrow_table().to_pylist() for table in
                ("findings", "share_partition_state")}  # fmt: skip
        starts = [row["start_offset"] for row in rows["share_partition_state"]]
        return [row["rule"] for row in rows["findings"] if row["severity"] == "error"], starts

    assert reconstructed("before") == (["VALUE_VERSION_UNKNOWN"], [])
    name = "schemas/records/share_snapshot_value.yaml"
    fields = (checkout.root / name).read_text(encoding="utf-8").rpartition("    fields:\n")[2]
    checkout.append(name, f'  - releases: "4.5+"\n    version: 1\n    flexible: true\n    fields:\n{fields}')
    kernel = "share_state/kafka/state_records.py"
    checkout.edit(kernel, "if row.value_version != 0:", "if not 0 <= row.value_version <= 1:")
    add_release(checkout)
    assert reconstructed("after", "--limit", "writer_version=4.5") == ([], [5])
    assert len(checkout.changed) == 3  # and its test


def add_release(checkout: Checkout) -> None:
    """What CONTRIBUTING's recipe of a release says: 4.5 comes out."""
    releases = "share_state/kafka/releases.py"
    checkout.edit(releases, "_4_2, _4_3, _4_4)", "_4_2, _4_3, _4_4, _4_5)")
    checkout.edit(releases, "UNRELEASED: Release | None = _4_5", "UNRELEASED: Release | None = None")


@nightly("three processes in a copy of the package")
def test_a_release_is_an_entry(checkout: Checkout, tmp_path: Path):
    options = ("--groups", 8, "--minutes", 5, "--release", "4.5", "--quiet")
    said = checkout.run("share_state", "simulate", "--out", tmp_path / "before", *options, code=2).stderr
    assert said.startswith("share-state: --release 4.5: Kafka 4.5 is not out")
    add_release(checkout)
    checkout.share_state("simulate", "--out", tmp_path / "after", *options)
    with (tmp_path / "after/events.jsonl").open() as events:
        resets = [one for one in map(json.loads, events) if one["event"] == "init" and one["start_offset"] >= 0]
    # Each of two resets of an empty group raises the epoch; in 4.4 the second does not.
    assert resets
    assert all(
        second["state_epoch"] - first["state_epoch"] == 1
        for first, second in zip(resets[::2], resets[1::2], strict=True)
    )
    checkout.run("docs.reference_pages")
    page = (checkout.root / "docs/releases.md").read_text()
    assert "| 4.3 | 4.4 | 4.5 |" in page
    assert "is not out" not in page
    assert "4.4|4.5" in checkout.share_state("repair", "--help").replace(" ", "").replace("\n", "")
    assert len(checkout.changed) == 1


@nightly("six commands in processes of their own")
def test_a_column_is_declared_and_filled_and_earlier_warehouses_get_it(checkout: Checkout, tmp_path: Path):
    lake = tmp_path / "w"
    half = tmp_path / "half"
    shutil.copytree(HAPPY / "__share_group_state-0", half / "__share_group_state-0")
    checkout.share_state("audit", half, "--out", lake, "--quiet", "--fail-on", "off")
    before = DeltaTable(str(lake / "share_partition_state")).to_pyarrow_table()
    checkout.append(
        "schemas/tables/share_partition_state.yaml",
        '  - {name: batch_count, type: "int", doc: "number of state batches"}\n',
    )
    checkout.edit(
        "share_state/fold/states.py",
        '        "state_batches": batch_lists(chains.ends, chains.batches),\n'
        '        "create_time": to_timestamps(rows["create_time"]),\n',
        '        "state_batches": batch_lists(chains.ends, chains.batches),\n'
        '        "batch_count": pa.array(np.diff(chains.ends).astype(np.int32)),\n'
        '        "create_time": to_timestamps(rows["create_time"]),\n',
    )
    assert checkout.share_state("show", lake).count("\n") > len(before)
    checkout.share_state("audit", HAPPY, "--out", lake, "--quiet", "--fail-on", "off")
    after = DeltaTable(str(lake / "share_partition_state")).to_pyarrow_table()
    assert "batch_count" not in before.column_names
    assert len(after) == 6
    assert after["batch_count"].to_pylist() == [len(one) for one in after["state_batches"].to_pylist()]
    checkout.run("docs.reference_pages")
    page = (checkout.root / "docs/tables/share_partition_state.md").read_text()
    assert re.search(r"\| batch_count \| `int` \| number of state batches \|", page)
    assert len(checkout.changed) == 2


LINES_FORMAT = '''"""The format `hex-lines`: a line per record with offset, key and value, in hexadecimal digits."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from share_state.kafka.record_batches import BATCH, BatchStatus, Chunk
from share_state.kafka.text_records import RecordAccumulator
from share_state.sources.log_partition import STATE_TOPIC, Export, LogPartition, Segment
from share_state.sources.export_files import text_files
from share_state.sources.formats import ExportPaths, Format
from share_state.sources.record_tables import NO_TIME
from share_state.stores.paths import to_path

_HEADER = b"offset key value"


@dataclass(frozen=True, slots=True)
class HexLines:
    """Reads the records of one state partition; a `RecordSource`."""

    form: str = "hex-lines"
    has_offsets: bool = True
    has_times: bool = False
    has_sizes: bool = False

    def chunks(self, log: LogPartition, chunk: int, *, merge: bool) -> Iterator[Chunk]:
        """The records of a file as one batch."""
        for number, segment in enumerate(log.segments):
            records = RecordAccumulator()
            lines = to_path(segment.path).read_text().splitlines()[1:]
            for offset, key, value in map(str.split, lines):
                records.add(int(offset), NO_TIME, bytes.fromhex(key), bytes.fromhex(value), 0)
            data, rows = records.flush()
            batch = np.zeros(1, BATCH)
            batch["base_offset"], batch["last_offset"] = rows["offset"][[0, -1]]
            batch["count"], batch["magic"], batch["status"] = len(rows), 2, BatchStatus.VALID
            batch["segment"], batch["max_timestamp"] = number, NO_TIME
            yield Chunk(data, batch, records=rows)


def _matches(head: bytes) -> bool:
    return head.startswith(_HEADER)


def _find(export: ExportPaths) -> Export:
    files = text_files(export.paths, _matches)
    return Export([LogPartition(STATE_TOPIC, 0, tuple(Segment(str(file), 0, file.stat().st_size) for file in files), 0,
                                source=HexLines())])


FORMAT = Format("lines of hexadecimal digits", _matches, _find, lambda export: [])
'''


@nightly("five processes")
def test_an_input_format_is_one_module(checkout: Checkout, tmp_path: Path):
    records = [snapshot(("g", "AAAAAAAAAAAAAAAAAAAAKg", 0), start_offset=5), update(("g", "AAAAAAAAAAAAAAAAAAAAKg", 0))]
    lines = [
        f"{offset} {(record.key or b'').hex()} {(record.value or b'').hex()}" for offset, record in enumerate(records)
    ]
    text = tmp_path / "records.txt"
    text.write_text("\n".join(["offset key value", *lines, ""]))
    checkout.append("share_state/sources/hex_lines_format.py", LINES_FORMAT)
    for name, options in (("detected", []), ("named", ["--format", "hex-lines"])):
        done = checkout.run("share_state", "reconstruct", text, "--out", tmp_path / name, *options)
        rows = DeltaTable(str(tmp_path / name / "share_partition_state")).to_pyarrow_table().to_pylist()
        assert [(row["group_id"], row["start_offset"], row["last_offset"]) for row in rows] == [("g", 5, 1)]
        assert ("lines of hexadecimal digits (--format hex-lines)" in done.stderr) == (name == "detected")
    checkout.run("docs.reference_pages")
    assert "hex-lines" in (checkout.root / "docs/options.md").read_text()
    assert len(checkout.changed) == 1  # and its test
