"""The layers over the file: environment variables, then `--set`."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from share_state.config.assignments import Assignment, assignment
from share_state.config.key_names import NEST, PREFIX, dotted, shown, variable
from share_state.config.keys import keys
from share_state.config.model import AuditSettings
from share_state.config.refusals import ConfigError

_ALIKE = 0.85


def from_overrides(overrides: Sequence[str], problems: list[str]) -> Iterator[Assignment]:
    """What `--set` options say, in their order.

    Args:
        overrides: `a.b=value` each.
        problems: gets a line for each that cannot be used.
    """
    for text in overrides:
        key, sign, value = text.partition("=")
        label = f"--set {shown(key.strip())}"
        if not sign:
            problems.append(f"{label}: no value; give KEY=VALUE, as in limits.delivery_count=3")
            continue
        try:
            yield assignment(label, key.strip().split("."), value, ".", dotted)
        except ConfigError as error:
            problems.append(f"{label}: {error}")


def from_variables(environment: Mapping[str, str], problems: list[str]) -> Iterator[Assignment]:
    """What environment variables say, a whole section or list before its parts.

    Args:
        environment: name to value; names that are no setting's, nor close to one, are left alone.
        problems: gets a line for each that cannot be used.
    """
    ours = {name: name.removeprefix(PREFIX).split(NEST) for name in environment if name.startswith(PREFIX)}

    def whole_before_parts(name: str) -> list[str]:
        return [part.zfill(4) if part.isdecimal() else part.upper() for part in ours[name]]

    for name in sorted(ours, key=whole_before_parts):
        if ours[name][0].lower() in AuditSettings.model_fields:
            try:
                yield assignment(name, ours[name], environment[name], NEST, variable)
            except ConfigError as error:
                problems.append(f"{name}: {error}")
        elif near := _near_variable(ours[name]):
            problems.append(f"{name}: no such setting; did you mean {near}?")


def _near_variable(names: list[str]) -> str | None:
    """The variable that was meant; None where this one is likely somebody else's."""
    first = get_close_matches(names[0], [name.upper() for name in AuditSettings.model_fields], 1, _ALIKE)
    if first:
        return PREFIX + NEST.join([*first, *names[1:]])
    # One underscore in place of two is the likeliest slip.
    by_name = {key.variable.removeprefix(PREFIX).replace(NEST, "_"): key.variable for key in keys()}
    near = get_close_matches("_".join(names), by_name, 1, _ALIKE)
    return by_name[near[0]] if near else None
