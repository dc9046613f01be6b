"""The pages of the commands in docs/commands are made from their declarations."""

import re
from pathlib import Path

import pytest

from docs.command_pages import command_page, commands, commands_index, write_command_pages
from share_state.cli.main import COMMANDS
from tests.cli.commands import Command

HOME = Path(__file__).parents[2]
PAGES = HOME / "docs/commands"
RENEW = "run: python -m docs.reference_pages"


def test_each_command_has_its_page_and_no_other_is_there():
    expected = {"README": commands_index()} | {name: command_page(name, one) for name, one in commands().items()}
    assert {path.stem: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")} == expected, RENEW
    navigation = (HOME / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.findall(r"commands/(\w+)\.md", navigation) == ["README", *COMMANDS]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_names_every_option_that_the_help_of_its_command_names(cli: Command, name: str):
    helped = {*re.findall(r"^  (?:-\w, )?(--[a-z-]+)", cli(name, "--help").out, re.MULTILINE)}
    written = {*re.findall(r"--[a-z][a-z-]*", (PAGES / f"{name}.md").read_text(encoding="utf-8"))}
    assert len(helped) > 3
    assert helped - written <= {"--quiet", "--verbose", "--help"}


def test_the_page_of_a_command_that_is_gone_is_removed(tmp_path: Path):
    (tmp_path / "gone.md").write_text("# share-state gone\n")
    write_command_pages(tmp_path)
    assert not (tmp_path / "gone.md").exists()
    assert len(list(tmp_path.iterdir())) == len(COMMANDS) + 1
