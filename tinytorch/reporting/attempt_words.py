"""Attempts in words: the same ones in the terminal, in Markdown and on pages."""

from __future__ import annotations

from tinytorch.comparison.accuracy import NOT_WORSE
from tinytorch.comparison.comparison import FASTER, SAME, SLOWER, Comparison
from tinytorch.comparison.outputs import OutputDifference
from tinytorch.reporting.comparison_words import speedup_text
from tinytorch.reporting.forest_plot import ratio_text
from tinytorch.reporting.quality_lines import difference_text, score_text
from tinytorch.reporting.quantities import UNKNOWN, percent_text
from tinytorch.tuning.attempt import (
    ACCURACY_INCONCLUSIVE,
    BETTER,
    BROKEN,
    FAILED,
    INACCURATE,
    NO_GAIN,
    NOT_SHOWN,
    NOT_TRIED,
    NOTHING_TO_DO,
    WORSE,
    Attempt,
)
from tinytorch.tuning.objectives import Value
from tinytorch.tuning.ranking import OBJECTIVE_OF

__all__ = [
    "AIMS",
    "STYLES",
    "TONES",
    "accuracy_change",
    "accuracy_text",
    "attempt_phrases",
    "interval_text",
    "share_text",
    "speed_phrase",
    "speed_text",
]

AIMS = {
    "latency": "faster",
    "throughput": "faster",
    "memory": "smaller in memory",
    "size": "smaller on disk",
}
"""Goal -> what the model should become."""
TONES = {
    BETTER: "good",
    NO_GAIN: "neutral",
    WORSE: "bad",
    NOT_SHOWN: "unknown",
    ACCURACY_INCONCLUSIVE: "unknown",
    INACCURATE: "bad",
    BROKEN: "bad",
    FAILED: "bad",
    NOTHING_TO_DO: "neutral",
    NOT_TRIED: "unknown",
}
"""Outcome -> how it looks."""
STYLES = {"good": "green", "bad": "red", "neutral": "cyan", "unknown": "yellow"}
"""Tone -> colour in a terminal."""


def attempt_phrases(attempt: Attempt, goal: str = "latency") -> list[str]:
    """Say what became of time, memory, size and accuracy; what the goal is about comes first."""
    if attempt.comparison is None:
        return [attempt.outcome]
    measured = attempt.measured
    phrases = {
        "time": speed_phrase(attempt.comparison),
        "memory": _bytes_phrase(measured.memory, "in memory"),
        "size": _bytes_phrase(measured.size, "on disk"),
    }
    first = OBJECTIVE_OF[goal]
    if not phrases[first]:
        phrases[first] = f"not {AIMS[goal]}"
    ordered = sorted(phrases, key=lambda name: name != first)
    found = [phrases[name] for name in ordered] + _quality_phrases(attempt.comparison)
    return [each for each in found if each]


def speed_phrase(comparison: Comparison) -> str:
    """Say what is shown about time: ``2.31x faster (2.25x to 2.38x)``."""
    ends = f"{ratio_text(comparison.speedup_low)} to {ratio_text(comparison.speedup_high)}"
    if comparison.verdict == FASTER:
        return f"{ratio_text(comparison.speedup)} faster ({ends})"
    if comparison.verdict == SLOWER:
        return f"slower (a speedup of {speedup_text(comparison)})"
    if comparison.verdict == SAME:
        return f"as fast ({ends})"
    return f"not shown to be faster or slower ({ends})"


def _bytes_phrase(share: Value | None, where: str) -> str:
    if share is not None and share.is_less:
        return f"{ratio_text(share.gain.value)} smaller {where}"
    if share is not None and share.is_more:
        return f"{ratio_text(share.value)} as large {where}"
    return ""


def _quality_phrases(comparison: Comparison) -> list[str]:
    """Say what the scores show; and how far outputs are off, where scores do not decide."""
    accuracy, outputs = comparison.accuracy, _outputs_phrase(comparison.outputs)
    if accuracy is None:
        return [outputs]
    write = score_text(accuracy)
    means = f"{write(accuracy.baseline_mean)} to {write(accuracy.candidate_mean)}"
    if accuracy.verdict == NOT_WORSE and accuracy.metric == "accuracy":
        return [f"as accurate ({means})"]
    if accuracy.verdict == NOT_WORSE:
        return [f"with as good a {accuracy.metric} ({means})"]
    if accuracy.baseline_scores == accuracy.candidate_scores:
        return [f"with the same scores ({means})", outputs]
    seen = f"{means}, {accuracy.n} examples"
    return [f"{accuracy.metric} {accuracy.verdict} ({seen})", outputs]


def _outputs_phrase(outputs: OutputDifference | None) -> str:
    if outputs is None or outputs.mismatch:
        return ""
    if outputs.is_identical:
        return "with the same outputs"
    if outputs.max_relative_error is None:
        return ""
    return f"with outputs off by up to {outputs.max_relative_error:.2g} of the largest"


# ---------------------------------------------------------------- single numbers


def speed_text(attempt: Attempt) -> str:
    """Write how many times faster an attempt is."""
    return ratio_text(attempt.comparison.speedup) if attempt.comparison else UNKNOWN


def interval_text(attempt: Attempt) -> str:
    """Write the interval of that."""
    found = attempt.comparison
    if found is None:
        return UNKNOWN
    return f"{ratio_text(found.speedup_low)} to {ratio_text(found.speedup_high)}"


def share_text(share: Value | None) -> str:
    """Write what is left of the baseline's time or bytes, in percent."""
    return UNKNOWN if share is None else percent_text(share.value)


def accuracy_text(attempt: Attempt) -> str:
    """Write the mean score of an attempt."""
    accuracy = attempt.comparison.accuracy if attempt.comparison else None
    return UNKNOWN if accuracy is None else score_text(accuracy)(accuracy.candidate_mean)


def accuracy_change(attempt: Attempt) -> str:
    """Write how the mean score changed."""
    accuracy = attempt.comparison.accuracy if attempt.comparison else None
    return UNKNOWN if accuracy is None else difference_text(accuracy, accuracy.difference)
