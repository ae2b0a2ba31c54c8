"""What a gate has found: a verdict for each target, and the worst of them for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tinytorch.codec import Coded
from tinytorch.comparison.accuracy import INCONCLUSIVE, WORSE, AccuracyComparison
from tinytorch.comparison.comparison import FASTER, SLOWER, Comparison, verdict_of
from tinytorch.comparison.sequential import TimeRatio

__all__ = [
    "ACCURACY",
    "FAILED",
    "INVALID",
    "NEW",
    "NOT_SHOWN",
    "PASSED",
    "REGRESSION",
    "SEVERITY",
    "GateResult",
    "TargetResult",
    "decide",
]

FAILED, REGRESSION, ACCURACY, INVALID = "failed", "regression", "accuracy", "invalid"
NOT_SHOWN, PASSED, NEW = "not shown", "passed", "new"
SEVERITY = (FAILED, REGRESSION, ACCURACY, INVALID, NOT_SHOWN, PASSED, NEW)
"""The worst first. The worst verdict of all targets is that of the gate."""
TIMES_FROM = 2.0


def decide(ratio: TimeRatio, tolerance: float) -> str:
    """Say what an interval shows: all of it on one side of the tolerance, or nothing."""
    if ratio.low > 1 + tolerance:
        return REGRESSION
    return PASSED if ratio.high < 1 + tolerance else NOT_SHOWN


@dataclass(frozen=True)
class TargetResult(Coded):
    """One target: what was observed, and the verdict that follows.

    `ratio` is candidate over baseline, above 1 is slower. `comparison` holds the raw values;
    against a record both of its sides are the candidate. `accuracy` compares with the baseline.
    `problem` says why the measurement is not to be trusted, `obstacle` why something could not be
    shown.
    """

    target: str
    tolerance: float
    ratio: TimeRatio | None = None
    comparison: Comparison | None = None
    accuracy: AccuracyComparison | None = None
    outputs: str = ""
    has_same_outputs: bool = False
    baseline_error: str = ""
    candidate_error: str = ""
    problem: str = ""
    obstacle: str = ""
    is_new: bool = False
    notes: tuple[str, ...] = ()
    seconds_used: float = 0.0
    record: str = ""

    also_written = (
        "target",
        "verdict",
        "reason",
        "change",
        "time_verdict",
        "accuracy_verdict",
        "n",
    )
    renames: ClassVar = {
        "ratio": "time_ratio",
        "has_same_outputs": None,
        "problem": None,
        "obstacle": None,
        "is_new": None,
    }

    @property
    def verdict(self) -> str:
        if self.is_new:
            return NEW
        if self.problem or (self.candidate_error and self.baseline_error):
            return INVALID
        if self.candidate_error:
            return FAILED
        found = {self.time_verdict, self.accuracy_verdict}
        if self.obstacle:
            found.add(NOT_SHOWN)
        return min(found, key=SEVERITY.index)

    @property
    def time_verdict(self) -> str:
        """Say what is shown about the time; nothing, where typical calls and the mean disagree."""
        if self.ratio is None:
            return NOT_SHOWN
        return NOT_SHOWN if self.contradiction else decide(self.ratio, self.tolerance)

    @property
    def contradiction(self) -> str:
        """Say when the mean of all calls lies on the other side of the tolerance, or nothing."""
        found = self.comparison
        # Against a record, the comparison is of the candidate with itself.
        if found is None or self.ratio != found.ratio or not found.contradiction:
            return ""
        differs = decide(found.mean_ratio, self.tolerance) != decide(self.ratio, self.tolerance)
        return found.contradiction if differs else ""

    @property
    def accuracy_verdict(self) -> str:
        """Say what is shown about accuracy; without an evaluation there is nothing to violate."""
        if self.accuracy is None or self._is_equally_good:
            return PASSED
        if self.accuracy.verdict == WORSE:
            return ACCURACY
        return NOT_SHOWN if self.accuracy.verdict == INCONCLUSIVE else PASSED

    @property
    def _is_equally_good(self) -> bool:
        """The same outputs and scores come from the same function: no sample is too small."""
        found = self.accuracy
        has_same_scores = found is not None and found.baseline_scores == found.candidate_scores
        return has_same_scores and self.has_same_outputs

    @property
    def change(self) -> str:
        """Name a difference in time that is shown, whatever the tolerance: faster or slower."""
        if self.ratio is None or self.comparison is None or self.contradiction:
            return ""
        rule = self.comparison.rule
        found = verdict_of(self.ratio, floor=self.comparison.floor, band=rule.band)
        return found if found in (FASTER, SLOWER) else ""

    @property
    def n(self) -> int | None:
        return self.comparison.n if self.comparison else None

    @property
    def reason(self) -> str:
        """Say in one line why the verdict is what it is."""
        if self.is_new:
            return "the baseline does not have it; nothing to compare with"
        if self.problem:
            return self.problem
        errors = [
            f"the {side} {error}"
            for side, error in (
                ("candidate", self.candidate_error),
                ("baseline", self.baseline_error),
            )
            if error
        ]
        if errors:
            return "; ".join(errors)
        parts = [self._time_reason(), self._accuracy_reason(), self.obstacle]
        if self.verdict == ACCURACY:
            parts = parts[1::-1] + parts[2:]  # what decides comes first
        return "; ".join(part for part in parts if part)

    def _time_reason(self) -> str:
        if self.ratio is None:
            return ""
        if self.contradiction:
            return self.contradiction
        size = _size(self.ratio)
        if self.time_verdict == NOT_SHOWN:
            return f"{size}: the interval reaches over the tolerance of {self.tolerance:.1%}"
        if self.time_verdict == REGRESSION:
            return f"{size}, beyond the tolerance of {self.tolerance:.1%}"
        return f"{self.change}: {size}" if self.change else size

    def _accuracy_reason(self) -> str:
        found = self.accuracy
        if found is None:
            return ""
        if self._is_equally_good:
            return f"{found.metric}: the same scores and outputs"
        means = f"{found.baseline_mean:.4g} to {found.candidate_mean:.4g}"
        more = f"; {found.remedy}" if found.remedy else ""
        return f"{found.metric} {found.verdict}: {means}, {found.evidence}{more}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON data."""
        unknown = {} if self.accuracy else {"accuracy_verdict": None}
        return super().to_dict() | unknown

    def kept_as(self, record: str, *notes: str) -> TargetResult:
        """Give the same result with the hash of its record."""
        return replace(self, record=record, notes=(*self.notes, *notes))


