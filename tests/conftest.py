"""What every test may use."""

import hypothesis
import numpy as np
import pytest

# No test depends on how fast the machine is, or on luck.
hypothesis.settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("steady")


@pytest.fixture
def rng() -> np.random.Generator:
    """Give a generator that draws the same numbers in every run."""
    return np.random.default_rng(20260)
