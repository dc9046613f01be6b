"""Most of what users see is tested as they use it."""

from tests.profiles import nightly
from tests.public_surface import TESTS, is_public, uses_of_tests


@nightly("reads every test")
def test_enough_tests_use_the_package_as_users_do():
    every = [uses for path in TESTS.rglob("test_*.py") for _, uses in uses_of_tests(path)]
    assert sum(map(is_public, every)) >= 400
