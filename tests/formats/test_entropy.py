"""The entropy of an array: the bound that files are held against."""

import numpy as np
import pytest
from parts import require_part

from tinytorch.errors import DTypeError
from tinytorch.formats.entropy import entropy_bytes


def test_scipy_gives_the_same_entropy(rng):
    entropy = require_part("scipy.stats").entropy
    values = rng.integers(-7, 8, 5000) * (rng.random(5000) < 0.2)
    counts = np.unique(values, return_counts=True)[1]
    assert entropy_bytes(values) == pytest.approx(5000 * entropy(counts, base=2) / 8, rel=1e-12)


@pytest.mark.parametrize("values", [[], 3, [1.5] * 10, np.zeros((4, 5), bool)])
def test_what_is_always_the_same_has_no_entropy(values):
    assert entropy_bytes(values) == 0


def test_values_that_are_all_different_take_the_logarithm_of_their_number():
    assert entropy_bytes(np.arange(256, dtype=np.uint8)) == 256


def test_a_pruned_array_has_the_entropy_of_its_mask_and_of_what_is_left(rng):
    values = rng.integers(1, 8, 5000) * (rng.random(5000) < 0.2)
    mask = values != 0
    assert entropy_bytes(values) == pytest.approx(
        entropy_bytes(mask) + entropy_bytes(values[mask]), rel=1e-12
    )


def test_floats_differ_where_a_bit_does():
    assert entropy_bytes(np.array([0.0, -0.0], np.float32)) == 0.25
    assert entropy_bytes(np.full(8, np.nan)) == 0
    assert entropy_bytes(np.arange(8.0)[::2]) == 1


def test_only_numbers_have_an_entropy():
    with pytest.raises(DTypeError, match="give numbers or truths"):
        entropy_bytes(["a"])
