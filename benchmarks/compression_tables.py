"""The tables and targets of compression.py."""

from __future__ import annotations

from collections.abc import Mapping

from quantization_tables import Target

from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.comparison.comparison import Comparison
from tinytorch.measure.estimate import Estimate
from tinytorch.transforms.compression import CompressionResult

IMAGE_COLUMNS = ("right", "difference", "bounds", "lost", "gained", "verdict")
FILE_COLUMNS = (
    "checkpoint", "file", "times smaller", "naive product", "bound", "code over bound", "header",
    "file over bound", "zlib", "lzma",
)  # fmt: skip
TEXT_COLUMNS = ("n", "float", "found", "ratio", "bounds", "bytes held", "of", "times as fast")
RATIOS_AT = (0.9, 0.95)
SPARSITIES = (0.5, 0.75, *RATIOS_AT, 0.99)


def image_cells(found: AccuracyComparison) -> tuple[object, ...]:
    """Give the share of right answers and what follows from it, but for that of the floats."""
    bounds = f"{found.low:+.2%} to {found.high:+.2%}"
    right, difference = f"{found.candidate_mean:.2%}", f"{found.difference:+.2%}"
    return right, difference, bounds, found.lost, found.gained, found.verdict


def file_cells(result: CompressionResult, general: Mapping[str, int]) -> tuple[str, ...]:
    original = result.original_bytes
    others = (f"{original / general[name]:.1f}" for name in ("zlib", "lzma"))
    return (
        f"{original:,}",
        f"{result.file_bytes:,}",
        f"{result.ratio:.2f}",
        f"{result.naive_ratio:.1f}",
        f"{result.bound_ratio:.2f}",
        f"{result.coding_above_bound:+.2%}",
        f"{result.header_bytes:,}",
        f"{result.above_bound:+.2%}",
        *others,
    )


def gain_cell(found: Comparison) -> str:
    """Give how many times as fast the candidate is, with its interval."""
    return f"{found.speedup:.2f} ({found.speedup_low:.2f} to {found.speedup_high:.2f})"


def sparse_cells(found: Mapping[float, Estimate]) -> tuple[str, ...]:
    """Give from which of these sparsities on sparse is shown to be faster, and by how much."""
    slower = [sparsity for sparsity, ratio in found.items() if not ratio.is_less_than(1.0)]
    faster = [sparsity for sparsity in found if sparsity > max(slower, default=0.0)]
    gains = (found[sparsity].inverse for sparsity in RATIOS_AT)
    return (
        f"{min(faster):.0%}" if faster else f"never up to {max(found):.0%}",
        *(f"{each.value:.2f} ({each.low:.2f} to {each.high:.2f})" for each in gains),
    )


# ---------------------------------------------------------------- targets


def speed_target(name: str, limit: float, found: Comparison) -> Target:
    """Judge by the interval: all of it at the limit or above is met, all of it below is missed."""
    verdict = "met" if found.speedup_low >= limit else "inconclusive"
    verdict = "missed" if found.speedup_high < limit else verdict
    return Target(name, f"at least {limit:g}", gain_cell(found), verdict)


def at_most(name: str, limit: float, found: float) -> Target:
    verdict = "met" if found <= limit else "missed"
    return Target(name, f"at most {limit:.0%}", f"{found:.1%}", verdict)


def within(name: str, limit: float, found: float) -> Target:
    """Judge what something has too much of."""
    verdict = "met" if found <= limit else "missed"
    return Target(name, f"at most {limit:.0%} more", f"{found:+.2%}", verdict)
