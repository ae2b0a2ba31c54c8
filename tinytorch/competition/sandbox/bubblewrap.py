"""The sandbox around a contender: bubblewrap with what it may see, and control groups.

Bubblewrap gives a process user, process, mount, network, IPC and host namespaces of its own, a
tree of files in which nothing but some paths is there, all of them read-only, and one folder in
memory of a limited size to write to. It needs no privileges where users may make namespaces.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tinytorch.competition.sandbox.restrictions import FREE_FILES_BYTES
from tinytorch.errors import MissingPartError, SettingError
from tinytorch.measure.child_process import end_child, is_stale, last_words, owned_name, start_child

PACKAGE = Path(__file__).parents[2]
"""The folder of TinyTorch itself."""
PROGRAM = "bwrap"
INSTALL_IT = "install it (Debian, Ubuntu: apt install bubblewrap)"
SYSTEM_PATHS = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt/lib", "/nix/store",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime",
    "/etc/nsswitch.conf", "/etc/passwd", "/etc/os-release", "/etc/alternatives",
    "/sys/devices/system",
)  # fmt: skip
"""What the interpreter and the libraries under it read. Nothing of it is secret."""
NAMESPACES = (
    "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
    "--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
)  # fmt: skip
AROUND = ("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", "--remount-ro", "/dev")
"""Its own processes and devices. Files of both are read-only: a superuser could set the system's
parameters there, and fill memory with files below /dev."""
KILLED = 128
"""Bubblewrap ends with this much more than the number of the signal that ended what ran in it."""


@dataclass(frozen=True)
class Protection:
    """How a process is kept from something, or why it is not."""

    how: str
    is_in_force: bool = True

    def __str__(self) -> str:
        return self.how if self.is_in_force else f"none: {self.how}"


@dataclass(frozen=True)
class Mounts:
    """What a contender sees: files and folders to read, folders to write, and an empty one in
    memory, which is its working folder and all that it may fill."""

    readable: tuple[str, ...]
    writable: tuple[str, ...]
    folder: str


def program_paths() -> tuple[str, ...]:
    """Return what has to be readable to import Python, its packages and TinyTorch.

    Other folders of `sys.path` are not among them: the current one may hold a round's seed.
    """
    homes = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    homes += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    homes += [each for each in sys.path if Path(each).name in ("site-packages", "dist-packages")]
    homes += [str(PACKAGE)]
    # Under the names that the interpreter knows, and under those that links lead to.
    named = [path for each in homes if each for path in (os.path.abspath(each), _resolved(each))]
    return (*SYSTEM_PATHS, *(each for each in dict.fromkeys(named) if each != "/"))


def _resolved(path: str) -> str:
    return str(Path(path).resolve())


def why_no_sandbox() -> str:
    """Return what keeps contenders from being sandboxed on this machine and what to do, or ""."""
    if sys.platform != "linux":
        return f"the sandbox is made of parts of Linux, and this is {platform.system()}"
    if shutil.which(PROGRAM) is None:
        return f"bubblewrap (the program {PROGRAM}) is not installed; {INSTALL_IT}"
    if find_spec("pyseccomp") is None:
        return "pyseccomp is not installed; install the extra: pip install '.[sandbox]'"
    try:
        find_filter()
    except (ImportError, RuntimeError) as error:
        return f"pyseccomp cannot be used ({error}); install libseccomp (Debian: libseccomp2)"
    whole = ("--ro-bind", "/", "/", *AROUND, "--size", "4096", "--tmpfs", "/tmp")
    tried = subprocess.run(
        [PROGRAM, *NAMESPACES, *whole, "--", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        said = last_words(tried.stderr) or f"it ended with code {tried.returncode}"
        return (
            f"bubblewrap makes no sandbox here ({said}); it needs user namespaces and version 0.7"
        )
    return ""


def find_filter() -> None:
    """Raise ImportError or RuntimeError where pyseccomp or the library under it is missing."""
    import pyseccomp

    pyseccomp.system_arch()


def check_sandbox(code: str | None, *, unconfined: bool = False) -> bool:
    """Return whether a contender can be sandboxed; raise MissingPartError for code that cannot.

    With `unconfined` nothing is sandboxed, and code runs nevertheless.
    """
    reason = "" if unconfined else why_no_sandbox()
    if reason and code is not None:
        raise MissingPartError(
            f"the code of an entry runs in a sandbox only, and {reason}; or pass --unconfined to "
            "run it without one, which its record shows for ever"
        )
    return not unconfined and not reason


# ---------------------------------------------------------------- starting and ending what runs
# in a sandbox


@dataclass(frozen=True)
class Started:
    """A started process, and the leader of the process group that it runs in, seen from here."""

    child: subprocess.Popen[Any]
    leader: int
    groups: tuple[ControlGroup, ...] = ()

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has ended something for want of memory in a control group."""
        return any(each.kills() for each in self.groups)

    def code(self, timeout_s: float) -> int:
        """Wait for its end; return its exit code, or the negative number of a signal."""
        code = self.child.wait(timeout_s)
        return KILLED - code if self.leader != self.child.pid and code > KILLED else code


