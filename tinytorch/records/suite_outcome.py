"""What became of an entry of a suite: a record, seen through what a reader asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinytorch.measure.samples import Interval, Samples
from tinytorch.perf.benchmarking.scenarios import PERCENTILES
from tinytorch.workloads.record import Record

__all__ = ["ENTRY_KIND", "EntryOutcome"]

ENTRY_KIND = "suite entry"
# Scenario -> what it is about, and whether more of it is better.
MAIN_METRIC = {
    "single-stream": ("latency", False),
    "offline": ("throughput", True),
    "server": ("rate", True),
}


@dataclass(frozen=True)
class EntryOutcome:
    """A finished entry, and the last record that it may be compared with.

    Without one, `not_compared` may say why. `kept_note` is empty unless the result did not get
    into the store.
    """

    record: Record
    previous: Record | None = None
    not_compared: str = ""
    is_from_before: bool = False
    kept_note: str = ""

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def target(self) -> str:
        return str(self.record.settings["target"])

    @property
    def scenario(self) -> str:
        return str(self.record.settings["scenario"]["name"])

    @property
    def label(self) -> str:
        """The name without the scenario."""
        return self.name.removesuffix(f"/{self.scenario}")

    @property
    def failure(self) -> str | None:
        """Why there is no number, or None."""
        return self.record.details.get("failure")

    @property
    def main_metric(self) -> str:
        return MAIN_METRIC[self.scenario][0]

    @property
    def main(self) -> Samples | None:
        """What the scenario is about: latency, throughput or rate."""
        return self.record.samples.get(self.main_metric)

    @property
    def latency(self) -> Samples | None:
        return self.record.samples.get("latency")

    @property
    def server(self) -> Mapping[str, Any] | None:
        """What the search for a rate has found."""
        return self.record.details.get("server")

    @property
    def accuracy(self) -> Mapping[str, Any] | None:
        """The mean score with its interval: metric, mean, low, high, count."""
        return self.record.details.get("accuracy")

    @property
    def peak_bytes(self) -> float | None:
        return self._only_value("peak memory")

    @property
    def file_bytes(self) -> float | None:
        return self._only_value("file size")

    @property
    def seconds_per_example(self) -> float | None:
        """The time that an example takes, from latency or throughput; a call where it is one."""
        if self.failure is not None or self.main is None:
            return None
        if self.main_metric == "latency":
            return self.main.median / (self.record.details.get("examples") or 1)
        return 1 / self.main.median if self.main.median else None

    @property
    def seconds_per_example_interval(self) -> Interval | None:
        """The interval that belongs to :attr:`seconds_per_example`; None where there is none."""
        if self.seconds_per_example is None or self.main is None or self.main.count < 2:
            return None
        found = self.main.median_interval()
        if self.main_metric == "latency":
            examples = self.record.details.get("examples") or 1
            return Interval(found.low / examples, found.high / examples, found.confidence)
        if not found.low > 0:
            return None
        return Interval(1 / found.high, 1 / found.low, found.confidence)

    @property
    def time_ratio(self) -> float | None:
        """The time now over the time of the record before; above 1 it has become slower.

        The two were measured in different runs: it is a hint, and no comparison.
        """
        if self.previous is None or self.main is None:
            return None
        before = self.previous.samples.get(self.main_metric)
        if before is None or not before.median or not self.main.median:
            return None
        ratio = self.main.median / before.median
        return 1 / ratio if MAIN_METRIC[self.scenario][1] else ratio

    def to_dict(self) -> dict[str, Any]:
        """Give everything but the raw values, ready for JSON; those are in the record."""
        details = self.record.details
        accuracy = {key: each for key, each in (self.accuracy or {}).items() if key != "scores"}
        return {
            "name": self.name,
            "settings": self.record.settings,
            "failure": self.failure,
            "latency": _percentiles(self.latency),
            "throughput": _throughput(self.record.samples.get("throughput")),
            "server": self.server,
            "accuracy": accuracy or None,
            "peak_memory_bytes": self.peak_bytes,
            "file_bytes": self.file_bytes,
            "not_measured": details.get("resources", {}).get("not_measured", {}),
            **{key: details.get(key) for key in ("examples", "framework", "device", "backend")},
            "notes": list(self.record.notes),
            "time_ratio_to_previous": self.time_ratio,
            "previous": self.previous.hash if self.previous else None,
            "not_compared": self.not_compared or None,
            "is_from_before": self.is_from_before,
            "kept_note": self.kept_note or None,
            "machine": self.record.machine,
            "record": self.record.hash,
        }

    def _only_value(self, metric: str) -> float | None:
        samples = self.record.samples.get(metric)
        return None if samples is None else samples.median


def _percentiles(latency: Samples | None) -> dict[str, Any] | None:
    if latency is None:
        return None
    found: dict[str, Any] = {"count": latency.count}
    for q in PERCENTILES:
        interval = latency.percentile_interval(q)
        value = latency.percentile(q)
        found[f"p{q:g}"] = {"value_s": value, "low_s": interval.low, "high_s": interval.high}
    return found


def _throughput(throughput: Samples | None) -> dict[str, Any] | None:
    if throughput is None:
        return None
    interval = throughput.median_interval()
    return {
        "median": throughput.median,
        "low": interval.low,
        "high": interval.high,
        "confidence": interval.confidence,
        "unit": throughput.unit,
        "rounds": throughput.count,
    }
