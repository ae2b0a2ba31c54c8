"""A comparison as a record: its ratio and times as series, everything else as details."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinytorch.comparison.comparison import Comparison
from tinytorch.measure.cold_cache import WARM
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.samples import Samples
from tinytorch.workloads.record import Record

__all__ = ["comparison_record", "comparison_samples"]

PER_ROUND = "each value is the median of a round; details have every turn"


def comparison_record(
    comparison: Comparison,
    *,
    name: str,
    settings: Mapping[str, Any],
    kind: str = "comparison",
    run: str = "",
    folder: str | os.PathLike[str] | None = None,
) -> Record:
    """Make a record of a comparison.

    `settings` say what was compared with what; how long that took is no setting, since more time
    makes the interval narrower and nothing else. With a `folder`, the record names its commit.
    """
    environment = dict(comparison.environment) or describe_environment().to_dict()
    if folder is not None:
        environment["commit"] = describe_environment(folder).to_dict()["commit"]
    return Record(
        kind=kind,
        name=name,
        samples=comparison_samples(comparison),
        environment=environment,
        settings={**settings, "clock": comparison.clock, **_measured_how(comparison)},
        details={"comparison": comparison.to_dict()},
        run=run,
        notes=comparison.notes,
    )


def _measured_how(comparison: Comparison) -> dict[str, Any]:
    """Give what else decides about the times: caches that were emptied, and the kind of device.

    On a processor with warm caches it is nothing, as in records from before there was a choice.
    """
    devices = comparison.environment.get("devices", {})
    named = {place: seen.get("name") for place, seen in devices.items()}
    cold = {} if comparison.cache == WARM else {"cache": comparison.cache}
    return cold | ({"devices": named} if named else {})


def comparison_samples(comparison: Comparison) -> dict[str, Samples]:
    """Give the metrics of a comparison: the ratio of each round, and what the candidate needs."""
    rounds, loops = comparison.rounds, comparison.pace.loops
    ratios = tuple(math.exp(each.log_ratio) for each in rounds)
    found = {
        "time ratio": Samples("time ratio", ratios, ""),
        "latency": _latency("latency", [each.candidate for each in rounds], loops[1]),
        "baseline latency": _latency(
            "baseline latency", [each.baseline for each in rounds], loops[0]
        ),
    }
    single: dict[str, tuple[float | None, str]] = {}
    if comparison.throughputs is not None:
        single["throughput"] = (comparison.throughputs[1], "1/s")
    if comparison.resources is not None:
        single["peak memory"] = (comparison.resources[1].peak_bytes, "B")
        single["file size"] = (comparison.resources[1].file_bytes, "B")
        single["peak device memory"] = (comparison.resources[1].device_peak_bytes, "B")
    if comparison.accuracy is not None:
        single[comparison.accuracy.metric] = (comparison.accuracy.candidate_mean, "")
    for metric, (value, unit) in single.items():
        if value is not None and math.isfinite(value):
            found[metric] = Samples(metric, (value,), unit)
    if comparison.energy is not None:
        found["energy"] = comparison.energy[1]
    return found


def _latency(name: str, rounds: Sequence[Sequence[float]], loops: int) -> Samples:
    medians = tuple(float(np.median(each)) for each in rounds)
    return Samples(name, medians, loops=loops, notes=(PER_ROUND,))
