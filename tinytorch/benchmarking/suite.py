"""BenchmarkSuite: every metric of several models, as tables, figures and a report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinytorch.benchmarking.benchmark import (
    LOWER_IS_BETTER,
    METRICS,
    Benchmark,
    Results,
    Shape,
)
from tinytorch.benchmarking.examples import ACCURACY
from tinytorch.benchmarking.suite_run import pareto_front
from tinytorch.core.files import write_atomically
from tinytorch.errors import SettingError
from tinytorch.measure.environment import describe_environment
from tinytorch.showing import benchmarking_reports

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PathLike = str | Path
ProgressReport = Callable[[str, int, int], None]


class BenchmarkSuite:
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
        self.benchmark = Benchmark(models, datasets, warmup_runs, measurement_runs, seed=seed)
        self.output_dir = None if output_dir is None else Path(output_dir)

    @property
    def results(self) -> dict[str, Results]:
        """What has been measured so far, by metric and by model."""
        return self.benchmark.results

    def run_full_benchmark(
        self, input_shape: Shape = None, *, progress: ProgressReport | None = None
    ) -> dict[str, Results]:
        """Measure every metric and give the results by metric and by model.

        Without anything to score models by, there is no accuracy. `input_shape` is that of the
        calls for latency and memory; None takes an example of the data, or of the size of each
        model's first layer. `progress` is told what comes next, how many steps are done, and how
        many there are: ``progress("latency", 0, 3)``. What was finished stays in `results`.
        """
        metrics = [name for name in METRICS if name != ACCURACY or self.benchmark.can_score]
        for done, metric in enumerate(metrics):
            if progress is not None:
                progress(metric, done, len(metrics))
            self.benchmark.run(metric, input_shape=input_shape)
        if progress is not None:
            progress("done", len(metrics), len(metrics))
        return {metric: self.results[metric] for metric in metrics}

    def plot_results(self, save_path: PathLike | None = None) -> Figure:
        """Plot one bar per model and metric, with its interval, and return the figure.

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
        """Plot models by two metrics, with a line through the Pareto front.

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
        rows = {metric: self.benchmark.compare_models(metric) for metric in results}
        pair = ("latency", "accuracy")
        front = self.pareto_frontier(*pair) if all(each in results for each in pair) else []
        report: str = benchmarking_reports().markdown_report(
            results,
            rows,
            front=front,
            runs=self.benchmark.measurement_runs,
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
        for name in self.benchmark.models:
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
