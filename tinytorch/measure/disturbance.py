"""Evidence that something else used the machine while we measured."""

from __future__ import annotations

import importlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from tinytorch.measure.cores import usable_cores

__all__ = ["CpuTicks", "Observation", "cpu_ticks", "observe"]

STEAL_LIMIT = 0.02
"""The share of time taken by other guests of the host from which on we say so."""
ENOUGH_TICKS = 20
"""The kernel counts in steps of 10 ms; below 20 of them a share means nothing."""
SWITCHES_PER_SECOND = 50
"""Involuntary context switches from which on somebody else wants the same cores."""
CPU_SHARE = 0.9
"""The share of wall time that a busy process spends computing, at least."""
STAT_FILE = Path("/proc/stat")


@dataclass(frozen=True)
class CpuTicks:
    """What the kernel has counted since boot over all cores: stolen ticks, and all of them."""

    stolen: int
    total: int


@dataclass(frozen=True)
class Observation:
    """The counters of the process and the machine at one moment."""

    wall_s: float = field(default_factory=time.perf_counter)
    cpu_s: float = field(default_factory=time.process_time)
    switches: int | None = field(default_factory=lambda: _involuntary_switches())
    ticks: CpuTicks | None = field(default_factory=lambda: cpu_ticks())

    def doubts_since(self, earlier: Observation, *, is_computing: bool = True) -> tuple[str, ...]:
        """Give a sentence for each reason to doubt what was measured between the two moments.

        A process that lets others, or a device, compute waits without being disturbed.
        """
        own = (_waiting_note(earlier, self), _switches_note(earlier, self)) if is_computing else ()
        found = (_steal_note(earlier, self), *own, _load_note())
        return tuple(note for note in found if note)


def observe() -> Observation:
    """Read the counters now."""
    return Observation()


def cpu_ticks() -> CpuTicks | None:
    """Read the kernel's counters, or give None where there are none."""
    try:
        words = STAT_FILE.read_text("ascii").split("\n", 1)[0].split()
        # user nice system idle iowait irq softirq steal; what follows is counted in user too.
        counts = [int(word) for word in words[1:9]]
    except (OSError, ValueError):
        return None
    return CpuTicks(counts[7], sum(counts)) if len(counts) == 8 else None


def _involuntary_switches() -> int | None:
    try:
        resource = importlib.import_module("resource")
    except ImportError:  # There is none on Windows.
        return None
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)


def _steal_note(before: Observation, after: Observation) -> str:
    if before.ticks is None or after.ticks is None:
        return ""
    total = after.ticks.total - before.ticks.total
    share = (after.ticks.stolen - before.ticks.stolen) / total if total >= ENOUGH_TICKS else 0.0
    if share <= STEAL_LIMIT:
        return ""
    return f"other guests of the host took {share:.0%} of the processor time meanwhile (steal)"


def _waiting_note(before: Observation, after: Observation) -> str:
    wall, cpu = after.wall_s - before.wall_s, after.cpu_s - before.cpu_s
    if wall <= 0 or cpu >= CPU_SHARE * wall:
        return ""
    return f"the process computed in only {cpu / wall:.0%} of the time: it waited or was displaced"


def _switches_note(before: Observation, after: Observation) -> str:
    if before.switches is None or after.switches is None:
        return ""
    switches, wall = after.switches - before.switches, after.wall_s - before.wall_s
    if switches < max(5, SWITCHES_PER_SECOND * wall):
        return ""
    # The counter does not tell who was given the core.
    return (
        f"the process was displaced {switches} times meanwhile: by others, or by threads of its "
        "own that share a core"
    )


def _load_note() -> str:
    if not hasattr(os, "getloadavg"):
        return ""
    load, cores = os.getloadavg()[0], usable_cores()
    if load <= cores + 0.5:  # Measuring itself keeps every core busy.
        return ""
    return f"the load average is {load:.1f} on {cores} usable cores: the machine is busy"
