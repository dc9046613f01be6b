"""The files for contributors: the workflow, the hooks and the forms name what the project has."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.profiles import WHOLE

HOME = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())
TARGETS = set(re.findall(r"^([a-z]+):", (HOME / "Makefile").read_text(), re.MULTILINE))
FORMS = sorted((HOME / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def _workflow(name: str = "ci") -> dict[Any, Any]:
    return yaml.safe_load((HOME / f".github/workflows/{name}.yml").read_text())


def test_the_workflow_runs_targets_of_the_makefile():
    steps = [step for job in _workflow()["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    assert {"make lint", "make test", "make docs"} <= set(commands)
    assert {command.removeprefix("make ") for command in commands} <= TARGETS


def test_the_workflow_tests_each_named_python_and_the_oldest_dependencies():
    matrix = _workflow()["jobs"]["test"]["strategy"]["matrix"]
    classifiers = PYPROJECT["project"]["classifiers"]
    named = [name.rpartition(" ")[2] for name in classifiers if re.search(r"Python :: 3\.\d+$", name)]
    assert matrix["python"] == named
    assert PYPROJECT["project"]["requires-python"] == f">={named[0]}"
    assert {"python": named[0], "versions": "oldest"} in matrix["include"]


def test_a_workflow_runs_every_night_what_make_test_leaves_out():
    nightly = _workflow("nightly")
    (job,) = nightly["jobs"].values()
    assert job["env"] == {"HYPOTHESIS_PROFILE": WHOLE}
    assert "make test" in [step.get("run") for step in job["steps"]]
    # YAML reads the key `on` as true.
    assert nightly[True]["schedule"]


def test_hooks_run_commands_that_set_up_installs():
    config = yaml.safe_load((HOME / ".pre-commit-config.yaml").read_text())
    entries = [hook["entry"] for repository in config["repos"] for hook in repository["hooks"]]
    assert len(entries) >= 4
    for entry in entries:
        assert (HOME / entry.split()[0]).is_file()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_have_what_the_site_requires(path: Path):
    form = yaml.safe_load(path.read_text())
    assert form["name"]
    assert form["description"]
    for field in form["body"]:
        assert field["type"] in {"textarea", "input", "dropdown", "checkboxes", "markdown"}
        assert field["attributes"]["label"]
