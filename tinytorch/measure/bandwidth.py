"""Bytes per second between the cores and a working set, with several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.errors import SettingError

__all__ = ["Crew", "Kernels", "compiled_kernels", "numpy_kernels"]

Words = npt.NDArray[np.int64]
Kernel = Callable[[Words, Words, int], object]
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
    """Give loops compiled by numba; an ImportError says why not."""
    from tinytorch.measure import ceilings_numba

    return Kernels("numba", ceilings_numba.read_repeatedly, ceilings_numba.copy_repeatedly, LINE)


def numpy_kernels() -> Kernels:
    """Give loops of NumPy calls. Calls on less than a megabyte measure the calling."""
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
    """Threads that work at the same time, each on memory of its own.

    A thread fills its own memory, so that on machines with several memories it gets the nearest.
    """

    def __init__(self, threads: int, seed: int = 0) -> None:
        if threads < 1:
            raise SettingError(f"threads={threads}; it must be at least 1")
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
        """Give bytes/s of all threads together, reading or copying a working set.

        A copy splits the working set into source and target; bytes read and written both count.
        """
        words = max(LINE, working_set_bytes // self.threads // LINE * LINE) // WORD
        moved = words * WORD * self.threads
        if is_copy:
            words //= 2
        repeats = self._calibrate(kernel, words)
        return [moved * repeats / self._run(kernel, words, repeats) for _ in range(values)]

    def _calibrate(self, kernel: Kernel, words: int) -> int:
        """Give the repeats that fill a block of time; the first runs also warm the caches."""
        repeats = 1
        self._run(kernel, words, repeats)
        while (seconds := self._run(kernel, words, repeats)) < BLOCK_S / 2:
            if repeats >= MOST_REPEATS:
                break
            repeats = max(2 * repeats, int(repeats * min(16.0, BLOCK_S / max(seconds, 1e-9))))
        return repeats

    def _run(self, kernel: Kernel, words: int, repeats: int) -> float:
        """Give the seconds from the start of the first thread to the end of the last."""
        tasks = [self._pool.submit(self._work, kernel, words, repeats) for _ in range(self.threads)]
        starts, ends = zip(*(task.result() for task in tasks), strict=True)
        return max(ends) - min(starts)

    def _work(self, kernel: Kernel, words: int, repeats: int) -> tuple[float, float]:
        try:
            source, target = self._memory(words)
        except BaseException:
            self._barrier.abort()  # the others must not wait for a thread that will not come
            raise
        self._barrier.wait()
        start = perf_counter()
        kernel(source, target, repeats)
        return start, perf_counter()

    def _memory(self, words: int) -> tuple[Words, Words]:
        own: Any = self._own
        if getattr(own, "words", None) != words:
            own.words = own.source = own.target = None  # free the old before taking the new
            own.source, own.target = _aligned(words), _aligned(words)
            own.source[:] = own.target[:] = np.resize(self._random, words)
            own.words = words
        return own.source, own.target


def _aligned(words: int) -> Words:
    """Give memory that begins with a cache line; vectors across two lines take twice as long."""
    memory = np.empty(words * WORD + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + words * WORD].view(np.int64)
