import threading

import numpy as np
import pytest
from kernel_calls import kernel_calls
from oracles import assert_close

from tinytorch.core.kernels import NUMPY, REFERENCE
from tinytorch.core.kernels.backend import matmul

EXACT_MATMUL = np.matmul
CALLS = kernel_calls(np.float32)
INFINITE = np.array([np.inf, -np.inf], np.float32)
ONES = np.ones(2, np.float32)


def flagged_matmul(a, b, out=None):
    """Multiply, and leave the flag of an invalid operation behind that is not about the result."""
    np.subtract(INFINITE, INFINITE)
    return EXACT_MATMUL(a, b, out)


@pytest.fixture
def spurious(monkeypatch):
    monkeypatch.setattr(np, "matmul", flagged_matmul)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("backend", [NUMPY, REFERENCE], ids=lambda each: each.name)
@pytest.mark.parametrize("kind", CALLS)
def test_no_kernel_warns_of_finite_results(monkeypatch, kind, backend):
    for call in CALLS[kind]:
        used, kept = call.copied("contiguous"), call.copied("contiguous")
        expected = backend.kernels[kind](*kept.arguments, **kept.settings)
        with monkeypatch.context() as patch:
            patch.setattr(np, "matmul", flagged_matmul)
            computed = backend.kernels[kind](*used.arguments, **used.settings)
        if isinstance(computed, np.ndarray):
            np.testing.assert_array_equal(computed, expected)


@pytest.mark.usefixtures("spurious")
def test_the_flag_of_one_product_does_not_reach_the_next():
    matmul(ONES, ONES)
    with np.errstate(all="raise"):
        assert matmul(ONES, ONES) == 2


@pytest.mark.parametrize("inputs", [(INFINITE, ONES), (1e30 * ONES, 1e30 * ONES)])
def test_a_result_that_is_not_finite_warns_as_it_does_in_numpy(inputs):
    with pytest.warns(RuntimeWarning, match="encountered in matmul") as ours:
        computed = matmul(*inputs)
    with pytest.warns(RuntimeWarning, match="encountered in matmul") as theirs:
        expected = np.matmul(*inputs)
    assert [str(each.message) for each in ours] == [str(each.message) for each in theirs]
    np.testing.assert_array_equal(computed, expected)


def test_the_error_state_of_the_caller_decides():
    with np.errstate(invalid="ignore"):
        assert np.isnan(matmul(INFINITE, ONES))
    with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
        matmul(INFINITE, ONES)
    assert np.geterr()["invalid"] == "warn"


@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("spurious")
def test_threads_multiply_at_the_same_time(rng):
    a, b = (rng.normal(size=(40, 40)).astype(np.float32) for _ in range(2))
    start, results = threading.Barrier(4), []

    def work():
        start.wait()
        results.extend(matmul(a, b) for _ in range(200))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(results) == 800
    for result in results:
        assert_close(result, EXACT_MATMUL(a, b), terms=40)


def test_a_product_is_written_where_it_is_asked_for():
    out = np.empty((), np.float32)
    assert matmul(ONES, ONES, out=out) is out
    assert out == 2
