"""Every command of the pages runs, and prints what its page shows (`python -m docs.page_commands` renews the pages)."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import share_state
from docs.page_commands import HOME, PAGES, PageCommand, commands, example_folder, execute, matches, parse, python_calls
from share_state.cli.command import FOUND
from tests.profiles import some_of

RENEW = "run: python -m docs.page_commands PAGE"
COMMANDS = [command for page in PAGES for command in commands(page)]
SHOWN = [page for page in PAGES if any(command.output is not None for command in commands(page))]
EXAMPLES = {tuple(one.arguments): one for one in COMMANDS if one.output is None and "..." not in one.line}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with example_folder():
        yield Path.cwd()


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: str(page.relative_to(HOME)))
def test_the_outputs_on_a_page_are_those_of_its_commands(folder: Path, page: Path):
    for command in commands(page):
        if command.output is not None:
            code, output = execute(command)
            assert code <= FOUND, output
            assert not command.output or matches(command.output, output), "\n".join(
                [RENEW, f"$ {command.line}", *output]
            )


@pytest.mark.parametrize("example", some_of(EXAMPLES.values(), 8), ids=lambda one: one.line)
def test_an_example_runs(folder: Path, example: PageCommand):
    parse(example)
    if example.is_local:
        code, output = execute(example)
        assert code <= FOUND, output


def test_the_python_examples_call_what_there_is():
    calls = [call for page in PAGES for call in python_calls(page)]
    assert {name for name, _ in calls} >= {"reconstruct", "explain", "timeline", "cutoff", "register", "read"}
    for name, call in calls:
        arguments = {word.arg: None for word in call.keywords if word.arg}
        inspect.signature(getattr(share_state, name)).bind(*call.args, **arguments)


def test_an_output_that_is_not_the_commands_is_noticed():
    shown = ["run 0123456789abcdef took 1.2 s", "...", "last"]
    assert matches(shown, ["run fedcba9876543210 took 3.4 s", "a", "b", "last"])
    assert matches(shown, ["run fedcba9876543210 took 3.4 s", "last"])
    assert not matches(shown, ["run fedcba9876543210 took 3.4 s", "a", "another"])
    assert not matches(["last"], ["a", "last"])
