"""What code of an entry may try: each attempt answers with 0 where it worked, or with its errno.

`paths.txt` beside this file names a secret of the judge and the judge's process.
"""

import ctypes
import fcntl
import mmap
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyseccomp as seccomp

Array = np.ndarray
OWN = Path(__file__)
LIBRARY = ctypes.CDLL(None, use_errno=True)
PRCTL_DEATH_SIGNAL, FLAGS_OF_A_FILE = 1, 0x40086602
NEW_USER = 0x10000000
AT_CWD = -100


def call(name: str, *arguments: Any) -> None:
    """Call a function of the C library; raise OSError where it fails."""
    _checked(getattr(LIBRARY, name)(*arguments))


def system_call(which: str | int, *arguments: Any) -> None:
    """Make a system call that Python has no function for; new ones stand with their number."""
    number = seccomp.resolve_syscall(0, which) if isinstance(which, str) else which
    _checked(LIBRARY.syscall(ctypes.c_long(number), *arguments))


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def clone() -> None:
    parent = os.getpid()
    system_call("clone", signal.SIGCHLD, 0, 0, 0, 0)
    if os.getpid() != parent:
        os._exit(0)


def with_file(
    path: str | Path, flags: int, use: Callable[[int], object] = lambda file: None
) -> None:
    """Open a file, perhaps without writing anything to it."""
    file = os.open(path, flags)
    try:
        use(file)
    finally:
        os.close(file)


def set_flags(file: int) -> None:
    fcntl.ioctl(file, FLAGS_OF_A_FILE, struct.pack("l", 0x10))


def attempts() -> dict[str, Callable[[], object]]:
    secret, judge = OWN.with_name("paths.txt").read_text("utf-8").splitlines()
    return attempts_of(Path(secret), int(judge))


def attempts_of(secret: Path, judge: int) -> dict[str, Callable[[], object]]:
    program, reading, writing = "/usr/bin/env", os.O_RDONLY, os.O_WRONLY
    one = ctypes.byref(ctypes.c_uint64(1))
    return {
        # permissions, owners, attributes and times
        "chmod 0777 of a secret": lambda: os.chmod(secret, 0o777),
        "chmod 4755 of a program": lambda: os.chmod(program, 0o4755),
        "chmod of the entry": lambda: os.chmod(OWN, 0o777),
        "fchmod of what it writes to": lambda: os.fchmod(1, 0o777),
        "fchmodat2": lambda: system_call("fchmodat2", AT_CWD, os.fsencode(OWN), 0o777, 0),
        "chown": lambda: os.chown(OWN, 1, 1),
        "fchown": lambda: os.fchown(1, 1, 1),
        "setxattr": lambda: os.setxattr(OWN, "user.x", b"1"),
        "removexattr": lambda: os.removexattr(OWN, "user.note"),
        "setxattrat": lambda: system_call(463, AT_CWD, os.fsencode(OWN), 0, b"user.x", one, 16),
        "removexattrat": lambda: system_call(466, AT_CWD, os.fsencode(OWN), 0, b"user.note"),
        "ioctl(FS_IOC_SETFLAGS)": lambda: with_file(OWN, reading, set_flags),
        "utime": lambda: os.utime(OWN, (1, 1)),
        # files of others
        "read a secret": secret.read_text,
        "remove a secret": lambda: os.unlink(secret),
        "list the folder of a secret": lambda: os.listdir(secret.parent),
        "write to the entry": lambda: with_file(OWN, writing),
        "write beside the entry": lambda: OWN.with_name("new").write_text("x"),
        "write to the root": lambda: Path("/new").write_text("x"),
        "write to /dev/shm": lambda: Path("/dev/shm/new").write_text("x"),
        "remove a device": lambda: os.unlink("/dev/null"),
        "open settings of the kernel": lambda: with_file("/proc/sys/kernel/core_pattern", writing),
        "open the trigger of the kernel": lambda: with_file("/proc/sysrq-trigger", writing),
        "open memory of bubblewrap": lambda: with_file("/proc/1/mem", os.O_RDWR),
        "read the judge's memory": lambda: with_file(f"/proc/{judge}/mem", reading),
        "read the judge's variables": lambda: with_file(f"/proc/{judge}/environ", reading),
        # processes
        "fork": fork,
        "clone": clone,
        "clone3": lambda: system_call("clone3", 0, 0),
        "start a program": lambda: subprocess.run(["/bin/true"], check=True),
        "become a program": lambda: os.execv("/bin/true", ["true"]),
        "leave the session": os.setsid,
        "leave the process group": lambda: os.setpgid(0, 0),
        "signal the judge": lambda: os.kill(judge, 0),
        "signal everybody": lambda: os.kill(-1, signal.SIGTERM),
        "outlive the judge": lambda: call("prctl", PRCTL_DEATH_SIGNAL, 0, 0, 0, 0),
        "limit the judge's time": lambda: resource.prlimit(judge, resource.RLIMIT_CPU, (1, 1)),
        "limit the judge's files": lambda: resource.prlimit(judge, resource.RLIMIT_FSIZE, (0, 0)),
        "raise own limits": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 16, 1 << 16)),
        # priorities and cores
        "renice everybody": lambda: os.setpriority(os.PRIO_USER, os.getuid(), 10),
        "renice another": lambda: os.setpriority(os.PRIO_PROCESS, judge, 10),
        "renice itself": lambda: os.setpriority(os.PRIO_PROCESS, 0, 10),
        "another core": lambda: os.sched_setaffinity(0, range(os.cpu_count() or 1)),
        "another schedule": lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),
        # memory that nobody counts, and what the next process would find
        "memfd_create": lambda: os.memfd_create("x"),
        "memfd_secret": lambda: system_call("memfd_secret", 0),
        "shmget": lambda: call("shmget", 7, 4096, 0o1600),
        "mq_open": lambda: call("mq_open", b"/x", os.O_CREAT | os.O_RDWR, 0o600, 0),
        "add_key": lambda: system_call("add_key", b"user", b"x", b"x", 1, -3),
        "keyctl": lambda: system_call("keyctl", 0, -3, 1),
        # looking into the kernel and into others, leaving the namespaces
        "ptrace": lambda: call("ptrace", 16, judge, 0, 0),
        "process_vm_readv": lambda: system_call("process_vm_readv", judge, 0, 0, 0, 0, 0),
        "process_vm_writev": lambda: system_call("process_vm_writev", judge, 0, 0, 0, 0, 0),
        "pidfd_open": lambda: os.close(os.pidfd_open(os.getpid())),
        "bpf": lambda: system_call("bpf", 0, 0, 0),
        "userfaultfd": lambda: system_call("userfaultfd", 1),
        "io_uring": lambda: system_call("io_uring_setup", 1, 0),
        "perf_event_open": lambda: system_call("perf_event_open", 0, 0, -1, -1, 0),
        "unshare": lambda: call("unshare", NEW_USER),
        "setns": lambda: with_file("/proc/1/ns/mnt", reading, lambda file: call("setns", file, 0)),
        "mount": lambda: call("mount", b"none", b"/", b"tmpfs", 0, 0),
        "umount": lambda: call("umount2", b"/proc", 2),
        "open_tree": lambda: system_call("open_tree", AT_CWD, b"/", 1),
        # connections
        "a connection": lambda: socket.create_connection(("127.0.0.1", 9), timeout=1),
        "a socket of files": lambda: socket.socket(socket.AF_UNIX),
        "a pair of sockets": socket.socketpair,
    }  # fmt: skip


