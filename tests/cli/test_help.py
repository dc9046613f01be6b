"""What a command says of itself."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from share_state import __version__
from share_state.cli import completion
from share_state.cli.main import COMMANDS
from share_state.config.input_spec import Judge
from share_state.config.sections import Dialect, Format, Mode
from share_state.rules.breaches import OFF, SEVERITIES
from share_state.rules.registry import registered
from share_state.simulator.faults import FAULTS
from tests.cli.commands import Command
from tests.truth import DATA


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_holds_an_example(cli: Command, name: str):
    said = cli(name, "--help")
    assert (said.code, said.err) == (0, "")
    assert f"Example: share-state {name}" in " ".join(said.out.split())
    assert all(option in said.out for option in ("--quiet", "-v", "-h"))
    assert cli(name, "-h").out == said.out


def test_the_bare_command_lists_the_commands(cli: Command):
    for arguments in ([], ["--help"]):
        said = cli(*arguments)
        assert (said.code, said.err) == (0, "")
        assert all(name in said.out for name in COMMANDS)


@pytest.mark.parametrize("arguments", [["--help"], ["reconstrukt"]])
def test_the_list_of_commands_does_not_wait_for_their_imports(arguments: list[str]):
    call = [sys.executable, "-X", "importtime", "-m", "share_state", *arguments]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "share_state.cli.command" in imported
    assert not imported & {"numba", "deltalake", *(f"share_state.cli.{module}" for module in COMMANDS.values())}


def test_the_list_of_commands_says_what_their_own_help_says(cli: Command):
    listed = " ".join(cli("-h").out.split())
    for name in COMMANDS:
        summary = cli(name, "-h").out.split("\n\n")[1]
        assert f" {name} {' '.join(summary.split())}" in listed


def test_the_list_of_commands_cuts_no_line(cli: Command):
    listed = cli("-h").out.partition("Commands:")[2]
    assert "..." not in listed
    assert max(map(len, listed.splitlines())) <= 80


CHOICES = {
    "--format": get_args(Format),
    "--dialect": get_args(Dialect),
    "--mode": get_args(Mode),
    "--judge": get_args(Judge),
    "--fail-on": (*SEVERITIES, OFF),
    "--rule": (*SEVERITIES, OFF),
}


@pytest.mark.parametrize("option", CHOICES)
def test_help_and_error_list_the_choices_of_an_option(cli: Command, option: str):
    described = cli("reconstruct", "-h").out.partition(f"  {option} ")[2].partition("  --")[0]
    given = "CRC_MISMATCH=x" if option == "--rule" else "x"
    refused = cli("reconstruct", "in", "--out", "w", option, given)
    assert refused.code == 2
    assert set(CHOICES[option]) <= set(re.findall(r"[\w-]+", re.sub(r"-\s+", "-", described.partition("[default")[0])))
    assert all(choice in refused.err for choice in CHOICES[option])


def test_the_help_of_simulate_lists_the_faults(cli: Command):
    assert set(FAULTS) <= set(re.findall(r"[\w-]+", cli("simulate", "-h").out))


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("share-state rec", ["reconstruct"]),
        ("share-state show --ra", ["--ranges"]),
        ("share-state cutoff x --mode ", ["strict", "best-effort"]),
        ("share-state audit --fail-on w", ["warning"]),
        ("share-state plot d", ["deliveries"]),
        ("share-state decode x --rule SPSO_ST", [f"SPSO_STALL={one}" for one in (*SEVERITIES, OFF)]),
        ("share-state decode x --rule TORN", [f"TORN_TAIL={one}" for one in (*SEVERITIES, OFF)]),
        ("share-state decode x --rule TORN_TAIL=w", ["TORN_TAIL=warning"]),
        ("share-state decode x --limit rec", ["record_locks="]),
        ("share-state decode x --limit app:", ["app:delivery_count=", "app:record_locks="]),
        ("share-state repair x --release 4.2", ["4.2", "4.2.0", "4.2.1"]),
        ("share-state simulate --release 4.4", ["4.4"]),
        ("share-state show LAKE --group g", ["g0", "g1", "g2", "g3", "g4", "g5"]),
        ("share-state groups LAKE --group g4", ["g4"]),
        ("share-state repair LAKE --group g4", ["g4"]),
        ("share-state diff LAKE nowhere --group g4", ["g4"]),
        ("share-state show LAKE --topic t", ["t0", "t1", "t2"]),
        ("share-state show nowhere --group g", []),
        ("share-state diff EXPORT --group g", []),
    ],
)
def test_a_shell_completes_commands_options_and_values(
    cli: Command, chaos: Path, monkeypatch: pytest.MonkeyPatch, words: str, completed: list[str]
):
    words = words.replace("LAKE", str(chaos)).replace("EXPORT", str(DATA / "4.3.1/chaos"))
    assert _completed(cli, monkeypatch, words) == completed


def test_a_large_warehouse_is_not_read_to_complete_a_group(cli: Command, chaos: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(completion, "_LARGEST_TABLE", 100)
    assert _completed(cli, monkeypatch, f"share-state show {chaos} --group g") == []


def test_completing_a_group_does_not_wait_for_the_compiler(chaos: Path):
    """numba alone takes as long to import as everything that a completion needs."""
    call = [sys.executable, "-X", "importtime", "-m", "share_state"]
    words = {
        "_SHARE_STATE_COMPLETE": "complete_bash",
        "COMP_CWORD": "4",
        "COMP_WORDS": f"share-state show {chaos} --group ",
    }
    done = subprocess.run(call, capture_output=True, text=True, check=True, env=os.environ | words)
    assert done.stdout.split() == ["g0", "g1", "g2", "g3", "g4", "g5"]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "deltalake" in imported
    assert not imported & {"numba", "pyspark"}


def _completed(cli: Command, monkeypatch: pytest.MonkeyPatch, words: str) -> list[str]:
    monkeypatch.setenv("_SHARE_STATE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    said = cli()
    assert (said.code, said.err) == (0, "")
    return said.out.split()


def test_the_version_is_told(cli: Command):
    said = cli("--version")
    assert (said.code, said.out, said.err) == (0, f"share-state {__version__}\n", "")


def test_the_rules_are_listed_with_statement_severity_and_source(cli: Command):
    listed = cli("rules", "--json").json
    assert {row["rule"]: (row["severity"], row["statement"], row["source"]) for row in listed} == {
        code: (rule.severity, rule.statement, rule.source) for code, rule in registered().items()
    }
    text = cli("rules")
    assert text.code == 0
    header, *rows = text.table
    assert header == ["RULE", "SEVERITY", "STATEMENT", "SOURCE"]
    assert [row[:2] for row in rows] == [[row["rule"], row["severity"]] for row in listed]
