"""The table of keys in docs/audit-configuration.md, made from the model."""

from collections.abc import Sequence
from pathlib import Path

from share_state.config.keys import keys
from share_state.config.refusals import ConfigError

BEGIN = "<!-- Made by `python -m share_state.config docs/audit-configuration.md`; edit share_state/config/model.py. -->"
END = "<!-- End of what is made. -->"


def with_keys(page: str) -> str:
    """The page docs/audit-configuration.md with its table of keys made anew.

    Raises:
        ConfigError: if the page does not have the two lines that the table stands between.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"the page of keys: its table goes between these two lines: {BEGIN} {END}")
    rows = ["| key | takes | default | environment variable | meaning |", "| --- | --- | --- | --- | --- |"]
    rows += [f"| `{key.name}` | {key.takes} | {key.default} | `{key.variable}` | {key.meaning} |" for key in keys()]
    return "\n".join([f"{before}{begin}", "", *rows, "", f"{end}{after}"])


def main(arguments: Sequence[str]) -> None:
    """Renew the table of keys in each page that is named."""
    for path in map(Path, arguments):
        path.write_text(with_keys(path.read_text(encoding="utf-8")), encoding="utf-8")
