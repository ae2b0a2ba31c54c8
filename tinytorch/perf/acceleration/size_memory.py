"""How much memory is left for trying out sizes on a processor, and a fence around it."""

from __future__ import annotations

import importlib
import mmap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tinytorch.measure.control_groups import group_folders

__all__ = ["available_bytes", "be_first_to_go", "fence_address_space"]

OOM_SCORE = Path("/proc/self/oom_score_adj")
FIRST_TO_GO = "1000"
PROBE_BYTES = 64 << 20
"""So much more than is allowed is asked for, to see whether the fence holds."""


def available_bytes() -> int:
    """Give what this process may take without making the machine swap, as it is known now.

    A limit of the control groups around us counts, too: there, what exceeds it is killed.
    """
    import psutil

    return min([int(psutil.virtual_memory().available), *_left_in_groups()])


def fence_address_space(allowed_bytes: int) -> bool:
    """Let every allocation beyond so many bytes more fail, and say whether that really works.

    The fence is around the address space, since no system enforces one around memory that is in
    use. It stays for the rest of the process. False where the system has none, as on Windows and
    macOS; then nothing is limited.
    """
    import psutil

    try:
        resource = importlib.import_module("resource")
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = psutil.Process().memory_info().vms + allowed_bytes
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (ImportError, AttributeError, ValueError, OSError):
        return False
    try:
        mmap.mmap(-1, allowed_bytes + PROBE_BYTES).close()
    except (OSError, OverflowError, ValueError):
        return True
    return False


def be_first_to_go() -> None:
    """Ask the system to end this process before others, should memory run out in spite of all."""
    with suppress(OSError):
        OOM_SCORE.write_text(FIRST_TO_GO, "ascii")


def _left_in_groups() -> Iterator[int]:
    """Yield what is left below the memory limits of our control groups, in both layouts."""
    for folder in group_folders("memory"):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            most, now = _number(folder / limit), _number(folder / used)
            if most is not None and now is not None:
                yield max(0, most - now + _reclaimable(folder))


def _number(path: Path) -> int | None:
    try:
        text = path.read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None  # without a limit it reads "max"


def _reclaimable(folder: Path) -> int:
    """Give the bytes of files in memory, which go when somebody needs the room."""
    try:
        lines = (folder / "memory.stat").read_text("ascii").splitlines()
    except (OSError, ValueError):
        return 0
    facts = dict(line.split(maxsplit=1) for line in lines if " " in line)
    found = facts.get("inactive_file", facts.get("total_inactive_file", "0"))
    return int(found) if found.isdecimal() else 0
