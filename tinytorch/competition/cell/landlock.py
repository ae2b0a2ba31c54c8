"""Landlock: rules of the Linux kernel by which a process gives up files, sockets and signals.

Three system calls and two structures, see landlock(7). The rules hold for the calling process and
all that it starts, and can never be taken back.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from tinytorch.errors import SettingError

__all__ = ["LandlockRules", "landlock_version"]

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
        """Put the rules in force for this process, for ever; give the version of Landlock."""
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
    """Give the version of the kernel's Landlock, or 0 where there is none."""
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
        # The kernel forgets the entries of /proc when nobody holds them, and the rule with them.
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
