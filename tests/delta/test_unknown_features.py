"""A table whose protocol names a feature that nobody knows: refused by name, in one line, and nothing is committed."""

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from share_state.cli.main import run
from tests.spark.test_audit import grown
from tests.truth import DATA

FEATURE = "timeTurner"


def name_a_feature(table: Path, *, of_readers: bool) -> None:
    """Add a version whose protocol has the feature, as a later release of Delta could."""
    protocol = {"minReaderVersion": 3 if of_readers else 1, "minWriterVersion": 7, "writerFeatures": [FEATURE]}
    if of_readers:
        protocol["readerFeatures"] = [FEATURE]
    version = DeltaTable(str(table)).version() + 1
    commit = json.dumps({"protocol": protocol})
    (table / f"_delta_log/{version:020}.json").write_text(f"{commit}\n", encoding="utf-8")


def commits(warehouse: Path) -> set[str]:
    """The versions of `runs`, each of which commits a run."""
    return {path.name for path in warehouse.glob("runs/_delta_log/*.json")}


@pytest.mark.parametrize("of_readers", [True, False], ids=["reader", "writer"])
@pytest.mark.parametrize("name", ["runs", "findings", "share_partition_history"])
def test_a_feature_that_nobody_knows_is_named_and_nothing_is_committed(
    tmp_path: Path, name: str, of_readers: bool, capsys: pytest.CaptureFixture[str]
):
    nights, warehouse = grown(DATA / "4.3.1/happy", tmp_path / "logs", 2), str(tmp_path / "w")
    assert run(["audit", str(next(nights)), "--out", warehouse]) == 0
    name_a_feature(tmp_path / "w" / name, of_readers=of_readers)
    before, logs = commits(tmp_path / "w"), str(next(nights))
    commands = [["audit", logs, "--out", warehouse], ["reconstruct", logs, "--out", warehouse]]
    # History is a table of audits alone, and `show` reads runs and states.
    commands = commands[: 1 if name == "share_partition_history" else None]
    if name == "runs" and of_readers:
        commands.append(["show", warehouse])
    for command in commands:
        capsys.readouterr()
        assert run(command) == 2
        # An audit logs its steps before that, with the time.
        *_, refused = capsys.readouterr().err.splitlines()
        assert refused.startswith(f"share-state: {warehouse}/{name}: cannot be ")
        assert refused.endswith(
            f"as a Delta table (it has the Delta features {FEATURE}); remove them in Spark with"
            " ALTER TABLE ... DROP FEATURE"
        )
    assert commits(tmp_path / "w") == before
