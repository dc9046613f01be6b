"""From a file, or a call without one, to settings; where anything cannot be used, to one line about it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from share_state.config import declared
from share_state.config.assignments import Assignment, assigned
from share_state.config.key_names import KeyPath, dotted
from share_state.config.layers import from_overrides, from_variables
from share_state.config.model import AuditSettings
from share_state.config.refusals import ConfigError, no_such_key, refused
from share_state.config.yaml_text import parsed

_EXAMPLE = "conf/audit.yaml"
_NO_FILE = "the configuration"


def load_settings(
    path: str | None, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> AuditSettings:
    """The configuration of an audit from its file.

    Args:
        path: a YAML file, None for what variables and overrides say alone.
        overrides: `--set` options, `a.b=value` each; they win over variables, which win over the file.
        environment: variables, those of this process where it is None.
    Raises:
        ConfigError: if anything in it cannot be used.
    """
    given = {} if path is None else _read(path)
    return _settings(given, path or _NO_FILE, [], overrides, environment)


def settings_for(
    inputs: Sequence[str], warehouse: str, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> AuditSettings:
    """The configuration of an audit that is given its inputs and its warehouse in place of a file.

    Args:
        inputs: log folders, .log files or globs; they win over variables, as `warehouse` does.
        warehouse: folder of the tables.
        overrides: as for `load_settings`; they win over everything.
        environment: as for `load_settings`.
    Raises:
        ConfigError: if anything in it cannot be used.
    """
    called = [
        Assignment("INPUT", ("sources",), [{"path": path} for path in inputs]),
        Assignment("--out", ("warehouse",), warehouse),
    ]
    return _settings({}, _NO_FILE, called, overrides, environment)


def _settings(
    given: Any,
    file: str,
    called: Sequence[Assignment],
    overrides: Sequence[str],
    environment: Mapping[str, str] | None,
) -> AuditSettings:
    problems: list[str] = []
    assignments = list(from_variables(os.environ if environment is None else environment, problems))
    assignments += called
    assignments += from_overrides(overrides, problems)
    for one in assignments:
        try:
            given = assigned(given, one.path, one.value)
        except ConfigError as error:
            problems.append(f"{one.label}: {error}")

    def where(path: KeyPath) -> str:
        for one in reversed(assignments):
            if path[: len(one.path)] == one.path:
                return one.label if path == one.path else f"{one.label}: {dotted(path)}"
        return f"{file}: {dotted(path)}"

    # At the top a key that is not known is refused even without a value.
    problems += [f"{where((key,))}: {no_such_key((key,))}" for key in given if key not in AuditSettings.model_fields]
    settings = None
    try:
        settings = AuditSettings(**{key: value for key, value in given.items() if key in AuditSettings.model_fields})
    except ValidationError as error:
        # A key that is misspelt is why another is missing, so it comes first.
        found = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        problems += [refused(one, where) for one in found]
    if settings is None or problems:
        more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        raise ConfigError(problems[0] + more)
    return settings


def _read(path: str) -> dict[str, Any]:
    try:
        given = parsed(Path(path).read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give the audit's YAML file ({_EXAMPLE} is an example)") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: a folder; give the YAML file in it") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give a file that this user may read") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: line {line}: not UTF-8; save the file as UTF-8 text") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if given is None:
        raise ConfigError(f"{path}: empty; give at least sources and warehouse ({_EXAMPLE} is an example)")
    if not isinstance(given, dict):
        kind = "a list" if isinstance(given, list) else "text"
        raise ConfigError(f"{path}: {kind} at the top; give {declared.takes(declared.whole())}")
    return given
