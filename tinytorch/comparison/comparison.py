"""Comparison: baseline against candidate, what was observed and the verdict that follows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from tinytorch.codec import Coded
from tinytorch.comparison.accuracy import NOT_WORSE, AccuracyComparison, is_equally_good
from tinytorch.comparison.evidence import (
    BASELINE,
    CANDIDATE,
    EVALUATE_FAILED,
    NO_EVALUATE,
)
from tinytorch.comparison.outputs import OutputDifference
from tinytorch.comparison.resources import Resources
from tinytorch.comparison.sequential import Rule, TimedRounds, estimate_ratio
from tinytorch.errors import Failure, SettingError
from tinytorch.measure import estimate
from tinytorch.measure.interleaving import LATENCY, THROUGHPUT, Pace, Round
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import WARM
from tinytorch.models.workload import Preparation
from tinytorch.showing import Shown

SCHEMA = 1
NOT_STATED = ""
"""The timing in records on a device from before there was a choice: calls in a row, some by events.
They tell neither latency nor throughput."""
ON_DEVICE = (
    "latency_ratio",
    "latency_ratio_low",
    "latency_ratio_high",
    "throughput_ratio",
    "throughput_ratio_low",
    "throughput_ratio_high",
    "device_time_ratio",
)
"""Conclusions of a comparison on a device, as :meth:`Comparison.to_dict` writes them."""
FAR_APART = 1.2
"""A mean this many times off the typical time contradicts it even where that is inconclusive."""


@dataclass(frozen=True)
class Comparison(Coded, Shown):
    """Baseline against candidate, measured in turns.

    `verdict` is about time: `faster` or `slower` when the interval of the ratio lies beyond the
    floor, else `same` when it lies inside of the band, else `inconclusive`. Beside it stand, where
    they could be measured, accuracy, outputs, memory, size on disk, single calls and energy.
    Ratios are candidate over baseline: below 1 is less. `preparations` are what was done once for
    the baseline and for the candidate; no time holds any of it. With the `cache` "cold" the caches
    were emptied before every call, else each call found in them what those before it left there.

    Where a side `is_on_device`, calls return before their work is done, and `timing` says what
    `rounds`, `verdict`, `time_ratio` and `speedup` are about: "latency", single calls with the
    device synchronised before and after each, or "throughput", sustained calls of which only the
    last is waited for. Both by the wall clock. `beside` are the rounds of the other one, where
    measured, and `device_times` seconds of single calls by events of the device. On a processor
    both timings are the same, and neither is there.
    """

    baseline_name: str
    candidate_name: str
    rounds: tuple[Round, ...]
    rule: Rule
    floor: float
    alpha: float
    pace: Pace
    clock: str
    seconds_used: float
    notes: tuple[str, ...] = ()
    accuracy: AccuracyComparison | None = None
    outputs: OutputDifference | None = None
    resources: tuple[Resources, Resources] | None = None
    calls: tuple[Samples, Samples] | None = None
    energy: tuple[Samples, Samples] | None = None
    not_measured: Mapping[str, Failure] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    preparations: tuple[tuple[Preparation, ...], tuple[Preparation, ...]] = ((), ())
    cache: str = WARM
    is_on_device: bool = False
    timing: str = LATENCY
    beside: TimedRounds | None = None
    device_times: tuple[Samples, Samples] | None = None

    schema = SCHEMA
    also_written = (
        *("baseline_name", "candidate_name", "verdict", "time_ratio", "time_ratio_low"),
        *("time_ratio_high", "speedup", "speedup_low", "speedup_high", "n", "is_on_device"),
        *("timing", *ON_DEVICE, "_break_even_fields"),
    )
    renames: ClassVar = {"_break_even_fields": "break_even"}

    @classmethod
    def upgraded(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return older fields as this version has them.

        Before, there was one way of timing, and sentences alone said why something was not
        measured.
        """
        fields = {**super().upgraded(fields)}
        environment, reasons = fields.get("environment"), fields.get("not_measured")
        if "timing" not in fields and isinstance(environment, Mapping):
            is_on_device = fields.setdefault("is_on_device", bool(environment.get("devices")))
            fields["timing"] = NOT_STATED if is_on_device else LATENCY
        if isinstance(reasons, Mapping) and isinstance(reasons.get("accuracy"), str):
            failure = _former_failure(reasons["accuracy"], fields)
            fields["not_measured"] = {**reasons, "accuracy": failure}
        return fields

    # ------------------------------------------------------------ time

    @property
    def verdict(self) -> str:
        """The verdict on the time of a typical call, whatever else became of the model.

        It is inconclusive where the mean of all calls says something else.
        """
        return estimate.INCONCLUSIVE if self.contradiction else self._typical_verdict

    @property
    def _typical_verdict(self) -> str:
        return self._verdict_of(self.ratio)

    def _verdict_of(self, ratio: estimate.Estimate) -> str:
        return estimate.time_verdict(ratio, floor=self.floor, band=self.rule.band)

    @cached_property
    def ratio(self) -> estimate.Estimate:
        """The ratio of typical times: medians within rounds, and over the rounds."""
        return estimate_ratio([each.log_ratio for each in self.rounds], self.alpha)

    @cached_property
    def mean_ratio(self) -> estimate.Estimate:
        """The ratio of mean times, in which rare slow calls count too."""
        return estimate_ratio([each.log_mean_ratio for each in self.rounds], self.alpha)

    @property
    def contradiction(self) -> str:
        """How typical calls and the mean of all calls contradict each other, or ""."""
        typical, mean = self.ratio, self.mean_ratio
        are_apart = mean.is_apart_from(typical)
        of_mean = self._verdict_of(mean)
        is_shown = are_apart and of_mean not in (estimate.INCONCLUSIVE, self._typical_verdict)
        # Too few slow calls for an interval, but enough to be far from what is typical.
        one, other = self.baseline, self.candidate
        pooled = other.mean / one.mean
        is_far = abs(math.log(pooled / typical.value)) > math.log(FAR_APART)
        is_far = is_far and max(_slow_turns(one), _slow_turns(other)) > 1
        is_likely = is_far and self._typical_verdict != self._verdict_of(
            estimate.Estimate.counted(pooled)
        )
        if not is_shown and not is_likely:
            return ""
        return (
            f"inconclusive: typical calls of {self.candidate_name} take {typical.value:.3g} of the "
            f"baseline's time, the mean {pooled:.3g} (rare slow calls); see the percentiles"
        )

    @property
    def time_ratio(self) -> float:
        """The candidate's time over the baseline's; below 1 is faster."""
        return self.ratio.value

    @property
    def time_ratio_low(self) -> float:
        return self.ratio.low

    @property
    def time_ratio_high(self) -> float:
        return self.ratio.high

    @property
    def speedup(self) -> float:
        """The baseline's time over the candidate's; above 1 is faster."""
        return self.ratio.inverse.value

    @property
    def speedup_low(self) -> float:
        return self.ratio.inverse.low

    @property
    def speedup_high(self) -> float:
        return self.ratio.inverse.high

    @property
    def speedup_interval(self) -> estimate.Estimate:
        """The speedup; it unpacks into the ends of its interval."""
        return replace(self.ratio.inverse, coverage=self.rule.confidence)

    # ------------------------------------------------------------ on a device

    def rounds_of(self, timing: str) -> tuple[Round, ...]:
        """Return the rounds of single ("latency") or sustained calls ("throughput").

        On a processor these are the same. There are none where that was not measured.
        """
        if not self.is_on_device or self.timing in (timing, NOT_STATED):
            return self.rounds
        return self.beside.rounds if self.beside else ()

    def _on_device(self, timing: str) -> estimate.Estimate | None:
        if not self.is_on_device:
            return None
        if timing == self.timing:
            return self.ratio
        return self._beside_ratio

    @cached_property
    def _beside_ratio(self) -> estimate.Estimate | None:
        if self.beside is None:
            return None
        return estimate_ratio([each.log_ratio for each in self.beside.rounds], self.beside.alpha)

    @property
    def latency_ratio(self) -> float | None:
        """The candidate's time of a single synchronised call over the baseline's, on a device."""
        return _part(self._on_device(LATENCY), "value")

    @property
    def latency_ratio_low(self) -> float | None:
        return _part(self._on_device(LATENCY), "low")

    @property
    def latency_ratio_high(self) -> float | None:
        return _part(self._on_device(LATENCY), "high")

    @property
    def _throughput(self) -> estimate.Estimate | None:
        times = self._on_device(THROUGHPUT)
        return times and times.inverse

    @property
    def throughput_ratio(self) -> float | None:
        """The candidate's sustained calls per second over the baseline's; above 1 is more.

        None on a processor, where it is the speedup, and where it was not measured.
        """
        return _part(self._throughput, "value")

    @property
    def throughput_ratio_low(self) -> float | None:
        return _part(self._throughput, "low")

    @property
    def throughput_ratio_high(self) -> float | None:
        return _part(self._throughput, "high")

    @property
    def device_time_ratio(self) -> float | None:
        """The candidate's time between events of the device over the baseline's, by medians."""
        if self.device_times is None:
            return None
        return self.device_times[1].median / self.device_times[0].median

    @property
    def break_even(self) -> estimate.Estimate | None:
        """The number of calls after which the candidate's setup time has paid for itself.

        None without setup time, or unless the verdict is faster. The setup time of
        the baseline is not subtracted: it may be spent already.
        """
        seconds = sum(each.seconds for each in self.preparations[1])
        if not seconds or self.verdict != estimate.FASTER:
            return None
        calls, ratio = seconds / self.baseline.median, self.ratio
        value, low, high = (calls / (1 - x) for x in (ratio.value, ratio.low, ratio.high))
        return replace(ratio, value=value, low=low, high=high)

    @property
    def _break_even_fields(self) -> dict[str, float] | None:
        found = self.break_even
        if found is None:
            return None
        return {"calls": found.value, "low": found.low, "high": found.high}

    @property
    def n(self) -> int:
        """The number of rounds, the unit of analysis."""
        return len(self.rounds)

    @property
    def pairs(self) -> int:
        """The number of pairs of turns in all rounds."""
        return sum(len(each.baseline) for each in self.rounds)

    @property
    def displaced_share(self) -> float:
        """The share of turns in which the process was preempted."""
        return sum(each.displaced for each in self.rounds) / sum(each.turns for each in self.rounds)

    @property
    def baseline(self) -> Samples:
        """The baseline's seconds per call, turn by turn."""
        return self._samples(0, [each.baseline for each in self.rounds])

    @property
    def candidate(self) -> Samples:
        """The candidate's seconds per call, turn by turn."""
        return self._samples(1, [each.candidate for each in self.rounds])

    def _samples(self, side: int, rounds: list[tuple[float, ...]]) -> Samples:
        name = (self.baseline_name, self.candidate_name)[side]
        values = tuple(value for each in rounds for value in each)
        return Samples(name, values, loops=self.pace.loops[side])

    # ------------------------------------------------------------ beside time

    @property
    def throughputs(self) -> tuple[float, float] | None:
        """Examples per second of both; None where the batch size is unknown.

        Where calls run on a device these are sustained calls, and None where they were not timed.
        """
        rounds = self.rounds_of(THROUGHPUT)
        if self.resources is None or not rounds:
            return None
        first, second = (each.examples for each in self.resources)
        if first is None or second is None:
            return None
        return (
            first / _median(each.baseline for each in rounds),
            second / _median(each.candidate for each in rounds),
        )

    @property
    def has_same_outputs(self) -> bool:
        """Whether outputs were compared and are the same, bit for bit."""
        return self.outputs is not None and self.outputs.is_identical

    @property
    def is_accurate(self) -> bool | None:
        """Whether the candidate is as accurate; None where that is not known or inconclusive."""
        if self.accuracy is None or self.accuracy.verdict == estimate.INCONCLUSIVE:
            return None
        return self.accuracy.verdict == NOT_WORSE

    def with_notes(self, *notes: str) -> Comparison:
        """Return the same comparison with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def named(self, baseline: str, candidate: str) -> Comparison:
        """Return the same comparison under other names."""
        return replace(self, baseline_name=baseline, candidate_name=candidate)

    # ------------------------------------------------------------ showing and keeping

    def __str__(self) -> str:
        return (
            f"{self.candidate_name} against {self.baseline_name}: {self.verdict}, "
            f"{self.time_ratio:.4f} of its time "
            f"({self.time_ratio_low:.4f} to {self.time_ratio_high:.4f}, n={self.n})"
        )


def _part(ratio: estimate.Estimate | None, name: str) -> float | None:
    return None if ratio is None else float(getattr(ratio, name))


def _median(rounds: Iterable[tuple[float, ...]]) -> float:
    return float(np.median([value for each in rounds for value in each]))


def _slow_turns(samples: Samples) -> int:
    limit = 2 * samples.median
    return sum(value > limit for value in samples.values)


def _former_failure(former: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the failure to evaluate of a record from before there were codes.

    Its sentence alone tells the side: it begins with the name, of which one may be the beginning of
    the other.
    """
    if former == NO_EVALUATE.words:
        return asdict(NO_EVALUATE)
    names = (str(fields.get(f"{side}_name")) for side in (BASELINE, CANDIDATE))
    sides = dict(zip(names, (BASELINE, CANDIDATE), strict=True))
    fitting = [name for name in sides if former.startswith((f"{name} ", f"{name}:"))]
    found = Failure(former)
    if fitting:
        found = Failure(former, EVALUATE_FAILED, sides[max(fitting, key=len)])
    return asdict(found)


