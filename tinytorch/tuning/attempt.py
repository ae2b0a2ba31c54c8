"""Attempt: a stack of transforms that was tried, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from statistics import median
from typing import Any, ClassVar

from tinytorch.codec import Coded
from tinytorch.comparison.comparison import Comparison
from tinytorch.errors import SettingError
from tinytorch.measure.estimate import INCONCLUSIVE, Estimate, read_verdict
from tinytorch.measure.interleaving import LATENCY, THROUGHPUT
from tinytorch.measure.samples import Samples
from tinytorch.transforms.plan import GOALS, Plan

# ---------------------------------------------------------------- what a candidate is judged by:
# time, memory, size and accuracy, all against the baseline

SAME_BYTES = 0.001
"""Sizes that differ by less are the same: names and headers of a file count, too."""


@dataclass(frozen=True)
class Measured(Coded):
    """A candidate's time, memory and size as shares of the baseline's, and its accuracy's gain.

    Below 1 is less, and better; `accuracy` is the mean score minus the baseline's, above 0 is
    better. What was not measured is None.
    """

    time: Estimate | None = None
    memory: Estimate | None = None
    size: Estimate | None = None
    accuracy: Estimate | None = None


OBJECTIVES = tuple(each.name for each in fields(Measured))
BASELINE = Measured(*(Estimate.counted(x) for x in (1.0, 1.0, 1.0, 0.0)))
"""The baseline against itself."""


def is_less(share: Estimate | None) -> bool:
    """Return whether a share lies below 1, by more than what does not matter."""
    return share is not None and share.is_less_than(1, by=SAME_BYTES)


def is_more(share: Estimate | None) -> bool:
    """Return whether a share lies above 1, by more than what does not matter."""
    return share is not None and share.is_more_than(1, by=SAME_BYTES)


def measured_by(comparison: Comparison) -> Measured:
    """Draw from a comparison with the baseline what a candidate is judged by."""
    return Measured(
        time=comparison.ratio,
        memory=_share(comparison, lambda each: each.memory_bytes),
        size=_share(comparison, lambda each: each.file_bytes),
        accuracy=_accuracy(comparison),
    )


def _share(comparison: Comparison, of: Any) -> Estimate | None:
    if comparison.resources is None:
        return None
    before, after = (of(each) for each in comparison.resources)
    if not before or after is None:
        return None
    return Estimate.counted(after / before)


def _accuracy(comparison: Comparison) -> Estimate | None:
    accuracy = comparison.accuracy
    if accuracy is None or accuracy.failed:
        return None
    ends = (accuracy.difference, accuracy.low, accuracy.high)
    return Estimate(*ends, accuracy.confidence, accuracy.n)


# ---------------------------------------------------------------- attempt: a stack of transforms
# that was tried, and what came of it

BETTER, NO_GAIN, WORSE = "better", "no gain", "worse"
ACCURACY_INCONCLUSIVE = "accuracy inconclusive"
INACCURATE, BROKEN, FAILED = "inaccurate", "broken", "failed"
DROPPED = "dropped"
SKIPPED, NOT_TRIED = "skipped", "not tried"
OUTCOMES = {
    BETTER: "improves the goal; passes the accuracy check",
    NO_GAIN: "does not improve the goal; passes the accuracy check",
    WORSE: "worsens the goal; passes the accuracy check",
    INCONCLUSIVE: "inconclusive about the goal; passes the accuracy check",
    ACCURACY_INCONCLUSIVE: "too few examples for the accuracy check: timed, never ranked",
    INACCURATE: "accuracy drop or output error exceeds the margin: never timed",
    BROKEN: "outputs cannot replace the baseline's: never ranked",
    FAILED: "could not be carried out",
    DROPPED: "so slow in its first calls that it cannot reach the goal: neither judged nor timed",
    SKIPPED: "the plan is empty",
    NOT_TRIED: "not tried",
}
"""Outcome -> what it means."""
RENAMED = {"nothing to do": SKIPPED}
"""What outcomes were called in older records."""
OUT_OF_TIME = "out-of-time"
"""Code of an attempt that was not tried because the budget was spent."""
TOO_SLOW = "too-slow"
"""Code of an attempt that was dropped after a few calls."""
FRESH, RELOADED, IN_MEMORY = "fresh process", "reloaded", "in memory"
"""Where and of which model a confirmation is: of one that was saved, loaded and timed in a process
of its own; of one that was saved and loaded; or of the one that was made."""
ACCEPTABLE = frozenset({BETTER, NO_GAIN, WORSE, INCONCLUSIVE})


@dataclass(frozen=True)
class Attempt(Coded):
    """Entries of the catalog, carried out in this order, and what came of it.

    `comparison` is with the baseline, `against_best` with the best stack so far, by time alone;
    `measured` is what the first one says. `seconds` is what all of it took, and `setup_s` the part
    of it until its first call returned: planning, applying, compiling.
    `confirmed_on` is FRESH, RELOADED or IN_MEMORY for a confirmation, and empty otherwise.
    `measured_at` is when, for one that comes from the records of an earlier run.
    `code` says for programs why it was not tried, or dropped.
    """

    stack: tuple[str, ...]
    outcome: str
    reason: str
    plans: tuple[Plan, ...] = ()
    comparison: Comparison | None = None
    against_best: Comparison | None = None
    seconds: float = 0.0
    setup_s: float = 0.0
    notes: tuple[str, ...] = ()
    confirmed_on: str = ""
    measured_at: str = ""
    code: str = ""

    also_written = ("measured", "changes_process")

    @classmethod
    def upgraded(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return older fields as this version has them.

        Before there were codes, what took no time at all was not tried for want of it.
        """
        outcome = fields.get("outcome")
        if not isinstance(outcome, str):
            return fields
        is_late = outcome == NOT_TRIED and not fields.get("seconds")
        outcome = RENAMED.get(outcome, read_verdict(outcome))
        return {"code": OUT_OF_TIME if is_late else "", **fields, "outcome": outcome}

    @property
    def name(self) -> str:
        """The stack in one line."""
        return " + ".join(self.stack)

    @property
    def lacked_time(self) -> bool:
        """Whether it was not tried because the time was up."""
        return self.code == OUT_OF_TIME

    @property
    def besides_s(self) -> float:
        """Seconds of it for checks, scores and bytes: neither its set-up nor its timing."""
        compared = (self.comparison, self.against_best)
        timed_s = sum(each.seconds_used for each in compared if each is not None)
        return max(0.0, self.seconds - self.setup_s - timed_s)

    @property
    def is_acceptable(self) -> bool:
        """Whether it passes the accuracy check, whatever its speed."""
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


