import math

import pytest

from stimulus_moo.lab.studies.least_squares import line, power_law


@pytest.mark.parametrize("exponent", [-1.0, -0.5, 0.5, 1.0, 2.0])
def test_exact_power_laws_are_found(exponent):
    sizes = [2**k for k in range(10, 19)]
    fitted = power_law(sizes, [7.0 * n**exponent for n in sizes])
    assert fitted.slope == pytest.approx(exponent, abs=1e-10)
    assert math.exp(fitted.intercept) == pytest.approx(7.0, rel=1e-8)
    assert fitted.r_squared == pytest.approx(1.0)


def test_residuals_lower_the_explained_share():
    fitted = line([0, 1, 2, 3], [0, 1, 0, 1])
    assert (fitted.slope, fitted.intercept) == pytest.approx((0.2, 0.2))
    assert fitted.r_squared == pytest.approx(0.2)


def test_a_constant_is_explained():
    assert line([0, 1, 2], [4, 4, 4]).r_squared == 1.0
