import numpy as np
from parts import require_part

numba = require_part("numba")

from tinytorch.measure.ceilings_cpu import _compiled, compiled_kernels
from tinytorch.measure.ceilings_cpu import _copy_loop as _copy
from tinytorch.measure.ceilings_cpu import _read_loop as _read


def expected_sum(source, repeats):
    total = 0
    for repeat in range(repeats):
        total ^= int(source.sum()) + repeat
    return total


def test_every_word_is_read_every_time(rng):
    source = rng.integers(-(2**40), 2**40, 1001)
    for repeats in (1, 2, 5):
        expected = expected_sum(source, repeats)
        assert compiled_kernels().read(source, source, repeats) == expected
        assert int(_read(source, source, repeats)) == expected


def test_a_copy_goes_there_and_back(rng):
    for copy in (compiled_kernels().copy, _copy):
        source, target = rng.integers(0, 9, 100), rng.integers(10, 19, 100)
        before = source.copy()
        assert copy(source, target, 4) == 4
        np.testing.assert_array_equal(source, before)
        np.testing.assert_array_equal(target, before)


def test_without_a_folder_to_keep_them_loops_are_compiled_all_the_same(monkeypatch, rng):
    njit = numba.njit

    def refuse_to_keep(**settings):
        if settings.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**settings)

    monkeypatch.setattr(numba, "njit", refuse_to_keep)
    source = rng.integers(0, 9, 10)
    assert _compiled.__wrapped__(_read)(source, source, 1) == source.sum()
