"""Advice about sizes whose numbers are known."""

import numpy as np

from tinytorch.measure.samples import Samples
from tinytorch.tuning.sizes import Ceiling, Limit, SizeAdvice, SizeMeasurement

SATURATED = Limit("saturated", "the throughput no longer grows")
TOO_LARGE = Limit("memory", "MemoryError: no room")


def measured(size, seconds, *, rounds=20, noise=0.001, items=None, peak=None, seed=0):
    """Give a size whose latency spreads by a share around a number of seconds."""
    spread = np.linspace(1 - noise, 1 + noise, rounds)
    values = tuple(seconds * np.random.default_rng([seed, size]).permutation(spread))
    return SizeMeasurement(size, items or size, Samples("", values), peak)


def saturating(size, fixed_s=1e-3, each_s=1e-4):
    """Give the latency of a model with a fixed cost for each call."""
    return fixed_s + each_s * size


def advice_of(points, **settings):
    usual = {"name": "example", "framework": "core", "device": "cpu", "axis": "batch"}
    usual |= {"unit": "examples", "usual": 1, "limited_by": SATURATED}
    usual["ceiling"] = Ceiling(256, 512, TOO_LARGE)
    return SizeAdvice(points=tuple(points), **usual | settings)


def curve(sizes=(1, 2, 4, 8, 16, 32, 64, 128, 256), **settings):
    """Give a curve that ends 10% below 10,000 examples per second at 90 of them."""
    return [measured(size, saturating(size), peak=1000 + 10 * size, **settings) for size in sizes]
