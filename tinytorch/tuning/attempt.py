"""Attempt: a stack of transforms that was tried, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Any, ClassVar

from tinytorch.codec import Coded
from tinytorch.comparison.comparison import Comparison
from tinytorch.errors import SettingError
from tinytorch.measure.interleaving import LATENCY, THROUGHPUT
from tinytorch.measure.samples import Samples
from tinytorch.transforms.plan import Plan
from tinytorch.tuning.catalog import GOALS

__all__ = [
    "ACCURACY_INCONCLUSIVE",
    "BASELINE",
    "BETTER",
    "BROKEN",
    "FAILED",
    "INACCURATE",
    "IN_MEMORY",
    "LIMITS",
    "NOTHING_TO_DO",
    "NOT_SHOWN",
    "NOT_TRIED",
    "NO_GAIN",
    "OBJECTIVES",
    "OUTCOMES",
    "RELOADED",
    "TIME_IS_UP",
    "WORSE",
    "Attempt",
    "LimitCheck",
    "Measured",
    "Settings",
    "Value",
    "check_limits",
    "checked_limits",
    "measured_by",
]


# ---------------------------------------------------------------- what a candidate is judged by:
# time, memory, size and accuracy, all against the baseline

SAME_BYTES = 0.001
"""Sizes that differ by less are the same: names and headers of a file count, too."""


@dataclass(frozen=True)
class Value(Coded):
    """A number and the interval that it lies in; where it was counted, both ends are the number."""

    value: float
    low: float
    high: float

    none_means: ClassVar = {"low": -math.inf, "high": math.inf}

    @classmethod
    def counted(cls, value: float) -> Value:
        """Give a number that has no doubt about it."""
        return cls(value, value, value)

    @property
    def gain(self) -> Value:
        """How many times less it is: 2 where this is half; of 0, infinitely many times."""
        ends = (self.value, self.high, self.low)
        return Value(*(1 / end if end > 0 else math.inf for end in ends))

    @property
    def is_less(self) -> bool:
        """Whether a share is shown to be below 1, by more than what does not matter."""
        return self.high < 1 - SAME_BYTES

    @property
    def is_more(self) -> bool:
        """Whether a share is shown to be above 1, by more than what does not matter."""
        return self.low > 1 + SAME_BYTES

    def is_below(self, other: Value, *, by: float = 0.0) -> bool:
        """Say whether it is shown to be smaller, by more than this share."""
        return self.high < other.low * (1 - by) if by else self.high < other.low


@dataclass(frozen=True)
class Measured(Coded):
    """A candidate's time, memory and size as shares of the baseline's, and its accuracy's gain.

    Below 1 is less, and better; `accuracy` is the mean score minus the baseline's, above 0 is
    better. What was not measured is None.
    """

    time: Value | None = None
    memory: Value | None = None
    size: Value | None = None
    accuracy: Value | None = None


OBJECTIVES = tuple(each.name for each in fields(Measured))
BASELINE = Measured(*(Value.counted(x) for x in (1.0, 1.0, 1.0, 0.0)))
"""The model as it is, against itself."""


def measured_by(comparison: Comparison) -> Measured:
    """Draw from a comparison with the baseline what a candidate is judged by."""
    ratio = comparison.ratio
    return Measured(
        time=Value(ratio.value, ratio.low, ratio.high),
        memory=_share(comparison, lambda each: each.memory_bytes),
        size=_share(comparison, lambda each: each.file_bytes),
        accuracy=_accuracy(comparison),
    )


def _share(comparison: Comparison, of: Any) -> Value | None:
    if comparison.resources is None:
        return None
    before, after = (of(each) for each in comparison.resources)
    if not before or after is None:
        return None
    return Value.counted(after / before)


def _accuracy(comparison: Comparison) -> Value | None:
    accuracy = comparison.accuracy
    if accuracy is None or accuracy.failed:
        return None
    return Value(accuracy.difference, accuracy.low, accuracy.high)


def _value(given: Mapping[str, Any] | None) -> Value | None:
    if given is None:
        return None
    low = -math.inf if given["low"] is None else given["low"]
    return Value(given["value"], low, math.inf if given["high"] is None else given["high"])


# ---------------------------------------------------------------- attempt: a stack of transforms
# that was tried, and what came of it

BETTER, NO_GAIN, WORSE, NOT_SHOWN = "better", "no gain", "worse", "not shown"
ACCURACY_INCONCLUSIVE = "accuracy inconclusive"
INACCURATE, BROKEN, FAILED = "inaccurate", "broken", "failed"
NOTHING_TO_DO, NOT_TRIED = "nothing to do", "not tried"
OUTCOMES = {
    BETTER: "shown to be better at the goal, and as good",
    NO_GAIN: "as good, and no better at the goal",
    WORSE: "as good, and worse at the goal",
    NOT_SHOWN: "as good; nothing is shown about the goal",
    ACCURACY_INCONCLUSIVE: "too few examples to tell whether accuracy is kept: timed, never ranked",
    INACCURATE: "accuracy is worse than the margin allows, or outputs are too far off: never timed",
    BROKEN: "gives outputs that cannot stand in for the baseline's: never ranked",
    FAILED: "could not be carried out",
    NOTHING_TO_DO: "the plan is empty",
    NOT_TRIED: "nobody tried",
}
"""Outcome -> what it means."""
TIME_IS_UP = "the budget of"
"""How the reason begins where there was no time to try."""
RELOADED, IN_MEMORY = "reloaded", "in memory"
"""Which model a confirmation is of: one that was saved and loaded, or the one that was made."""
ACCEPTABLE = frozenset({BETTER, NO_GAIN, WORSE, NOT_SHOWN})


@dataclass(frozen=True)
class Attempt(Coded):
    """Entries of the catalog, carried out in this order, and what came of it.

    `comparison` is with the baseline, `against_best` with the best stack so far, by time alone;
    `measured` is what the first one says. `seconds` is what all of it took, planning included.
    `confirmed_on` is RELOADED or IN_MEMORY for a confirmation, and empty otherwise.
    """

    stack: tuple[str, ...]
    outcome: str
    reason: str
    plans: tuple[Plan, ...] = ()
    comparison: Comparison | None = None
    against_best: Comparison | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    confirmed_on: str = ""

    also_written = ("measured", "changes_process")

    @property
    def name(self) -> str:
        """The stack in one line."""
        return " + ".join(self.stack)

    @property
    def lacked_time(self) -> bool:
        """Whether it was not tried because the time was up."""
        return self.outcome == NOT_TRIED and self.reason.startswith(TIME_IS_UP)

    @property
    def is_acceptable(self) -> bool:
        """Whether it is as good as the baseline, whatever its speed."""
        return self.outcome in ACCEPTABLE

    @property
    def changes_process(self) -> tuple[str, ...]:
        """What its model sets for the whole process, each once; nothing for most."""
        return tuple(dict.fromkeys(x.changes_process for x in self.plans if x.changes_process))

    @property
    def measured(self) -> Measured:
        """What it is judged by; all None where it was never compared."""
        return measured_by(self.comparison) if self.comparison else Measured()

    @property
    def once_s(self) -> float | None:
        """Seconds that it needs once before it runs at speed; None where it was never timed."""
        if self.comparison is None:
            return None
        return sum(each.seconds for each in self.comparison.preparations[1])


# ---------------------------------------------------------------- limits that a model has to keep
# to: so many milliseconds, so many megabytes

MEGABYTE = 1e6
LEAST_COVERAGE = 0.95
"""Of so few rounds that an interval holds with less, nothing is shown."""
KEPT, LIMIT_BROKEN, LIMIT_NOT_SHOWN = "kept", "broken", "not shown"
LIMITS = {
    "latency_ms": "median time of a call, in milliseconds",
    "memory_mb": "most memory alive at once, in 10^6 bytes",
    "size_mb": "size of the file, in 10^6 bytes",
}
"""Name of a limit -> what it limits."""


@dataclass(frozen=True)
class LimitCheck(Coded):
    """One limit, what was measured, and whether it is kept, broken or not shown."""

    limit: str
    most: float
    value: float | None
    low: float | None
    high: float | None
    verdict: str


def checked_limits(limits: Mapping[str, float] | None) -> dict[str, float]:
    """Give the limits, after refusing those that nobody knows or that make no sense."""
    for name, most in (limits or {}).items():
        if name not in LIMITS:
            raise SettingError(f"no limit is called {name!r}; there are {', '.join(LIMITS)}")
        if not 0 < most < math.inf:
            raise SettingError(f"the limit {name}={most!r} must be a positive number")
    return {name: float(most) for name, most in (limits or {}).items()}


def check_limits(
    attempt: Attempt | None, limits: Mapping[str, float], *, of_baseline: bool = False
) -> tuple[LimitCheck, ...]:
    """Check each limit against what an attempt's comparison has measured."""
    comparison = attempt.comparison if attempt else None
    side = 0 if of_baseline else 1
    return tuple(
        _check(name, most, _limit_value(name, comparison, side) if comparison else None)
        for name, most in limits.items()
    )