@contextmanager
def started_in_sandbox(
    command: Sequence[str],
    mounts: Mounts,
    *,
    memory_bytes: int,
    tasks: int,
    pass_fds: Sequence[int] = (),
    **settings: Any,
) -> Iterator[Started]:
    """Start a command in a sandbox; at the end of the block it is gone with all it has started.

    It runs once it is in its control groups. `settings` are those of :class:`subprocess.Popen`.
    """
    with ExitStack() as stack:
        groups = stack.enter_context(control_groups(memory_bytes=memory_bytes, tasks=tasks))
        arguments = stack.enter_context(tempfile.TemporaryFile())
        arguments.write("\0".join((*NAMESPACES, *_mounting(mounts))).encode())
        arguments.seek(0)
        told, telling = os.pipe()
        held, holding = os.pipe()
        child_ends = (arguments.fileno(), telling, held)
        names = ("--args", "--info-fd", "--block-fd")
        options = [x for pair in zip(names, map(str, child_ends), strict=True) for x in pair]
        try:
            child = start_child(
                [PROGRAM, *options, "--", *command],
                purpose="for a contender",
                pass_fds=(*pass_fds, *child_ends),
                **settings,
            )
        finally:
            os.close(telling)
            os.close(held)
        stack.callback(end_child, child)
        with os.fdopen(told, "rb") as said, os.fdopen(holding, "wb") as going:
            leader = _first_process(said.read1)
            stack.callback(_end_with, leader, child)
            try:
                for group in groups:
                    group.add(leader)
            except OSError:  # groups can be made here, and processes cannot be moved to them
                groups = ()
            going.write(b"1")
        yield Started(child, leader, groups)


def _mounting(mounts: Mounts) -> Iterator[str]:
    """Yield the options that make the tree of files, in their order."""
    yield from AROUND
    yield from ("--size", str(FREE_FILES_BYTES), "--tmpfs", mounts.folder)
    for path in mounts.readable:
        yield from ("--ro-bind-try", path, path)
    for path in mounts.writable:
        yield from ("--bind", path, path)
    yield from ("--remount-ro", "/", "--chdir", mounts.folder)


def _first_process(read: Any) -> int:
    """Return the number of the first process in the sandbox, which bubblewrap tells."""
    said = b""
    while part := read(4096):
        said += part
        with suppress(ValueError):
            return int(json.loads(said)["child-pid"])
    raise SettingError("bubblewrap has ended before a contender began; see what it said above")


def _end_with(leader: int, child: subprocess.Popen[Any]) -> None:
    """End the first process of a sandbox, and with it all others in there; wait for their end."""
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.kill(leader, signal.SIGKILL)
        child.wait()


# ---------------------------------------------------------------- control groups: memory, files in
# it and tasks of a whole tree of processes, counted and bounded by the kernel

PURPOSE = "sandbox"
REMOVING_S = 2.0
OWN_GROUPS, MOUNTED = Path("/proc/self/cgroup"), Path("/proc/self/mounts")


