"""How deep the tests go: three profiles, chosen by the environment variable HYPOTHESIS_PROFILE.

`fast`, the default, is what `make test` runs. `whole` also runs the tests that `fast` leaves out, with as few
examples; a workflow does so every night. `nightly` draws 500 times as many examples and takes hours:

    HYPOTHESIS_PROFILE=nightly .venv/bin/python -m pytest -n 3 --dist loadgroup

A test that repeats the same check over many inputs takes a few of them by default and all of them in `nightly`, by
`by_profile`. A failing example that was drawn becomes an `@example`, which all profiles run.
"""

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

Value = TypeVar("Value")

FAST, WHOLE, NIGHTLY = "fast", "whole", "nightly"
HERE, IN_SPARK = "here", "in Spark"
"""Who folds: parameters of fixtures."""
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", FAST)

# The first example of a test may compile or load kernels, which says nothing about the test.
_QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
for name in (FAST, WHOLE):
    settings.register_profile(name, max_examples=6, deadline=None, suppress_health_check=_QUIET)
settings.register_profile(NIGHTLY, max_examples=3000, deadline=None, suppress_health_check=_QUIET)
settings.load_profile(PROFILE)


def by_profile(fast: Value, nightly: Value) -> Value:
    """One of two depths of a test; `whole` has the first."""
    return nightly if PROFILE == NIGHTLY else fast


SLOW = settings(max_examples=by_profile(5, 1000))
"""For property tests whose example takes 0.1 to 0.5 CPU s, such as a whole audit: fewer examples."""


def some_of(values: Iterable[Value], number: int) -> list[Value]:
    """So many of the inputs of a test, spread over all of them; all of them in `nightly`."""
    every = list(values)
    return by_profile(every[:: max(1, len(every) // number)][:number], every)


def nightly(reason: str) -> pytest.MarkDecorator:
    """Marks a test that `fast` leaves out."""
    return pytest.mark.skipif(PROFILE == FAST, reason=f"nightly: {reason}")


EXECUTORS = by_profile([HERE], [HERE, IN_SPARK])
driver_alone = pytest.mark.parametrize("tasks", EXECUTORS, indirect=True)
"""For tests of what the driver decides, whoever runs the tasks; an audit in Spark takes seconds."""
