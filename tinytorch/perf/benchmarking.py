"""Did it work? Time, memory and accuracy of several models, measured side by side.

The classic names of the competition, which is built on top of all this, are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tinytorch.benchmarking.benchmark import Benchmark, BenchmarkResult, BenchmarkSuite
from tinytorch.benchmarking.mlperf import MLPerf
from tinytorch.benchmarking.performance import (
    Performance,
    PerformanceTable,
    benchmark_suite,
    measure_performance,
    plot_performance_comparison,
)

if TYPE_CHECKING:
    from tinytorch.competition.classic import CompetitionProfiler, TinyMLPerf, TinyMLPerfCompetition

__all__ = [
    "Benchmark",
    "BenchmarkResult",
    "BenchmarkSuite",
    "CompetitionProfiler",
    "MLPerf",
    "Performance",
    "PerformanceTable",
    "TinyMLPerf",
    "TinyMLPerfCompetition",
    "benchmark_suite",
    "measure_performance",
    "plot_performance_comparison",
]

# Name -> the module above this one that holds it.
_HOMES = {
    "CompetitionProfiler": "tinytorch.competition.classic",
    "TinyMLPerf": "tinytorch.competition.classic",
    "TinyMLPerfCompetition": "tinytorch.competition.classic",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found  # The next access does not come here again.
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