@dataclass(frozen=True)
class ControlGroup:
    """A control group of ours: its folder, and the file that counts what was killed in it."""

    folder: Path
    kills_in: str = ""

    def add(self, pid: int) -> None:
        """Move a process there; what it starts from now on is there, too."""
        (self.folder / "cgroup.procs").write_text(str(pid), "ascii")

    def kills(self) -> int:
        """Return how many processes were killed for want of memory."""
        with suppress(OSError, ValueError, KeyError):
            counts = (self.folder / self.kills_in).read_text("ascii").splitlines()
            return int(dict(line.split() for line in counts)["oom_kill"])
        return 0


@contextmanager
def control_groups(*, memory_bytes: int, tasks: int) -> Iterator[tuple[ControlGroup, ...]]:
    """Return new control groups with these bounds; none where they cannot be made."""
    made: list[ControlGroup] = []
    try:
        with suppress(OSError, ValueError, LookupError):
            for parent, bounds, kills_in in _places(memory_bytes=memory_bytes, tasks=tasks):
                _remove_stale(parent)
                folder = parent / f"{owned_name(PURPOSE)}{secrets.token_hex(4)}"
                folder.mkdir()
                made.append(ControlGroup(folder, kills_in))
                for name, bound in bounds.items():
                    # Where swap is not counted, there is no such file.
                    if (folder / name).exists():
                        (folder / name).write_text(str(bound), "ascii")
        complete = {name for each in made for name in os.listdir(each.folder)}
        enough = bool({"memory.limit_in_bytes", "memory.max"} & complete) and "pids.max" in complete
        yield tuple(made) if enough else ()
    finally:
        for each in made:
            _remove(each.folder)


def _places(*, memory_bytes: int, tasks: int) -> Iterator[tuple[Path, Mapping[str, int], str]]:
    """Yield where control groups can be made, the bounds to write, and what counts the killed.

    Of version 1 these are two hierarchies, below the groups that this process is in. Of version 2
    it is one: the nearest folder from that group upwards which hands both controllers on.
    """
    own = dict(line.split(":", 2)[1:] for line in OWN_GROUPS.read_text().splitlines())
    mounted = [line.split() for line in MOUNTED.read_text().splitlines()]
    of_kind = {
        name: Path(place)
        for _, place, kind, options, *_ in mounted
        if kind in ("cgroup", "cgroup2")
        for name in (options.split(",") if kind == "cgroup" else [""])
    }
    by_name = {name: path for names, path in own.items() for name in names.split(",")}
    if "memory" in by_name:
        memory = {
            "memory.limit_in_bytes": memory_bytes,
            "memory.memsw.limit_in_bytes": memory_bytes,
        }
        yield _below(of_kind["memory"], by_name["memory"]), memory, "memory.oom_control"
        yield _below(of_kind["pids"], by_name["pids"]), {"pids.max": tasks}, ""
        return
    folder, top = _below(of_kind[""], by_name[""]), of_kind[""]
    while folder.is_relative_to(top):
        handed_on = (folder / "cgroup.subtree_control").read_text().split()
        if {"memory", "pids"} <= set(handed_on):
            both = {"memory.max": memory_bytes, "memory.swap.max": 0, "pids.max": tasks}
            yield folder, both, "memory.events"
            return
        folder = folder.parent


def _below(mounted: Path, path: str) -> Path:
    """Return the folder of a control group; in a container only the end of its path is there."""
    folder = mounted / path.lstrip("/")
    return folder if folder.is_dir() else mounted


def _remove_stale(parent: Path) -> None:
    for folder in parent.glob("tinytorch-*"):
        if is_stale(folder, PURPOSE):
            with suppress(OSError):
                folder.rmdir()


def _remove(folder: Path) -> None:
    """Remove a control group, which is busy until the kernel has cleaned up after its processes."""
    until = time.monotonic() + REMOVING_S
    while folder.exists() and time.monotonic() < until:
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.01)
