"""A limit is spelled `--limit`, `limits=` and `limits:`, and gives the same findings everywhere."""

from pathlib import Path

import pyarrow as pa
import pytest

import share_state
from share_state.config.input_spec import OPTIONS, spec_of_options
from tests.cli.commands import Command
from tests.pipeline.test_stream_tables import Stream
from tests.profiles import by_profile, nightly, some_of
from tests.sources.formats.tables import found, table_of, write
from tests.truth import DATA
from tests.warehouses import WrittenTables

CHAOS = DATA / "4.3.1/chaos"
LIMITS = {
    "delivery_count": 3,
    "record_locks": 20,
    "updates_per_snapshot": 4,
    "stall_minutes": 0.01,
    "pinned_records": 1,
    "archiving_seconds": 0,
    "groups": {"g0": {"delivery_count": 2}},
}
WORDS = [word for name, value in LIMITS.items() if name != "groups" for word in ("--limit", f"{name}={value}")]
WORDS += ["--limit", "g0:delivery_count=2"]
SCENARIOS = by_profile(
    ["4.3.1/chaos", "4.4.0/dlq"],  # both have findings under LIMITS that others lack
    sorted(f"{path.parent.name}/{path.name}" for path in DATA.glob("4.*/*") if path.is_dir()),
)
COLUMNS = ("rule", "severity", "group_id", "topic_id", "partition", "state_partition", "offset", "message")


def findings(place: Path | pa.Table) -> list[str]:
    """The findings of a warehouse or a call, sorted."""
    table = WrittenTables(place).read("findings") if isinstance(place, Path) else place
    return sorted(str([row[name] for name in COLUMNS]) for row in table.to_pylist())


@pytest.mark.parametrize("scenario", some_of(SCENARIOS, 1))
def test_commands_and_python_find_the_same_under_the_same_limits(cli: Command, tmp_path: Path, scenario: str):
    export = DATA / scenario
    cli("reconstruct", export, "--out", tmp_path / "plain")
    cli("reconstruct", export, "--out", tmp_path / "reconstructed", *WORDS)
    cli("audit", export, "--out", tmp_path / "audited", *WORDS)
    config = tmp_path / "audit.yaml"
    config.write_text(f"{{sources: [{{path: {export}}}], warehouse: {tmp_path / 'nightly'}, limits: {LIMITS}}}")
    cli("audit", "--config", config)
    expected = findings(tmp_path / "reconstructed")
    assert expected != findings(tmp_path / "plain")
    assert findings(tmp_path / "audited") == expected
    assert findings(tmp_path / "nightly") == expected
    assert findings(share_state.reconstruct(export, limits=LIMITS).findings) == expected


@nightly("a stream for each limit")
@pytest.mark.parametrize("scenario", some_of(SCENARIOS, 1))
def test_a_stream_that_reads_once_finds_the_same_under_the_same_limits(cli: Command, tmp_path: Path, scenario: str):
    records = table_of(found(DATA / scenario))
    cli("reconstruct", write(records, tmp_path / "whole.parquet"), "--out", tmp_path / "whole", *WORDS)
    stream = Stream(tmp_path / "lake")
    stream.fold = type(stream.fold)(spec_of_options(OPTIONS, [], {"limits": LIMITS}).limits.to_limits())
    stream.write([stream.fold_rows(records)])
    assert findings(tmp_path / "lake") == findings(tmp_path / "whole")


def test_reconstruct_finds_the_poison_records_that_an_audit_finds(cli: Command, tmp_path: Path):
    cli("reconstruct", CHAOS, "--out", tmp_path / "a", "--limit", "delivery_count=3")
    cli("audit", CHAOS, "--out", tmp_path / "b", "--set", "limits.delivery_count=3")
    poison = [one for one in findings(tmp_path / "a") if "POISON_RECORDS" in one]
    assert len(poison) == 18
    assert findings(tmp_path / "a") == findings(tmp_path / "b")


@nightly("two audits")
def test_a_limit_of_the_command_wins_over_that_of_the_file(cli: Command, tmp_path: Path):
    config = tmp_path / "audit.yaml"
    limits = "{delivery_count: 9, record_locks: 20}"
    config.write_text(f"{{sources: [{{path: {CHAOS}}}], warehouse: {tmp_path / 'w'}, limits: {limits}}}")
    cli("audit", "--config", config, "--limit", "delivery_count=3")
    options = dict(WrittenTables(tmp_path / "w").run["options"])
    assert (options["limits.delivery_count"], options["limits.record_locks"]) == ("3", "20")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("delivery_count", "--limit delivery_count: give NAME=VALUE, or GROUP:NAME=VALUE for a group"),
        ("=3", "--limit =3: give NAME=VALUE, or GROUP:NAME=VALUE for a group"),
        ("groups=3", "--limit groups=3: give NAME=VALUE, or GROUP:NAME=VALUE for a group"),
        ("delivery_count=99", "--limit delivery_count=99: give at most 25"),
        ("delivery_count=x", "--limit delivery_count=x: give a whole number"),
        ("delivery_cuont=3", "--limit delivery_cuont=3: no such limit; did you mean delivery_count?"),
        ("a:b=c:delivery_count=99", "--limit a:b=c:delivery_count=99: give at most 25"),
        ("app:stall_minutes=3", "--limit app:stall_minutes=3: no such limit; give one of delivery_count, record_locks"),
        ("writer_version=3.9", "--limit writer_version=3.9: give one of 4.0, 4.1, 4.2, 4.2.0, 4.2.1, 4.3, 4.4"),
    ],
)
@pytest.mark.parametrize("command", ["reconstruct", "audit", "explain", "decode", "repair"])
def test_a_limit_that_cannot_be_used_is_refused(cli: Command, tmp_path: Path, command: str, text: str, told: str):
    out = ("--out", tmp_path / "w") if command in ("reconstruct", "audit") else ()
    key = ("--group", "g0", "--topic", "t0", "--partition", "0", "--offset", "0") if command == "explain" else ()
    said = cli(command, CHAOS, *out, *key, "--limit", text)
    assert (said.code, said.out) == (2, "")
    assert said.err == f"share-state: {told}\n"
    assert not (tmp_path / "w").exists()


@nightly("five runs")
def test_older_spellings_still_set_a_limit(cli: Command):
    one = ("explain", DATA / "4.4.0/dlq", "--topics", DATA / "4.4.0/dlq/topics.json", "--group", "dq-off")
    one = (*one, "--topic", "t0", "--partition", "0", "--offset", "0", "--json")
    told = {str(cli(*one, *words).json["delivery_limit"]) for words in (
        ("--limit", "delivery_count=3"), ("--limit", "dq-off:delivery_count=3"), ("--delivery-limit", "3"),
    )}  # fmt: skip
    assert told == {"3"}
    assert "--delivery-limit" not in cli("explain", "-h").out
    repaired = [cli("repair", CHAOS, *words, "--json").json["share_partitions"] for words in (
        ("--limit", "record_locks=20"), ("--set", "limits.record_locks=20"),
    )]  # fmt: skip
    assert repaired[0] == repaired[1] != []
