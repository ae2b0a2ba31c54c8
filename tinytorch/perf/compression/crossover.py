"""From which sparsity on a sparse product is faster than a dense one, measured on this machine."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch.comparison.sequential import Rule, TimeRatio, estimate_ratio, time_until_known
from tinytorch.comparison.sides import LocalSide
from tinytorch.core.backends import Array, Kernel
from tinytorch.core.backends.reference_sparse import pack_sparse
from tinytorch.core.dispatch import active_backend
from tinytorch.errors import BackendError, SettingError
from tinytorch.measure.environment import describe_environment
from tinytorch.perf.compression.crossover_store import (
    Key,
    crossover_file,
    load_crossovers,
    save_crossover,
)

__all__ = ["SPARSITIES", "Crossover", "CrossoverPoint", "measure_crossover", "merge_doubts"]

SPARSITIES = (0.5, 0.75, 0.9, 0.95, 0.99)
"""Where both are timed. Between two of them the time grows with the number of weights."""
FLOOR = 0.02
"""A point is known when its ratio is more than this off 1, or its interval this narrow."""

_known: dict[tuple[str, Key], Crossover] = {}


@dataclass(frozen=True)
class CrossoverPoint:
    """Both products at one sparsity: medians in seconds, and sparse over dense time."""

    sparsity: float
    dense_s: float
    sparse_s: float
    ratio: TimeRatio
    rounds: int


@dataclass(frozen=True)
class Crossover:
    """The sparsity at which a dense and a sparse product of some size take the same time.

    `points` are what was measured, in ascending order of sparsity; `doubts` say what speaks against
    the times, such as a busy machine.
    """

    inputs: int
    outputs: int
    rows: int
    backend: str
    threads: int
    points: tuple[CrossoverPoint, ...]
    doubts: tuple[str, ...] = ()

    def ratio_at(self, sparsity: float) -> TimeRatio:
        """Estimate sparse over dense time at a sparsity; below 1 sparse is faster.

        Between points the ratio is taken to grow with the share of weights that is left; below the
        first it is only known to be larger, beyond the last to be smaller than there.
        """
        left = [1 - point.sparsity for point in reversed(self.points)]

        def at(name: str) -> float:
            ratios = [getattr(point.ratio, name) for point in reversed(self.points)]
            return float(np.interp(1 - sparsity, left, ratios))

        return TimeRatio(at("value"), at("low"), at("high"))

    @property
    def sparsity(self) -> float | None:
        """From which sparsity on sparse is faster; None if it never is.

        The least sparsity that was tried means that it may be faster below that, too.
        """
        return self._crossing(lambda ratio: ratio.value)

    @property
    def low(self) -> float | None:
        """Below this sparsity dense is shown to be faster; None if that holds for all of them.

        The least sparsity that was tried means that dense is not shown to be faster anywhere.
        """
        return self._crossing(lambda ratio: ratio.low)

    @property
    def high(self) -> float | None:
        """From this sparsity on sparse is shown to be faster; None if it nowhere is."""
        return self._crossing(lambda ratio: ratio.high)

    def _crossing(self, read: Callable[[TimeRatio], float]) -> float | None:
        """Walk down from the highest sparsity as long as sparse is faster."""
        above: CrossoverPoint | None = None
        for point in reversed(self.points):
            if read(point.ratio) > 1:
                if above is None:
                    return None
                fast, slow = read(above.ratio), read(point.ratio)
                part = (1 - fast) / (slow - fast)
                return above.sparsity - part * (above.sparsity - point.sparsity)
            above = point
        return self.points[0].sparsity

    @property
    def where(self) -> str:
        """Say what was measured, and on what."""
        return (
            f"for {self.inputs} x {self.outputs} with {_count(self.rows, 'row')} on this machine "
            f"({self.backend}, {_count(self.threads, 'thread')})"
        )

    @property
    def note(self) -> str:
        """Say in a sentence from where on sparse is faster."""
        first, last = self.points[0].sparsity, self.points[-1].sparsity
        if self.low is None:
            return f"dense is faster at every sparsity up to {last:.0%} {self.where}"
        if self.high is None or self.sparsity is None:
            return f"sparse is not shown to be faster at any sparsity up to {last:.0%} {self.where}"
        if self.high == first:
            return f"sparse is faster from {first:.0%} sparsity on, the least tried, {self.where}"
        if self.low == first:
            return (
                f"sparse is shown to be faster from {self.high:.0%} sparsity on {self.where}; "
                f"below that no difference is shown, and below {first:.0%} it was not tried"
            )
        ends = (f"{self.low:.0%}", f"{self.high:.0%}")
        interval = "" if ends[0] == ends[1] else f" (between {ends[0]} and {ends[1]})"
        return f"dense is faster below {self.sparsity:.0%} sparsity{interval} {self.where}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Crossover:
        points = tuple(
            CrossoverPoint(**(each | {"ratio": TimeRatio(**each["ratio"])}))
            for each in fields["points"]
        )
        return cls(**(fields | {"points": points, "doubts": tuple(fields["doubts"])}))


def measure_crossover(
    inputs: int,
    outputs: int,
    rows: int,
    *,
    budget_s: float = 0.5,
    seed: int = 0,
    fresh: bool = False,
) -> Crossover:
    """Time a dense and a sparse product of this size in turns, at several sparsities.

    On the active backend. About `budget_s` is spent, and more where a few calls take longer. What
    was measured before is not measured again by this process, nor by another one on this machine
    with the same versions, unless it has to be `fresh`. Times that something speaks against, see
    `doubts`, are not kept for other processes.
    """
    sizes: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "rows": rows}
    for name, size in sizes.items():
        if not isinstance(size, (int, np.integer)) or size < 1:
            raise SettingError(f"{name}={size!r}; a product has at least one of them")
    if not 0 < budget_s < math.inf:
        raise SettingError(f"budget_s={budget_s}; measuring needs some seconds")
    backend, environment = active_backend(), describe_environment()
    key = (int(inputs), int(outputs), int(rows), backend.name)
    path = crossover_file(environment.fingerprint)
    place = (str(path), key)
    if not fresh:
        known = _known[place] if place in _known else _stored(path, key)
        if known is not None:
            return _known.setdefault(place, known)
    threads = _threads(backend.name, environment.threads_in_force)
    kernels = (backend.kernels["linear"], backend.kernels["sparse_linear"])
    points, doubts = _measure(key[:3], kernels, budget_s=budget_s, seed=seed)
    measured = Crossover(*key, threads, points, doubts)
    if not doubts:  # on a busy machine it holds for now only
        save_crossover(path, key, measured.to_dict())
    _known[place] = measured
    return measured


def _stored(path: Path, key: Key) -> Crossover | None:
    try:
        return Crossover.from_dict(load_crossovers(path)[key])
    except (LookupError, TypeError, ValueError):
        return None  # it can be measured again


def _measure(
    sizes: tuple[int, int, int], kernels: tuple[Kernel, Kernel], *, budget_s: float, seed: int
) -> tuple[tuple[CrossoverPoint, ...], tuple[str, ...]]:
    inputs, outputs, rows = sizes
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, inputs), np.float32)
    full = rng.standard_normal((inputs, outputs), np.float32)
    order = rng.random((inputs, outputs), np.float32)
    points: list[CrossoverPoint] = []
    doubts: list[str] = []
    for sparsity in SPARSITIES:
        weight = np.where(order < sparsity, np.float32(0), full)
        point, found = _measure_point(
            sparsity, x, weight, kernels, budget_s=budget_s / len(SPARSITIES), rng=rng
        )
        points.append(point)
        doubts += found
    return tuple(points), merge_doubts(doubts)


def _measure_point(
    sparsity: float,
    x: Array,
    weight: Array,
    kernels: tuple[Kernel, Kernel],
    *,
    budget_s: float,
    rng: np.random.Generator,
) -> tuple[CrossoverPoint, tuple[str, ...]]:
    linear, sparse_linear = kernels
    packed = pack_sparse(weight)
    _check_alike(x, weight, linear(x, weight), sparse_linear(x, *packed))

    def calling(kernel: Kernel, arrays: Sequence[Array]) -> Callable[[], Callable[[], object]]:
        def make() -> Callable[[], object]:
            copies = [each.copy() for each in (x, *arrays)]  # lie elsewhere in each round
            return lambda: kernel(*copies)

        return make

    timed = time_until_known(
        LocalSide("the dense product", calling(linear, (weight,)), can_rebuild=True, rng=rng),
        LocalSide("the sparse product", calling(sparse_linear, packed), can_rebuild=True, rng=rng),
        Rule(budget_s=budget_s),
        is_known=_is_known,
        rng=rng,
    )
    ratio = estimate_ratio([each.log_ratio for each in timed.rounds], timed.alpha)
    dense_s = float(np.median([s for each in timed.rounds for s in each.baseline]))
    sparse_s = float(np.median([s for each in timed.rounds for s in each.candidate]))
    return CrossoverPoint(sparsity, dense_s, sparse_s, ratio, len(timed.rounds)), timed.doubts


def _is_known(ratio: TimeRatio) -> bool:
    is_apart = ratio.high < 1 - FLOOR or ratio.low > 1 + FLOOR
    return is_apart or ratio.high < ratio.low * (1 + FLOOR)


def _check_alike(x: Array, weight: Array, dense: Array, sparse: Array) -> None:
    """Raise unless both are the same product, but for the rounding of its sums."""
    # the sum of the magnitudes of all terms is at most the product of both norms
    scale = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weight, axis=0)
    allowed = 2 * (len(weight) + 1) * np.finfo(np.float32).eps * scale
    if not (np.abs(dense - sparse) <= allowed).all():
        raise BackendError(
            "the sparse product does not give what the dense one gives, so nothing was timed; "
            "TINYTORCH_BACKEND=numpy computes without compiled kernels"
        )


def _threads(backend: str, of_blas: int) -> int:
    if backend != "numba":
        return of_blas
    from tinytorch.core.backends.numba_compile import THREADS

    return THREADS


_NUMBER = r"\d+(?:[.,]\d+)*%?"
_NUMBERS = re.compile(f"{_NUMBER}(?: to {_NUMBER})?")


def merge_doubts(doubts: Iterable[str]) -> tuple[str, ...]:
    """Let sentences that differ only in their numbers become one, which gives their range.

    >>> merge_doubts(["displaced 5 times", "the load is high", "displaced 12 times"])
    ('displaced 5 to 12 times', 'the load is high')
    """
    alike: dict[tuple[str, ...], list[list[str]]] = {}
    for each in doubts:
        words = tuple(_NUMBERS.split(each))
        alike.setdefault(words, []).append(_NUMBERS.findall(each))
    merged = []
    for words, numbers in alike.items():
        ranges = [_range(found) for found in zip(*numbers, strict=True)]
        pairs = zip(words, (*ranges, ""), strict=True)
        merged.append("".join(word + number for word, number in pairs))
    return tuple(merged)


def _range(numbers: Iterable[str]) -> str:
    """Give the least and the most of numbers as they are written, some of them ranges already."""
    single = [end for each in numbers for end in each.split(" to ")]
    ordered = sorted(single, key=lambda each: float(each.rstrip("%").replace(",", "")))
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")