def attempts_named() -> list[str]:
    """Name the attempts in their order, without a file of paths beside this one."""
    return list(attempts_of(Path("/nowhere"), 0))


def outcome(attempt: Callable[[], object]) -> int:
    try:
        attempt()
    except OSError as error:
        return error.errno or 0
    except ValueError:  # a limit that cannot be raised
        return 1
    return 0


def everything(reference: Any) -> Callable[[Array], Array]:
    """Tries everything, and answers with what came of it, one number for each attempt."""
    return lambda question: np.array([outcome(each) for each in attempts().values()])


def ending_bubblewrap(reference: Any) -> Callable[[Array], Array]:
    """Kills the first process of the sandbox, and answers nevertheless."""
    return lambda question: np.array([outcome(lambda: os.kill(1, signal.SIGKILL))])


def hoarding_shared(reference: Any) -> Callable[[Array], Array]:
    """Holds memory that is no data of the process, in steps, in a single call."""
    held = []

    def answer(question: Array) -> Array:
        for _ in range(40):
            held.append(mmap.mmap(-1, 64 << 20))
            held[-1].write(bytes(64 << 20))
            time.sleep(0.02)
        return question

    return answer


def filling_files(reference: Any) -> Callable[[Array], Array]:
    """Writes files until it cannot, and answers with the bytes of all of them."""

    def answer(question: Array) -> Array:
        written = 0
        try:
            for number in range(100):
                with open(f"file{number}", "wb", buffering=0) as file:
                    while True:
                        written += file.write(bytes(8 << 20))
                        if file.tell() >= 100 << 20:
                            break
        except OSError:
            pass
        return np.array([written])

    return answer


def making_files(reference: Any) -> Callable[[Array], Array]:
    """Makes empty files without end."""

    def answer(question: Array) -> Array:
        for number in range(1_000_000):
            Path(f"file{number}").touch()
        return question

    return answer


def making_threads(reference: Any) -> Callable[[Array], Array]:
    """Starts threads until it cannot, and answers with their number."""
    threading.stack_size(64 << 10)

    def answer(question: Array) -> Array:
        try:
            for _ in range(20_000):
                threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        except RuntimeError:
            pass
        return np.array([threading.active_count()])

    return answer


def answering_much(reference: Any) -> Callable[[Array], Array]:
    """Gives answers of nearly a MiB each."""
    return lambda question: np.zeros(1 << 17)


def clinging(reference: Any) -> Callable[[Array], Array]:
    """Does all that it can to outlive the judge."""
    outcome(lambda: call("prctl", PRCTL_DEATH_SIGNAL, 0, 0, 0, 0))
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        outcome(lambda number=number: signal.signal(number, signal.SIG_IGN))

    def answer(question: Array) -> Array:
        while True:
            pass

    return answer


def describing(body: bytes) -> None:
    """Send the judge a note of its own instead of the description."""
    from tinytorch.competition.sandbox import contender_worker
    from tinytorch.competition.sandbox.messages import NOTE, packed_header

    def describe(channel: Any, *_: object) -> None:
        channel._socket.sendall(packed_header(NOTE, 0, (), len(body)) + body)

    contender_worker._describe = describe


def with_a_large_description(reference: Any) -> Any:
    describing(
        b'{"described":{"file_bytes":1,"notes":[],"plans":[' + b"[]," * (20 << 20) + b"[]]}}"
    )
    return reference.model


def with_a_dense_description(reference: Any) -> Any:
    describing(
        b'{"described":{"file_bytes":1,"notes":[],"plans":[' + b"[]," * (300 << 10) + b"1]}}"
    )
    return reference.model


if __name__ == "__main__":
    sys.exit("the tests import this")
