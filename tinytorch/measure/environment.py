"""Where a number was measured: hardware, libraries, settings and how busy the machine was."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from tinytorch.codec import Coded

# ---------------------------------------------------------------- facts about the processor, read
# from the operating system; None where it does not say

CPU_FILE = Path("/proc/cpuinfo")
CPU_TREE = Path("/sys/devices/system/cpu")
MATTERING = (
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimdhp",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
)
"""Instructions that decide how fast matrix products are, in the kernel's spelling."""


@dataclass(frozen=True)
class Cache:
    """One level of data cache: what one piece holds, and all pieces that we may use together."""

    one_bytes: int
    total_bytes: int


def cpu_model() -> str | None:
    """Return the name of the processor."""
    names = re.findall(r"^(?:model name|cpu model|Model)\s*:\s*(.+)$", _text(CPU_FILE), re.M)
    if names:
        return str(names[0]).strip()
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string")
    return platform.processor() or None


def instruction_sets() -> tuple[str, ...]:
    """Return the processor's instruction sets that matter for speed."""
    lines = re.findall(r"^(?:flags|Features)\s*:\s*(.+)$", _text(CPU_FILE), re.M)
    found = set(lines[0].split()) if lines else set()
    return tuple(name for name in MATTERING if name in found)


def frequency_governor() -> str | None:
    """Return the frequency governor of the kernel."""
    return _text(CPU_TREE / "cpu0" / "cpufreq" / "scaling_governor").strip() or None


def cache_levels(cpus: frozenset[int] | None = None) -> dict[str, Cache]:
    """Return the data caches by name (L1d, L2, L3, ...), as seen from some logical CPUs, or all.

    Each piece counts once, however many of the CPUs share it.
    """
    pieces: dict[str, dict[str, int]] = {}
    for level, sharers, size in _cache_pieces(cpus):
        pieces.setdefault(level, {})[sharers] = size
    if pieces:
        return {
            level: Cache(max(sizes.values()), sum(sizes.values()))
            for level, sizes in sorted(pieces.items())
        }
    return _mac_caches() if sys.platform == "darwin" else {}


def _cache_pieces(cpus: frozenset[int] | None) -> Iterator[tuple[str, str, int]]:
    for folder in CPU_TREE.glob("cpu[0-9]*/cache/index[0-9]*"):
        if cpus is not None and int(folder.parent.parent.name[3:]) not in cpus:
            continue
        kind, level = _text(folder / "type").strip(), _text(folder / "level").strip()
        size = _size_in_bytes(_text(folder / "size"))
        if kind in ("Data", "Unified") and level and size:
            sharers = _text(folder / "shared_cpu_list").strip() or str(folder)
            yield f"L{level}d" if level == "1" else f"L{level}", sharers, size