def _check(name: str, most: float, value: Value | None) -> LimitCheck:
    if value is None:
        return LimitCheck(name, most, None, None, None, LIMIT_NOT_SHOWN)
    verdict = KEPT if value.high <= most else LIMIT_BROKEN if value.low > most else LIMIT_NOT_SHOWN
    return LimitCheck(name, most, value.value, value.low, value.high, verdict)


def _limit_value(name: str, comparison: Comparison, side: int) -> Value | None:
    if name == "latency_ms":
        # Turns of a round share memory and a moment: only rounds are independent of each other.
        found = comparison.rounds_of(LATENCY)
        if not found:
            return None
        rounds = [(each.baseline, each.candidate)[side] for each in found]
        samples = Samples("rounds", tuple(median(each) for each in rounds))
        interval = samples.median_interval()
        low, high = interval.low, interval.high
        if interval.confidence < LEAST_COVERAGE:
            low, high = 0.0, math.inf
        return Value(*(1e3 * x for x in (samples.median, low, high)))
    if comparison.resources is None:
        return None
    resources = comparison.resources[side]
    nbytes = resources.memory_bytes if name == "memory_mb" else resources.file_bytes
    return None if nbytes is None else Value.counted(nbytes / MEGABYTE)


# ---------------------------------------------------------------- what an optimization is asked
# for


