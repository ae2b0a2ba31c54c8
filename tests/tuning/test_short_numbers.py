import pytest

from tinytorch.tuning.advice import billions, millions


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (437_000, "0.437"), (55_123_968, "55.1"), (99.96e6, "100"), (1.32e9, "1,320")],
)
def test_three_digits_count_and_no_power_of_ten_appears(value, text):
    assert millions(value) == text
    assert billions(1000 * value) == text
