"""Is a candidate as good as before? Accuracy and outputs, a line each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from rich.text import Text

from tinytorch.comparison import accuracy as accuracies
from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.comparison.comparison import Comparison
from tinytorch.comparison.outputs import OutputDifference
from tinytorch.reporting.quantities import UNKNOWN, percent_text

__all__ = [
    "accuracy_and_outputs",
    "accuracy_line",
    "difference_text",
    "outputs_line",
    "score_text",
]

FAR_OFF_DB = 20.0
"""Outputs with less signal over noise than this are hardly the same computation."""


def accuracy_and_outputs(comparison: Comparison) -> Iterator[Text]:
    """Give a line about accuracy and one about outputs, as far as they are known."""
    lines = []
    if comparison.accuracy is not None:
        lines.append(_about_accuracy(comparison.accuracy))
    if comparison.outputs is not None:
        lines.append(_about_outputs(comparison.outputs))
    if lines:
        yield Text("")
        yield from lines


def accuracy_line(found: AccuracyComparison) -> str:
    """Say what became of the accuracy."""
    return _about_accuracy(found).plain


def outputs_line(found: OutputDifference) -> str:
    """Say how far the outputs are apart."""
    return _about_outputs(found).plain


def _about_accuracy(found: AccuracyComparison) -> Text:
    write = score_text(found)
    style = {accuracies.NOT_WORSE: "green", accuracies.WORSE: "red"}.get(found.verdict, "yellow")
    parts = [
        f"difference {difference_text(found, found.difference)}",
        f"at least {difference_text(found, found.low)}",
        f"margin {difference_text(found, found.margin, sign=False)}",
        f"{found.n} examples",
    ]
    if found.is_binary:
        parts.append(f"{found.lost} lost and {found.gained} gained")
    if found.examples_needed is not None:
        parts.append(found.remedy)
    means = f"{write(found.baseline_mean)} to {write(found.candidate_mean)}"
    return Text.assemble(
        f"{found.metric}: ", (found.verdict, style), f", {means} ({', '.join(parts)})"
    )


def score_text(found: AccuracyComparison) -> Callable[[float], str]:
    """Give what writes a score: shares of right answers in percent, others as they are."""
    if found.is_binary:
        return lambda score: f"{score:.2%}" if math.isfinite(score) else UNKNOWN
    return lambda score: f"{score:.4g}" if math.isfinite(score) else UNKNOWN


def difference_text(found: AccuracyComparison, value: float, *, sign: bool = True) -> str:
    """Write a difference of scores: in points where these are shares of right answers."""
    if not math.isfinite(value):
        return UNKNOWN
    plus = "+" if sign else ""
    if not found.is_binary:
        return f"{value:{plus}.3g}"
    points = f"{100 * value:{plus}.3g}"
    return f"{points} point" if points == "1" else f"{points} points"


def _about_outputs(found: OutputDifference) -> Text:
    if found.mismatch:
        return Text(f"outputs: cannot be compared: {found.mismatch}", style="yellow")
    if found.is_identical:
        return Text("outputs: identical")
    parts = []
    if found.max_error is not None:
        relative = found.max_relative_error
        share = "" if relative is None else f" ({relative:.2g} of the largest value)"
        parts.append(f"largest error {found.max_error:.3g}{share}")
    if found.sqnr_db is not None:
        parts.append(f"SQNR {found.sqnr_db:.1f} dB")
    if found.top1_agreement is not None:
        parts.append(f"top-1 agreement {percent_text(found.top1_agreement)}")
    if found.equal_share is not None:
        parts.append(f"equal whole numbers {percent_text(found.equal_share)}")
    is_far = found.sqnr_db is not None and found.sqnr_db < FAR_OFF_DB
    return Text(f"outputs: {', '.join(parts)}", style="yellow" if is_far else "")
