"""Where a number was measured: hardware, libraries, settings and how busy the machine was."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch.measure.cores import cpu_quota, usable_cores
from tinytorch.measure.disturbance import cpu_ticks
from tinytorch.measure.hardware import (
    Cache,
    cache_levels,
    cpu_model,
    frequency_governor,
    instruction_sets,
)
from tinytorch.measure.threads import threads_in_force

__all__ = ["Commit", "Environment", "describe_environment"]

LIBRARIES = (
    "numpy",
    "scipy",
    "numba",
    "llvmlite",
    "torch",
    "torchao",
    "torch-pruning",
    "transformers",
    "onnxruntime",
    "safetensors",
    "psutil",
)
DECIDING_LIBRARIES = ("numpy", "numba", "llvmlite", "torch")
"""Those that compute; another version of them may be another speed."""
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "KMP_BLOCKTIME",
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NUMBA_THREADING_LAYER",
)
GIT_TIMEOUT_S = 5.0
GIB = 1 << 30


@dataclass(frozen=True)
class Commit:
    """The commit that a folder stands at, and whether files in it have changed since."""

    hash: str
    is_dirty: bool

    def __str__(self) -> str:
        return self.hash[:12] + (" and changes" if self.is_dirty else "")


@dataclass(frozen=True)
class Environment:
    """The machine and the software on it. None is what the system does not say.

    `usable_cores` respects affinity and quota, `steal_share` is the part of all processor time
    since boot that other guests of the host took, `threads` holds the variables that are set, and
    `threads_in_force` is what they and PyTorch, once imported, lead to.
    """

    cpu_model: str | None
    instruction_sets: tuple[str, ...]
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: int
    cpu_quota: float | None
    caches: Mapping[str, Cache]
    governor: str | None
    frequency_mhz: float | None
    memory_bytes: int | None
    steal_share: float | None
    load_average: float | None
    system: str
    machine: str
    python: str
    libraries: Mapping[str, str]
    blas: str | None
    threads: Mapping[str, str]
    threads_in_force: int
    commit: Commit | None

    @property
    def fingerprint(self) -> str:
        """Give a short hash of what decides about speed and does not change by itself.

        Hardware, usable cores, the number of threads, settings about them and the versions of what
        computes are in it; load, frequency and commit are not.
        """
        deciding = {
            "cpu": [self.cpu_model, self.instruction_sets, self.machine],
            "cores": [self.physical_cores, self.logical_cores, self.usable_cores, self.cpu_quota],
            "caches": {name: asdict(cache) for name, cache in self.caches.items()},
            # A guest gets a few pages more or less at every boot.
            "memory_gib": self.memory_bytes and round(self.memory_bytes / GIB),
            "python": self.python.rpartition(".")[0],
            "libraries": {name: self.libraries.get(name) for name in DECIDING_LIBRARIES},
            "blas": self.blas,
            "threads": [dict(self.threads), self.threads_in_force],
        }
        text = json.dumps(deciding, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON."""
        fields = asdict(self) | {"instruction_sets": list(self.instruction_sets)}
        return {**fields, "fingerprint": self.fingerprint}


def describe_environment(folder: str | os.PathLike[str] | None = None) -> Environment:
    """Describe this machine and its software; with a `folder`, also the commit it stands at.

    No library is imported for it.
    """
    ticks, blas = cpu_ticks(), _blas()
    return Environment(
        cpu_model=cpu_model(),
        instruction_sets=instruction_sets(),
        physical_cores=_ask_psutil("cpu_count", logical=False),
        logical_cores=os.cpu_count(),
        usable_cores=usable_cores(),
        cpu_quota=cpu_quota(),
        caches=cache_levels(_affinity()),
        governor=frequency_governor(),
        frequency_mhz=getattr(_ask_psutil("cpu_freq"), "current", None),
        memory_bytes=getattr(_ask_psutil("virtual_memory"), "total", None),
        steal_share=ticks.stolen / ticks.total if ticks and ticks.total else None,
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        python=platform.python_version(),
        libraries=_library_versions(),
        blas=blas,
        threads={name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
        threads_in_force=threads_in_force(blas),
        commit=None if folder is None else _commit_of(Path(folder)),
    )


def _affinity() -> frozenset[int] | None:
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _ask_psutil(name: str, **arguments: bool) -> Any:
    """Call a function of psutil; None where the system gives no answer."""
    import psutil

    try:
        return getattr(psutil, name)(**arguments)
    except (OSError, NotImplementedError, AttributeError, RuntimeError):
        return None


def _library_versions() -> dict[str, str]:
    versions = {name: _version_of(name) for name in LIBRARIES}
    return {name: version for name, version in versions.items() if version}


def _version_of(name: str) -> str | None:
    imported = getattr(sys.modules.get(name.replace("-", "_")), "__version__", None)
    if imported is not None:
        return str(imported)
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _blas() -> str | None:
    """Give the name and version of the library behind NumPy's matrix products."""
    try:
        found = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{found['name']} {found['version']}"
    except (KeyError, TypeError):
        return None


def _commit_of(folder: Path) -> Commit | None:
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return Commit(commit, is_dirty=changes != "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        ran = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            # Looking must not wait for, or disturb, somebody who works in the same folder.
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None
