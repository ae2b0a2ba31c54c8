"""What a contender's process gives up before code of an entry is imported: resources, system calls.

Bubblewrap decides what the process can see (bubblewrap.py). This decides what it can do with it,
and holds for ever and for every thread. Loading the filter needs pyseccomp and libseccomp.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from errno import ENOSYS, EPERM

FREE_FILES_BYTES = 256 << 20
"""How large one file may be, and all files of the sandbox together."""
ADDRESSES_BYTES = 4 << 30
"""Libraries reserve addresses that they never use; this many are free beside the memory."""
DATA_BYTES = 1 << 30
"""The same for what they may write to."""
MOST_OPEN_FILES = 256

REFUSED: dict[str, tuple[str | int, ...]] = {
    # A call that is newer than libseccomp stands with its number, the same on all processors.
    "starting processes, leaving the process group": (
        "fork", "vfork", "execve", "execveat", "setsid", "setpgid",
    ),
    "memory that is no memory of the process": (
        "memfd_create", "memfd_secret", "shmget", "msgget", "semget", "mq_open",
        "add_key", "request_key", "keyctl",
    ),
    "priorities and cores": (
        "setpriority", "sched_setaffinity", "sched_setscheduler", "sched_setparam",
        "sched_setattr", "ioprio_set", "mbind", "set_mempolicy", "set_mempolicy_home_node",
        "migrate_pages", "move_pages",
    ),
    "permissions, owners, times and attributes of files": (
        "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat",
        "setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr",
        "utime", "utimes", "futimesat", "utimensat",
        463, 466, 469,  # setxattrat, removexattrat, file_setattr
    ),
    "looking into processes and the kernel": (
        "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp",
        "pidfd_open", "pidfd_getfd", "perf_event_open", "bpf", "userfaultfd",
        "io_uring_setup", "io_uring_enter", "io_uring_register",
    ),
    "namespaces and mounts": (
        "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig",
        "fsmount", "fspick", "move_mount", "open_tree", "mount_setattr",
        "name_to_handle_at", "open_by_handle_at",
    ),
    "connections": ("socket", "socketpair", "connect"),
}  # fmt: skip
"""The calls that are refused with EPERM, by what they are for."""
REFUSED_OPTIONS: dict[str, tuple[int, ...]] = {
    # PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_MM, PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER
    "prctl": (1, 4, 35, 36, 0x59616D61),
    # FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS, FS_IOC_FSSETXATTR, TIOCSTI, TIOCLINUX
    "ioctl": (0x40086602, 0x40046602, 0x401C5820, 0x5412, 0x541C),
}
"""Calls of which only some options are refused, and in which argument an option stands."""
OPTION_AT = {"prctl": 0, "ioctl": 1}
OF_A_THREAD = 0x00010000  # CLONE_THREAD
WORD = 0xFFFFFFFF
"""The kernel reads the lower half of these arguments alone."""


@dataclass(frozen=True)
class Restrictions:
    """What a process keeps. `core` is the only one that it runs on; None leaves them all.

    Where it is not `sandboxed`, what cannot be set is left out, and no call is refused.
    """

    memory_bytes: int
    core: int | None = None
    sandboxed: bool = True
    may_start_processes: bool = False


def restrict(wanted: Restrictions) -> None:
    """Restrict this process for ever; in a sandbox, raise OSError where that is not possible."""
    for step in (_pin, _limit):
        if wanted.sandboxed:
            step(wanted)
            continue
        with suppress(OSError, ValueError, AttributeError, ImportError):  # other systems
            step(wanted)
    if wanted.sandboxed:
        refuse_calls(may_start_processes=wanted.may_start_processes)


def _pin(wanted: Restrictions) -> None:
    if wanted.core is not None:
        os.sched_setaffinity(0, {wanted.core})


def _limit(wanted: Restrictions) -> None:
    import resource

    limits = {
        "RLIMIT_AS": wanted.memory_bytes + ADDRESSES_BYTES,
        "RLIMIT_DATA": wanted.memory_bytes + DATA_BYTES,
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": FREE_FILES_BYTES,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_NOFILE": MOST_OPEN_FILES,
    }
    for name, limit in limits.items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(number, (least, least))


def refuse_calls(*, may_start_processes: bool) -> None:
    """Make the kernel refuse the calls of the tables for this process; threads stay possible."""
    import pyseccomp as seccomp

    refuse = seccomp.ERRNO(EPERM)
    calls = seccomp.SyscallFilter(seccomp.ALLOW)
    calls.set_attr(seccomp.Attr.CTL_TSYNC, 1)
    for call in _known_calls(may_start_processes=may_start_processes):
        calls.add_rule(refuse, call)
    for call, options in REFUSED_OPTIONS.items():
        for option in options:
            which = seccomp.Arg(OPTION_AT[call], seccomp.MASKED_EQ, WORD, option)
            calls.add_rule(refuse, call, which)
    # Limits of the own process can only be lowered; those of others are theirs.
    calls.add_rule(refuse, "prlimit64", seccomp.Arg(0, seccomp.NE, 0))
    if not may_start_processes:
        is_process = seccomp.Arg(0, seccomp.MASKED_EQ, OF_A_THREAD, 0)
        calls.add_rule(refuse, "clone", is_process)
        # Its flags lie in memory, which a filter cannot see; without it, clone is used.
        calls.add_rule(seccomp.ERRNO(ENOSYS), "clone3")
    calls.load()


def _known_calls(*, may_start_processes: bool) -> Iterator[str | int]:
    """Yield the refused calls that this processor has."""
    import pyseccomp as seccomp

    starting = next(iter(REFUSED))
    for purpose, calls in REFUSED.items():
        if purpose == starting and may_start_processes:
            continue
        for call in calls:
            if isinstance(call, int) or seccomp.resolve_syscall(seccomp.Arch.NATIVE, call) > 0:
                yield call
