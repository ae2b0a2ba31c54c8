"""Benchmark, BenchmarkSuite: latency, accuracy and memory of several models, and a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from tinytorch.benchmarking import checks
from tinytorch.benchmarking.examples import (
    ACCURACY,
    Examples,
    Scored,
    read_examples,
)
from tinytorch.benchmarking.performance import time_in_turns
from tinytorch.benchmarking.subject import Subject, make_subject, ready_together
from tinytorch.benchmarking.suite_run import pareto_front
from tinytorch.codec import Coded
from tinytorch.core.files import write_atomically
from tinytorch.errors import ModelError, SettingError, short_text
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import fitting_clock
from tinytorch.models.workload import Workload
from tinytorch.profiling.flops import checked_shapes
from tinytorch.profiling.timer import check_count
from tinytorch.showing import benchmarking_reports

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# ---------------------------------------------------------------- BenchmarkResult: the values of
# one metric for one model


@dataclass(frozen=True)
class BenchmarkResult(Coded):
    """Raw values of one metric, and the statistics that are computed from them.

    `ci_lower` to `ci_upper` is an interval with 95% confidence for the **median**, from order
    statistics: values are taken as independent, and nothing is assumed about their distribution.
    With fewer than six values no such interval reaches 95%; then it spans all values, and
    `ci_confidence` says what that really covers (0 for a single value). Scores of examples, such as
    an accuracy, have ``interval_of="mean"`` instead: their median is only ever right or wrong, so
    the interval is for the mean (Wilson's for zeros and ones, else Student's).

    A model that failed has an `error`, no values, and None for every statistic.

    >>> result = BenchmarkResult("latency", [1.0, 2.0, 3.0, 4.0, 10.0])
    >>> result.mean, result.median, result.ci_lower, result.ci_upper, result.ci_confidence
    (4.0, 3.0, 1.0, 10.0, 0.9375)
    """

    metric_name: str
    values: Sequence[float]
    metadata: Mapping[str, Any] | None = None
    error: str | None = field(default=None, kw_only=True)
    unit: str = field(default="", kw_only=True)
    interval_of: Literal["median", "mean"] = field(default="median", kw_only=True)

    also_written = (
        *("metric_name", "unit", "values", "count", "mean", "std", "median", "min_val", "max_val"),
        *("ci_lower", "ci_upper", "ci_confidence"),
    )
    renames: ClassVar = {"interval_of": "ci_of", "metadata": None}

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", dict(self.metadata or {}))
        object.__setattr__(self, "values", self._checked_values())
        if self.interval_of not in ("median", "mean"):
            raise SettingError(f"interval_of={self.interval_of!r}; give 'median' or 'mean'")

    def _checked_values(self) -> tuple[float, ...]:
        if self.error is None:
            try:
                return Samples(self.metric_name, tuple(self.values), unit=self.unit).values
            except TypeError:
                raise SettingError(
                    f"values={self.values!r} of {self.metric_name!r}; give a list of numbers"
                ) from None
        if len(self.values):
            raise SettingError(
                f"{self.metric_name!r} failed ({self.error}) and has values; give one of the two"
            )
        return ()

    @classmethod
    def failed(cls, metric_name: str, error: str, **settings: Any) -> BenchmarkResult:
        """Return the result of a model that could not be measured."""
        return cls(metric_name, (), error=error, **settings)

    @property
    def is_failed(self) -> bool:
        return self.error is not None

    @cached_property
    def samples(self) -> Samples | None:
        """The raw values; None for a model that failed."""
        if self.error is not None:
            return None
        return Samples(self.metric_name, tuple(self.values), unit=self.unit)

    @cached_property
    def interval(self) -> Estimate | None:
        """The number to quote with its interval; None for a model that failed."""
        if self.samples is None:
            return None
        if self.interval_of == "mean":
            return checks.mean_interval(self.samples.values)
        return self.samples.median_interval()

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float | None:
        return self.samples.mean if self.samples else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation (n - 1); 0 for a single value."""
        return self.samples.std if self.samples else None

    @property
    def median(self) -> float | None:
        return self.samples.median if self.samples else None

    @property
    def min_val(self) -> float | None:
        return self.samples.minimum if self.samples else None

    @property
    def max_val(self) -> float | None:
        return self.samples.maximum if self.samples else None

    @property
    def ci_lower(self) -> float | None:
        return self.interval.low if self.interval else None

    @property
    def ci_upper(self) -> float | None:
        return self.interval.high if self.interval else None

    @property
    def ci_confidence(self) -> float | None:
        """The coverage that the interval really has."""
        return self.interval.coverage if self.interval else None

    @property
    def typical(self) -> float | None:
        """The number to quote: the median of measurements, the mean of scores."""
        return self.mean if self.interval_of == "mean" else self.median

    def to_dict(self) -> dict[str, Any]:
        """Return values and statistics, ready for JSON as far as the metadata is."""
        return {**super().to_dict(), "metadata": dict(self.metadata or {})}

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.metric_name}: failed, {self.error}"
        unit = f" {self.unit}" if self.unit else ""
        if self.count == 1:
            return f"{self.metric_name}: {self.typical:.4g}{unit} (a single value)"
        return (
            f"{self.metric_name}: {self.interval_of} {self.typical:.4g}{unit}, "
            f"{self.ci_lower:.4g} to {self.ci_upper:.4g} with {self.ci_confidence:.0%} confidence "
            f"(n={self.count})"
        )


