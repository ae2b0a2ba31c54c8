"""The names that people already write against, used as they write them."""

import numpy as np
import pytest
from parts import require_part

import tinytorch.perf.benchmarking as benchmarking
from tinytorch.benchmarking.benchmark import Benchmark, BenchmarkResult, BenchmarkSuite
from tinytorch.benchmarking.mlperf import MLPerf
from tinytorch.benchmarking.performance import (
    benchmark_suite,
    measure_performance,
    plot_performance_comparison,
)


@pytest.fixture
def original_model(trained):
    return trained


@pytest.fixture
def quantized_model(trained):
    import copy

    model = copy.deepcopy(trained)
    for parameter in model.parameters():
        step = np.abs(parameter.data).max() / 127
        parameter.data = (np.round(parameter.data / step) * step).astype(np.float32)
    return model


def test_every_public_name_is_there():
    assert [name for name in benchmarking.__all__ if not hasattr(benchmarking, name)] == []


def test_the_snippet(original_model, quantized_model, digits, capsys):
    require_part("matplotlib")
    test_data = digits[1]
    baseline, optimized = (
        measure_performance(original_model, test_data),
        measure_performance(quantized_model, test_data),
    )
    assert all(number > 0 for number in (baseline.time, baseline.memory, baseline.accuracy))
    assert optimized.speedup_over(baseline) == baseline.time / optimized.time
    results = benchmark_suite({"baseline": original_model, "quantized": quantized_model}, test_data)
    assert plot_performance_comparison(results).axes
    assert "Model" in capsys.readouterr().out
    assert results["baseline"].accuracy == baseline.accuracy


def test_the_classes(original_model, digits):
    result = BenchmarkResult("latency", [1.0, 2.0], metadata={"a": 1})
    assert result.to_dict()["metadata"] == {"a": 1}
    benchmark = Benchmark([original_model], [digits[1]], warmup_runs=1, measurement_runs=3)
    assert benchmark.run_latency_benchmark(input_shape=(1, 64))["Sequential"].count == 3
    assert benchmark.run_memory_benchmark(input_shape=(1, 64))["Sequential"].count == 1
    assert benchmark.run_accuracy_benchmark()["Sequential"].mean > 0.9
    assert benchmark.compare_models("latency")[0]["model"] == "Sequential"
    suite = BenchmarkSuite(models=[original_model], datasets=[digits[1]])
    assert set(suite.run_full_benchmark()) == {"latency", "accuracy", "memory"}
    assert suite.generate_report().startswith("# ")
    assert MLPerf().list_benchmarks()


def test_without_data_time_and_memory_are_measured(original_model):
    seen = measure_performance(original_model)
    assert (seen.time > 0, seen.memory > 0, seen.accuracy) == (True, True, None)