# ---------------------------------------------------------------- expectations of a
# candidate's time: met (True), refuted (False) or inconclusive (None)

NOT_SLOWER = "not-slower"
EXPECTATIONS = (estimate.FASTER, estimate.SAME, NOT_SLOWER)


def is_met(expected: str, ratio: estimate.Estimate, *, floor: float, band: float) -> bool | None:
    """Return whether an interval meets one of `EXPECTATIONS`; None if inconclusive.

    `faster` is refuted by an interval that does not reach below the floor, `same` by a difference
    either way, `not-slower` by a slowdown. A candidate is not slower when its interval does not
    reach above the band; how much faster it may be does not matter.
    """
    if expected not in EXPECTATIONS:
        raise SettingError(f"{expected!r} cannot be expected; one of {', '.join(EXPECTATIONS)} can")
    verdict = estimate.time_verdict(ratio, floor=floor, band=band)
    if verdict == estimate.SLOWER:
        return False
    if expected == NOT_SLOWER:
        return ratio.is_below(1 + band) or None
    if verdict != estimate.INCONCLUSIVE:
        return verdict == expected
    is_refuted = expected == estimate.FASTER and ratio.low >= 1 / (1 + floor)
    return False if is_refuted else None


def is_met_by(expected: str, comparison: Comparison) -> bool | None:
    """Judge a finished comparison: inconclusive where typical calls and the mean disagree."""
    if comparison.contradiction:
        return None
    band = comparison.rule.band
    return is_met(expected, comparison.ratio, floor=comparison.floor, band=band)


