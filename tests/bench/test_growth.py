"""The straight line that growth is compared with."""

import pytest

from bench.growth import fit_line

SIZES = [1e8, 2e8, 4e8, 8e8]


@pytest.mark.parametrize(("fixed", "rate"), [(8.0, 2e-9), (0.5, 1e-8)])
def test_linear_growth_is_on_the_line(fixed: float, rate: float) -> None:
    line = fit_line(SIZES, [fixed + rate * size for size in SIZES])
    assert (line.fixed, line.rate) == (pytest.approx(fixed), pytest.approx(rate))
    assert line.error == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("seconds", [[1, 5, 17, 65], [11, 12, 14, 36], [22, 12, 14, 18]])
def test_other_growth_is_off_the_line(seconds: list[float]) -> None:
    assert fit_line(SIZES, seconds).error > 0.02