@dataclass(frozen=True)
class GateResult(Coded):
    """All targets of a gate, the two sides in words, and what to know about the whole."""

    baseline: str
    candidate: str
    results: tuple[TargetResult, ...]
    notes: tuple[str, ...] = ()

    also_written = ("verdict", "summary", "baseline", "candidate", "seconds_used", "notes")
    renames: ClassVar = {"results": "targets"}

    @property
    def verdict(self) -> str:
        """Give the worst verdict; it decides about the exit code."""
        return min((each.verdict for each in self.results), key=SEVERITY.index, default=NOT_SHOWN)

    @property
    def seconds_used(self) -> float:
        return sum(each.seconds_used for each in self.results)

    def having(self, *verdicts: str) -> tuple[TargetResult, ...]:
        """Give the targets with one of these verdicts."""
        return tuple(each for each in self.results if each.verdict in verdicts)

    @property
    def summary(self) -> str:
        """Count the verdicts, the worst first: ``1 regression, 3 passed (1 faster)``."""
        counts = [(verdict, self.having(verdict)) for verdict in SEVERITY]
        return ", ".join(_counted(verdict, found) for verdict, found in counts if found)


def _counted(verdict: str, found: Sequence[TargetResult]) -> str:
    faster = sum(each.change == FASTER for each in found)
    more = f" ({faster} faster)" if verdict == PASSED and faster else ""
    return f"{len(found)} {verdict}{more}"


def _size(ratio: TimeRatio) -> str:
    """Write a ratio in words: percent where it is near 1, else how many times."""
    if ratio.value < TIMES_FROM:
        value, low, high = map(_change_text, (ratio.value, ratio.low, ratio.high))
        return f"{value} time ({low} to {high})"
    return f"{ratio.value:.3g} times the time ({ratio.low:.3g} to {ratio.high:.3g})"


def _change_text(ratio: float) -> str:
    # Adding zero turns -0.0 into 0.0.
    return f"{round(ratio - 1, 3) + 0.0:+.1%}"
