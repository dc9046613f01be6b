"""`share-state rules`: what an audit checks."""

from share_state.commands.app import command
from share_state.commands.options import Json
from share_state.report import console
from share_state.rules import registered


@command("share-state rules --json")
def rules(as_json: Json = False) -> None:
    """List the rules: code, severity, what must hold, and where that comes from."""
    listed = [
        {"rule": rule.code, "severity": rule.severity, "statement": rule.statement, "source": rule.source}
        for rule in sorted(registered().values(), key=lambda rule: rule.code)
    ]
    if as_json:
        console.print_json(listed)
    else:
        console.print_table(["RULE", "SEVERITY", "STATEMENT", "SOURCE"], [list(rule.values()) for rule in listed])
