"""A filter of system calls (seccomp): no new processes, no sockets, no looking into others.

It closes what Landlock leaves open: sockets that are files, memory that outlives a process, other
cores, and starting programs as a superuser, for whom limits on processes do not count. It stays in
force for ever.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

from tinytorch.errors import SettingError

__all__ = ["forbid_calls"]

NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER_MODE = 38, 22, 2
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
    """Let the kernel refuse these calls from now on; threads stay possible. Say what is refused."""
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
    """Give the filter as the kernel reads it: one instruction is code, two jumps and a value."""
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
