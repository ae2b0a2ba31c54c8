"""The tables and targets of quantization.py."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from quantization_sizes import Sizes

from tinytorch.comparison.accuracy import NOT_WORSE, WORSE, AccuracyComparison
from tinytorch.comparison.comparison import Comparison
from tinytorch.measure.estimate import INCONCLUSIVE

VERDICTS = {NOT_WORSE: "met", WORSE: "missed", INCONCLUSIVE: "inconclusive"}


@dataclass(frozen=True)
class Target:
    """What is promised, what was found, and whether that is `met`, `missed` or `inconclusive`."""

    name: str
    promised: str
    found: str
    verdict: str


def at_least(name: str, limit: float, found: float) -> Target:
    verdict = "met" if found >= limit else "missed"
    return Target(name, f"at least {limit:g}", f"{found:.4g}", verdict)


def below(name: str, limit: float, found: float) -> Target:
    verdict = "met" if found < limit else "missed"
    return Target(name, f"below {limit:g}", f"{found:.3g}", verdict)


def accuracy_target(name: str, found: AccuracyComparison) -> Target:
    seen = f"{found.low:+.2%} or more"
    return Target(name, f"not worse by {found.margin:.1%}", seen, VERDICTS[found.verdict])


def perplexity_target(name: str, found: AccuracyComparison, limit: float) -> Target:
    seen = f"{math.exp(-found.low):.4f} times or less"
    return Target(f"{name}: perplexity", f"below {limit} times", seen, VERDICTS[found.verdict])


# ---------------------------------------------------------------- cells


def size_cells(sizes: Sizes) -> tuple[str, ...]:
    return (
        f"{sizes.float_held:,}",
        f"{sizes.held:,}",
        f"{sizes.shrinkage:.3f}",
        f"{sizes.share_held:.2%}",
        f"{sizes.traced:,}",
        f"{sizes.float_file:,}",
        f"{sizes.file:,}",
        f"{sizes.file_shrinkage:.3f}",
        f"{sizes.share_of_file:.2%}",
        f"{sizes.plain_file:,}",
    )


def cells_of(found: AccuracyComparison) -> tuple[object, ...]:
    """Give float, quantized, difference, bounds, lost, gained and verdict."""
    bounds = f"{found.low:+.2%} to {found.high:+.2%}"
    means = f"{found.baseline_mean:.2%}", f"{found.candidate_mean:.2%}"
    return *means, f"{found.difference:+.2%}", bounds, found.lost, found.gained, found.verdict


def perplexity_cells(found: AccuracyComparison) -> tuple[str, ...]:
    """Give n, float, quantized, their ratio and its bounds."""
    logs = (-found.baseline_mean, -found.candidate_mean, -found.difference)
    low, high = math.exp(-found.high), math.exp(-found.low)
    return f"{found.n:,}", *(f"{math.exp(each):.4f}" for each in logs), f"{low:.4f} to {high:.4f}"


def speedup_cell(found: Comparison) -> str:
    low, high = found.speedup_low, found.speedup_high
    return f"{found.speedup:.2f} ({low:.2f} to {high:.2f}, n={found.n}): {found.verdict}"


def kept(found: AccuracyComparison) -> dict[str, Any]:
    """Give what was observed; of right and wrong answers only which ones were wrong."""
    observed = found.to_dict()
    if found.is_binary:
        for side in ("baseline", "candidate"):
            scores = observed.pop(f"{side}_scores")
            observed[f"{side}_wrong"] = [n for n, score in enumerate(scores) if not score]
    means = {"n": found.n, "baseline": found.baseline_mean, "candidate": found.candidate_mean}
    return {**observed, **means, "low": found.low, "high": found.high, "verdict": found.verdict}
