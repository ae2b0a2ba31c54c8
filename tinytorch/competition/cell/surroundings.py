"""What a contender finds around it: variables, files that it may read, and where it may write."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tinytorch.competition.cell.building import bytes_below
from tinytorch.competition.cell.confinement import PACKAGE, Confinement, program_paths
from tinytorch.competition.cell.contender import BACKEND, Contender, Limits
from tinytorch.competition.entries.entry import MANIFEST
from tinytorch.competition.entries.entry_file import files_below
from tinytorch.competition.events import find_event
from tinytorch.core.files import cache_folder
from tinytorch.workloads.zoo import WEIGHTS

__all__ = ["bytes_of_code", "confinement_of", "environment_of"]

ADDRESSES_BYTES = 4 << 30
"""Libraries reserve addresses that they never use; so many are free beside the memory."""
ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
)
HOMES = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")


def environment_of(contender: Contender, folder: Path) -> dict[str, str]:
    """Give the few variables that a contender has; nothing of ours is among them."""
    paths = [os.path.abspath(each) for each in sys.path if each]
    return {
        **dict.fromkeys(HOMES, str(folder)),
        **dict.fromkeys(ONE_THREAD, "1"),
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([*paths, str(PACKAGE.parent)])),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",  # so that last words are not lost
        "TINYTORCH_BACKEND": BACKEND,
        "TINYTORCH_CACHE": str(_cache(contender, folder)),
    }


def confinement_of(contender: Contender, folder: Path, limits: Limits) -> Confinement:
    """Give what a contender may read and write: its own files, the program, and a fresh folder."""
    own: list[str] = []
    listed: list[str] = []
    if contender.weights is not None:
        own.append(str(Path(contender.weights).resolve()))
    if contender.code is not None:
        home = _home(contender).resolve()
        # What is not hashed, such as earlier runs and compiled copies, cannot be read.
        own += [str(home / MANIFEST), *(str(home / name) for name in files_below(home))]
        listed.append(str(home))
    cache = _cache(contender, folder)
    cache.mkdir(parents=True, exist_ok=True)
    return Confinement(
        readable=(*program_paths(), *own),
        writable=(str(folder), str(cache)),
        address_space_bytes=limits.memory_bytes + ADDRESSES_BYTES,
        core=max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        may_start_processes=limits.processes > 1,
        listed=tuple(listed),
    )


def bytes_of_code(contender: Contender) -> int:
    """Count what code consists of: its folder, and the weights that it is given.

    What it says of itself is not asked: code may say what it likes.
    """
    given = WEIGHTS / f"{find_event(contender.event).model}.safetensors"
    return bytes_below(_home(contender)) + bytes_below(given)


def _home(contender: Contender) -> Path:
    assert contender.code is not None
    return Path(contender.code.rpartition(":")[0]).parent


def _cache(contender: Contender, folder: Path) -> Path:
    """Give where compiled kernels are kept: code gets a place where it can put nothing."""
    return folder / "cache" if contender.code else cache_folder().resolve()
