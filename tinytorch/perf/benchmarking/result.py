"""BenchmarkResult: the values of one metric for one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from tinytorch.errors import SettingError
from tinytorch.measure.samples import Interval, Samples
from tinytorch.perf.benchmarking.intervals import mean_interval

__all__ = ["BenchmarkResult"]


@dataclass(frozen=True)
class BenchmarkResult:
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
        """Give the result of a model that could not be measured."""
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
    def _interval(self) -> Interval | None:
        if self.samples is None:
            return None
        if self.interval_of == "mean":
            return mean_interval(self.samples.values)
        return self.samples.median_interval()

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float | None:
        return self.samples.mean if self.samples else None

    @property
    def std(self) -> float | None:
        """Give the standard deviation of the sample (n - 1); 0 for a single value."""
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
        return self._interval.low if self._interval else None

    @property
    def ci_upper(self) -> float | None:
        return self._interval.high if self._interval else None

    @property
    def ci_confidence(self) -> float | None:
        """The coverage that the interval really has."""
        return self._interval.confidence if self._interval else None

    @property
    def typical(self) -> float | None:
        """Give the number to quote: the median of measurements, the mean of scores."""
        return self.mean if self.interval_of == "mean" else self.median

    def to_dict(self) -> dict[str, Any]:
        """Give values and statistics, ready for JSON as far as the metadata is."""
        return {
            "metric_name": self.metric_name,
            "unit": self.unit,
            "values": list(self.values),
            "count": self.count,
            "mean": self.mean,
            "std": self.std,
            "median": self.median,
            "min_val": self.min_val,
            "max_val": self.max_val,
            "ci_lower": self.ci_lower,
            "ci_upper": self.ci_upper,
            "ci_confidence": self.ci_confidence,
            "ci_of": self.interval_of,
            "error": self.error,
            "metadata": dict(self.metadata or {}),
        }

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
