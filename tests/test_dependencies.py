"""The dependencies that pyproject.toml declares, and the versions of requirements.lock."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from share_state.errors import EXTRAS

HOME = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())
LOCK = (HOME / "requirements.lock").read_text()


def _declared() -> Iterator[Requirement]:
    project = PYPROJECT["project"]
    lists = [project["dependencies"], PYPROJECT["build-system"]["requires"]]
    lists += [*project["optional-dependencies"].values(), *PYPROJECT["dependency-groups"].values()]
    for requirement in (Requirement(entry) for entries in lists for entry in entries if isinstance(entry, str)):
        if requirement.name != PYPROJECT["project"]["name"]:
            yield requirement


DECLARED = sorted(set(_declared()), key=str)


@pytest.mark.parametrize("requirement", DECLARED, ids=str)
def test_each_dependency_has_bounds_that_its_locked_versions_fit(requirement: Requirement):
    operators = {specifier.operator for specifier in requirement.specifier}
    assert "==" in operators or {">=", "<"} <= operators
    locked = re.findall(rf"^{re.escape(requirement.name)}==([^ ;]+)", LOCK, re.MULTILINE)
    assert locked
    assert all(requirement.specifier.contains(version) for version in locked)


def test_the_lock_has_a_digest_of_each_version_and_the_address_of_no_index():
    entries = re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert len(entries) > len(DECLARED)
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert "://" not in LOCK
    assert "--" not in LOCK.replace("--hash=", "")


def test_messages_about_what_is_missing_name_what_the_extras_install():
    extras = PYPROJECT["project"]["optional-dependencies"]
    for extra, requirement in EXTRAS.values():
        assert requirement in extras[extra]
    assert set(extras) == {extra for extra, _ in EXTRAS.values()} | {"all"}
    (everything,) = (Requirement(entry) for entry in extras["all"])
    assert everything.extras == set(extras) - {"all"}
