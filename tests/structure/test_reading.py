"""How the code reads: one assignment a line, short lines, and names that say what they hold."""

import ast
import re
from collections.abc import Iterator

from tests.structure.sources import HOME, PACKAGE, functions, modules

LINE_WIDTH = 110
MOST_LONG_LINES = 0.01
"""Share of the lines that may be longer: texts of messages, and the first lines of docstrings."""

VAGUE_NAMES = {"one", "found", "at", "given", "left", "what", "why"}
MOST_VAGUE_LINES = 15
"""Lines from the first to the last use of such a name in a function; a name that is used longer says what it holds."""

LONGEST_TEST_NAME = 80

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def crowded_assignments(tree: ast.AST) -> Iterator[int]:
    """The lines that assign three or more values to as many targets, and one value to three or more of them.

    Not those that unpack one value, and swaps, in which a later value depends on an earlier target.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        if len(node.targets) >= 3:
            yield node.lineno
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) >= 3:
                earlier = [ast.unparse(one) for one in target.elts]
                later = [{ast.unparse(part) for part in ast.walk(value)} for value in node.value.elts]
                if not any(name in parts for row, parts in enumerate(later) for name in earlier[:row]):
                    yield node.lineno


def _lines_of_names(node: ast.AST) -> Iterator[tuple[str, int]]:
    """The vague names of a function with their lines; a comprehension has variables of its own."""
    if isinstance(node, ast.Name | ast.arg):
        name = node.id if isinstance(node, ast.Name) else node.arg
        if name in VAGUE_NAMES:
            yield name, node.lineno
    own = set[str]()
    if isinstance(node, _COMPREHENSIONS):
        own = {one.id for part in node.generators for one in ast.walk(part.target) if isinstance(one, ast.Name)}
    for child in ast.iter_child_nodes(node):
        yield from ((name, line) for name, line in _lines_of_names(child) if name not in own)


def long_lived_vague_names(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Function, name and number of lines of each vague name that is used over too many lines."""
    for function in functions(tree):
        lines: dict[str, list[int]] = {}
        for name, line in _lines_of_names(function):
            lines.setdefault(name, []).append(line)
        for name, used in lines.items():
            if max(used) - min(used) > MOST_VAGUE_LINES:
                yield function.name, name, max(used) - min(used)


def test_a_line_has_at_most_two_assignments():
    assert [(name, line) for name, tree in modules().items() for line in crowded_assignments(tree)] == []


def test_almost_all_lines_are_short():
    lines = [line for path in PACKAGE.rglob("*.py") for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(lines) > 40_000
    assert sum(len(line) > LINE_WIDTH for line in lines) <= MOST_LONG_LINES * len(lines)


def test_names_that_live_long_say_what_they_hold():
    assert [(name, *used) for name, tree in modules().items() for used in long_lived_vague_names(tree)] == []


def test_the_names_of_tests_fit_a_line():
    files = list((HOME / "tests").rglob("test_*.py"))
    names = [name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)]
    assert len(names) > 2000
    assert [name for name in names if len(name) > LONGEST_TEST_NAME] == []


def test_the_measures_find_what_they_forbid():
    crowded = "a, b, c = 1, 2, 3\na = b = c = 0\n"
    fine = "a, b, c = row\na, b, c = b, a, c\na, b = 1, 2\nfor a, b, c in rows: pass\n"
    assert list(crowded_assignments(ast.parse(crowded))) == [1, 2]
    assert list(crowded_assignments(ast.parse(fine))) == []
    long = "def fold(given):\n" + "    pass\n" * 20 + "    return given\n"
    short = "def fold():\n    a = [one for one in range(3)]\n" + "    pass\n" * 20 + "    return [one for one in a]\n"
    assert list(long_lived_vague_names(ast.parse(long))) == [("fold", "given", 21)]
    assert list(long_lived_vague_names(ast.parse(short))) == []
