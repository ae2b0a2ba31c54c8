"""Did it work? Time, memory and accuracy of several models, measured side by side."""

from tinytorch.perf.benchmarking.benchmark import Benchmark
from tinytorch.perf.benchmarking.mlperf import MLPerf
from tinytorch.perf.benchmarking.performance import Performance, measure_performance
from tinytorch.perf.benchmarking.performance_table import (
    PerformanceTable,
    benchmark_suite,
    plot_performance_comparison,
)
from tinytorch.perf.benchmarking.result import BenchmarkResult
from tinytorch.perf.benchmarking.suite import BenchmarkSuite

__all__ = [
    "Benchmark",
    "BenchmarkResult",
    "BenchmarkSuite",
    "MLPerf",
    "Performance",
    "PerformanceTable",
    "benchmark_suite",
    "measure_performance",
    "plot_performance_comparison",
]
