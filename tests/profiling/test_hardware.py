from dataclasses import replace

import numpy as np
import pytest

from tinytorch import Tensor
from tinytorch.core.layers import Linear
from tinytorch.errors import SettingError
from tinytorch.profiling.hardware import (
    DEVICES,
    Device,
    estimate_on,
    find_device,
)
from tinytorch.profiling.model_profile import profile_model


@pytest.fixture(scope="module")
def profile():
    x = Tensor(np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32))
    return profile_model(Linear(64, 32, bias=False, rng=0), x, runs=3)


FLOPS = 2 * 16 * 64 * 32
BYTES = 4 * (16 * 64 + 64 * 32 + 16 * 32)


def test_the_longer_of_computing_and_moving_counts(profile):
    slow_compute = Device("slow compute", {"float32": 1e3}, 1e12)
    slow_memory = Device("slow memory", {"float32": 1e15}, 1e3)
    assert estimate_on(profile, slow_compute).at_best_s == pytest.approx(FLOPS / 1e3)
    assert estimate_on(profile, slow_memory).at_best_s == pytest.approx(BYTES / 1e3)


def test_the_error_is_that_of_the_same_estimate_here(profile):
    estimate = estimate_on(profile, "h100")
    assert estimate.here_at_best_s is not None
    assert estimate.optimism == pytest.approx(profile.latency.median / estimate.here_at_best_s)
    assert estimate.expected_s == pytest.approx(estimate.at_best_s * estimate.optimism)


def test_a_million_calls_cost_their_hours(profile):
    device = Device("one second", {"float32": FLOPS}, 1e15)
    estimate = estimate_on(profile, device, price_per_hour=3.6)
    assert estimate.cost_at_best == pytest.approx(1000.0)


def test_without_a_price_there_is_no_cost(profile):
    assert estimate_on(profile, "t4").expected_cost is None


def test_without_ceilings_nothing_is_expected(profile):
    estimate = estimate_on(replace(profile, ceilings=None), "l4")
    assert estimate.at_best_s > 0
    assert estimate.expected_s is None
    assert estimate.optimism is None


def test_a_dtype_that_is_not_described_is_noted(profile):
    estimate = estimate_on(profile, Device("odd", {"float16": 1e12}, 1e9))
    assert estimate.notes == ("no rate for float32 on odd: only its bytes count",)


def test_a_machine_without_a_rate_expects_nothing(profile):
    rates = tuple(rate for rate in profile.ceilings.rates if rate.dtype != "float32")
    blind = replace(profile, ceilings=replace(profile.ceilings, rates=rates))
    estimate = estimate_on(blind, "h100")
    assert estimate.expected_s is None
    assert estimate.notes == ("no rate for float32 on this machine: only its bytes count",)


def test_the_result_says_that_it_is_an_estimate(profile):
    described = estimate_on(profile, "a100", price_per_hour=2).to_dict()
    assert described["is_estimate"] is True
    assert described["source"] == "the vendor's datasheet, not measured"
    assert described["cost_per_million_calls_expected"] > 0


def test_every_device_knows_float32():
    assert all(device.peak_flops["float32"] for device in DEVICES.values())


def test_an_unknown_device_is_an_error_with_the_known_ones():
    with pytest.raises(SettingError, match="no description of device 'abacus'; there are h200"):
        find_device("abacus")


@pytest.mark.parametrize(("rates", "bandwidth"), [({"float32": 0}, 1.0), ({}, 0.0)])
def test_a_device_without_speed_is_refused(rates, bandwidth):
    with pytest.raises(SettingError, match="must be positive"):
        Device("none", rates, bandwidth)


def test_a_negative_price_is_refused(profile):
    with pytest.raises(SettingError, match="price_per_hour=-1"):
        estimate_on(profile, "t4", price_per_hour=-1)
