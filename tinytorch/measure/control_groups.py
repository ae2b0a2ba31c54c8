"""The control groups that this process is in: where Linux keeps its limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["group_folders"]

GROUPS_OF_PROCESS = Path("/proc/self/cgroup")
GROUP_TREE = Path("/sys/fs/cgroup")


def group_folders(controller: str) -> Iterator[Path]:
    """Give the folders of our group and those around it for "cpu" or "memory", in both layouts."""
    try:
        lines = GROUPS_OF_PROCESS.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        root = GROUP_TREE / controllers if controllers else GROUP_TREE
        inside = PurePosixPath(group.lstrip("/"))
        for part in (inside, *inside.parents):
            yield root / part
