"""Whether a candidate is as good as the baseline: by its scores or, without them, its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tinytorch.comparison.accuracy import NOT_WORSE, AccuracyComparison
from tinytorch.comparison.outputs import OutputDifference

__all__ = ["Check", "by_outputs", "by_scores"]

Explain = Callable[[], tuple[str, ...]]
"""Gives why other whole numbers are a matter of rounding, or nothing where they are not."""


@dataclass(frozen=True)
class Check:
    """What became of outputs and scores; `doubt` is why a candidate is not as good, or nothing."""

    outputs: OutputDifference | None
    accuracy: AccuracyComparison | None = None
    doubt: str = ""
    notes: tuple[str, ...] = ()


def by_scores(accuracy: AccuracyComparison, outputs: OutputDifference | None) -> Check:
    """Ask whether accuracy is shown to be kept."""
    if accuracy.verdict == NOT_WORSE:
        return Check(outputs, accuracy)
    has_same_scores = accuracy.baseline_scores == accuracy.candidate_scores
    if has_same_scores and outputs is not None and outputs.is_identical:
        return Check(outputs, accuracy)
    if accuracy.failed:
        doubt = f"{accuracy.failed} of {accuracy.n} scores are no finite numbers"
        return Check(outputs, accuracy, doubt)
    doubt = (
        f"{accuracy.metric} {accuracy.baseline_mean:.4g} became {accuracy.candidate_mean:.4g}; "
        f"that it drops by at most {accuracy.margin:g} is not shown "
        f"(it may be {accuracy.low:+.2g}, with {accuracy.n} examples)"
    )
    return Check(outputs, accuracy, doubt)


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
