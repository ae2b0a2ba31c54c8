"""What a contender's process does to itself before anything of an entry is loaded.

On Linux it drops the network, other people's files, starting programs, and its privileges. Each
step is tried, and what is in force is told. Elsewhere only the limits that the system has are set.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tinytorch.errors import SettingError, TinyTorchError

__all__ = [
    "PACKAGE",
    "Confinement",
    "LandlockRules",
    "confine",
    "forbid_calls",
    "landlock_version",
    "program_paths",
]


# ---------------------------------------------------------------- landlock: rules of the Linux
# kernel by which a process drops files, sockets and signals
#
# Three system calls and two structures, see landlock(7). The rules hold for the calling process and
# all that it starts, and can never be taken back.

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""The same numbers on all processors that Linux runs on."""
VERSION_FLAG = 1
PATH_BENEATH = 1
NO_NEW_PRIVILEGES = 38

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE = 1 << 14
READING = EXECUTE | READ_FILE | READ_DIR
MAKING_DEVICES = 1 << 6 | 1 << 11
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | 1 << 15
"""The rights that a rule for a file, and no folder, may have."""
FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""A version of Landlock -> the rights over files that it knows, up to the next one."""
TCP_SINCE, TCP_RIGHTS = 4, 0b11
SCOPES_SINCE, SCOPES = 6, 0b11
"""Abstract sockets, and signals to processes outside."""


class RulesetAttributes(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class PathBeneathAttributes(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


@dataclass(frozen=True)
class LandlockRules:
    """What stays allowed: reading (and executing) below some paths, all below others, and only
    names below a third kind.

    Everything else on the file system is forbidden; so are, where the kernel knows how, all TCP
    connections, and abstract sockets of and signals to processes outside. Paths that do not exist
    are left out.
    """

    readable: tuple[str, ...]
    writable: tuple[str, ...]
    listed: tuple[str, ...] = ()

    def enforce(self) -> int:
        """Enforce the rules for this process, permanently; return the version of Landlock."""
        version = landlock_version()
        if not version:
            raise SettingError("this system has no Landlock; Linux 5.13 and newer may have it")
        rights = _known_rights(version)
        tcp = TCP_RIGHTS if version >= TCP_SINCE else 0
        scopes = SCOPES if version >= SCOPES_SINCE else 0
        attributes = RulesetAttributes(rights, tcp, scopes)
        size = 8 if version < TCP_SINCE else 16 if version < SCOPES_SINCE else 24
        ruleset = _call(CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0)
        try:
            _allow(ruleset, self.readable, READING & rights)
            _allow(ruleset, self.writable, rights & ~EXECUTE & ~MAKING_DEVICES)
            _allow(ruleset, self.listed, READ_DIR)
            _call_prctl(NO_NEW_PRIVILEGES)
            _call(RESTRICT_SELF, ruleset, 0)
        finally:
            os.close(ruleset)
        return version


def landlock_version() -> int:
    """Return the version of the kernel's Landlock, or 0 where there is none."""
    if sys.platform != "linux":
        return 0
    try:
        return _call(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION_FLAG)
    except OSError:
        return 0


def _known_rights(version: int) -> int:
    return FILE_RIGHTS[max(each for each in FILE_RIGHTS if each <= version)]


def _allow(ruleset: int, paths: Iterable[str], rights: int) -> None:
    for path in paths:
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        allowed = rights if os.path.isdir(path) else rights & OF_FILES
        attributes = PathBeneathAttributes(allowed, opened)
        _call(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(attributes), 0)
        # The kernel forgets the entries of /proc when nothing holds them, and the rule with them.
        if not path.startswith("/proc/"):
            os.close(opened)


def _call(number: int, *arguments: object) -> int:
    return _checked(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments))


def _call_prctl(option: int) -> None:
    _checked(ctypes.CDLL(None, use_errno=True).prctl(option, 1, 0, 0, 0))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


# ---------------------------------------------------------------- a filter of system calls
# (seccomp): no new processes, no sockets, no looking into others
#
# It closes what Landlock leaves open: sockets that are files, memory that outlives a process, other
# cores, and starting programs as a superuser, for whom limits on processes do not count. It stays
# in force for ever.

SET_SECCOMP, FILTER_MODE = 22, 2
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD_WORD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, FIRST_ARGUMENT_AT = 0, 4, 16
OF_A_THREAD = 0x00010000  # CLONE_THREAD
OTHER_WIDTH = 0x40000000  # calls of the x32 interface

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NOT_THERE = 0xFFFF
# The name of a call -> its numbers on x86_64 and aarch64.
REFUSED: dict[str, tuple[int, int]] = {
    "socket": (41, 198),
    "connect": (42, 203),
    "ptrace": (101, 117),
    "mount": (165, 40),
    "setns": (308, 268),
    "unshare": (272, 97),
    "sched_setaffinity": (203, 122),  # the one core was chosen
    # what would be there for the next process to find
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "keyctl": (250, 219),
    # what can be noted on a file that may only be read, which Landlock leaves open
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "utime": (132, NOT_THERE),
    "utimes": (235, NOT_THERE),
    "futimesat": (261, NOT_THERE),
    "utimensat": (280, 88),
    # looking into other processes, and ways around the filter
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "io_uring_setup": (425, 425),
}
STARTING: dict[str, tuple[int, int]] = {
    "fork": (57, NOT_THERE),
    "vfork": (58, NOT_THERE),
    "execve": (59, 221),
    "execveat": (322, 281),
}
CLONE, CLONE3 = (56, 220), (435, 435)


