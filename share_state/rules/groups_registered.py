"""Lists the rules over groups beside all others, so that they are explained and given severities like them.

Those over records and batches have the codes of the same rules over `__share_group_state`, and are one rule with them.
"""

from share_state.rules import batches, records
from share_state.rules.groups_judged import rule_texts
from share_state.rules.registry import list_rule, registered

__all__ = ["batches", "records"]

for _text in rule_texts().values():
    if _text.code not in registered():
        list_rule(_text.code, severity=_text.severity, source=_text.source, statement=_text.statement)
