"""Is the candidate still as good? Nothing here is about time: no speed makes up for a loss."""

from __future__ import annotations

from tinytorch.comparison.accuracy import INCONCLUSIVE, AccuracyComparison
from tinytorch.comparison.comparison import Comparison
from tinytorch.comparison.evidence import NO_EVALUATE

__all__ = ["failed_evaluation", "quality_doubt", "quality_loss"]


def quality_loss(comparison: Comparison) -> str:
    """Say why the candidate is not as good as the baseline, or nothing where that is not known.

    It is not with broken outputs, when it is shown to be less accurate, and when its evaluation
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
    """Say why it is not known whether the candidate is as good, or nothing.

    Without any `evaluate`, or where nobody asked for more than time, there is nothing to doubt.
    """
    if quality_loss(comparison):
        return ""
    accuracy = comparison.accuracy
    if accuracy is None:
        reason = comparison.not_measured.get("accuracy", NO_EVALUATE)
        return "" if reason == NO_EVALUATE else f"accuracy could not be compared: {reason}"
    if accuracy.verdict != INCONCLUSIVE or _is_equally_good(comparison, accuracy):
        return ""
    return f"{accuracy.metric} is inconclusive: {accuracy.evidence}; {accuracy.remedy}"


def failed_evaluation(comparison: Comparison) -> str:
    """Give the reason why the candidate, and not the baseline, could not be evaluated, or nothing.

    Such a reason starts with the name of the side; one name may be the beginning of the other.
    """
    reason = comparison.not_measured.get("accuracy", "")
    names = (comparison.baseline_name, comparison.candidate_name)
    fitting = [name for name in names if reason.startswith((f"{name} ", f"{name}:"))]
    return reason if max(fitting, key=len, default="") == names[1] else ""


def _is_equally_good(comparison: Comparison, accuracy: AccuracyComparison) -> bool:
    """The same outputs and scores come from the same function: no sample is too small."""
    has_same_scores = accuracy.baseline_scores == accuracy.candidate_scores
    has_same_outputs = comparison.outputs is not None and comparison.outputs.is_identical
    return has_same_scores and has_same_outputs
