"""Rules, verdicts and troubles in words: what holds or is wrong, and what to do about it."""

from collections.abc import Iterator
from difflib import get_close_matches
from textwrap import wrap
from typing import Any

from share_state.errors import ShareStateError
from share_state.report.troubles import TROUBLES, VERDICT_TEXTS
from share_state.rules import findings as _every_rule  # noqa: F401  its import registers the rules
from share_state.rules.registry import Rule, registered

_WIDTH = 80
_LABEL = 11
_TROUBLES = {
    "UNLOADABLE": (
        "error",
        "A leader of the release that wrote the log can load the state of every share-partition.",
        "`share-state repair` says what to do; see BATCH_BELOW_START.",
    ),
}
"""Troubles that are neither a rule nor a verdict -> severity, what must hold, and what to do."""


def list_rules() -> list[dict[str, Any]]:
    """Every rule as plain data, by code."""
    return [_plain_rule(rule) for _, rule in sorted(registered().items())]


def _plain_rule(rule: Rule) -> dict[str, Any]:
    return {
        "rule": rule.code,
        "severity": rule.severity,
        "statement": rule.statement,
        "source": rule.source,
        "do": rule.do,
    }


def describe_rule(code: str) -> dict[str, Any]:
    """A rule, verdict or trouble as plain data.

    Raises:
        ShareStateError: if there is none of this code; it names the most similar ones.
    """
    wanted = code.upper()
    if wanted in registered():
        return _plain_rule(registered()[wanted])
    if wanted in VERDICT_TEXTS:
        severity, statement, do = VERDICT_TEXTS[wanted]
        source = "a verdict of `share-state audit`"
    elif wanted in _TROUBLES:
        severity, statement, do = _TROUBLES[wanted]
        source = "Kafka SharePartition.maybeInitialize, CoordinatorLoaderImpl"
    else:
        known = {*registered(), *VERDICT_TEXTS, *TROUBLES}
        similar = get_close_matches(wanted, sorted(known), 3)
        hint = f"did you mean {', '.join(similar)}?" if similar else "`share-state rules` lists them"
        raise ShareStateError(f"{code}: no such rule; {hint}")
    return {"rule": wanted, "severity": severity, "statement": statement, "source": source, "do": do}


def advice_of(code: str) -> str:
    """What to do about a rule, verdict or trouble, as a sentence."""
    text = str(describe_rule(code)["do"])
    return text[:1].upper() + text[1:]


def rule_lines(described: dict[str, Any]) -> Iterator[str]:
    """One rule as lines of a terminal."""
    yield f"{described['rule']} ({described['severity']})"
    first = "means" if described["rule"] in VERDICT_TEXTS else "must hold"
    for label, name in ((first, "statement"), ("do", "do"), ("source", "source")):
        yield from wrap(
            described[name], _WIDTH, initial_indent=label.ljust(_LABEL), subsequent_indent=" " * _LABEL
        )