# ---------------------------------------------------------------- benchmark: latency, accuracy and
# memory of several models

LATENCY, MEMORY = "latency", "memory"
METRICS = (LATENCY, ACCURACY, MEMORY)
LOWER_IS_BETTER = {LATENCY: True, ACCURACY: False, MEMORY: True}
COMPARED = ("speedup", "speedup_low", "speedup_high", "speedup_confidence", "ratio_to_first")
USUAL_SHAPE = (1, 28, 28)
MS = 1e3
MB = 2**20

Results = dict[str, BenchmarkResult]
Shape = Any


class Benchmark:
    """Measure several models on the same inputs and data.

    `models` are a list, or a dictionary of names: layers of TinyTorch, modules of PyTorch, anything
    with `forward` or that can be called, Workloads, targets such as ``"mlp"``. `datasets` are a
    list of data sets, each in a form that
    :func:`~tinytorch.benchmarking.examples.read_examples` knows, or a single one; they are
    read when they are first needed.

    A model that raises has a result that says so, never a number, and the others go on. Models are
    measured in evaluation mode and without gradients, and left as they were. `results` keeps the
    last results of each metric.
    """

    def __init__(
        self,
        models: Any,
        datasets: Any = (),
        warmup_runs: int = 5,
        measurement_runs: int = 100,
        *,
        seed: int = 0,
    ) -> None:
        self.models = checks.named_models(models)
        self.datasets = _named_datasets(datasets)
        self.warmup_runs = check_count("warmup_runs", warmup_runs, at_least=0)
        self.measurement_runs = check_count("measurement_runs", measurement_runs, at_least=1)
        self.seed = check_count("seed", seed, at_least=0)
        self.results: dict[str, Results] = {}
        self._examples: dict[str, Examples] | None = None

    # ------------------------------------------------------------ the three metrics

    def run_latency_benchmark(self, input_shape: Shape = USUAL_SHAPE) -> Results:
        """Time the calls of all models in turns; milliseconds per call.

        In each of `measurement_runs` rounds every model is called once, in random order, so the
        i-th values of all models belong together. `input_shape` is that of one argument, or a tuple
        of several; None takes an example of the data, or of the size of the model's first layer.
        """
        makers = self._makers(input_shape)
        with ExitStack() as stack:
            subjects, failures = ready_together(makers, stack)
            times = time_in_turns(
                subjects,
                rounds=self.measurement_runs,
                warmup=self.warmup_runs,
                clock=fitting_clock(),
                rng=np.random.default_rng(self.seed),
            )
            results = {
                name: BenchmarkResult.failed(LATENCY, error, unit="ms")
                for name, error in (failures | dict(times.failures)).items()
            }
            for name, samples in times.samples.items():
                facts = _facts(subjects[name]) | {"notes": list(samples.notes)}
                values = samples.scaled(MS, "ms").values
                results[name] = BenchmarkResult(LATENCY, values, facts, unit="ms")
        return self._keep(LATENCY, {name: results[name] for name in self.models})

    def run_memory_benchmark(self, input_shape: Shape = USUAL_SHAPE) -> Results:
        """Record one call of each model: the most MB (2**20 bytes) that it held at once.

        Counted are the bytes of live buffers: parameters, inputs, and what the call makes. Scratch
        memory inside of an operator is not seen.
        """

        def measure(subject: Subject) -> BenchmarkResult:
            memory = subject.memory()
            facts = _facts(subject) | {
                "parameter_mb": memory.held_bytes / MB,
                "notes": list(memory.notes),
            }
            return BenchmarkResult(MEMORY, [memory.peak_bytes / MB], facts, unit="MB")

        return self._keep(MEMORY, self._one_by_one(self._makers(input_shape), measure, MEMORY))

    def run_accuracy_benchmark(self) -> Results:
        """Score every example of all data sets; the mean is the accuracy.

        The values are the scores, 1 for a right answer and 0 for a wrong one, and the interval is
        of their mean. Data with targets that are no classes is scored by its negative mean squared
        error, and the result has that name. Workloads bring a score of their own, which is used
        where no data is given.
        """
        datasets = self._scored_datasets()
        results = {}
        for name, model in self.models.items():
            try:
                results[name] = self._accuracy(self._scored_subjects(name, model, datasets))
            except Exception as error:
                results[name] = BenchmarkResult.failed(
                    ACCURACY, short_text(error), interval_of="mean"
                )
        return self._keep(ACCURACY, results)

    # ------------------------------------------------------------ comparing

    def compare_models(
        self, metric: str = LATENCY, *, input_shape: Shape = None
    ) -> list[dict[str, Any]]:
        """Return one row per model, of the last run or, if there was none, of a new one.

        `speedup` is the first model's time over this one's (more than 1 is faster), the median over
        the rounds, with `speedup_low` and `speedup_high`; it is None for other metrics.
        `ratio_to_first` is the typical value over that of the first model. `input_shape` is for a
        new run; see :meth:`run_latency_benchmark`.
        """
        results = self.results.get(_checked_metric(metric))
        if results is None:
            results = self.run(metric, input_shape=input_shape)
        first = next(iter(results.values()))
        return [_row(name, result, first) for name, result in results.items()]

    def run(self, metric: str, *, input_shape: Shape = None) -> Results:
        """Run the benchmark of one metric: latency, accuracy or memory."""
        runs: dict[str, Callable[[], Results]] = {
            LATENCY: lambda: self.run_latency_benchmark(input_shape),
            ACCURACY: self.run_accuracy_benchmark,
            MEMORY: lambda: self.run_memory_benchmark(input_shape),
        }
        return runs[_checked_metric(metric)]()

    @property
    def can_score(self) -> bool:
        """Whether all models can be scored."""
        return bool(self.datasets) or all(
            isinstance(model, (str, Workload)) for model in self.models.values()
        )

    # ------------------------------------------------------------ inside

    def _keep(self, metric: str, results: Results) -> Results:
        self.results[metric] = results
        return results

    def _makers(self, input_shape: Shape) -> dict[str, Callable[[], Subject]]:
        shapes = None if input_shape is None else checked_shapes(input_shape)
        examples = self._first_examples() if shapes is None else None
        return {
            name: partial(_timed_subject, name, model, shapes=shapes, examples=examples)
            for name, model in self.models.items()
        }

    def _first_examples(self) -> Examples | None:
        """Return the first readable data set, or None; latency does not need one."""
        for source in self.datasets.values():
            try:
                return read_examples(source)
            except SettingError:
                continue
        return None

    def _one_by_one(
        self,
        makers: Mapping[str, Callable[[], Subject]],
        measure: Callable[[Subject], BenchmarkResult],
        metric: str,
    ) -> Results:
        results = {}
        for name, make in makers.items():
            try:
                subject = make()
                with subject.ready():
                    subject.check()
                    results[name] = measure(subject)
            except Exception as error:
                results[name] = BenchmarkResult.failed(metric, short_text(error))
        return results

    def _scored_datasets(self) -> dict[str, Examples]:
        if not self.can_score:
            raise SettingError(
                "there is no data to measure accuracy on; give datasets=[(inputs, targets)]"
            )
        if self._examples is None:
            self._examples = {name: read_examples(each) for name, each in self.datasets.items()}
        for name, examples in self._examples.items():
            if not examples.has_targets:
                raise SettingError(f"{name} has no targets, so there is no accuracy; give both")
        return self._examples

    def _scored_subjects(
        self, name: str, model: Any, datasets: dict[str, Examples]
    ) -> dict[str, Subject]:
        if not datasets:
            return {"its own data": make_subject(name, model)}
        return {
            title: make_subject(name, model, examples=examples)
            for title, examples in datasets.items()
        }

    def _accuracy(self, subjects: dict[str, Subject]) -> BenchmarkResult:
        scored: dict[str, Scored] = {}
        for title, subject in subjects.items():
            if subject.evaluate is None:
                raise ModelError(f"{subject.name} has no data and no evaluate to be scored by")
            with subject.ready():
                scored[title] = subject.evaluate()
        metrics = sorted({each.metric for each in scored.values()})
        if len(metrics) > 1:
            raise ModelError(
                f"the data sets are scored by {' and '.join(metrics)}; measure them one by one"
            )
        values = [score for each in scored.values() for score in each.scores]
        facts = {
            "datasets": {title: each.mean for title, each in scored.items()},
            "notes": [note for each in scored.values() for note in each.notes],
        }
        return BenchmarkResult(metrics[0], values, facts, interval_of="mean")


