"""Options that several commands take, as a dataclass: a command names the bundle, people see its options one by one."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from typing import Any, get_type_hints


class Bundle:
    """Marks a frozen dataclass of options; the type of each field is what typer makes an option of."""


def unbundled(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose bundles are spread out into their options, as typer wants to see them.

    Args:
        command: its parameters are of types that typer knows, or of subclasses of Bundle.
    """
    told = get_type_hints(command, include_extras=True)
    bundles = {name: kind for name, kind in told.items() if inspect.isclass(kind) and issubclass(kind, Bundle)}
    shown = list[inspect.Parameter]()
    for name, parameter in inspect.signature(command).parameters.items():
        plain = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=told[name])
        shown += _options(bundles[name]) if name in bundles else [plain]

    def run(**given: Any) -> None:
        for name, kind in bundles.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    run.__signature__ = inspect.Signature(shown)
    return run


def _options(bundle: type[Bundle]) -> Iterator[inspect.Parameter]:
    types = get_type_hints(bundle, include_extras=True)
    for field in fields(bundle):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[field.name]
        )
