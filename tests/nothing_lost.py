"""Compares two checkouts over every input in tests/data, so that a restructuring is proven to lose nothing.

    python -m tests.nothing_lost OTHER_CHECKOUT

Both run the same commands: on each folder of logs, text and table in tests/data, on tables made of the logs, and on
simulated logs with faults of both dialects. Exit codes, output, and the rows of all tables are compared, without run
ids and the times of runs. It prints each difference with its first rows; the exit code is 1 if there is one.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deltalake import DeltaTable

from share_state.sources.discovery import find_logs
from tests.sources.formats.tables import table_of, write
from tests.truth import DATA

ROOT = Path(__file__).parent.parent
RUNNER = """
import json, os, sys
from share_state.cli.main import run
for place, arguments in json.load(sys.stdin):
    os.chdir(place)
    for stream, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY), stream)
    code = run(arguments)
    sys.stdout.flush(), sys.stderr.flush()
    with open("exit code", "w") as file:
        file.write(str(code))
"""
"""Runs the commands of a checkout in one process, each in a folder of its own."""

COMMANDS: Mapping[str, Sequence[str]] = {
    "reconstruct": ("reconstruct", "--timeline", "--out", "w", "-q"),
    "audit": ("audit", "--json", "--out", "w", "-q"),
    "cutoff": ("cutoff", "--json", "--verify", "-q"),
    "decode": ("decode", "-q"),
}
OF_A_RUN = ("run_id", "started", "finished", "seconds", "export_age_seconds")
"""Columns and keys that differ between any two runs."""

_RUN = re.compile(r"\brun [0-9a-f]{8,}")
_AGE = re.compile(r"(?<=the newest record was ).*?(?= old)")
"""How old the input was when the run began."""
_SHOWN = 3
_SIMULATED = ("simulate", "--seed=1", "--groups=4", "--minutes=4", "--state-partitions=3", "--fault=all")


@dataclass(frozen=True)
class Case:
    """A command on an input.

    Attributes:
        name: as it is printed.
        arguments: of `share-state`.
    """

    name: str
    arguments: tuple[str, ...]


Rows = dict[str, list[dict[str, Any]]]
"""Name of a table, or of an output -> its rows."""


def main() -> None:
    """Compare another checkout with this one."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    other = Path(sys.argv[1]).resolve()
    with TemporaryDirectory() as folder:
        todo = list(cases(Path(folder) / "inputs"))
        with ThreadPoolExecutor() as pool:
            runs = [
                pool.submit(run_all, todo, root, Path(folder) / name) for root, name in ((other, "old"), (ROOT, "new"))
            ]
        before, after = (one.result() for one in runs)
    differing, rows = 0, 0
    for case, old, new in zip(todo, before, after, strict=True):
        rows += sum(map(len, old.values()))
        lines = list(differences(old, new))
        differing += bool(lines)
        print("\n  ".join([case.name, *lines]) if lines else f"{case.name}: same", flush=True)  # noqa: T201
    print(f"{len(todo)} calls, {rows} rows: {differing} calls differ")  # noqa: T201
    sys.exit(1 if differing else 0)


def cases(folder: Path) -> Iterator[Case]:
    """Every command on every input; inputs that are made are written to a folder."""
    logs = sorted({path.parent for path in DATA.rglob("__share_group_state-*") if path.is_dir()})
    files = [path for pattern in ("*dump*.txt", "console*.txt", "cases/**/*.txt", "cases/**/*.json", "*.parquet")
             for path in sorted(DATA.rglob(pattern)) if path.name != "topics.json"]  # fmt: skip
    for place in [*logs, *files]:
        yield from _calls(str(place.relative_to(DATA)), place)
    for place in [one for one in logs if not one.is_relative_to(DATA / "cases")]:
        name, held = str(place.relative_to(DATA)), [log for log in find_logs([str(place)]) if log.size]
        yield from _calls(f"{name} as a table", write(table_of(held), folder / name / "a.parquet"))
    for dialect in ("share_group_state", "control_records"):
        out = folder / dialect
        call = [sys.executable, "-m", "share_state", *_SIMULATED, f"--dialect={dialect}", f"--out={out}"]
        subprocess.run(call, check=True, capture_output=True, cwd=ROOT)
        yield from _calls(f"simulated {dialect}", out, f"--dialect={dialect}")