# ---------------------------------------------------------------- accuracy check
# Independent of time: no speedup makes up for a loss


def quality_loss(comparison: Comparison) -> str:
    """Return why the candidate is worse than the baseline, or "" where that is not established.

    It is worse with broken outputs, with a significant accuracy drop, and when its evaluation
    failed while the baseline's did not.
    """
    name = comparison.candidate_name
    if comparison.outputs is not None and comparison.outputs.broken:
        return f"{name} gives broken outputs: {comparison.outputs.broken}"
    accuracy = comparison.accuracy
    if comparison.is_accurate is False and accuracy is not None:
        means = f"{accuracy.candidate_mean:.4g} against {accuracy.baseline_mean:.4g}"
        return f"{name} is less accurate than {comparison.baseline_name}: {means}"
    return failed_evaluation(comparison)


def quality_doubt(comparison: Comparison) -> str:
    """Return why the accuracy check of the candidate is inconclusive, or "".

    Without `evaluate`, or where only time was compared, it is "".
    """
    if quality_loss(comparison):
        return ""
    accuracy = comparison.accuracy
    if accuracy is None:
        reason = comparison.not_measured.get("accuracy", NO_EVALUATE)
        is_expected = reason.code == NO_EVALUATE.code
        return "" if is_expected else f"accuracy could not be compared: {reason}"
    if accuracy.verdict != estimate.INCONCLUSIVE or is_equally_good(
        accuracy, has_same_outputs=comparison.has_same_outputs
    ):
        return ""
    return f"{accuracy.metric} is inconclusive: {accuracy.evidence}; {accuracy.remedy}"


def failed_evaluation(comparison: Comparison) -> str:
    """Return why the candidate, and not the baseline, could not be evaluated, or nothing."""
    reason = comparison.not_measured.get("accuracy", NO_EVALUATE)
    has_failed = (reason.code, reason.subject) == (EVALUATE_FAILED, CANDIDATE)
    return str(reason) if has_failed else ""