def _named_datasets(datasets: Any) -> dict[str, Any]:
    """Return data sets by name, from one, a list, or a dictionary."""
    if datasets is None:
        return {}
    if isinstance(datasets, Mapping) and "inputs" not in datasets:
        return {str(name): each for name, each in datasets.items()}
    is_list = isinstance(datasets, (list, tuple)) and not any(
        hasattr(each, "shape") for each in datasets
    )
    listed = list(datasets) if is_list else [datasets]
    return {f"data set {number}": each for number, each in enumerate(listed, start=1)}


def _timed_subject(
    name: str,
    model: Any,
    *,
    shapes: tuple[tuple[int, ...], ...] | None,
    examples: Examples | None,
) -> Subject:
    if shapes is not None:
        return make_subject(name, model, shapes=shapes)
    if examples is not None:
        size = examples.batches[0].size
        return make_subject(name, model, examples=examples, batch_size=1 if size else None)
    try:
        return make_subject(name, model)
    except SettingError:  # the model does not tell what it takes
        return make_subject(name, model, shapes=(USUAL_SHAPE,))


def _facts(subject: Subject) -> dict[str, Any]:
    shapes = [list(value.shape) for value in subject.arguments if hasattr(value, "shape")]
    return {
        "framework": subject.adapter.name,
        "device": subject.device,
        "input_shapes": shapes,
    }