def _calls(name: str, place: Path, *options: str) -> Iterator[Case]:
    topics = place / "topics.json"
    with_topics = (*options, f"--topics={topics}") if topics.exists() else options
    for command, (verb, *more) in COMMANDS.items():
        own = options if command == "cutoff" else with_topics
        yield Case(f"{command} {name}", (verb, str(place), *more, *own))


def run_all(todo: Sequence[Case], root: Path, folder: Path) -> list[Rows]:
    """Run commands with the code of a checkout, in an empty folder; returns what each leaves behind."""
    python = root / ".venv/bin/python"
    places = [folder / str(number) for number in range(len(todo))]
    for place in places:
        place.mkdir(parents=True)
    environment = os.environ | {"PYTHONPATH": str(root)}
    calls = json.dumps([(str(place), case.arguments) for place, case in zip(places, todo, strict=True)])
    runner = [str(python) if python.exists() else sys.executable, "-c", RUNNER]
    subprocess.run(runner, input=calls, text=True, env=environment, check=True, cwd=root)
    return [rows_of(place) for place in places]


def rows_of(place: Path) -> Rows:
    """What a command left in a folder: exit code, output and tables."""
    rows: Rows = {"exit code": [{"code": (place / "exit code").read_text(encoding="utf-8")}]}
    for name in ("stdout", "stderr"):
        text = (place / name).read_text(encoding="utf-8").replace(str(place), ".")
        text = _AGE.sub("so", _RUN.sub("run", text))
        rows[name] = [{"line": line} for line in text.splitlines()]
        if len(rows[name]) == 1 and text.startswith("{"):
            rows |= {f"{name} {key}": _as_rows(value) for key, value in json.loads(text).items() if key not in OF_A_RUN}
            del rows[name]
    for log in sorted(place.rglob("_delta_log")):
        table = DeltaTable(str(log.parent)).to_pyarrow_table()
        kept = [name for name in table.column_names if name not in OF_A_RUN]
        rows[log.parent.name] = [_in_any_order(row) for row in table.select(kept).to_pylist()]
    return rows


def _as_rows(value: Any) -> list[dict[str, Any]]:
    every = [_of_any_run(one) for one in (value if isinstance(value, list) else [value])]
    return [one if isinstance(one, dict) else {"value": one} for one in every]


def _of_any_run(value: Any) -> Any:
    if isinstance(value, list):
        return [_of_any_run(one) for one in value]
    if isinstance(value, dict):
        return {key: _of_any_run(one) for key, one in value.items() if key not in OF_A_RUN}
    return value


def _in_any_order(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a table; tables are committed in any order."""
    return {name: sorted(value) if name == "table_versions" else value for name, value in row.items()}


def differences(old: Rows, new: Rows) -> Iterator[str]:
    """What two runs of a call have not in common, a line each."""
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            yield f"{name}: only {'here' if name in new else 'there'}, {len(new.get(name, old.get(name, [])))} rows"
            continue
        there, here = ({column for row in rows[name] for column in row} for rows in (old, new))
        common = there & here if old[name] and new[name] else there | here
        if old[name] and new[name] and there != here:
            yield f"{name}: columns only there {sorted(there - here)}, only here {sorted(here - there)}"
        before, after = (Counter(_text(row, common) for row in rows[name]) for rows in (old, new))
        gone, come = list((before - after).elements()), list((after - before).elements())
        if gone or come:
            yield f"{name}: {len(gone)} of {len(old[name])} rows are not here, {len(come)} not there"
        for lost, added in list(zip_longest(gone, come, fillvalue="{}"))[:_SHOWN]:
            yield f"    {_changes(json.loads(lost), json.loads(added))}"


def _changes(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The values that differ between two rows, or the row if there is only one."""
    names = [name for name in old or new if not old or not new or old[name] != new[name]]
    return ", ".join(f"{name}: {old.get(name)!s:.150} -> {new.get(name)!s:.150}" for name in names)


def _text(row: Mapping[str, Any], columns: set[str]) -> str:
    return json.dumps(
        {name: row.get(name) for name in sorted(columns)}, default=str, sort_keys=True, ensure_ascii=False
    )


if __name__ == "__main__":
    main()
