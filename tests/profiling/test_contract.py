"""The names and numbers that people already write against, used as they write them."""

import numpy as np
import pytest

import tinytorch.perf.profiling as profiling
from tinytorch import Tensor
from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.measure.roofline import amdahl, classify_bound
from tinytorch.profiling.context import ProfilerContext, SimpleProfiler, profile, profile_function
from tinytorch.profiling.flops import FLOPCounter, count_flops
from tinytorch.profiling.memory_profiler import MemoryProfiler, MemoryTracker, profile_memory
from tinytorch.profiling.profiler import (
    Profiler,
    analyze_weight_distribution,
    quick_profile,
    training_memory,
)
from tinytorch.profiling.size_laws import predict_scaling
from tinytorch.profiling.timer import Timer


@pytest.fixture
def model():
    return Sequential(Linear(16, 32, rng=0), ReLU(), Linear(32, 4, rng=1))


@pytest.fixture
def x():
    return Tensor(np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32))


def test_the_decorator_is_no_module():
    assert not isinstance(profile, type(profiling))


def test_timing(model, x):
    stats = Timer().measure(model.forward, warmup=3, runs=9, args=(x,))
    with Timer() as t:
        model(x)
    assert stats["runs"] == 9
    assert t.elapsed > 0


def test_memory(model, x):
    with MemoryTracker() as tracker:
        model(x)
    with MemoryProfiler() as profiler:
        model(x)
    output_mb = 8 * 4 * 4 / 2**20
    assert min(tracker.peak_usage, profiler.peak_memory) >= output_mb
    assert profile_memory(model, x)["peak_mb"] >= output_mb


def test_counting(model, x):
    assert count_flops(model, x) == 2 * 8 * (16 * 32 + 32 * 4)
    assert FLOPCounter().count_linear(100, 50, batch_size=32) == 32 * 100 * 50 + 32 * 50


def test_the_profiler_context(model, x, capsys):
    with ProfilerContext(
        "MyModel", timing_runs=10, timing_warmup=2, enable_memory=True, enable_flops=False
    ) as profiler:
        result = profiler.profile_function(model.forward, args=(x,))
    assert result.shape == (8, 4)
    assert "MyModel" in capsys.readouterr().out


def test_the_simple_profiler(model, x):
    facts = SimpleProfiler(track_memory=True, track_cpu=True).profile(
        model, x, name="operation", warmup=True
    )
    assert facts["wall_time"] > 0
    assert profile_function(model, x)["name"] == "operation"


def test_the_profiler(model, x):
    profiler = Profiler()
    assert profiler.count_parameters(model) == 16 * 32 + 32 + 32 * 4 + 4
    assert profiler.count_flops(model, (8, 16)) == 2 * (16 * 32 + 32 * 4)
    assert profiler.measure_memory(model, (8, 16))["peak_memory_mb"] > 0
    assert profiler.measure_latency(model, x, warmup=10, iterations=100) > 0
    assert profiler.profile_layer(model, (8, 16))["latency_ms"] > 0
    profile = profiler.profile_forward_pass(model, x)
    assert f"Bottleneck: {profile['bottleneck']}" in ("Bottleneck: memory", "Bottleneck: compute")
    assert profiler.profile_backward_pass(model, x)["backward_latency_ms"] > 0


def test_the_profiler_around_training(model, x, capsys):
    data_loader = DataLoader(TensorDataset(x, Tensor(np.arange(8) % 4)), batch_size=4)
    with Profiler() as p:
        model.fit(data_loader)
    p.print_top_operations(n=10)
    assert "% - Matrix multiplication" in capsys.readouterr().out
    assert p.elapsed > 0


def test_quick_looks(model, x, capsys):
    assert quick_profile(model, x)["parameters"] == Profiler().count_parameters(model)
    assert analyze_weight_distribution(model, percentiles=[50])["percentile_50"] > 0
    assert "parameters" in capsys.readouterr().out


def test_the_golden_numbers():
    bound = classify_bound(achieved=5e9, peak=100e9, bandwidth=50e9, intensity=0.1)
    assert (bound.is_memory_bound, bound.efficiency) == (True, 0.05)
    assert training_memory(125_000_000, optimizer="adam") == 2e9
    found = predict_scaling([128, 256, 512], [10, 40, 160], at=2048)
    assert (round(found.value), round(found.exponent, 9)) == (2560, 2)
    assert found.interval.low <= found.value * (1 + 1e-9)
    assert round(amdahl(share=0.70), 2) == 3.33
    assert round(amdahl(0.70, 2), 2) == 1.54
