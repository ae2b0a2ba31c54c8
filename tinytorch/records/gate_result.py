"""What a gate has found: a verdict for each target, and the worst of them for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tinytorch.codec import Coded
from tinytorch.comparison.accuracy import WORSE, AccuracyComparison, is_equally_good
from tinytorch.comparison.comparison import Comparison
from tinytorch.measure.estimate import FASTER, INCONCLUSIVE, SLOWER, Estimate, time_verdict

FAILED, REGRESSION, ACCURACY, INVALID = "failed", "regression", "accuracy", "invalid"
PASSED, NEW = "passed", "new"
SEVERITY = (FAILED, REGRESSION, ACCURACY, INVALID, INCONCLUSIVE, PASSED, NEW)
"""The worst first. The worst verdict of all targets is that of the gate."""
TIMES_FROM = 2.0
VERDICTS = {True: PASSED, False: REGRESSION, None: INCONCLUSIVE}
"""Whether a time ratio keeps to the tolerance -> the verdict on it."""


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
    ratio: Estimate | None = None
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
            found.add(INCONCLUSIVE)
        return min(found, key=SEVERITY.index)

    @property
    def time_verdict(self) -> str:
        """The verdict on the time: inconclusive where typical calls and the mean disagree."""
        if self.ratio is None:
            return INCONCLUSIVE
        is_open = bool(self.contradiction)
        return INCONCLUSIVE if is_open else VERDICTS[self.ratio.is_below(1 + self.tolerance)]

    @property
    def contradiction(self) -> str:
        """Return a note if the mean of all calls is on the other side of the tolerance, or ""."""
        found = self.comparison
        # Against a record, the comparison is of the candidate with itself.
        if found is None or self.ratio != found.ratio or not found.contradiction:
            return ""
        limit = 1 + self.tolerance
        differs = found.mean_ratio.is_below(limit) is not found.ratio.is_below(limit)
        return found.contradiction if differs else ""

    @property
    def accuracy_verdict(self) -> str:
        """The verdict of the accuracy; without an evaluation it cannot be violated."""
        if self.accuracy is None or self._is_equally_good:
            return PASSED
        if self.accuracy.verdict == WORSE:
            return ACCURACY
        return INCONCLUSIVE if self.accuracy.verdict == INCONCLUSIVE else PASSED

    @property
    def _is_equally_good(self) -> bool:
        found = self.accuracy
        return found is not None and is_equally_good(found, has_same_outputs=self.has_same_outputs)

    @property
    def change(self) -> str:
        """Return an established difference in time, whatever the tolerance: faster or slower."""
        if self.ratio is None or self.comparison is None or self.contradiction:
            return ""
        rule = self.comparison.rule
        found = time_verdict(self.ratio, floor=self.comparison.floor, band=rule.band)
        return found if found in (FASTER, SLOWER) else ""

    @property
    def n(self) -> int | None:
        return self.comparison.n if self.comparison else None

    @property
    def reason(self) -> str:
        """Return the reason of the verdict in one line."""
        if self.is_new:
            return "the baseline does not have it; nothing to compare with"
        if self.problem:
            return self.problem
        if self.candidate_error or self.baseline_error:
            return "; ".join(filter(None, (self.candidate_error, self.baseline_error)))
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
        if self.time_verdict == INCONCLUSIVE:
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
        """Return the result with the hash of its record."""
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
        """The worst verdict, which determines the exit code."""
        return min(
            (each.verdict for each in self.results), key=SEVERITY.index, default=INCONCLUSIVE
        )

    @property
    def seconds_used(self) -> float:
        return sum(each.seconds_used for each in self.results)

    def having(self, *verdicts: str) -> tuple[TargetResult, ...]:
        """Return the targets with one of these verdicts."""
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


def _size(ratio: Estimate) -> str:
    """Write a ratio in words: percent where it is near 1, else how many times."""
    if ratio.value < TIMES_FROM:
        value, low, high = map(_change_text, (ratio.value, ratio.low, ratio.high))
        return f"{value} time ({low} to {high})"
    return f"{ratio.value:.3g} times the time ({ratio.low:.3g} to {ratio.high:.3g})"


def _change_text(ratio: float) -> str:
    # Adding zero turns -0.0 into 0.0.
    return f"{round(ratio - 1, 3) + 0.0:+.1%}"
