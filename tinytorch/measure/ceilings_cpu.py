"""Measuring the ceilings of the processor: matrix products, and the bandwidth of each level."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.errors import SettingError, check_number
from tinytorch.measure.ceilings import Bandwidth, Ceilings, Progress, Rate, torch_is_imported
from tinytorch.measure.environment import Environment, blas_threads, describe_environment, observe
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import WALL, Clock, gc_paused, measure_time

# ---------------------------------------------------------------- bytes per second between the
# cores and a working set, with several threads at once

Words = npt.NDArray[np.int64]
Kernel = Callable[[Words, Words, int], object]
Task = tuple[Kernel, int, bool]
"""What a thread does: a kernel, the words of its working set, and whether that has two sides."""
WORD = 8
LINE = 64
BLOCK_S = 0.02
"""How long one value takes: threads start within 0.1 ms of each other, which must not matter."""
MOST_REPEATS = 1 << 40
"""A kernel that takes no longer however often it repeats is not asked for more."""
RANDOM_WORDS = 1 << 16


@dataclass(frozen=True)
class Kernels:
    """Two loops over memory, (source, target, repeats), that leave other threads running.

    `smallest_bytes` is the working set of a thread below which calling them costs too much.
    """

    library: str
    read: Kernel
    copy: Kernel
    smallest_bytes: int


def compiled_kernels() -> Kernels:
    """Return loops compiled by numba; an ImportError says why not.

    They are compiled when first called, which takes about a second, and numba keeps them on disk.
    """
    return Kernels("numba", _compiled(_read_loop), _compiled(_copy_loop), LINE)


@lru_cache
def _compiled(function: Kernel) -> Kernel:
    import numba

    try:
        compiled: Kernel = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # There is no folder where the result could be kept.
        compiled = numba.njit(nogil=True)(function)
    return compiled


def _read_loop(source: Words, target: Words, repeats: int) -> int:
    """Read every word of `source`, again and again; `target` is there for the same signature."""
    total = 0
    for repeat in range(repeats):
        # Whole numbers, because their additions may be reordered and so run as vectors.
        seen = 0
        for index in range(source.size):
            seen += source[index]
        total ^= seen + repeat
    return total


def _copy_loop(source: Words, target: Words, repeats: int) -> int:
    """Copy `source` to `target` and back, again and again."""
    for repeat in range(repeats):
        if repeat % 2:
            for index in range(source.size):
                source[index] = target[index]
        else:
            for index in range(source.size):
                target[index] = source[index]
    return repeats


def numpy_kernels() -> Kernels:
    """Return kernels of NumPy calls. Below a megabyte, call overhead dominates."""
    return Kernels("numpy", _numpy_read, _numpy_copy, 1 << 20)


def _numpy_read(source: Words, target: Words, repeats: int) -> object:
    for _ in range(repeats):
        np.bitwise_or.reduce(source)
    return None


def _numpy_copy(source: Words, target: Words, repeats: int) -> object:
    for _ in range(repeats):
        np.copyto(target, source)
    return None


class Crew:
    """Threads that work at the same time, each on its own memory.

    A thread fills its own memory, so that on machines with several memories it gets the nearest.
    """

    def __init__(self, threads: int, seed: int = 0) -> None:
        check_number("threads", threads, least=1)
        self.threads = threads
        # Never zeros: pages of zeros may share one piece of memory, and hardware may compress them.
        self._random = np.random.default_rng(seed).integers(-(2**62), 2**62, RANDOM_WORDS)
        self._pool = ThreadPoolExecutor(threads)
        self._barrier = threading.Barrier(threads)
        self._own = threading.local()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def rates(
        self, kernel: Kernel, working_set_bytes: int, *, values: int, is_copy: bool
    ) -> list[float]:
        """Return the bytes/s of all threads together, reading or copying a working set.

        A copy splits the working set into source and target; bytes read and written both count.
        """
        pair = 2 * LINE  # so that both sides of a copy begin with a cache line
        words = max(pair, working_set_bytes // self.threads // pair * pair) // WORD
        moved = words * WORD * self.threads
        task = (kernel, words, is_copy)
        repeats = self._calibrate(task)
        return [moved * repeats / self._run(task, repeats) for _ in range(values)]

    def _calibrate(self, task: Task) -> int:
        """Return the repeats that fill a block of time; the first runs also warm the caches."""
        repeats = 1
        self._run(task, repeats)
        while (seconds := self._run(task, repeats)) < BLOCK_S / 2:
            if repeats >= MOST_REPEATS:
                break
            repeats = max(2 * repeats, int(repeats * min(16.0, BLOCK_S / max(seconds, 1e-9))))
        return repeats

    def _run(self, task: Task, repeats: int) -> float:
        """Return the seconds from the start of the first thread to the end of the last."""
        tasks = [self._pool.submit(self._work, task, repeats) for _ in range(self.threads)]
        starts, ends = zip(*(task.result() for task in tasks), strict=True)
        return max(ends) - min(starts)

    def _work(self, task: Task, repeats: int) -> tuple[float, float]:
        kernel, words, is_copy = task
        try:
            whole = self._memory(words)
        except BaseException:
            self._barrier.abort()  # the others must not wait for a thread that will not come
            raise
        half = words // 2
        source, target = (whole[:half], whole[half:]) if is_copy else (whole, whole[:0])
        self._barrier.wait()
        start = perf_counter()
        kernel(source, target, repeats)
        return start, perf_counter()

    def _memory(self, words: int) -> Words:
        """Return this thread's working set: to fill one takes longer than to measure it."""
        own: Any = self._own
        if getattr(own, "words", None) != words:
            own.words = own.whole = None  # free the old before taking the new
            own.whole = _aligned(words)
            for start in range(0, words, RANDOM_WORDS):
                part = own.whole[start : start + RANDOM_WORDS]
                part[:] = self._random[: part.size]
            own.words = words
        whole: Words = own.whole
        return whole


