"""How many cores this process may use: affinity, and the quota of its control group."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from tinytorch.measure.control_groups import group_folders

__all__ = ["cpu_quota", "usable_cores"]


def usable_cores() -> int:
    """Give how many cores this process can keep busy: its affinity, cut by a quota."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    quota = cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cpu_quota() -> float | None:
    """Give the smallest processor quota of the control groups around us, in cores.

    None where there is no quota, or no control groups.
    """
    return min(_quotas(), default=None)


def _quotas() -> Iterator[float]:
    for folder in group_folders("cpu"):
        unified = _words(folder / "cpu.max")  # "quota period" or "max period"
        separate = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        for words in (unified, separate):
            # Without a limit the quota reads "max" or "-1".
            if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
                yield int(words[0]) / int(words[1])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text("ascii").split()
    except (OSError, ValueError):
        return []
