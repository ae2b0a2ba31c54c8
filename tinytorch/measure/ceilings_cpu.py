"""Measuring the ceilings of the processor: matrix products, and the bandwidth of each level."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from tinytorch.measure.bandwidth import Crew, Kernels, compiled_kernels, numpy_kernels
from tinytorch.measure.ceilings import Bandwidth, Ceilings, Progress, Rate, torch_is_imported
from tinytorch.measure.disturbance import observe
from tinytorch.measure.environment import Environment, describe_environment
from tinytorch.measure.matrix_rate import best_matrix_rate
from tinytorch.measure.samples import Samples
from tinytorch.measure.threads import blas_threads
from tinytorch.measure.timing import gc_paused

__all__ = [
    "Level",
    "Steps",
    "add_torch_rates",
    "choose_kernels",
    "count_steps",
    "measure_cpu",
    "memory_levels",
    "now",
    "numpy_rates",
    "probe_bandwidths",
]

BANDWIDTH_SHARE, NUMPY_SHARE, TORCH_SHARE = 0.45, 0.22, 0.33
"""How the seconds are divided; without PyTorch its part is not used."""
NUMPY_DTYPES = ("float32", "float64")
TORCH_STEPS = 5
NOT_NUMPY = {
    "bfloat16 rate": "NumPy has no bfloat16; import torch first (machine --torch)",
    "float16 rate": "NumPy multiplies float16 in a slow loop; import torch first (machine --torch)",
    "int8 rate": "NumPy multiplies integers in a slow loop; import torch first (machine --torch)",
}
SIZES = (512, 1024, 2048, 4096)
ROUNDS = 3
"""Every level is visited so often: the bandwidth of a shared machine swings within seconds."""
SECONDS_PER_VALUE = 0.03
MIB = 1 << 20
LARGEST_DRAM_SET = 512 * MIB
DRAM_SET_WITHOUT_CACHES = 256 * MIB

Advance = Callable[[str], None]


class Steps:
    """Tells somebody who watches which step begins, and counts those that have ended."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._is_first = progress, True

    def __call__(self, text: str) -> None:
        if self._progress is None:
            return
        if not self._is_first:
            self._progress.advance()
        self._progress.describe(text)
        self._is_first = False


def now() -> str:
    """Give the time, for a reader and a file."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def measure_cpu(fingerprint: str, *, seconds: float, progress: Progress | None) -> Ceilings:
    """Measure everything about the processor, with PyTorch too once it is imported.

    Bandwidths and rates are of the same threads: those in force, see :func:`threads_in_force`.
    """
    environment = describe_environment()
    levels = memory_levels(environment)
    has_torch = torch_is_imported()
    steps = Steps(progress)
    before = observe()
    bandwidths, missing = probe_bandwidths(
        environment, budget_s=BANDWIDTH_SHARE * seconds, advance=steps
    )
    rates: tuple[Rate, ...] = ()
    reason = _numpy_has_more_threads(environment) if has_torch else ""
    if reason:
        missing["NumPy rates"] = reason
    else:
        rates = numpy_rates(budget_s=NUMPY_SHARE * seconds, advance=steps)
    ceilings = Ceilings(
        device="cpu",
        rates=rates,
        bandwidths=bandwidths,
        cache_bytes={each.name: each.capacity_bytes for each in levels if each.capacity_bytes},
        fingerprint=fingerprint,
        measured_at=now(),
        not_measured={**missing, **NOT_NUMPY},
    )
    if has_torch:
        ceilings = _merge_torch(ceilings, TORCH_SHARE * seconds, steps)
    return replace(ceilings, disturbances=observe().doubts_since(before))


def count_steps() -> int:
    """Give the steps that :func:`measure_cpu` takes; fewer where levels cannot be measured."""
    levels = memory_levels(describe_environment())
    return ROUNDS * len(levels) + len(NUMPY_DTYPES) + (TORCH_STEPS if torch_is_imported() else 0)


def add_torch_rates(ceilings: Ceilings, *, seconds: float, progress: Progress | None) -> Ceilings:
    """Measure PyTorch's matrix products and add them to ceilings of the processor."""
    before = observe()
    found = _merge_torch(ceilings, TORCH_SHARE * seconds, Steps(progress))
    doubts = observe().doubts_since(before)
    return replace(found, measured_at=now(), disturbances=(*ceilings.disturbances, *doubts))


def _numpy_has_more_threads(environment: Environment) -> str:
    """Say why NumPy's rates would be no ceiling for PyTorch: it has fewer threads.

    Hardware threads of one core share its arithmetic units, so only whole cores count.
    """
    ours, torchs = blas_threads(environment.blas), environment.threads_in_force
    if min(ours, environment.physical_cores or ours) <= torchs:
        return ""
    return f"NumPy multiplies with {ours} threads, but PyTorch is set to {torchs}"


