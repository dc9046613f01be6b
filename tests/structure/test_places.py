"""Where things are: each module has a name of its own, and what touches numba is in one package."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType

import pytest

from share_state.config.input_spec import OPTIONS, spec_of_options
from share_state.jit.compile import KERNEL_PACKAGES, kernel_sources
from share_state.pipeline.planning import build_plan
from tests.structure.sources import PACKAGE, functions, is_kernel, modules

SAME_NAMES = {
    "audit": "the command, and the run that it starts",
    "reconstruct": "the command, and the run that it starts",
}
"""Names of more than one module, and why."""

READING = ("share_state.sources.", "share_state.stores.")
"""Packages that read an input."""


def test_no_module_name_occurs_twice_without_a_reason():
    names = [path.stem for path in PACKAGE.rglob("*.py") if path.stem != "__init__"]
    names += [path.parent.name for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE]
    assert {name for name, count in Counter(names).items() if count > 1} == {*SAME_NAMES}


def test_the_modules_of_one_name_are_a_command_and_its_run():
    for name in SAME_NAMES:
        found = {path.parent.name for path in PACKAGE.rglob(f"{name}.py")}
        assert found == {"cli", "pipeline"}


def test_no_package_has_the_name_of_a_function_of_the_python_api():
    import share_state  # noqa: PLC0415

    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert not packages & {*share_state.__all__}


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_two_modules_use_what_sessions_of_spark_connect_lack():
    """`session` opens classic sessions; `connections` asks what a session is."""
    lacking = {"sparkContext", "_jvm", "_jsc", "_gateway"}
    users = {
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in lacking
    }
    assert users == {"spark.session", "spark.connections"}


def test_one_module_names_the_errors_of_py4j():
    """Sessions of Spark Connect do without it; `kafka_admin` starts a JVM of its own."""
    users = {name for name, tree in modules().items() if any(one.startswith("py4j") for one in _imported(tree))}
    assert users == {"spark.jvm_errors", "sources.kafka_admin"}


def test_only_jit_uses_the_private_parts_of_numba_and_llvm():
    private = ("numba.core", "numba.extending", "llvmlite")
    users = {
        name.split(".")[0] for name, tree in modules().items() for one in _imported(tree) if one.startswith(private)
    }
    assert users == {"jit"}


Names = dict[str, dict[str, ast.AST | tuple[str, str]]]
"""Module -> name -> the statement that defines it, or the module and the name that it is imported from."""


def _definitions(trees: dict[str, ast.Module]) -> Names:
    """What the names of modules stand for, as far as share_state defines them."""
    defined: Names = {}
    for module, tree in trees.items():
        names = defined[module] = {}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("share_state."):
                source = (node.module or "").removeprefix("share_state.")
                names |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                names[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {one.id: node for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return defined


def used_by_kernels(trees: dict[str, ast.Module]) -> dict[tuple[str, str], str]:
    """Every name that compiled code depends on, as (module, name) -> the kernel that uses it."""
    defined = _definitions(trees)
    found: dict[tuple[str, str], str] = {}
    waiting: list[tuple[str, ast.AST, str]] = [
        (module, function, f"{module}.{function.name}")
        for module, tree in trees.items()
        for function in functions(tree)
        if is_kernel(function)
    ]
    while waiting:
        module, node, kernel = waiting.pop()
        for name in _names_that_run(node) & {*defined[module]}:
            place, meaning = (module, name), defined[module][name]
            while isinstance(meaning, tuple):
                place, meaning = meaning, defined.get(meaning[0], {}).get(meaning[1], ast.Pass())
            if place not in found:
                found[place] = kernel
                waiting.append((place[0], meaning, kernel))
    return found


def _names_that_run(node: ast.AST) -> set[str]:
    """The names in a statement; not those of annotations, of decorators, and of errors that it raises."""
    if isinstance(node, ast.Raise):
        return set()
    names = {node.id} if isinstance(node, ast.Name) else set[str]()
    skipped = {"annotation", "returns", "decorator_list"}
    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        if field not in skipped:
            names |= {name for child in children if isinstance(child, ast.AST) for name in _names_that_run(child)}
    if isinstance(node, ast.FunctionDef):
        bound = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        names -= bound | {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    return names


def _unmarked(trees: dict[str, ast.Module], marked: set[str]) -> dict[tuple[str, str], str]:
    return {place: kernel for place, kernel in used_by_kernels(trees).items() if place[0] not in marked}


def _marked() -> set[str]:
    """The modules whose sources name the folder of the kernel cache."""
    paths = [str(source).removeprefix(f"{PACKAGE}/").removesuffix(".py") for source in kernel_sources()]
    return {path.replace("/", ".").removesuffix(".__init__") for path in paths}


def test_kernels_use_only_names_of_modules_that_the_kernel_cache_is_named_after():
    """Otherwise a change there would leave code in the cache that was compiled from what it was before."""
    assert _unmarked(modules(), _marked()) == {}


def test_the_modules_with_kernels_are_in_the_packages_that_are_searched():
    with_kernels = {name for name, tree in modules().items() if any(map(is_kernel, functions(tree)))}
    assert len(with_kernels) > 20
    assert {name.split(".")[0] for name in with_kernels} <= {*KERNEL_PACKAGES}


@pytest.mark.parametrize("use", ["return SIZE + value", "return twice(value)"])
def test_a_kernel_with_a_name_of_an_unmarked_module_is_found(use: str):
    sources = {
        "kafka.sizes": "from share_state.kafka.units import UNIT\nSIZE = UNIT * 8\ndef twice(it): return SIZE * it",
        "kafka.units": "UNIT = 1",
        "fold.kernels": f"from share_state.kafka.sizes import SIZE, twice\n\n@kernel\ndef grow(value): {use}",
    }
    trees = {name: ast.parse(source) for name, source in sources.items()}
    assert {place[0] for place in _unmarked(trees, {"fold.kernels"})} == {"kafka.sizes", "kafka.units"}
    assert _unmarked(trees, {"fold.kernels", "kafka.sizes", "kafka.units"}) == {}


def test_a_plan_reads_its_input_in_one_call():
    entered = Counter[str]()
    spec = spec_of_options(OPTIONS, ["tests/data/4.3.1/chaos"], {})

    def note_call(frame: FrameType, event: str, argument: object) -> None:
        del argument
        caller = frame.f_back.f_globals.get("__name__", "") if frame.f_back else ""
        called = frame.f_globals.get("__name__", "")
        if event == "call" and caller.startswith("share_state.pipeline.") and called.startswith(READING):
            entered[called] += frame.f_code.co_name not in ("__init__", "__post_init__")

    sys.setprofile(note_call)
    try:
        build_plan(spec, OPTIONS)
    finally:
        sys.setprofile(None)
    assert entered["share_state.sources.input_contents"] == 1
    assert entered.total() <= 8
