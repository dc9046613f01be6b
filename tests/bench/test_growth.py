"""The straight line that growth is judged by."""

import pytest

from bench.growth import nearest

SIZES = [1e8, 2e8, 4e8, 8e8]


@pytest.mark.parametrize(("fixed", "rate"), [(8.0, 2e-9), (0.5, 1e-8)])
def test_what_grows_along_a_line_is_on_it(fixed: float, rate: float) -> None:
    line = nearest(SIZES, [fixed + rate * size for size in SIZES])
    assert (line.fixed, line.rate) == (pytest.approx(fixed), pytest.approx(rate))
    assert line.off == pytest.approx(0, abs=1e-9)


def test_what_grows_faster_than_its_size_is_off_the_line() -> None:
    assert nearest(SIZES, [1 + (size / 1e8) ** 2 for size in SIZES]).off > 0.1


def test_one_size_that_costs_more_is_seen_whether_it_is_small_or_large() -> None:
    for dear in range(len(SIZES)):
        seconds = [10 + 1e-8 * size * (1 + (number == dear)) for number, size in enumerate(SIZES)]
        assert nearest(SIZES, seconds).off > 0.02
