"""What a contender's process does to itself before anything of an entry is loaded.

On Linux it gives up the network, other people's files, starting programs, and its privileges. Each
step is tried, and what is in force is told. Elsewhere only the limits that the system has are set.
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tinytorch.competition.cell.landlock import (
    SCOPES_SINCE,
    TCP_SINCE,
    LandlockRules,
    landlock_version,
)
from tinytorch.competition.cell.syscall_filter import forbid_calls
from tinytorch.errors import TinyTorchError

__all__ = ["PACKAGE", "Confinement", "confine", "program_paths"]

DIE_WITH_PARENT, DROP_BOUNDING, NO_NEW_PRIVILEGES = 1, 24, 38
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
CAPABILITIES = 64
KEPT_CAPABILITIES = 0b110
"""To read files whoever owns them: Landlock decides which. All others go."""
FOLLOWS_64_BITS = 0x20080522
SIGKILL = 9
FREE_FILES_BYTES = 256 << 20
PACKAGE = Path(__file__).parents[2]
"""The folder of TinyTorch itself."""

SYSTEM_PATHS = (
    "/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/opt/lib", "/nix/store",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime",
    "/etc/nsswitch.conf", "/etc/passwd", "/etc/os-release", "/etc/alternatives",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version",
    "/proc/filesystems", "/proc/mounts", "/proc/sys/vm/overcommit_memory",
    "/sys/devices", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage",
    "/dev/urandom", "/dev/random", "/dev/zero",
)  # fmt: skip
"""What the interpreter and the libraries under it read. Nothing of it is secret."""


@dataclass(frozen=True)
class Confinement:
    """What a process keeps. `core` is the only one that it runs on; None leaves them all.

    Of the folders in `listed` it sees the names, and reads only files that are in `readable`.
    """

    readable: tuple[str, ...]
    writable: tuple[str, ...]
    address_space_bytes: int
    core: int | None = None
    may_start_processes: bool = False
    listed: tuple[str, ...] = ()


def program_paths() -> tuple[str, ...]:
    """Give what has to be readable so that Python, its packages and TinyTorch can be imported.

    Other folders of `sys.path` are not among them: the current one may hold a round's seed.
    """
    homes = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    homes += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    homes += [each for each in sys.path if Path(each).name in ("site-packages", "dist-packages")]
    homes += [str(PACKAGE)]
    resolved = (str(Path(each).resolve()) for each in homes if each)
    return (*dict.fromkeys(each for each in resolved if each != "/"), *SYSTEM_PATHS)


def confine(wanted: Confinement) -> dict[str, str]:
    """Confine this process for ever, and say what is in force: "none: ..." where nothing is."""
    if sys.platform != "linux":
        nothing = dict.fromkeys(("files", "network", "signals", "processes"), "none: not on Linux")
        return {**nothing, "memory": _limit_memory(wanted), "cores": "none: not on Linux"}
    _prctl(DIE_WITH_PARENT, SIGKILL)
    cores = _attempt(lambda: _pin(wanted.core))
    memory = _limit_memory(wanted)
    network = _attempt(_leave_network)
    privileges = _attempt(_drop_privileges)
    files = _attempt(lambda: f"Landlock {_landlock(wanted)}")
    version = landlock_version() if not files.startswith("none") else 0
    if network.startswith("none") and version >= TCP_SINCE:
        network = "no TCP, by Landlock"
    signals = "none: the kernel's Landlock is too old"
    calls = _attempt(lambda: forbid_calls(starting_processes=not wanted.may_start_processes))
    processes = "none: it may start processes" if wanted.may_start_processes else calls
    return {
        "files": files,
        "network": network,
        "signals": "within itself" if version >= SCOPES_SINCE else signals,
        "processes": processes,
        "privileges": privileges,
        "memory": memory,
        "cores": cores,
    }


def _attempt(step: Callable[[], str]) -> str:
    try:
        return step()
    except (OSError, ValueError, AttributeError, TinyTorchError) as error:
        return f"none: {getattr(error, 'strerror', None) or error}"


def _pin(core: int | None) -> str:
    if core is None:
        return f"{len(os.sched_getaffinity(0))}"
    os.sched_setaffinity(0, {core})
    return "1"


def _limit_memory(wanted: Confinement) -> str:
    import resource

    limits = {
        "RLIMIT_AS": wanted.address_space_bytes,
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": FREE_FILES_BYTES,
    }

    def set_all() -> str:
        for name, limit in limits.items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(number, (least, least))
        return f"{wanted.address_space_bytes / 2**30:.3g} GiB of addresses"

    return _attempt(set_all)


def _leave_network() -> str:
    """Move into a network of our own, in which there is nobody."""
    try:
        _unshare(NEW_NETWORK)
    except PermissionError:
        user, group = os.getuid(), os.getgid()
        _unshare(NEW_USER | NEW_NETWORK)
        own = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
        for name, text in own.items():
            Path("/proc/self", name).write_text(text, "ascii")
    return "own namespace"


def _drop_privileges() -> str:
    """Give up what a superuser may do, so that nothing of the confinement can be undone."""
    _prctl(NO_NEW_PRIVILEGES, 1)
    library = ctypes.CDLL(None, use_errno=True)
    for capability in range(CAPABILITIES):
        library.prctl(DROP_BOUNDING, capability, 0, 0, 0)  # unknown ones, and for users, all fail
    header = (ctypes.c_uint32 * 2)(FOLLOWS_64_BITS, 0)
    held = (ctypes.c_uint32 * 6)()
    _check(library.capget(header, held))
    kept = [each & (KEPT_CAPABILITIES if place < 3 else 0) for place, each in enumerate(held)]
    _check(library.capset(header, (ctypes.c_uint32 * 6)(*kept)))
    return "dropped"


def _landlock(wanted: Confinement) -> int:
    writable = (*wanted.writable, "/dev/null")
    return LandlockRules(wanted.readable, writable, wanted.listed).enforce()


def _unshare(flags: int) -> None:
    _check(ctypes.CDLL(None, use_errno=True).unshare(flags))


def _prctl(option: int, value: int) -> None:
    _check(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0))


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
