"""What a command says of itself."""

import pytest

from share_state import __version__
from share_state.cli.main import COMMANDS
from share_state.rules.registry import registered
from tests.cli.commands import Command


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_holds_an_example(light: Command, name: str):
    said = light(name, "--help")
    assert (said.code, said.err) == (0, "")
    assert f"Example: share-state {name}" in " ".join(said.out.split())
    assert all(option in said.out for option in ("--quiet", "-v", "-h"))
    assert light(name, "-h").out == said.out


def test_the_bare_command_lists_the_commands(light: Command):
    for arguments in ([], ["--help"]):
        said = light(*arguments)
        assert (said.code, said.err) == (0, "")
        assert all(name in said.out for name in COMMANDS)


def test_the_version_is_told(light: Command):
    said = light("--version")
    assert (said.code, said.out, said.err) == (0, f"share-state {__version__}\n", "")


def test_the_rules_are_listed_with_statement_severity_and_source(light: Command):
    listed = light("rules", "--json").json
    assert {row["rule"]: (row["severity"], row["statement"], row["source"]) for row in listed} == {
        code: (rule.severity, rule.statement, rule.source) for code, rule in registered().items()
    }
    text = light("rules")
    assert text.code == 0
    header, *rows = text.table
    assert header == ["RULE", "SEVERITY", "STATEMENT", "SOURCE"]
    assert [row[:2] for row in rows] == [[row["rule"], row["severity"]] for row in listed]
