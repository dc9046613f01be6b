"""Run the commands of the pages: `python -m docs.page_commands [PAGE...]` writes the output of each `$` command anew.

A page shows a command with its output as `$ share-state ...`; a line `...` stands for lines that are left out. Commands
without `$` are shown without output. Both run in an empty folder with the shipped logs, where the names that examples
use (/exports/broker-1, orders-app, ...) stand for a shipped log. Commands that need a cluster, an object store or
another program are only parsed.
"""

import ast
import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer.main

from share_state.cli.command import FOUND, app
from share_state.cli.main import COMMANDS, import_module, run

HOME = Path(__file__).parents[1]
PAGES = sorted(
    [HOME / "README.md", HOME / "bench/README.md", *(HOME / "docs").glob("*.md")]
    # The pages of docs/commands have the usage and the example that --help prints.
    + [page for page in (HOME / "docs").glob("*/**/*.md") if page.parent.name != "commands"]
)

_BLOCK = re.compile(r"(?:^    .*\n(?:[ \t]*\n(?=    ))?)+", re.MULTILINE)
_ELLIPSIS = "..."

CHAOS, LETTERS = "tests/data/4.3.1/chaos", "tests/data/4.4.0/dead-letters"
_STANDS_FOR = [
    (r"/exports/broker-1 (.*--dead-letters) '\S+'", rf"{LETTERS} \1 '{LETTERS}/dlq*'"),
    (r"/exports/broker-1(?:/orders-0)?( .*--dialect control_records)", r"draft\1"),
    (r"/exports/broker-1/orders-0", "draft"),
    (r"/exports/broker-1/__share_group_state-7", f"{CHAOS}/__share_group_state-1"),
    (r"/exports/broker-[12]", CHAOS),
    (r"--group orders-app", "--group g0"),
    (r"why orders-app", "why g0"),
    (
        r"--group billing --topic orders --partition 0 --offset 4711",
        "--group slow-1 --topic topic-0 --partition 0 --offset 1",
    ),
    (r"--group billing", "--group slow-1"),
    (r"--topic orders --partition [03]", "--topic t0 --partition 1"),
    (r"--offset 4711", "--offset 500"),
    (r"2026-11-21T02:00(:00)?Z", "2026-11-21T03:07:05Z"),
    (r"2026-11-21T02:10(:00)?Z", "2026-11-21T03:07:10Z"),
    (r"--as-of-offset 7=12000", "--as-of-offset 1=300"),
    (
        r"simulate --out \S+ --seed 7( --groups \d+)?( --minutes \d+)?",
        "simulate --out made --groups 2 --minutes 2",
    ),
    (r"audit broken", "audit made"),
    (r"/(lake|tmp|var)/", "lake/"),
]
"""Pattern in an example's command line, and what it stands for."""
_ELSEWHERE = re.compile(
    r"kafka://|s3://|--master|--requests|\.\.\.|^share-state (compare|stream) |bronze|sink/|--group app |conf/audit"
)
"""Commands that are only parsed: they need a cluster, a store or a file that is not shipped."""

_PREPARED = [
    f"reconstruct {CHAOS} --topics {CHAOS}/topics.json --out lake/share_state",
    "simulate --out draft --dialect control_records --groups 2 --minutes 2 --seed 1",
]
"""What examples expect to be there."""


@dataclass(frozen=True)
class PageCommand:
    """A command line of a page.

    Attributes:
        page: where it stands.
        line: as written, continued lines joined, without the prompt.
        output: the lines below it; None if it is shown without output.
    """

    page: Path
    line: str
    output: list[str] | None

    @property
    def arguments(self) -> list[str]:
        """Arguments of share-state as they run here."""
        line = self.line.split(" | ")[0].split(" # ")[0]
        for pattern, instead in _STANDS_FOR if self.output is None else []:
            line = re.sub(pattern, instead, line)
        return shlex.split(line)[1:]

    @property
    def is_local(self) -> bool:
        """Whether it runs without a cluster, a store or another file."""
        return not _ELSEWHERE.search(self.line)


