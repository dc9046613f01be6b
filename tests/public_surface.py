"""Counts the tests that use share_state as its users do: `python -m tests.public_surface`.

Such a test calls names of `share_state.__all__`, or the command, and uses nothing else of the package: neither it, nor
its fixtures, nor the helpers that it calls, but for WRITERS. `share_state.errors` is public: docs/python.md names it.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
PUBLIC_MODULES = ("share_state.errors",)
COMMAND_MODULES = ("share_state.cli.main", "share_state.__main__")
WRITERS = ("tests.log_writer", "tests.kafka.batches", "tests.sources.formats.printed", "tests.fold.groups.group_writer")
"""They write the inputs of tests byte by byte, with the codec of the package."""

COMMAND_TEXTS = ("share-state", "share_state")
"""A test that starts one of these in a process of its own runs the command."""


@dataclass
class Module:
    """A file of tests.

    Attributes:
        definitions: name -> the function, class or assignment of it at module level.
        imports: name -> the module that it is imported from, and its name there.
    """

    definitions: dict[str, ast.AST] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)


def main() -> None:
    """Print how many tests each folder has, and how many of them use the public surface."""
    every, public = Counter[str](), Counter[str]()
    for path in sorted(TESTS.rglob("test_*.py")):
        for name, uses in uses_of_tests(path):
            folder = path.relative_to(TESTS).parts[0]
            every[folder] += 1
            public[folder] += is_public(uses)
            if "-v" in sys.argv and not is_public(uses):
                print(f"{path.relative_to(TESTS)}::{name}: {', '.join(sorted(uses))}")  # noqa: T201
    for folder, number in every.items():
        print(f"{folder:25}{public[folder]:5} of {number}")  # noqa: T201
    print(f"{'all':25}{public.total():5} of {every.total()}")  # noqa: T201


def is_public(uses: set[str]) -> bool:
    """Whether the parts of the package that a test uses are public, and there are any."""
    return bool(uses) and not any(use.startswith("internal ") for use in uses)


def uses_of_tests(path: Path) -> Iterator[tuple[str, set[str]]]:
    """Each test function of a file, and what it uses of the package."""
    module = _load(path)
    for name, node in module.definitions.items():
        if name.startswith("test_") and isinstance(node, ast.FunctionDef):
            yield name, _uses(path, name)


@cache
def _load(path: Path) -> Module:
    module = Module()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            module.imports |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            module.imports |= {alias.asname or alias.name.split(".")[0]: (alias.name, "") for alias in node.names}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            module.definitions[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            module.definitions |= {one.id: node for one in targets if isinstance(one, ast.Name)}
    return module


def _uses(path: Path, name: str, seen: set[tuple[Path, str]] | None = None) -> set[str]:
    """What a definition of a file, and those of tests that it uses, use of the package."""
    seen = set() if seen is None else seen
    if (path, name) in seen:
        return set()
    seen.add((path, name))
    module, uses = _load(path), set[str]()
    node = module.definitions[name]
    autouse = (
        [other for other, one in module.definitions.items() if _is_autouse(one)] if name.startswith("test_") else []
    )
    for used in {*_names(path, name), *autouse}:
        if used in module.definitions:
            uses |= _uses(path, used, seen)
        elif used in module.imports:
            uses |= _imported(*module.imports[used], seen)
        elif name.startswith("test_") or _is_fixture(node):
            uses |= _fixture(path, used, seen)
    uses |= {"command" for text in COMMAND_TEXTS if text in _texts(path, name)}
    return uses


def _imported(source: str, name: str, seen: set[tuple[Path, str]]) -> set[str]:
    if source == "share_state" and not name:
        return {"public"}
    if source == "share_state":
        return {f"public {name}"}
    if source in COMMAND_MODULES:
        return {"command"}
    if source in PUBLIC_MODULES:
        return set()
    if source.startswith("share_state."):
        return {f"internal {source}"}
    if source in WRITERS:
        return set()
    if source.startswith("tests."):
        helper = TESTS.parent / f"{source.replace('.', '/')}.py"
        return _uses(helper, name, seen) if helper.is_file() and name in _load(helper).definitions else set()
    return set()


def _fixture(path: Path, name: str, seen: set[tuple[Path, str]]) -> set[str]:
    for folder in path.parents:
        conftest = folder / "conftest.py"
        if conftest.is_file() and name in _load(conftest).definitions:
            return _uses(conftest, name, seen)
        if folder == TESTS:
            break
    return set()


def _is_fixture(node: ast.AST) -> bool:
    return "fixture" in {name for one in getattr(node, "decorator_list", ()) for name in _words(one)}


def _is_autouse(node: ast.AST) -> bool:
    return "autouse" in {
        word.arg for one in getattr(node, "decorator_list", ()) for word in getattr(one, "keywords", ())
    }


def _words(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            yield one.id
        elif isinstance(one, ast.Attribute):
            yield one.attr


@cache
def _names(path: Path, name: str) -> frozenset[str]:
    """Names that a definition of a file uses, those of its arguments included, as they may be fixtures."""
    nodes = [*ast.walk(_load(path).definitions[name])]
    return frozenset({node.id for node in nodes if isinstance(node, ast.Name)}) | {
        node.arg for node in nodes if isinstance(node, ast.arg)
    }


@cache
def _texts(path: Path, name: str) -> frozenset[str]:
    """The texts in a definition of a file."""
    nodes = ast.walk(_load(path).definitions[name])
    return frozenset(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


if __name__ == "__main__":
    main()
