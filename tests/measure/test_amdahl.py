import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.errors import SettingError
from tinytorch.measure.roofline import amdahl

SHARES = st.floats(0, 1)
FACTORS = st.floats(1e-6, 1e6)


def test_the_rest_caps_the_speedup():
    assert amdahl(share=0.70) == pytest.approx(10 / 3)
    assert amdahl(share=0.70, factor=2) == pytest.approx(1 / 0.65)


def test_the_ends_are_exact():
    assert amdahl(0) == 1
    assert amdahl(1) == math.inf
    assert amdahl(1, 3) == pytest.approx(3)
    assert amdahl(0.4, 1) == 1


@given(SHARES, FACTORS)
def test_the_whole_lies_between_nothing_and_the_part(share, factor):
    speedup = amdahl(share, factor)
    slack = 1 + 1e-12  # rounding
    assert min(1, factor) / slack <= speedup <= max(1, factor) * slack
    assert speedup <= amdahl(share) * slack


def test_a_sum_of_parts_that_rounding_made_more_than_the_whole_is_the_whole():
    assert amdahl(1 + 1e-10) == math.inf
    assert amdahl(1 + 1e-10, 3) == amdahl(1, 3)


@pytest.mark.parametrize("share", [-0.1, -1e-12, 1 + 1e-8, 1.5, math.nan])
def test_a_share_is_a_part(share):
    with pytest.raises(SettingError, match="share="):
        amdahl(share)


@pytest.mark.parametrize("factor", [0, -2, math.nan])
def test_a_factor_is_positive(factor):
    with pytest.raises(SettingError, match="factor="):
        amdahl(0.5, factor)
