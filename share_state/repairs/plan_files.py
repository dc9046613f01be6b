"""A plan as a file: Markdown, plain data, or a script that prints itself and runs what its argument names."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from share_state.repairs.commands import BOOTSTRAP, DEAD_LETTER_TOPIC, LIBRARIES, REDRIVE_TOPIC, quote
from share_state.report.console import write_report

SUFFIXES = (".md", ".sh", ".json")

_VARIABLES = {
    BOOTSTRAP: "host:port of a broker",
    LIBRARIES: "folder with the jars of Kafka, for jshell (of a JDK)",
    DEAD_LETTER_TOPIC: "dead-letter topic of the group",
    REDRIVE_TOPIC: "topic to which records are copied",
}


@dataclass(frozen=True, slots=True)
class ScriptCase:
    """Commands that the script of a plan runs.

    Attributes:
        name: its argument, such as 1.2.
        command: lines of bash; empty for none.
        title: what they do.
    """

    name: str
    command: str
    title: str = ""


def _variables(command: str) -> list[str]:
    """The shell variables that a command needs."""
    return [name for name in _VARIABLES if re.search(rf'\${name}\b|getenv\("{name}"\)', command)]


def variable_lines(commands: Iterable[str]) -> Iterator[str]:
    """What the reader sets before running some commands, as Markdown."""
    if names := _variables("\n".join(commands)):
        named = "; ".join(f"`{name}`, {_VARIABLES[name]}" for name in names)
        yield f"Set these before you run a command: {named}."
        yield ""


def script_of(name: str, head: Iterable[str], markdown: str, cases: Sequence[ScriptCase]) -> str:
    """A script that prints a plan, or runs the case that its argument names.

    Args:
        name: of the file.
        head: what the plan is about.
        markdown: the plan.
        cases: those without a command are left out.
    """
    run = f"bash {quote(name)}"
    compares = f", `{run} 1.check` compares" if any(one.name.endswith(".check") for one in cases) else ""
    usage = f"# `{run} 1.2` carries out option 1.2 and nothing else{compares}."
    lines = [
        "#!/usr/bin/env bash",
        *(f"# {line}".rstrip() for line in head),
        usage,
        "set -eu",
        'case "${1:-}" in',
    ]
    for case in cases:
        if case.command:
            used = _variables(case.command)
            needs = [f': "${{{name}:?{_VARIABLES[name]}}}"; export {name}' for name in used]
            lines += [
                f"{case.name})  # {case.title}" if case.title else f"{case.name})",
                *needs,
                case.command,
                ";;",
            ]
    printed = (f"printf '%s\\n' {quote(line)}" for line in markdown[:-1].split("\n"))
    lines += ["'')", *printed, ";;", '*) echo "no option $1 with a command" >&2; exit 2;;', "esac"]
    return "\n".join(lines) + "\n"


def write_plan(
    path: str,
    markdown: Callable[[], str],
    script: Callable[[str], str],
    to_json: Callable[[], Mapping[str, Any]],
) -> None:
    """Write a plan in the format of the path's suffix, completely or not at all.

    Raises:
        ReportError: if it cannot be written.
    """

    def as_json() -> str:
        return json.dumps(to_json(), ensure_ascii=False, indent=2, default=datetime.isoformat) + "\n"

    formats = {".md": markdown, ".sh": lambda: script(Path(path).name), ".json": as_json}
    write_report(path, formats[Path(path).suffix]())
