"""MLPerf: standard benchmarks with targets for accuracy and latency.

The name is that of a classic exercise. Nothing here is affiliated with MLCommons, and results are
not comparable with those of its benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from tinytorch.benchmarking.examples import ACCURACY, Examples, read_examples
from tinytorch.benchmarking.subject import Subject, make_subject, several_inputs
from tinytorch.core.dataloader import TensorDataset
from tinytorch.errors import SettingError, did_you_mean, short_text
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import fitting_clock, measure_time
from tinytorch.models.workload import call_model
from tinytorch.models.zoo import digit_data, text_data
from tinytorch.profiling.timer import check_count

# ---------------------------------------------------------------- the standard benchmarks: real
# held-out data, and what a model must reach on it

QUALITY_SHARE = 0.99
"""A model may lose one percent of the reference's accuracy, which is what quantization and pruning
usually have to keep within to be of use."""
FRAME_MS = 1000 / 60
"""The time between two frames of a display at 60 Hz: recognition that keeps up with a camera or a
pen."""
IMMEDIATE_MS = 100.0
"""Up to about 0.1 s people feel that a program reacts at once (R. B. Miller, Response time in
man-computer conversational transactions, 1968): text that follows typing."""


@dataclass(frozen=True)
class StandardBenchmark:
    """What a model is judged on: an input of `input_shape` gives one output for each class.

    `reference_accuracy` is what the model of that name in the zoo reaches on the same data. Targets
    are constants of the benchmark, whatever machine it runs on.
    """

    description: str
    load_data: Callable[[], TensorDataset]
    input_shape: tuple[int, ...]
    reference: str
    reference_accuracy: float
    target_latency_ms: float

    @property
    def target_accuracy(self) -> float:
        return QUALITY_SHARE * self.reference_accuracy


STANDARD_BENCHMARKS = {
    "digits_mlp": StandardBenchmark(
        description="read a drawn digit from 784 grey values; 5,000 held-out images",
        load_data=lambda: digit_data(held_out=True, flat=True),
        input_shape=(1, 784),
        reference="mlp",
        reference_accuracy=0.9758,
        target_latency_ms=FRAME_MS,
    ),
    "digits_cnn": StandardBenchmark(
        description="read a drawn digit from an image of 28 by 28; 5,000 held-out images",
        load_data=lambda: digit_data(held_out=True, flat=False),
        input_shape=(1, 1, 28, 28),
        reference="cnn",
        reference_accuracy=0.9930,
        target_latency_ms=FRAME_MS,
    ),
    "text_gpt": StandardBenchmark(
        description="predict each next character of 64; 1,069 held-out windows of English",
        load_data=lambda: text_data(held_out=True),
        input_shape=(1, 64),
        reference="gpt",
        reference_accuracy=0.6240,
        target_latency_ms=IMMEDIATE_MS,
    ),
}


# ---------------------------------------------------------------- MLPerf: standard benchmarks with
# targets for accuracy and latency

MS = 1e3
WARMUP_CALLS = 10
INPUTS_IN_TURN = 32
"""Timed calls cycle through this number of examples, so that answers cannot be cached."""
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
        """Return the names of the benchmarks."""
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
        if name not in self.benchmarks:
            raise SettingError(f"no benchmark {name!r}: {did_you_mean(name, self.benchmarks)}")
        benchmark = self.benchmarks[name]
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
                | {"error": short_text(error)}
            )
        self.latency = latency
        return _verdict(benchmark, accuracy, latency)


def _judge(subject: Subject, examples: Examples, num_runs: int) -> tuple[float, Samples]:
    several = cycle(several_inputs(subject, examples, batch_size=1, most=INPUTS_IN_TURN))
    with subject.ready():
        subject.check()
        assert subject.evaluate is not None
        scored = subject.evaluate()
        assert scored.metric == ACCURACY, "the targets of every benchmark are class numbers"
        latency = measure_time(
            lambda: call_model(subject.model, *next(several)),
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
