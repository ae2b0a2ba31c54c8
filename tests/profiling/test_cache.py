from dataclasses import replace

import numpy as np
import pytest

from tinytorch import Tensor
from tinytorch.core.layers import Linear, Sequential
from tinytorch.errors import SettingError
from tinytorch.profiling.model_profile import profile_model
from tinytorch.profiling.summary import cache_fits


@pytest.fixture(scope="module")
def profile():
    x = Tensor(np.ones((4, 32), np.float32))
    return profile_model(Sequential(Linear(32, 2048, rng=0), Linear(2048, 8, rng=1)), x, runs=3)


def test_the_working_set_is_that_of_the_largest_operation(profile):
    fits = {fit.hotspot.name: fit for fit in cache_fits(profile)}
    assert fits["layers.0"].working_set_bytes == 4 * (4 * 32 + 32 * 2048 + 2048 + 4 * 2048)
    assert fits["layers.1"].working_set_bytes == 4 * (4 * 2048 + 2048 * 8 + 8 + 4 * 8)


def test_the_level_holds_the_working_set(profile):
    for fit in cache_fits(profile):
        assert fit.level_bytes is None or fit.working_set_bytes <= fit.level_bytes
        assert fit.bandwidth == profile.ceilings.bandwidth(fit.working_set_bytes)
        assert (fit.achieved or 0) > 0


def test_a_container_without_operations_has_no_place(profile):
    assert {fit.hotspot.name for fit in cache_fits(profile)} == {"layers.0", "layers.1"}


def test_repeated_layers_move_their_bytes_in_their_time():
    x = Tensor(np.ones((4, 32), np.float32))
    model = Sequential(Linear(32, 32, rng=0), Linear(32, 32, rng=1))
    (fit,) = cache_fits(profile_model(model, x, runs=3))
    assert len(fit.hotspot.layers) == 2
    one = 4 * (4 * 32 + 32 * 32 + 32 + 4 * 32)
    assert fit.working_set_bytes == one
    assert fit.achieved == pytest.approx(2 * one / fit.hotspot.self_s)


def test_without_ceilings_there_is_nothing_to_compare_with(profile):
    with pytest.raises(SettingError, match="without ceilings"):
        cache_fits(replace(profile, ceilings=None))
