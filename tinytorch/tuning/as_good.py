"""Whether a candidate is as good as the baseline: by its scores, its outputs, or both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tinytorch.comparison.accuracy import INCONCLUSIVE, NOT_WORSE, AccuracyComparison
from tinytorch.comparison.outputs import OutputDifference

__all__ = ["Check", "by_outputs", "by_scores"]

Explain = Callable[[], tuple[str, ...]]
"""Gives why other whole numbers are a matter of rounding, or nothing where they are not."""


@dataclass(frozen=True)
class Check:
    """What became of outputs and scores; `doubt` is why a candidate is not accepted, or nothing.

    With `is_inconclusive`, the examples are too few: it may well be as good.
    """

    outputs: OutputDifference | None
    accuracy: AccuracyComparison | None = None
    doubt: str = ""
    notes: tuple[str, ...] = ()
    is_inconclusive: bool = False


def by_scores(
    accuracy: AccuracyComparison,
    outputs: OutputDifference | None,
    *,
    closeness: Callable[[], Check] | None = None,
) -> Check:
    """Ask whether accuracy is kept.

    Too few examples do not decide against what computes the same function, but for rounding: there
    outputs decide, by `closeness`. An established loss outranks it.
    """
    if accuracy.verdict == NOT_WORSE or _is_same(accuracy, outputs):
        return Check(outputs, accuracy)
    if accuracy.failed:
        return Check(outputs, accuracy, accuracy.evidence)
    means = f"{accuracy.metric} {accuracy.baseline_mean:.4g} to {accuracy.candidate_mean:.4g}"
    if accuracy.verdict != INCONCLUSIVE:
        return Check(outputs, accuracy, f"{means}: {accuracy.evidence}")
    close = closeness() if closeness is not None else None
    if close is not None and not close.doubt:
        note = f"{accuracy.metric} is inconclusive: {accuracy.evidence}; accepted by its outputs"
        return Check(outputs, accuracy, notes=(note, *close.notes))
    doubt = f"{means.removeprefix('accuracy ')}, {accuracy.evidence}; {accuracy.remedy}"
    return Check(outputs, accuracy, doubt, is_inconclusive=True)


def _is_same(accuracy: AccuracyComparison, outputs: OutputDifference | None) -> bool:
    """The same outputs and scores come from the same function: no sample is too small."""
    has_same_scores = accuracy.baseline_scores == accuracy.candidate_scores
    return has_same_scores and outputs is not None and outputs.is_identical


def by_outputs(outputs: OutputDifference | None, *, most: float, explain: Explain) -> Check:
    """Ask whether outputs are off by at most this share of the largest, without any scores.

    Whole numbers must be the same, unless the model itself can explain the others.
    """
    share = outputs.equal_share if outputs else None
    if share is not None and share < 1:
        reasons = explain()
        doubt = (
            f"{1 - share:.2%} of the whole numbers in its outputs are others; with an evaluate, "
            "accuracy would decide"
        )
        return Check(outputs, doubt="" if reasons else doubt, notes=reasons)
    error = outputs.max_relative_error if outputs else None
    if error is None:
        is_same = outputs is not None and outputs.is_identical
        doubt = "" if is_same else "its outputs are no numbers that could be compared"
        return Check(outputs, doubt=doubt)
    if error <= most:
        return Check(outputs)
    doubt = (
        f"outputs are off by {error:.2g} of the largest, allowed is {most:g}; "
        "with an evaluate, accuracy would decide"
    )
    return Check(outputs, doubt=doubt)