@dataclass(frozen=True)
class Settings:
    """The goal, how much worse a model may become, limits, and how long it may take.

    `max_accuracy_drop` is in the unit of the scores. Where there is no evaluate, outputs may be off
    by `max_output_error`, as a share of the largest. `limits` has `latency_ms`, `memory_mb` and
    `size_mb`, where set.
    """

    goal: str = "latency"
    max_accuracy_drop: float = 0.01
    max_output_error: float = 0.02
    limits: Mapping[str, float] = field(default_factory=dict)
    budget_s: float = 120.0
    seed: int = 0

    @property
    def timing(self) -> str:
        """What decides about time where calls run on a device: sustained calls, or single ones."""
        return THROUGHPUT if self.goal == THROUGHPUT else LATENCY

    @property
    def needs_latency_beside(self) -> bool:
        """Whether single calls are limited while sustained ones decide."""
        return self.timing == THROUGHPUT and "latency_ms" in self.limits

    def __post_init__(self) -> None:
        if self.goal not in GOALS:
            raise SettingError(f"goal={self.goal!r}; there are {', '.join(GOALS)}")
        for name in ("max_accuracy_drop", "max_output_error"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise SettingError(f"{name}={value!r}; it must be zero or a positive number")
        if not 0 < self.budget_s < math.inf:
            raise SettingError(f"budget_s={self.budget_s!r}; trying things needs some seconds")
        if self.seed < 0:
            raise SettingError(f"seed={self.seed!r}; it must be a whole number from 0 on")
        object.__setattr__(self, "limits", checked_limits(self.limits))