def _aligned(words: int) -> Words:
    """Return memory aligned to a cache line; vectors across two lines take twice as long."""
    memory = np.empty(words * WORD + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + words * WORD].view(np.int64)


# ---------------------------------------------------------------- the rate of square matrix
# products, at a size where it is highest

TOO_LONG = 0.6
"""The part of the budget that one product may take; larger ones are not tried."""
TRIES = 3
TRIES_SHARE = 0.1
"""How often a size is tried, and the part of the budget after which once is enough."""
ALIKE = 0.95
"""Of two sizes whose rates are alike the larger one is taken: disturbances matter less there."""


def best_matrix_rate(
    name: str,
    product_at: Callable[[int], Callable[[], object]],
    *,
    sizes: Sequence[int],
    budget_s: float,
    clock: Clock = WALL,
) -> Samples:
    """Return the FLOP/s of the fastest size, two per multiply-accumulate, value by value.

    `product_at(n)` returns a function that multiplies two n x n matrices. Sizes grow, and the
    search ends where one product takes too much of the budget.
    """
    if not sizes:
        raise SettingError("no sizes to try; give at least one")
    best_rate, best_size = 0.0, 0
    for size in sizes:
        if best_rate and 2 * size**3 / best_rate > TOO_LONG * budget_s:
            break
        rate = 2 * size**3 / _shortest(product_at(size), clock, TRIES_SHARE * budget_s)
        if rate >= ALIKE * best_rate:
            best_size = size
        best_rate = max(best_rate, rate)
    times = measure_time(
        product_at(best_size),
        name=f"{name} matrix product, n={best_size}",
        warmup=1,
        budget_s=budget_s / 2,
        clock=clock,
        inner_loops=1,
        max_runs=200,
    )
    rates = tuple(2 * best_size**3 / seconds for seconds in times.values)
    return replace(times, values=rates, unit="FLOP/s")


def _shortest(product: Callable[[], object], clock: Clock, enough_s: float) -> float:
    """Return the shortest of a few times."""
    clock.time(product, 1)  # This one may have to load a library, or take memory: it says nothing.
    times = [clock.time(product, 1)]
    while len(times) < TRIES and sum(times) < enough_s:
        times.append(clock.time(product, 1))
    return min(times)


# ---------------------------------------------------------------- measuring the ceilings of the
# processor: matrix products, and the bandwidth of each level

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
MOST_OVERTIME = 1.5
"""No further visits once so many times the planned seconds have passed: the machine is busy."""
SECONDS_PER_VALUE = 0.03
MIB = 1 << 20
LARGEST_DRAM_SET = 512 * MIB
DRAM_SET_WITHOUT_CACHES = 256 * MIB

Advance = Callable[[str], None]


class Steps:
    """Reports which step begins, and counts those that have ended."""

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
    """Return the current time in ISO 8601, in UTC."""
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
    """Return the steps of :func:`measure_cpu`; fewer where levels cannot be measured."""
    levels = memory_levels(describe_environment())
    return ROUNDS * len(levels) + len(NUMPY_DTYPES) + (TORCH_STEPS if torch_is_imported() else 0)


def add_torch_rates(ceilings: Ceilings, *, seconds: float, progress: Progress | None) -> Ceilings:
    """Measure PyTorch's matrix products and add them to ceilings of the processor."""
    before = observe()
    found = _merge_torch(ceilings, TORCH_SHARE * seconds, Steps(progress))
    doubts = observe().doubts_since(before)
    return replace(found, measured_at=now(), disturbances=(*ceilings.disturbances, *doubts))


def _numpy_has_more_threads(environment: Environment) -> str:
    """Return why NumPy's rates are no ceiling for PyTorch, which has fewer threads, or "".

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
    """Return the levels of this machine, fastest first, sized by its caches.

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
    """Return the compiled kernels, or those of NumPy and why there are no compiled ones."""
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
    end = perf_counter() + MOST_OVERTIME * budget_s
    with gc_paused(), Crew(threads) as crew:
        for number in range(ROUNDS):
            if number and perf_counter() > end:
                break
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
    """Return the levels that these kernels can measure, and the reasons for the others."""
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
