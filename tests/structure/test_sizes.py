"""How large classes and functions are."""

import ast
from functools import cache

from tests.structure.sources import functions, is_kernel, modules

MOST_ATTRIBUTES = 20
MOST_METHODS = 20
MOST_LINES = 60
REASON = "Size: "
"""A larger class says why in a line of its docstring that begins so."""


def attributes(node: ast.ClassDef) -> set[str]:
    """The attributes that a class sets on `self`, and its fields if it is a dataclass."""
    fields = {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and "ClassVar" not in ast.unparse(one)
    }
    return fields | {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    }


def methods(node: ast.ClassDef) -> list[str]:
    return [one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]


def statement_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function without its parameters and its docstring, which are declarations."""
    statements = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - statements[0].lineno + 1 if statements else 0


@cache
def classes() -> list[tuple[str, ast.ClassDef]]:
    return [
        (f"{module}.{node.name}", node)
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]


def _is_large(node: ast.ClassDef) -> bool:
    return len(attributes(node)) > MOST_ATTRIBUTES or len(methods(node)) > MOST_METHODS


def test_large_classes_say_why_in_their_docstring():
    assert len(classes()) > 200
    unexplained = [
        name for name, node in classes() if _is_large(node) and REASON not in (ast.get_docstring(node) or "")
    ]
    assert unexplained == []


def test_only_large_classes_give_a_reason_for_their_size():
    assert [name for name, node in classes() if REASON in (ast.get_docstring(node) or "") and not _is_large(node)] == []


def test_the_classes_that_read_and_fold_a_log_are_small():
    folds = {name: node for name, node in classes() if name.endswith((".LogFold", ".ControlLogFold", ".ChainFold"))}
    assert len(folds) == 3
    assert not any(map(_is_large, folds.values()))


def test_functions_that_are_no_kernels_fit_a_screen():
    long = {
        f"{module}.{function.name}": statement_lines(function)
        for module, tree in modules().items()
        for function in functions(tree)
        if not is_kernel(function)
    }
    assert {name: lines for name, lines in long.items() if lines > MOST_LINES} == {}


def test_the_measure_counts_attributes_methods_and_lines():
    tree = ast.parse(
        "class Fold:\n"
        "    size: int\n"
        "    def __init__(self):\n"
        "        self.rows, self.keys = [], {}\n"
        "    def take(self, row):\n"
        '        """Take a row."""\n'
        "        self.rows.append(row)\n"
        "        self.size += 1\n"
    )
    fold = tree.body[0]
    assert isinstance(fold, ast.ClassDef)
    assert attributes(fold) == {"size", "rows", "keys"}
    assert methods(fold) == ["__init__", "take"]
    assert [statement_lines(function) for function in functions(tree)] == [1, 2]
