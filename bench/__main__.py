"""`python -m bench`: measures share_state against Kafka's own classes and against its claims; see bench/README.md."""

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from bench.inputs import Shape
from bench.measurements import MEASUREMENTS
from bench.report import Report
from bench.runner import Settings
from share_state.cli.process import keep_freed_memory
from share_state.errors import ShareStateError

_DECLARED = (Shape, Settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Replay generated exports with Kafka 4.4.0's own classes and with share_state.",
        epilog="If no measurement is named: comparison, small-export, user-log. Data stays in bench/data.",
    )
    measurements, settings = (parser.add_argument_group(name) for name in ("measurements", "settings"))
    for one in MEASUREMENTS:
        measurements.add_argument(f"--{one.name}", action=argparse.BooleanOptionalAction, help=one.summary)
    for option in (option for kind in _DECLARED for option in fields(kind)):
        if text := option.metadata.get("help"):
            how: dict[str, Any] = {"type": type(option.default)}
            if option.default is False:
                how = {"action": "store_true"}
            elif isinstance(option.default, tuple):
                how, text = {"type": type(option.default[0]), "action": "append"}, f"{text}; repeatable"
            text += f" (default: {option.default})"
            settings.add_argument(f"--{option.name.replace('_', '-')}", default=None, help=text, **how)
    settings.add_argument("--json", type=Path, metavar="FILE", help="write every number to a file")
    return parser


def main() -> None:
    """Run the measurements; exit code 1 if states differ, 2 if a side fails."""
    keep_freed_memory()
    given = {name: value for name, value in vars(_parser().parse_args()).items() if value is not None}
    if "end_to_end_records" in given:
        given["end_to_end"] = True
    named = {one: given.get(one.name.replace("-", "_")) for one in MEASUREMENTS}
    usual = [one for one, value in named.items() if one.by_default and value is None]
    values_of = {
        kind: {one.name: given[one.name] for one in fields(kind) if one.name in given} for kind in _DECLARED
    }
    settings = Settings(log=Shape(**values_of[Shape]), **values_of[Settings])
    report = Report()
    try:
        for measurement in [one for one, value in named.items() if value] or usual:
            with report.progress.status(f"{measurement.summary} ..."):
                for item in measurement.run(settings, *measurement.claims):
                    report.add(item)
    except ShareStateError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0 if report.close(given.get("json")) else 1)


if __name__ == "__main__":
    main()