def _checked_metric(metric: str) -> str:
    if metric not in METRICS:
        raise SettingError(f"no metric {metric!r}; there are {', '.join(METRICS)}")
    return metric


def _row(name: str, result: BenchmarkResult, first: BenchmarkResult) -> dict[str, Any]:
    row = {"model": name, "metric": result.metric_name} | {
        key: value
        for key, value in result.to_dict().items()
        if key not in ("metric_name", "values", "metadata")
    }
    row |= dict.fromkeys(COMPARED)
    if result.is_failed or first.is_failed:
        return row
    if first.typical and result.typical is not None:
        row["ratio_to_first"] = result.typical / first.typical
    if result.metric_name == LATENCY:
        speedup = checks.ratio_interval(first.values, result.values)
        row |= {
            "speedup": speedup.value,
            "speedup_low": speedup.low,
            "speedup_high": speedup.high,
            "speedup_confidence": speedup.coverage,
        }
    return row


# ---------------------------------------------------------------- BenchmarkSuite: every metric of
# several models, as tables, figures and a report

PathLike = str | Path
ProgressReport = Callable[[str, int, int], None]


class BenchmarkSuite(Benchmark):
    """Measure latency, accuracy and memory of several models and show the results.

    Models and data sets are those of :class:`Benchmark`. Making a suite writes nothing; with an
    `output_dir` figures and reports are written there when they are asked for.
    """

    def __init__(
        self,
        models: Any,
        datasets: Any = (),
        output_dir: PathLike | None = None,
        *,
        warmup_runs: int = 5,
        measurement_runs: int = 100,
        seed: int = 0,
    ) -> None:
        super().__init__(models, datasets, warmup_runs, measurement_runs, seed=seed)
        self.output_dir = None if output_dir is None else Path(output_dir)

    def run_full_benchmark(
        self, input_shape: Shape = None, *, progress: ProgressReport | None = None
    ) -> dict[str, Results]:
        """Measure every metric and give the results by metric and by model.

        Without anything to score models by, there is no accuracy. `input_shape` is that of the
        calls for latency and memory; None takes an example of the data, or of the size of each
        model's first layer. `progress` is told what comes next, how many steps are done, and how
        many there are: ``progress("latency", 0, 3)``. What was finished stays in `results`.
        """
        metrics = [name for name in METRICS if name != ACCURACY or self.can_score]
        for done, metric in enumerate(metrics):
            if progress is not None:
                progress(metric, done, len(metrics))
            self.run(metric, input_shape=input_shape)
        if progress is not None:
            progress("done", len(metrics), len(metrics))
        return {metric: self.results[metric] for metric in metrics}

    def plot_results(self, save_path: PathLike | None = None) -> Figure:
        """Draw a bar for each model and metric, with its interval, and give the figure.

        It is saved under `save_path`, or in the suite's `output_dir` if it has one.
        """
        figure: Figure = benchmarking_reports().draw_results(self._measured())
        self._save_figure(figure, save_path, "benchmark_results.png")
        return figure

    def plot_pareto_frontier(
        self,
        x_metric: str = "latency",
        y_metric: str = "accuracy",
        save_path: PathLike | None = None,
    ) -> Figure:
        """Draw models by two metrics, and a line through those that no other model beats.

        A model is beaten by one that is at least as good in both metrics and better in one. The
        points are medians (latency), means (accuracy) and peaks (memory).
        """
        points = self._points(x_metric, y_metric)
        front = self.pareto_frontier(x_metric, y_metric)
        figure: Figure = benchmarking_reports().draw_pareto(
            points, front, self._measured(), x_metric, y_metric
        )
        self._save_figure(figure, save_path, f"pareto_{x_metric}_{y_metric}.png")
        return figure

    def pareto_frontier(self, x_metric: str = "latency", y_metric: str = "accuracy") -> list[str]:
        """Return the names of the models that no other dominates in these metrics."""
        points = self._points(x_metric, y_metric)
        return pareto_front(
            points, lower_is_better=(LOWER_IS_BETTER[x_metric], LOWER_IS_BETTER[y_metric])
        )

    def generate_report(self, save_path: PathLike | None = None) -> str:
        """Return the results as Markdown; also write them to `save_path` or the `output_dir`."""
        results = self._measured()
        rows = {metric: self.compare_models(metric) for metric in results}
        pair = ("latency", "accuracy")
        front = self.pareto_frontier(*pair) if all(each in results for each in pair) else []
        report: str = benchmarking_reports().markdown_report(
            results,
            rows,
            front=front,
            runs=self.measurement_runs,
            environment=describe_environment(),
        )
        path = self._path(save_path, "benchmark_report.md")
        if path is not None:
            with write_atomically(path) as target:
                target.write_text(report, "utf-8")
        return report

    # ------------------------------------------------------------ inside

    def _measured(self) -> dict[str, Results]:
        if not self.results:
            raise SettingError("nothing was measured yet; call run_full_benchmark() before")
        return {metric: self.results[metric] for metric in METRICS if metric in self.results}

    def _points(self, x_metric: str, y_metric: str) -> dict[str, tuple[float, float]]:
        """Return the models that have both metrics, with the numbers to quote."""
        results = self._measured()
        for metric in (x_metric, y_metric):
            if metric not in results:
                known = ", ".join(results)
                raise SettingError(f"{metric!r} was not measured; there are {known}")
        if x_metric == y_metric:
            raise SettingError(f"{x_metric!r} is on both axes; give two different metrics")
        points = {}
        for name in self.models:
            x, y = results[x_metric][name].typical, results[y_metric][name].typical
            if x is not None and y is not None:
                points[name] = (x, y)
        return points

    def _path(self, given: PathLike | None, usual: str) -> Path | None:
        if given is not None:
            return Path(given)
        return None if self.output_dir is None else self.output_dir / usual

    def _save_figure(self, figure: Figure, given: PathLike | None, usual: str) -> None:
        path = self._path(given, usual)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path)
