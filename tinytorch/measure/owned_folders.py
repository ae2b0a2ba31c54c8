"""Temporary folders that know whose they are, so that those of killed processes can be removed."""

from __future__ import annotations

import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

__all__ = ["is_running", "own_start", "owned_folder", "remove_stale_folders"]

CLOCK_STEP_S = 10.0
"""The start of a process is told relative to the clock, which may be set while it runs. Another
process with the same number does not start within so short a time."""
OWNER = re.compile(r"(?P<pid>\d+)-(?P<started>\d+)-\w+")


@contextmanager
def owned_folder(purpose: str) -> Iterator[Path]:
    """Give a new temporary folder, which is gone when the block ends.

    Its name holds the machine and the process, so there is no moment at which it has no owner.
    """
    process = psutil.Process()
    owner = f"{process.pid}-{process.create_time() * 1e3:.0f}"
    with tempfile.TemporaryDirectory(
        prefix=f"{_prefix(purpose)}{owner}-", ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def remove_stale_folders(purpose: str) -> tuple[Path, ...]:
    """Remove the folders of processes on this machine that were killed, and name them."""
    removed, prefix = [], _prefix(purpose)
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        owner = OWNER.fullmatch(folder.name.removeprefix(prefix))
        if owner and not is_running(int(owner["pid"]), int(owner["started"]) / 1e3):
            shutil.rmtree(folder, ignore_errors=True)  # another user's stays
            removed.append(folder)
    return tuple(removed)


def own_start() -> float:
    """Give when this process was started, for :func:`is_running`."""
    return psutil.Process().create_time()


def is_running(pid: int, started: float) -> bool:
    """Say whether the process with a number that was started at some time is still there."""
    try:
        process = psutil.Process(pid)
        return (
            abs(process.create_time() - started) < CLOCK_STEP_S
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.AccessDenied:
        return True  # nobody can tell, so it is left alone
    except (psutil.Error, ValueError):
        return False


def _prefix(purpose: str) -> str:
    host = re.sub(r"[^\w.]", "_", platform.node())
    return f"tinytorch-{purpose}-{host}-"
