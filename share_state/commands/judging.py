"""What --rule and --fail-on mean."""

from collections.abc import Mapping, Sequence

from share_state.commands.options import pairs
from share_state.errors import ShareStateError
from share_state.rules import OFF, SEVERITIES, registered


def severities(rules: Sequence[str] | None) -> dict[str, str]:
    """Rule -> severity or "off".

    Raises:
        ShareStateError: if there is no such rule or severity.
    """
    chosen = pairs(rules, "--rule")
    for code, severity in chosen.items():
        if code not in registered():
            raise ShareStateError(f"--rule {code}: no such rule; `share-state rules` lists them")
        if severity not in (*SEVERITIES, OFF):
            raise ShareStateError(f"--rule {code}={severity}: give one of {', '.join((*SEVERITIES, OFF))}")
    return chosen


def check_fail_on(fail_on: str) -> None:
    """Refuse a severity that is none.

    Raises:
        ShareStateError: if it is none.
    """
    if fail_on not in (*SEVERITIES, OFF):
        raise ShareStateError(f"--fail-on {fail_on}: give one of {', '.join((*SEVERITIES, OFF))}")


def fails(by_severity: Mapping[str, int], fail_on: str) -> bool:
    """Whether findings at or above a severity were made."""
    return fail_on != OFF and any(by_severity.get(severity) for severity in SEVERITIES[: SEVERITIES.index(fail_on) + 1])