def _merge_torch(ceilings: Ceilings, budget_s: float, advance: Advance) -> Ceilings:
    from tinytorch.measure.ceilings_torch import torch_rates

    rates, refused = torch_rates(budget_s=budget_s, advance=advance)
    missing = {key: why for key, why in ceilings.not_measured.items() if key not in NOT_NUMPY}
    return replace(ceilings, rates=(*ceilings.rates, *rates), not_measured={**missing, **refused})


@dataclass(frozen=True)
class Level:
    """A level of the memory: what to touch to measure it, and what it holds (None: the rest)."""

    name: str
    working_set_bytes: int
    capacity_bytes: int | None


def memory_levels(environment: Environment) -> list[Level]:
    """Give the levels of this machine, fastest first, sized by its real caches.

    Half of each cache, so that other things fit beside it, and four times the last one for the
    memory behind, or at least twice where that would be too much.
    """
    levels = []
    for name, cache in environment.caches.items():
        # There may be fewer threads than caches, and a thread has only the nearest.
        pieces = min(round(cache.total_bytes / cache.one_bytes), environment.threads_in_force)
        capacity = cache.one_bytes * pieces
        levels.append(Level(name.removesuffix("d"), capacity // 2, capacity))
    last = levels[-1].capacity_bytes if levels else None
    behind = DRAM_SET_WITHOUT_CACHES
    if last is not None:
        behind = min(4 * last, max(LARGEST_DRAM_SET, 2 * last))
    if environment.memory_bytes is not None:
        behind = min(behind, environment.memory_bytes // 8)
    return [*levels, Level("DRAM", behind, None)]


def choose_kernels() -> tuple[Kernels, str]:
    """Give the compiled loops, or those of NumPy and the reason why not the compiled ones."""
    try:
        return compiled_kernels(), ""
    except ImportError as error:
        return numpy_kernels(), f"numba cannot be imported ({error})"


def probe_bandwidths(
    environment: Environment, *, budget_s: float, advance: Advance
) -> tuple[tuple[Bandwidth, ...], dict[str, str]]:
    """Measure reading and copying at every level, and say which levels could not be measured.

    It is done with the threads in force, so that a limit on those of matrix products holds here.
    The levels take turns, so that each one's spread shows how the machine changes meanwhile.
    """
    kernels, reason = choose_kernels()
    threads = environment.threads_in_force
    levels, skipped = _split(memory_levels(environment), kernels, threads, reason)
    visits = ROUNDS * len(levels) * 2
    values = max(2, round(budget_s / visits / SECONDS_PER_VALUE))
    seen: dict[tuple[str, bool], list[float]] = {}
    with gc_paused(), Crew(threads) as crew:
        for _ in range(ROUNDS):
            for level in levels:
                advance(f"{level.name} bandwidth")
                for is_copy, kernel in ((False, kernels.read), (True, kernels.copy)):
                    rates = crew.rates(
                        kernel, level.working_set_bytes, values=values, is_copy=is_copy
                    )
                    seen.setdefault((level.name, is_copy), []).extend(rates)
    return tuple(_bandwidth(level, seen, threads) for level in levels), skipped


def _split(
    levels: list[Level], kernels: Kernels, threads: int, reason: str
) -> tuple[list[Level], dict[str, str]]:
    """Give the levels that these kernels can measure, and the reasons for the others."""
    kept, skipped = [], {}
    for level in levels:
        if level.capacity_bytes and level.working_set_bytes // threads < kernels.smallest_bytes:
            skipped[f"{level.name} bandwidth"] = (
                f"{reason}, and calling NumPy takes too long beside so little memory"
            )
        else:
            kept.append(level)
    if len(levels) == 1:
        skipped["cache bandwidth"] = "the system does not say how large its caches are"
    return kept, skipped


def _bandwidth(
    level: Level, seen: Mapping[tuple[str, bool], list[float]], threads: int
) -> Bandwidth:
    read, copy = (
        Samples(f"{level.name} {word}", tuple(seen[level.name, is_copy]), "B/s")
        for word, is_copy in (("read", False), ("copy", True))
    )
    return Bandwidth(
        level=level.name,
        working_set_bytes=level.working_set_bytes,
        read=read,
        copy=copy,
        threads=threads,
        capacity_bytes=level.capacity_bytes,
    )


def numpy_rates(*, budget_s: float, advance: Advance) -> tuple[Rate, ...]:
    """Measure the matrix products of NumPy's BLAS, with its own threads."""
    rates = []
    for dtype in NUMPY_DTYPES:
        advance(f"NumPy {dtype} rate")
        samples = best_matrix_rate(
            f"NumPy {dtype}",
            _numpy_product(dtype),
            sizes=SIZES,
            budget_s=budget_s / len(NUMPY_DTYPES),
        )
        rates.append(Rate(dtype, "numpy", samples))
    return tuple(rates)


def _numpy_product(dtype: str) -> Callable[[int], Callable[[], object]]:
    rng = np.random.default_rng(0)

    def at(size: int) -> Callable[[], object]:
        left, right = (rng.standard_normal((size, size)).astype(dtype) for _ in range(2))
        result = np.empty_like(left)
        return lambda: np.matmul(left, right, out=result)

    return at
