"""Measuring what a key-value cache saves, length by length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tinytorch.comparison.compare import compare
from tinytorch.core.autograd import no_grad
from tinytorch.core.backends import Array
from tinytorch.core.dispatch import active_backend
from tinytorch.core.generation import without_attached_cache
from tinytorch.core.module import keeping_modes
from tinytorch.core.progress import ProgressLine
from tinytorch.core.transformers import GPT
from tinytorch.errors import MeasurementError, SettingError
from tinytorch.measure.ceilings import Progress
from tinytorch.perf.memoization.tradeoff import CachePoint, CacheTradeoff

__all__ = ["measure_cache_tradeoff"]

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
"""The lengths to measure by default, as shares of what the model can see."""
TOLERANCE = 1e-4
"""Logits with and without cache may differ by this share of the largest, and no more."""

Step = Callable[[], Array]


def measure_cache_tradeoff(
    model: GPT,
    lengths: Sequence[int] | None = None,
    *,
    batch_size: int = 1,
    budget_s: float = 1.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> CacheTradeoff:
    """Measure the step to one more token with a cache and without, at several lengths of the text.

    The step without cache is the whole forward pass over all `length` tokens, the step with cache
    that of the last one; both are what `generate` runs. Their logits are compared first, then they
    take turns for up to about `budget_s` at each length. Without `lengths` these go up to the
    model's `max_seq_len`. The text is drawn from `seed`.
    """
    chosen = _checked(model, lengths)
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, model.vocab_size, (batch_size, chosen[-1]))
    line = None if progress else ProgressLine(len(chosen))
    points: list[CachePoint] = []
    differences = []
    try:
        with keeping_modes(model), without_attached_cache(model):
            model.eval()
            for length in chosen:
                if progress:
                    progress.describe(f"one more token after {length - 1}")
                point, difference = _measure(model, ids[:, :length], budget_s=budget_s, seed=seed)
                points.append(point)
                differences.append(difference)
                if progress:
                    progress.advance()
                if line:
                    line.advance(f"{length} tokens")
    finally:
        if line:
            line.close()
    return CacheTradeoff(
        name=type(model).__name__,
        backend=active_backend().name,
        batch_size=batch_size,
        points=tuple(points),
        largest_difference=max(differences),
        notes=_joint_notes(points),
    )


def _measure(model: GPT, ids: Array, *, budget_s: float, seed: int) -> tuple[CachePoint, float]:
    batch, length = ids.shape
    cache = model.make_cache(batch, length)
    if length > 1:
        model.forward_with_cache(ids[:, :-1], cache, last_only=True)
    last = np.ascontiguousarray(ids[:, -1:])

    def cached() -> Array:
        cache.seq_pos = length - 1  # the same token again, in the same place
        return model.forward_with_cache(last, cache, last_only=True)[0].data[:, -1]

    def plain() -> Array:
        with no_grad():
            logits: Array = model(ids).data[:, -1]
        return logits

    difference = _check_equal(plain(), cached(), length)
    comparison = compare(
        plain,
        cached,
        names=("without cache", "with cache"),
        budget_s=budget_s,
        evidence=False,
        seed=seed,
    )
    held = int(cache.get_memory_usage()["total_elements"]) * cache.dtype.itemsize
    return CachePoint(length, held, comparison), difference


def _joint_notes(points: Sequence[CachePoint]) -> tuple[str, ...]:
    """Say each note once, and at which lengths it was made unless it was at all of them."""
    lengths: dict[str, list[int]] = {}
    for point in points:
        for note in point.comparison.notes:
            lengths.setdefault(note, []).append(point.length)
    return tuple(
        note if len(found) == len(points) else f"at {', '.join(map(str, found))} tokens: {note}"
        for note, found in lengths.items()
    )


def _check_equal(plain: Array, cached: Array, length: int) -> float:
    """Give the largest difference of the logits, or raise: what is wrong is not timed."""
    difference = float(np.abs(plain - cached).max())
    allowed = TOLERANCE * max(1.0, float(np.abs(plain).max()))
    if not difference <= allowed:
        raise MeasurementError(
            f"at {length} tokens the logits with and without cache differ by {difference:.3g}, "
            f"more than {allowed:.3g}; there is no point in timing them"
        )
    return difference


def _checked(model: GPT, lengths: Sequence[int] | None) -> list[int]:
    if not isinstance(model, GPT):
        raise SettingError(f"the trade-off is measured on a GPT, got {type(model).__name__}")
    if lengths is None:
        lengths = [max(1, round(model.max_seq_len * share)) for share in SHARES]
    chosen = sorted(set(lengths))
    if not chosen or chosen[0] < 1 or chosen[-1] > model.max_seq_len:
        raise SettingError(
            f"lengths {list(lengths)}; each must be from 1 to {model.max_seq_len}, which is what "
            "the model can see (max_seq_len)"
        )
    return chosen