def forbid_calls(*, starting_processes: bool) -> str:
    """Make the kernel refuse these calls; threads stay possible. Return what is refused."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ARCHITECTURES:
        raise SettingError(f"no filter of system calls is known for {sys.platform} on {machine}")
    program = _program(machine, starting_processes=starting_processes)
    count = len(program) // 8
    held = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HxxxxxxP", count, ctypes.addressof(held))
    library = ctypes.CDLL(None, use_errno=True)
    for arguments in ((NO_NEW_PRIVILEGES, 1), (SET_SECCOMP, FILTER_MODE)):
        passed = ctypes.c_char_p(header) if arguments[0] == SET_SECCOMP else 0
        if library.prctl(*arguments, passed, 0, 0) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    return "none can be started" if starting_processes else "started ones are confined as well"


def _program(machine: str, *, starting_processes: bool) -> bytes:
    """Return the filter program of the kernel: one instruction is code, two jumps and a value."""
    column = list(ARCHITECTURES).index(machine)
    refuse = _instruction(RETURN, REFUSE | errno.EPERM)
    steps = [
        _instruction(LOAD_WORD, ARCHITECTURE_AT),
        _instruction(JUMP_EQUAL, ARCHITECTURES[machine], yes=1),
        _instruction(RETURN, KILL),
        _instruction(LOAD_WORD, NUMBER_AT),
    ]
    if machine == "x86_64":
        steps += [_instruction(JUMP_AT_LEAST, OTHER_WIDTH, no=1), refuse]
    table = REFUSED | (STARTING if starting_processes else {})
    for numbers in table.values():
        steps += [_instruction(JUMP_EQUAL, numbers[column], no=1), refuse]
    if starting_processes:
        # The flags of clone3 lie in memory that a filter cannot see; without it, clone is used.
        steps += [
            _instruction(JUMP_EQUAL, CLONE3[column], no=1),
            _instruction(RETURN, REFUSE | errno.ENOSYS),
            _instruction(JUMP_EQUAL, CLONE[column], no=3),
            _instruction(LOAD_WORD, FIRST_ARGUMENT_AT),
            _instruction(JUMP_ANY_BIT, OF_A_THREAD, yes=1),
            refuse,
        ]
    return b"".join([*steps, _instruction(RETURN, ALLOW)])


def _instruction(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


# ---------------------------------------------------------------- what a contender's process does
# to itself before anything of an entry is loaded

DIE_WITH_PARENT, DROP_BOUNDING = 1, 24
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


@dataclass(frozen=True)
class Protection:
    """How a process is kept from something, or why it is not."""

    how: str
    is_in_force: bool = True

    def __str__(self) -> str:
        return self.how if self.is_in_force else f"none: {self.how}"


def program_paths() -> tuple[str, ...]:
    """Return what has to be readable to import Python, its packages and TinyTorch.

    Other folders of `sys.path` are not among them: the current one may hold a round's seed.
    """
    homes = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    homes += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    homes += [each for each in sys.path if Path(each).name in ("site-packages", "dist-packages")]
    homes += [str(PACKAGE)]
    resolved = (str(Path(each).resolve()) for each in homes if each)
    return (*dict.fromkeys(each for each in resolved if each != "/"), *SYSTEM_PATHS)


def confine(wanted: Confinement) -> dict[str, Protection]:
    """Confine this process for ever, and return what is in force, by what it is kept from."""
    if sys.platform != "linux":
        names = ("files", "network", "signals", "processes", "memory", "cores")
        nothing = dict.fromkeys(names, Protection("not on Linux", is_in_force=False))
        return {**nothing, "memory": _limit_memory(wanted)}
    _prctl(DIE_WITH_PARENT, SIGKILL)
    cores = _attempt(lambda: _pin(wanted.core))
    memory = _limit_memory(wanted)
    network = _attempt(_leave_network)
    privileges = _attempt(_drop_privileges)
    files = _attempt(lambda: f"Landlock {_landlock(wanted)}")
    version = landlock_version() if files.is_in_force else 0
    if not network.is_in_force and version >= TCP_SINCE:
        network = Protection("no TCP, by Landlock")
    signals = Protection("within itself")
    if version < SCOPES_SINCE:
        signals = Protection("the kernel's Landlock is too old", is_in_force=False)
    processes = _attempt(lambda: forbid_calls(starting_processes=not wanted.may_start_processes))
    if wanted.may_start_processes:
        processes = Protection("it may start processes", is_in_force=False)
    return {
        "files": files,
        "network": network,
        "signals": signals,
        "processes": processes,
        "privileges": privileges,
        "memory": memory,
        "cores": cores,
    }


def _attempt(step: Callable[[], str]) -> Protection:
    try:
        return Protection(step())
    except (OSError, ValueError, AttributeError, TinyTorchError) as error:
        return Protection(str(getattr(error, "strerror", None) or error), is_in_force=False)


def _pin(core: int | None) -> str:
    if core is None:
        return f"{len(os.sched_getaffinity(0))}"
    os.sched_setaffinity(0, {core})
    return "1"


def _limit_memory(wanted: Confinement) -> Protection:
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
    """Move into a separate, empty network."""
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
    """Drop the privileges of a superuser, so that nothing of the confinement can be undone."""
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
