"""Did it work? Time, memory and accuracy of several models, measured side by side.

The classic names of the competition, which is built on top of all this, are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from tinytorch.competition.classic_competition import TinyMLPerfCompetition
    from tinytorch.competition.classic_events import CompetitionProfiler, TinyMLPerf

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
    "CompetitionProfiler": "tinytorch.competition.classic_events",
    "TinyMLPerf": "tinytorch.competition.classic_events",
    "TinyMLPerfCompetition": "tinytorch.competition.classic_competition",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found  # The next access does not come here again.
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
