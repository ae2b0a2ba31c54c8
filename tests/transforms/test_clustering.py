import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

from tinytorch.errors import SettingError
from tinytorch.transforms import share_weights as clustering
from tinytorch.transforms.share_weights import codes_for, find_codebook


def error_of(values, codebook):
    return float(np.square(codebook[codes_for(values, codebook)] - values.astype(np.float64)).sum())


def best_error(values, clusters):
    """Try every way to cut sorted numbers into neighbours."""
    ordered, memo = np.sort(values), {}

    def best(start, left):
        if start == len(ordered):
            return 0.0
        if left == 0:
            return np.inf
        if (start, left) not in memo:
            memo[start, left] = min(
                float(np.square(part - part.mean()).sum()) + best(end, left - 1)
                for end in range(start + 1, len(ordered) + 1)
                if (part := ordered[start:end]) is not None
            )
        return memo[start, left]

    return best(0, clusters)


nonzero = st.floats(0.01, 100) | st.floats(-100, -0.01)


@given(st.lists(nonzero, min_size=1, max_size=12), st.integers(2, 5))
def test_few_numbers_are_clustered_with_the_least_error_there_is(numbers, clusters):
    values = np.array(numbers)
    codebook = find_codebook(values, clusters)
    assert len(codebook) <= clusters
    # differences of squares of numbers up to 100
    np.testing.assert_allclose(
        error_of(values, codebook), best_error(values, clusters), rtol=1e-9, atol=1e-8
    )


@pytest.mark.parametrize("clusters", [4, 16, 64])
@pytest.mark.parametrize("name", ["normal", "laplace", "two hills", "far out"])
def test_many_numbers_are_clustered_as_well_as_scikit_learn_does(name, clusters):
    KMeans = require_part("sklearn.cluster").KMeans
    rng = np.random.default_rng(0)
    values = {
        "normal": rng.normal(size=5000),
        "laplace": rng.laplace(size=5000),
        "two hills": np.concatenate([rng.normal(-9, 1, 4000), rng.normal(9, 0.1, 1000)]),
        "far out": np.concatenate([rng.normal(size=4990), rng.uniform(50, 90, 10)]),
    }[name]
    theirs = KMeans(clusters, n_init=5, random_state=0).fit(values[:, None]).inertia_
    assert error_of(values, find_codebook(values, clusters)) <= 1.001 * theirs


@pytest.mark.parametrize("name", ["one far out", "student", "cauchy", "far on both sides"])
def test_many_clusters_and_heavy_tails_leave_no_more_error_than_scikit_learn(name):
    KMeans = require_part("sklearn.cluster").KMeans
    rng = np.random.default_rng(0)
    values = {
        "one far out": np.append(rng.normal(size=20_000), 50),
        "student": rng.standard_t(2, 20_000),
        "cauchy": rng.standard_cauchy(20_000),
        # sums of squares from one end to the other would leave no digits for those in the middle
        "far on both sides": np.concatenate([0.02 * rng.normal(size=20_000), [1e6, -1e6]]),
    }[name]
    codebook = find_codebook(values, 256)
    assert len(codebook) == 256
    theirs = KMeans(256, n_init=1, random_state=0).fit(values[:, None]).inertia_
    assert error_of(values, codebook) <= 1.1 * theirs


def test_more_values_than_groups_are_clustered_as_well_as_in_groups_of_their_own(rng, monkeypatch):
    values = rng.standard_t(3, 1500)
    found = error_of(values, find_codebook(values, 24))
    monkeypatch.setattr(clustering, "EXACT", 1500)
    assert found <= 1.01 * error_of(values, find_codebook(values, 24))


@given(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=60), st.integers(2, 20))
def test_zeros_and_only_zeros_have_an_entry_of_their_own(numbers, clusters):
    values = np.array([0, *numbers], np.float32)
    codebook = find_codebook(values, clusters)
    assert codebook[0] == 0
    assert len(codebook) <= clusters
    np.testing.assert_array_equal(codes_for(values, codebook) == 0, values == 0)


@given(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=60), st.integers(2, 20))
def test_each_number_has_the_code_of_the_nearest_entry(numbers, clusters):
    values = np.array(numbers, np.float32)
    values = values[values != 0]
    if not values.size:
        return
    codebook = find_codebook(values, clusters).astype(np.float64)
    found = np.abs(codebook[codes_for(values, codebook)] - values)
    nearest = np.abs(codebook - values[:, None]).min(axis=1)
    np.testing.assert_array_equal(found, nearest)


def test_an_entry_of_zero_between_other_numbers_is_no_entry_for_zeros():
    values = np.array([-1.0, 1.0, 100.0, 101.0])
    codebook = find_codebook(values, 2)
    np.testing.assert_array_equal(codebook, [0, 100.5])
    np.testing.assert_array_equal(codes_for(values, codebook), [0, 0, 1, 1])


def test_few_different_numbers_stay_exactly():
    values = np.array([0.5, -2, 0.5, 7, 7, 0], np.float32)
    codebook = find_codebook(values, 16)
    np.testing.assert_array_equal(codebook, [0, -2, 0.5, 7])
    np.testing.assert_array_equal(codebook[codes_for(values, codebook)], values)


def test_a_constant_or_nothing_but_zeros_has_one_entry():
    np.testing.assert_array_equal(find_codebook(np.full(5, 3.0), 4), [3])
    zeros = find_codebook(np.zeros((2, 2)), 4)
    np.testing.assert_array_equal(zeros, [0])
    np.testing.assert_array_equal(codes_for(np.zeros((2, 2)), zeros), np.zeros((2, 2)))


def test_the_same_numbers_give_the_same_codebook_in_any_order(rng):
    values = rng.normal(size=3000).astype(np.float32)
    shuffled = rng.permutation(values)
    np.testing.assert_array_equal(find_codebook(values, 16), find_codebook(shuffled, 16))


def test_one_cluster_is_an_error():
    with pytest.raises(SettingError, match="at least 2 clusters, got 1"):
        find_codebook(np.ones(3), 1)
