import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.reporting.quantities import share_bar


@pytest.mark.parametrize(
    ("share", "bar"),
    [(0.0, "    "), (1.0, "████"), (0.5, "██  "), (0.375, "█▌  "), (1e-9, "▏   "), (0.25, "█   ")],
)
def test_a_bar_is_as_long_as_its_share(share, bar):
    assert share_bar(share, 4) == bar


@given(st.floats(-1, 3), st.integers(1, 12))
def test_a_bar_has_its_width_whatever_the_share(share, width):
    assert len(share_bar(share, width)) == width
