"""The modules of the package as syntax trees, for tests of its structure."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

HOME = Path(__file__).parents[2]
PACKAGE = HOME / "share_state"


@cache
def modules() -> dict[str, ast.Module]:
    """Name within share_state, such as `fold.cutoff`, -> its tree; a package has the name of its folder."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def decorator_names(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> set[str]:
    """The names of decorators, without their arguments."""
    names = set()
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        names.add(called.id if isinstance(called, ast.Name) else getattr(called, "attr", ""))
    return names


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method, also those inside others."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether numba compiles a function."""
    compiled = {"kernel", "allocating_kernel", "inlined", "record_rule", "state_batch_rule"}
    return bool(decorator_names(function) & compiled)
