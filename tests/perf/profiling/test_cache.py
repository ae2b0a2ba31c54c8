from dataclasses import replace

import numpy as np
import pytest

from tinytorch import Tensor
from tinytorch.core.layers import Linear, Sequential
from tinytorch.errors import SettingError
from tinytorch.perf.profiling.cache import cache_fits
from tinytorch.perf.profiling.model_profile import profile_model


@pytest.fixture(scope="module")
def profile():
    x = Tensor(np.ones((4, 32), np.float32))
    return profile_model(Sequential(Linear(32, 2048, rng=0), Linear(2048, 8, rng=1)), x, runs=3)


def test_the_working_set_is_that_of_the_largest_operation(profile):
    fits = {fit.path: fit for fit in cache_fits(profile)}
    assert fits["layers.0"].working_set_bytes == 4 * (4 * 32 + 32 * 2048 + 2048 + 4 * 2048)
    assert fits["layers.1"].working_set_bytes == 4 * (4 * 2048 + 2048 * 8 + 8 + 4 * 8)


def test_the_level_holds_the_working_set(profile):
    for fit in cache_fits(profile):
        assert fit.level_bytes is None or fit.working_set_bytes <= fit.level_bytes
        assert fit.bandwidth == profile.ceilings.bandwidth(fit.working_set_bytes)
        assert (fit.achieved or 0) > 0


def test_the_largest_comes_first(profile):
    sizes = [fit.working_set_bytes for fit in cache_fits(profile)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == 2  # the container has no operation of its own


def test_without_ceilings_there_is_nothing_to_compare_with(profile):
    with pytest.raises(SettingError, match="without ceilings"):
        cache_fits(replace(profile, ceilings=None))
