"""MLPerf: standard benchmarks with targets for accuracy and latency.

The name is that of a classic exercise. Nothing here is affiliated with MLCommons, and results are
not comparable with those of its benchmarks.
"""

from __future__ import annotations

from difflib import get_close_matches
from itertools import cycle
from typing import Any

from tinytorch.errors import SettingError
from tinytorch.measure.device_clock import fitting_clock
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import measure_time
from tinytorch.perf.benchmarking.checks import check_count, failure_text
from tinytorch.perf.benchmarking.examples import Examples, read_examples
from tinytorch.perf.benchmarking.model_inputs import fitted_inputs
from tinytorch.perf.benchmarking.scoring import ACCURACY
from tinytorch.perf.benchmarking.standard_benchmarks import STANDARD_BENCHMARKS, StandardBenchmark
from tinytorch.perf.benchmarking.subject import Subject, make_subject
from tinytorch.workloads.workload import call_model

__all__ = ["MLPerf"]

MS = 1e3
WARMUP_CALLS = 10
INPUTS_IN_TURN = 32
"""Timed calls go through so many different examples, so that no answer can be remembered."""
MEASURED = (
    "accuracy",
    "mean_latency_ms",
    "p50_latency_ms",
    "p90_latency_ms",
    "p99_latency_ms",
    "throughput_fps",
)


class MLPerf:
    """Judge a model by a standard benchmark: held-out real data, one example at a time.

    Not affiliated with MLCommons. `benchmarks` describes each; `latency` keeps the raw seconds of
    the last run.
    """

    benchmarks = STANDARD_BENCHMARKS

    def __init__(self) -> None:
        self.latency: Samples | None = None

    def list_benchmarks(self) -> list[str]:
        """Give the names of the benchmarks."""
        return list(self.benchmarks)

    def run_standard_benchmark(self, model: Any, name: str, num_runs: int = 100) -> dict[str, Any]:
        """Measure a model and say whether it meets the targets of a benchmark.

        `accuracy` is the fraction of right answers on all held-out examples. Latencies are those of
        `num_runs` single calls with one example each; `throughput_fps` is examples per second at
        the mean latency. `accuracy_met` compares `accuracy` with `target_accuracy`, `latency_met`
        the 90th percentile with `target_latency_ms`: nine of ten calls must be in time.
        `compliant` is both. A model that raises has an `error`, None for what was not measured, and
        is not compliant.
        """
        benchmark = self._find(name)
        check_count("num_runs", num_runs, at_least=1)
        self.latency = None
        targets = {
            "target_accuracy": benchmark.target_accuracy,
            "target_latency_ms": benchmark.target_latency_ms,
        }
        examples = read_examples(benchmark.load_data())
        subject = make_subject("the model", model, examples=examples, batch_size=1)
        try:
            accuracy, latency = _judge(subject, examples, num_runs)
        except Exception as error:
            return (
                dict.fromkeys(MEASURED)
                | targets
                | {"accuracy_met": False, "latency_met": False, "compliant": False}
                | {"error": failure_text(error)}
            )
        self.latency = latency
        return _verdict(benchmark, accuracy, latency)

    def _find(self, name: str) -> StandardBenchmark:
        if name in self.benchmarks:
            return self.benchmarks[name]
        near = get_close_matches(str(name), self.benchmarks, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self.benchmarks)}"
        raise SettingError(f"no benchmark {name!r}: {hint}")


def _judge(subject: Subject, examples: Examples, num_runs: int) -> tuple[float, Samples]:
    model, first = subject.model, examples.batches[0]
    several = cycle(
        [
            fitted_inputs(model, first.part(index, index + 1).inputs)
            for index in range(min(INPUTS_IN_TURN, first.size or 1))
        ]
    )
    with subject.ready():
        subject.check()
        assert subject.evaluate is not None
        scored = subject.evaluate()
        assert scored.metric == ACCURACY, "the targets of every benchmark are class numbers"
        latency = measure_time(
            lambda: call_model(model, *next(several)),
            name="latency",
            runs=num_runs,
            warmup=WARMUP_CALLS,
            clock=fitting_clock(),
        )
    return scored.mean, latency


def _verdict(benchmark: StandardBenchmark, accuracy: float, latency: Samples) -> dict[str, Any]:
    accuracy_met = accuracy >= benchmark.target_accuracy
    latency_met = latency.percentile(90) * MS <= benchmark.target_latency_ms
    return {
        "accuracy": accuracy,
        "mean_latency_ms": latency.mean * MS,
        "p50_latency_ms": latency.median * MS,
        "p90_latency_ms": latency.percentile(90) * MS,
        "p99_latency_ms": latency.percentile(99) * MS,
        "throughput_fps": 1 / latency.mean if latency.mean else None,
        "target_accuracy": benchmark.target_accuracy,
        "target_latency_ms": benchmark.target_latency_ms,
        "accuracy_met": accuracy_met,
        "latency_met": latency_met,
        "compliant": accuracy_met and latency_met,
    }
