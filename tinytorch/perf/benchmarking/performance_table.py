"""Several models measured in turns, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tinytorch.errors import SettingError
from tinytorch.measure.samples import Interval
from tinytorch.perf.benchmarking.checks import check_budget, check_count
from tinytorch.perf.benchmarking.examples import read_examples
from tinytorch.perf.benchmarking.intervals import ratio_interval
from tinytorch.perf.benchmarking.names import named_models
from tinytorch.perf.benchmarking.performance import Performance, measure_subjects
from tinytorch.perf.benchmarking.subject import make_subject
from tinytorch.showing import Shown, benchmarking_reports

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PerformanceTable", "Speedup", "benchmark_suite", "plot_performance_comparison"]


@dataclass(frozen=True)
class Speedup:
    """The baseline's time over a model's: more than 1 is faster.

    The median over the rounds, with its interval; where models did not take turns, the ratio of
    their medians without one.
    """

    value: float
    interval: Interval | None


@dataclass(frozen=True)
class PerformanceTable(Mapping[str, Performance], Shown):
    """Performances by name, in order. The first is the baseline of every speedup."""

    performances: Mapping[str, Performance]
    is_interleaved: bool = False

    def __getitem__(self, name: str) -> Performance:
        return self.performances[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.performances)

    def __len__(self) -> int:
        return len(self.performances)

    @property
    def baseline(self) -> Performance:
        return next(iter(self.performances.values()))

    @property
    def failed(self) -> dict[str, str]:
        """What the models that could not be measured raised, by name."""
        return {name: each.error for name, each in self.items() if each.error is not None}

    def speedup(self, name: str) -> Speedup | None:
        """Give how many times as fast as the baseline a model is; None where one of them failed.

        Only models that took turns have an interval. It is of these objects in this run: built
        again, a model lies elsewhere in memory, which alone moves its time by one or two percent.
        """
        first, second = self.baseline.samples, self[name].samples
        if first is None or second is None:
            return None
        if not self.is_interleaved:
            return Speedup(first.median / second.median, None)
        return Speedup(*ratio_interval(first.values, second.values))

    def rows(self) -> list[dict[str, Any]]:
        """Give a dictionary per model: its numbers, and its speedup over the first."""
        return [self._row(name, each) for name, each in self.items()]

    def _row(self, name: str, performance: Performance) -> dict[str, Any]:
        speedup = self.speedup(name)
        interval = speedup.interval if speedup else None
        return performance.to_dict() | {
            "speedup": speedup.value if speedup else None,
            "speedup_low": interval.low if interval else None,
            "speedup_high": interval.high if interval else None,
        }


def benchmark_suite(
    models: Any,
    data: Any = None,
    *,
    budget_s: float = 0.5,
    batch_size: int | None = None,
    seed: int = 0,
) -> PerformanceTable:
    """Measure several models on the same data, timed in turns in random order.

    `models` is a dictionary of names, or a list; the first is the baseline. Models and `data` are
    those of :func:`measure_performance`, and `budget_s` is for timing each model. A model that
    raises is marked as failed, with what it raised, and the others go on.

    >>> from tinytorch.core.layers import Linear
    >>> results = benchmark_suite(
    ...     {"small": Linear(8, 2), "wrong": Linear(9, 2)}, [[1.0] * 8] * 4, budget_s=0.01
    ... )
    >>> list(results.failed), results["small"].is_failed
    (['wrong'], False)
    """
    check_budget(budget_s)
    if batch_size is not None:
        check_count("batch_size", batch_size, at_least=1)
    named = named_models(models)
    examples = None if data is None else read_examples(data)
    if examples is not None:
        examples.timed_inputs(batch_size)  # refuses a batch that is larger than the data
    makers = {
        name: partial(make_subject, name, model, examples=examples, batch_size=batch_size)
        for name, model in named.items()
    }
    return PerformanceTable(
        measure_subjects(makers, budget_s=budget_s, seed=seed), is_interleaved=True
    )


def plot_performance_comparison(results: Mapping[str, Performance]) -> Figure:
    """Print a table of models (time, memory, accuracy) and give a figure of the same.

    `results` come from :func:`benchmark_suite`, or are a dictionary of what
    :func:`measure_performance` gave. The figure needs matplotlib; save it with
    ``figure.savefig("comparison.png")``.
    """
    table = as_table(results)
    reports = benchmarking_reports()
    reports.show_performances(table)
    figure: Figure = reports.draw_performances(table)
    return figure


def as_table(results: Mapping[str, Performance]) -> PerformanceTable:
    """Give results as a table; refuse what holds no performances."""
    if isinstance(results, PerformanceTable):
        return results
    given: Any = results
    held = list(given.values()) if isinstance(given, Mapping) else []
    if not held or not all(isinstance(each, Performance) for each in held):
        raise SettingError(
            "give what benchmark_suite returned, or a dictionary of what measure_performance "
            f"returned by name; got {results!r:.60}"
        )
    return PerformanceTable(dict(results))