def commands(page: Path) -> Iterator[PageCommand]:
    """The commands of a page, in order."""
    for block in _BLOCK.findall(page.read_text(encoding="utf-8").replace("\\\n", "")):
        lines = [line.removeprefix("    ") for line in block.rstrip().splitlines()]
        for number, line in enumerate(lines):
            if line.startswith("$ share-state "):
                output = lines[number + 1 :]
                end = next((at for at, one in enumerate(output) if one.startswith("$ ")), len(output))
                yield PageCommand(page, line[2:], output[:end])
            elif line.startswith("share-state ") and not any(one.startswith("$ ") for one in lines):
                yield PageCommand(page, re.sub(r"\s+", " ", line), None)


def python_calls(page: Path) -> Iterator[tuple[str, ast.Call]]:
    """Name in share_state, and call, of each call of the Python API in a page's examples."""
    for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        for text in textwrap.dedent(block).split("\n\n"):
            for node in ast.walk(ast.parse(text)) if re.search(r"\bshare_state\.\w+\(", text) else ():
                if isinstance(node, ast.Call) and re.fullmatch(r"share_state\.\w+", ast.unparse(node.func)):
                    yield ast.unparse(node.func).removeprefix("share_state."), node


def parse(command: PageCommand) -> None:
    """Check the name of a command and its options.

    Raises:
        TyperException: if there is no such command or option.
    """
    name, *arguments = command.arguments
    import_module(f"share_state.cli.{COMMANDS[name]}")
    typer.main.get_command(app).commands[name].make_context(name, arguments)


def execute(command: PageCommand) -> tuple[int, list[str]]:
    """Run a command in the current folder.

    Returns:
        Exit code, and the lines of stdout; those of stderr if nothing is on stdout.
    """
    if command.arguments[0] == "simulate":
        shutil.rmtree("made", ignore_errors=True)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(command.arguments)
    return code, (out.getvalue() or err.getvalue()).rstrip().splitlines()


def matches(shown: list[str], actual: list[str]) -> bool:
    """Whether the lines of a page are those of a command; `...` stands for any lines; times of runs differ."""
    pattern = [".*" if line.strip() == _ELLIPSIS else re.escape(_timeless(line)) + "\n" for line in shown]
    return bool(re.fullmatch("".join(pattern), "".join(_timeless(line) + "\n" for line in actual), re.DOTALL))


def _timeless(line: str) -> str:
    line = re.sub(r"(the newest record was) .* old", r"\1 0 s old", line)
    return re.sub(r"\b\d+\.\d s\b", "0.0 s", re.sub(r"\b[0-9a-f]{16}\b", "0" * 16, line)).rstrip()


def shortened(shown: list[str], actual: list[str]) -> list[str]:
    """The output as a page shows it: as many lines before and after its `...` as now."""
    if _ELLIPSIS not in shown:
        return actual
    at, last = shown.index(_ELLIPSIS), len(shown) - shown.index(_ELLIPSIS) - 1
    return [*actual[:at], _ELLIPSIS, *actual[len(actual) - last :]]


@contextlib.contextmanager
def example_folder() -> Iterator[None]:
    """Work in an empty folder with the shipped logs, and what examples expect to be there."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="share-state-pages-") as folder:
        os.chdir(folder)
        try:
            for name in ("tests", "conf", "jobs", "schemas"):
                Path(name).symlink_to(HOME / name)
            for arguments in _PREPARED:
                execute(PageCommand(HOME, f"share-state {arguments}", []))
            for name in ("monday", "tuesday", "audit", "live"):
                shutil.copytree("lake/share_state", f"lake/{name}")
            Path("subscriptions.json").write_text('{"t0": ["g0"]}')
            yield
        finally:
            os.chdir(before)


def renew(page: Path) -> None:
    """Write the output of each `$` command of a page anew."""
    text = page.read_text(encoding="utf-8")
    for command in commands(page):
        if command.output is not None:
            code, actual = execute(command)
            if code > FOUND:
                raise SystemExit(f"{page}: {command.line}: {actual}")
            if command.output and not matches(command.output, actual):
                old = "".join(f"    {line}\n" if line else "\n" for line in command.output)
                new = "".join(f"    {line}".rstrip() + "\n" for line in shortened(command.output, actual))
                text = text.replace(f"{command.line}\n{old}", f"{command.line}\n{new}")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or PAGES
    with example_folder():
        for one in chosen:
            renew(one)