# ---------------------------------------------------------------- limits of a model in
# milliseconds and megabytes

MEGABYTE = 1e6
LEAST_COVERAGE = 0.95
"""Intervals of so few rounds that they hold with less are inconclusive."""
KEPT, LIMIT_BROKEN = "kept", "broken"
LIMITS = {
    "latency_ms": "median time of a call, in milliseconds",
    "memory_mb": "most memory alive at once, in 10^6 bytes",
    "size_mb": "size of the file, in 10^6 bytes",
}
"""Name of a limit -> what it limits."""


@dataclass(frozen=True)
class LimitCheck(Coded):
    """One limit, what was measured, and whether it is kept, broken or inconclusive."""

    limit: str
    most: float
    found: Estimate | None
    verdict: str

    also_written = ("limit", "most", "found.value", "found.low", "found.high")
    renames: ClassVar = {"found": None}


def checked_limits(limits: Mapping[str, float] | None) -> dict[str, float]:
    """Return the limits; raise for unknown names and values that are not positive."""
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


def _check(name: str, most: float, found: Estimate | None) -> LimitCheck:
    is_kept = found.is_below(most) if found else None
    verdict = {True: KEPT, False: LIMIT_BROKEN, None: INCONCLUSIVE}[is_kept]
    return LimitCheck(name, most, found, verdict)


def _limit_value(name: str, comparison: Comparison, side: int) -> Estimate | None:
    if name == "latency_ms":
        # Turns of a round share memory and a moment: only rounds are independent of each other.
        taken = comparison.rounds_of(LATENCY)
        if not taken:
            return None
        rounds = [(each.baseline, each.candidate)[side] for each in taken]
        samples = Samples("rounds", tuple(1e3 * median(each) for each in rounds))
        found = samples.median_interval()
        is_known = found.coverage >= LEAST_COVERAGE
        return found if is_known else replace(found, low=0.0, high=math.inf)
    if comparison.resources is None:
        return None
    resources = comparison.resources[side]
    nbytes = resources.memory_bytes if name == "memory_mb" else resources.file_bytes
    return None if nbytes is None else Estimate.counted(nbytes / MEGABYTE)


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
            raise SettingError(
                f"budget_s={self.budget_s!r}; it must be a positive number of seconds"
            )
        if self.seed < 0:
            raise SettingError(f"seed={self.seed!r}; it must be a whole number from 0 on")
        object.__setattr__(self, "limits", checked_limits(self.limits))
