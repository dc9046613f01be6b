"""A plan as a file: Markdown, plain data, or a script that prints itself and runs what its argument names."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from share_state.repairs.commands import BOOTSTRAP, DEAD_LETTER_TOPIC, LIBRARIES, REDRIVE_TOPIC, quote
from share_state.repairs.subject import HARM, Option
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


def option_sections(
    number: int, options: Sequence[Option], describe: Callable[[Option], Iterable[str]]
) -> Iterator[str]:
    """The options of a share-partition, as Markdown.

    Args:
        number: of the share-partition in its plan.
        options: in the order of their numbers.
        describe: what an option does.
    """
    for place, option in enumerate(options, 1):
        yield f"### {number}.{place} {option.title} ({HARM[option.harm]})"
        yield ""
        yield from describe(option)
        if option.command:
            yield from ("", "```bash", option.command, "```")
        yield ""


def option_cases(number: int, options: Sequence[Option]) -> Iterator[ScriptCase]:
    """The cases that carry out the options of a share-partition."""
    for place, option in enumerate(options, 1):
        yield ScriptCase(f"{number}.{place}", option.command, option.title)


class WrittenPlan(ABC):
    """A plan as text; subclasses say what is in it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return self.markdown()

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The plan as plain data."""

    @abstractmethod
    def _markdown(self) -> Iterator[str]:
        """The lines of the plan."""

    @abstractmethod
    def _head(self) -> Iterator[str]:
        """The lines of it that say what the plan is about."""

    @abstractmethod
    def _cases(self) -> Iterator[ScriptCase]:
        """What its script can run; cases without a command are left out."""

    def markdown(self) -> str:
        """The plan as Markdown."""
        return "\n".join(self._markdown()).rstrip() + "\n"

    def script(self, name: str = "plan.sh") -> str:
        """The plan as a script of this name: it prints itself, or runs the option that its argument names."""
        cases = list(self._cases())
        run = f"bash {quote(name)}"
        compares = f", `{run} 1.check` compares" if any(one.name.endswith(".check") for one in cases) else ""
        lines = [
            "#!/usr/bin/env bash",
            *(f"# {line}".rstrip() for line in self._head()),
            f"# `{run} 1.2` carries out option 1.2 and nothing else{compares}.",
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
        printed = (f"printf '%s\\n' {quote(line)}" for line in self.markdown()[:-1].split("\n"))
        lines += ["'')", *printed, ";;", '*) echo "no option $1 with a command" >&2; exit 2;;', "esac"]
        return "\n".join(lines) + "\n"

    def write(self, path: str) -> None:
        """Write the plan in the format of the path's suffix, completely or not at all.

        Raises:
            ReportError: if it cannot be written.
        """
        formats = {".md": self.markdown, ".sh": partial(self.script, Path(path).name), ".json": self._json}
        write_report(path, formats[Path(path).suffix]())

    def _json(self) -> str:
        return json.dumps(self.to_json(), ensure_ascii=False, indent=2, default=datetime.isoformat) + "\n"
