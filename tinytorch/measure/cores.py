"""How many cores this process may use: affinity, and the quota of its control group."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["cpu_quota", "usable_cores"]

GROUPS_OF_PROCESS = Path("/proc/self/cgroup")
GROUP_TREE = Path("/sys/fs/cgroup")


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
    for folder in _group_folders():
        unified = _words(folder / "cpu.max")  # "quota period" or "max period"
        separate = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        for words in (unified, separate):
            # Without a limit the quota reads "max" or "-1".
            if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
                yield int(words[0]) / int(words[1])


def _group_folders() -> Iterator[Path]:
    """Give the folders of our control groups and of those around them, in both layouts."""
    try:
        lines = GROUPS_OF_PROCESS.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = GROUP_TREE / controllers if controllers else GROUP_TREE
        inside = PurePosixPath(group.lstrip("/"))
        for part in (inside, *inside.parents):
            yield root / part


def _words(path: Path) -> list[str]:
    try:
        return path.read_text("ascii").split()
    except (OSError, ValueError):
        return []
