"""The slope that growth is judged by."""

import math

import pytest

from bench.growth import slope


@pytest.mark.parametrize(("power", "factor"), [(1.0, 0.3), (2.0, 5.0), (0.5, 1.0)])
def test_the_slope_is_the_power_with_which_seconds_grow(power: float, factor: float) -> None:
    sizes = [1, 2, 4, 8]
    assert slope(sizes, [factor * size**power for size in sizes]) == pytest.approx(power)


def test_nothing_beyond_start_up_has_no_slope() -> None:
    assert math.isnan(slope([1, 2], [0.0, 1.0]))
