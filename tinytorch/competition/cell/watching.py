"""What a process uses, seen from outside: nothing that it says about itself is taken."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from tinytorch.competition.cell.contender import Usage

__all__ = ["Watch", "descendants"]

PROCESS_CLOCK = 2
"""The kind of clock that the kernel keeps for each process: time that its threads ran, exactly."""
RESET_PEAK = "5"
PACKAGE = re.compile(r"/(?:site|dist)-packages/(\w+)")


class Watch:
    """Counts what a process, and those that it starts, use from now on."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._statm: int | None = None
        with suppress(OSError):  # not on Linux
            self._statm = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError):  # an old kernel, or not allowed: the peak counts from the start
            Path(f"/proc/{pid}/clear_refs").write_text(RESET_PEAK, "ascii")
        self._packages = self._mapped_packages()
        self._start_bytes = self.held_bytes()
        self._start_s = self._clock_s()

    def close(self) -> None:
        """Look no longer."""
        if self._statm is not None:
            os.close(self._statm)
            self._statm = None

    def held_bytes(self) -> int:
        """Give the memory that the process holds now, all told; 0 when it is gone."""
        try:
            if self._statm is not None:
                return int(os.pread(self._statm, 64, 0).split()[1]) * self._page_bytes
            return int(self._process.memory_info().rss)
        except (OSError, IndexError, psutil.Error):
            return 0

    def cpu_s(self, *, with_children: bool = False) -> float:
        """Give the processor time since the watch began."""
        used = self._clock_s() - self._start_s
        if not with_children:
            return used
        return used + sum(map(_spent_s, descendants(self._process.pid)))

    def usage(self, modules: Iterable[str] = ()) -> Usage:
        """Give all that was used. To the modules come packages whose libraries were loaded.

        Memory is counted in pages; a peak is never less than one.
        """
        everybody = [self._process, *descendants(self._process.pid)]
        growth = self._peak_bytes() - self._start_bytes
        loaded = self._mapped_packages() - self._packages
        return Usage(
            cpu_s=self.cpu_s(with_children=True),
            memory_bytes=max(0, self.held_bytes() - self._start_bytes),
            peak_bytes=max(self._page_bytes, growth),
            threads=sum(map(_thread_count, everybody)),
            processes=len(everybody),
            modules=tuple(sorted({*modules, *loaded})),
        )

    def _clock_s(self) -> float:
        try:
            return time.clock_gettime(~self._process.pid << 3 | PROCESS_CLOCK)
        except (OSError, AttributeError):
            return _spent_s(self._process)

    def _peak_bytes(self) -> int:
        with suppress(OSError, ValueError, IndexError):
            text = Path(f"/proc/{self._process.pid}/status").read_text("ascii", errors="replace")
            return int(text.partition("VmHWM:")[2].split()[0]) * 1024
        return self.held_bytes()

    def _mapped_packages(self) -> set[str]:
        """Name the packages whose compiled parts the process has loaded."""
        with suppress(OSError):
            text = Path(f"/proc/{self._process.pid}/maps").read_text("utf-8", errors="replace")
            return set(PACKAGE.findall(text))
        return set()


def descendants(pid: int) -> list[psutil.Process]:
    """Give the processes that one has started, and those that they have."""
    with suppress(psutil.Error):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def _spent_s(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _thread_count(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.num_threads())
    return 0