def _size_in_bytes(text: str) -> int | None:
    """Read a size such as ``32K``."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip())
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else None


def _mac_caches() -> dict[str, Cache]:
    found = {}
    for name, key in (
        ("L1d", "hw.l1dcachesize"),
        ("L2", "hw.l2cachesize"),
        ("L3", "hw.l3cachesize"),
    ):
        size = _sysctl(key)
        if size and size.isdecimal() and int(size):
            found[name] = Cache(int(size), int(size))
    return found


def _sysctl(key: str) -> str | None:
    try:
        ran = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip() or None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""


# ---------------------------------------------------------------- the control groups that this
# process is in: where Linux keeps its limits

GROUPS_OF_PROCESS = Path("/proc/self/cgroup")
GROUP_TREE = Path("/sys/fs/cgroup")


def group_folders(controller: str) -> Iterator[Path]:
    """Yield the control groups around this process for "cpu" or "memory", of v1 and v2."""
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


# ---------------------------------------------------------------- how many cores this process may
# use: affinity, and the quota of its control group


def usable_cores() -> int:
    """Return how many cores this process can keep busy: its affinity, capped by a quota."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    quota = cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cpu_quota() -> float | None:
    """Return the smallest CPU quota of the control groups of this process, in cores.

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


# ---------------------------------------------------------------- how many threads matrix products
# run on: what both sides of a roofline are measured with

# A word in the name of NumPy's BLAS -> the variables that it reads, the deciding one first.
BLAS_VARIABLES = {
    "openblas": ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"),
    "mkl": ("MKL_NUM_THREADS", "OMP_NUM_THREADS"),
    "blis": ("BLIS_NUM_THREADS", "OMP_NUM_THREADS"),
    "accelerate": ("VECLIB_MAXIMUM_THREADS",),
    "": ("OMP_NUM_THREADS",),
}


LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT")
"""What people set to say how many threads a PyTorch process may have."""


def thread_limit(present: int) -> int:
    """Return the most threads that a PyTorch process with `present` threads may be given.

    Environment variables, torch.set_num_threads() (which is in the `present` number), and the
    cores and the quota of the process all limit it.
    """
    wanted = filter(None, (_number(os.environ.get(name, "")) for name in LIMITS))
    return min(present, usable_cores(), *wanted)


def threads_in_force(blas: str | None) -> int:
    """Return the threads that models run on: PyTorch's once torch is imported, else BLAS's.

    Never more than the usable cores, because more threads do not make a machine faster.
    """
    ask_torch = getattr(sys.modules.get("torch"), "get_num_threads", None)
    return blas_threads(blas) if ask_torch is None else min(int(ask_torch()), usable_cores())


def blas_threads(blas: str | None) -> int:
    """Return the threads of a BLAS by its name: as its variables say, else all usable cores.

    Libraries read them when they are loaded, so they are to be set before the program starts.
    """
    word = next(word for word in BLAS_VARIABLES if word in (blas or "").lower())
    wanted = (_number(os.environ.get(name, "")) for name in BLAS_VARIABLES[word])
    return min(next(filter(None, wanted), usable_cores()), usable_cores())


def _number(text: str) -> int:
    """Read the number of a variable; OpenMP allows a list, one number for each level of nesting."""
    first = text.partition(",")[0].strip()
    return int(first) if first.isdecimal() else 0


# ---------------------------------------------------------------- evidence that something else
# used the machine while we measured

STEAL_LIMIT = 0.02
"""The share of time taken by other guests of the host from which on we say so."""
ENOUGH_TICKS = 20
"""The kernel counts in steps of 10 ms; below 20 of them a share means nothing."""
SWITCHES_PER_SECOND = 50
"""Involuntary context switches from which on the cores are contended."""
CPU_SHARE = 0.9
"""The share of wall time that a busy process spends computing, at least."""
OWN_LOAD = 0.5
"""The load average may exceed the cores by this: measuring itself keeps every one busy."""
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

    def doubts_since(
        self, earlier: Observation, *, is_computing: bool = True, may_wait: bool = False
    ) -> tuple[str, ...]:
        """Return one sentence about what disturbed the time between the two moments, or none.

        A process that lets others, or a device, compute waits without being disturbed; one that
        `may_wait` does so in between. Numbers that are in order are said as well, so that two such
        sentences differ in numbers alone.
        """
        own = (None if may_wait else _computing(earlier, self), _switches(earlier, self))
        parts = (_load(), _steal(earlier, self), *(own if is_computing else ()))
        found = [each for each in parts if each is not None]
        if not any(is_disturbed for _, is_disturbed in found):
            return ()
        return (f"the machine was busy: {', '.join(words for words, _ in found)}",)


Part = tuple[str, bool] | None
"""What was seen, and whether that is a disturbance; None where it is not known."""


def observe() -> Observation:
    """Read the counters now."""
    return Observation()


def cpu_ticks() -> CpuTicks | None:
    """Read the kernel's counters; None where there are none."""
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


def _steal(before: Observation, after: Observation) -> Part:
    if before.ticks is None or after.ticks is None:
        return None
    total = after.ticks.total - before.ticks.total
    share = (after.ticks.stolen - before.ticks.stolen) / total if total >= ENOUGH_TICKS else 0.0
    return f"{share:.0%} stolen by the host", share > STEAL_LIMIT


def _computing(before: Observation, after: Observation) -> Part:
    wall, cpu = after.wall_s - before.wall_s, after.cpu_s - before.cpu_s
    if wall <= 0:
        return None
    return f"computing {cpu / wall:.0%} of the time", cpu < CPU_SHARE * wall


def _switches(before: Observation, after: Observation) -> Part:
    """Count preemptions; the counter does not tell by whom, it may be by threads of its own."""
    if before.switches is None or after.switches is None:
        return None
    switches, wall = after.switches - before.switches, after.wall_s - before.wall_s
    return f"preempted {switches} times", switches >= max(5, SWITCHES_PER_SECOND * wall)


def is_overloaded(load: float | None, cores: int) -> bool:
    """Return whether more wants to run than the cores can, by the load average of a minute."""
    return load is not None and load > cores + OWN_LOAD


def _load() -> Part:
    if not hasattr(os, "getloadavg"):
        return None
    load, cores = os.getloadavg()[0], usable_cores()
    return f"load average {load:.1f} on {cores} cores", is_overloaded(load, cores)


# ---------------------------------------------------------------- where a number was measured:
# hardware, libraries, settings and how busy the machine was

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
class Environment(Coded):
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

    also_written = ("fingerprint",)

    @property
    def fingerprint(self) -> str:
        """A short hash of what determines speed and does not change by itself.

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
    """Return the name and version of the library behind NumPy's matrix products."""
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
            # Must not wait for, or disturb, another program that uses the same folder.
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None
