"""What was done once for the sides of a comparison, in words: how long it took, when it pays."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tinytorch.comparison.comparison import Comparison
from tinytorch.measure.cold_cache import COLD
from tinytorch.reporting.quantities import bytes_text, count_text, seconds_text
from tinytorch.workloads.preparation import Preparation

__all__ = ["cache_line", "preparation_lines"]


def preparation_lines(comparison: Comparison) -> Iterator[str]:
    """Say what is no part of the times, a line for each side, and after how many calls it pays."""
    names = (comparison.baseline_name, comparison.candidate_name)
    for name, done in zip(names, comparison.preparations, strict=True):
        if done:
            yield f"{name}: {'; '.join(map(_done, done))}: not part of the times"
    found = comparison.break_even
    if found is None:
        return
    calls, low, high = (count_text(math.ceil(x)) for x in (found.calls, found.low, found.high))
    yield f"{names[1]} has made up for that after {calls} calls ({low} to {high})"


def cache_line(comparison: Comparison) -> str:
    """Say that calls found cold caches; warm ones are what everybody expects."""
    if comparison.cache != COLD:
        return ""
    return "cold caches: emptied before every call, outside of its time"


def _done(preparation: Preparation) -> str:
    took = seconds_text(preparation.seconds)
    if preparation.is_estimate:
        text = f"{preparation.what} took about {took} longer than the others"
    else:
        text = f"{preparation.what} once in {took}"
    if preparation.nbytes:
        text += f", {bytes_text(preparation.nbytes)} stay taken"
    return text
