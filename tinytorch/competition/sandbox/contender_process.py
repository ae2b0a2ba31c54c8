"""The judge's side of a contender's process: start it, ask it, watch what it uses, end it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt
import psutil

from tinytorch.competition.entry import MANIFEST, files_below
from tinytorch.competition.events import find_event
from tinytorch.competition.sandbox.bubblewrap import (
    PACKAGE,
    Mounts,
    Protection,
    Started,
    check_sandbox,
    program_paths,
    started_in_sandbox,
    why_no_sandbox,
)
from tinytorch.competition.sandbox.building import bytes_below
from tinytorch.competition.sandbox.contender import (
    BACKEND,
    USUAL_LIMITS,
    Answer,
    Contender,
    ContenderError,
    Kind,
    Limits,
    Loading,
    Usage,
)
from tinytorch.competition.sandbox.messages import (
    ANSWER,
    FORWARD,
    GENERATE,
    NOTE,
    Channel,
    Message,
    MessageError,
    SilenceError,
    array_fields,
    packed_header,
)
from tinytorch.competition.sandbox.restrictions import Restrictions
from tinytorch.core.files import cache_folder
from tinytorch.errors import SettingError
from tinytorch.measure.child_process import (
    end_child,
    how_it_ended,
    last_words,
    owned_folder,
    remove_stale_folders,
    start_child,
)
from tinytorch.models.zoo import WEIGHTS

# ---------------------------------------------------------------- what a contender finds around
# it: variables, files that it may read, and where it may write

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
    """Return the few environment variables of a contender; none of the judge's is among them."""
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


def mounts_of(contender: Contender, folder: Path) -> Mounts:
    """Return what a contender may read and write: its files, the program, and a fresh folder."""
    own: list[str] = []
    if contender.weights is not None:
        own.append(contender.weights)
    if contender.code is not None:
        home = _home(contender)
        # What is not hashed, such as earlier runs and compiled copies, cannot be read.
        own += [str(home / MANIFEST), *(str(home / name) for name in files_below(home))]
    cache = _cache(contender, folder)
    return Mounts(
        readable=(*program_paths(), *own),
        writable=() if cache.is_relative_to(folder) else (str(cache),),
        folder=str(folder),
    )


def _without_links(contender: Contender) -> Contender:
    """Return a contender whose files stand where they really are: links are not followed there."""
    weights, code = contender.weights, contender.code
    if weights is not None:
        weights = str(Path(weights).resolve())
    if code is not None:
        place, _, name = code.rpartition(":")
        code = f"{Path(place).resolve()}:{name}"
    return replace(contender, weights=weights, code=code)


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
    """Return where compiled kernels are cached: code gets a place where it can put nothing."""
    return folder / "cache" if contender.code else cache_folder().resolve()


# ---------------------------------------------------------------- what a process uses, seen from
# outside: nothing that it says about itself is taken

PROCESS_CLOCK = 2
"""The kind of clock that the kernel keeps for each process: time that its threads ran, exactly."""
AT_REST = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE)
RESET_PEAK = "5"
INSTALLED_PACKAGE = re.compile(r"/(?:site|dist)-packages/(\w+)")


class Watch:
    """Counts what a process, and those that it starts, use from now on.

    `files` is the folder in memory that it writes to, if there is one. A process that is `alone`
    cannot start others, and none are looked for.
    """

    def __init__(self, pid: int, *, alone: bool = False, files: Path | None = None) -> None:
        self._process, self._is_alone = psutil.Process(pid), alone
        self._files = files and Path(f"/proc/{pid}/root{files}")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._statm: int | None = None
        with suppress(OSError):  # not on Linux
            self._statm = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError):  # an old kernel, or not allowed: the peak counts from the start
            Path(f"/proc/{pid}/clear_refs").write_text(RESET_PEAK, "ascii")
        self._packages = self._mapped_packages()
        self._start_bytes = self.held_bytes()
        self._start_s = self._clock_s()

    def close(self) -> None:
        """Stop watching."""
        if self._statm is not None:
            os.close(self._statm)
            self._statm = None

    def held_bytes(self) -> int:
        """Return the memory that the process holds now, in all; 0 when it is gone."""
        try:
            if self._statm is not None:
                return int(os.pread(self._statm, 64, 0).split()[1]) * self._page_bytes
            return int(self._process.memory_info().rss)
        except (OSError, IndexError, psutil.Error):
            return 0

    def broken_limit(self, limits: Limits) -> str:
        """Return which limit all processes together break, or ""; their files count as memory."""
        started = self._started()
        held = self.held_bytes() + _sum(lambda each: each.memory_info().rss, started)
        files = 0
        if self._files is not None:
            with suppress(OSError):  # it is gone
                found = os.statvfs(self._files)
                held += (found.f_blocks - found.f_bfree) * found.f_frsize
                files = found.f_files - found.f_ffree
        threads = _sum(psutil.Process.num_threads, (self._process, *started))
        if held > limits.memory_bytes:
            most = limits.memory_bytes / 2**20
            return f"it holds {held / 2**20:,.0f} MiB; {most:,.0f} are allowed"
        for what, count, allowed in (
            ("processes", 1 + len(started), limits.processes),
            ("threads", threads, limits.threads),
            ("files", files, limits.files),
        ):
            if count > allowed:
                return f"it has {count:,} {what}; allowed: {allowed:,}"
        return ""

    def wait_until_stopped(self, seconds: float) -> None:
        """Return when the process runs no more: it is stopped or gone, or the time is over."""
        deadline = time.monotonic() + seconds
        with suppress(psutil.Error):
            while self._process.status() not in AT_REST and time.monotonic() < deadline:
                time.sleep(0.0002)

    def cpu_s(self) -> float:
        """Return the processor time since the watch began, also that of started processes."""
        return self._clock_s() - self._start_s + _sum(_spent_s, self._started())

    def usage(self, modules: Iterable[str] = ()) -> Usage:
        """Return all that was used. Packages whose libraries were loaded are added to the modules.

        Memory is counted in pages; a peak is never less than one.
        """
        started = self._started()
        growth = self._peak_bytes() - self._start_bytes
        loaded = self._mapped_packages() - self._packages
        return Usage(
            cpu_s=self.cpu_s(),
            peak_bytes=max(self._page_bytes, growth),
            processes=1 + len(started),
            modules=tuple(sorted({*modules, *loaded})),
        )

    def _started(self) -> list[psutil.Process]:
        return [] if self._is_alone else descendants(self._process.pid)

    def _clock_s(self) -> float:
        try:
            return time.clock_gettime(~self._process.pid << 3 | PROCESS_CLOCK)
        except (OSError, AttributeError):
            return float(_sum(_spent_s, [self._process]))

    def _peak_bytes(self) -> int:
        with suppress(OSError, ValueError, IndexError):
            text = Path(f"/proc/{self._process.pid}/status").read_text("ascii", errors="replace")
            return int(text.partition("VmHWM:")[2].split()[0]) * 1024
        return self.held_bytes()

    def _mapped_packages(self) -> set[str]:
        """Name the packages whose compiled parts the process has loaded."""
        with suppress(OSError):
            text = Path(f"/proc/{self._process.pid}/maps").read_text("utf-8", errors="replace")
            return set(INSTALLED_PACKAGE.findall(text))
        return set()


def descendants(pid: int) -> list[psutil.Process]:
    """Return the processes that one has started, and those that they have."""
    with suppress(psutil.Error):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def _sum(read: Callable[[psutil.Process], Any], processes: Iterable[psutil.Process]) -> Any:
    """Return the sum of what is read of processes; one that is gone has nothing."""
    total = 0
    for each in processes:
        with suppress(psutil.Error):
            total += read(each)
    return total


def _spent_s(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))  # of the user and of the system


# ---------------------------------------------------------------- the judge's side of a
# contender's process: start it, ask it, watch what it uses, end it

START = "from tinytorch.competition.sandbox.contender_worker import main; main({})"
PURPOSE = "tinytorch-contender"
KINDS: dict[Kind, int] = {"forward": FORWARD, "generate": GENERATE}
ENDING_S = 5.0
STOPPING_S = 5.0
ANSWERS_BYTES = 32 << 20
"""All answers of a contender together; of an honest one they have a few MiB."""
OTHER_TASKS = 8
"""Beside the contender's threads: bubblewrap's own, and what loads its libraries."""
FILTERED = re.compile(r"^Seccomp:\s+2$", re.MULTILINE)


class ContenderProcess:
    """A contender in a separate process, which is started when a block is entered.

    The process runs on one core, with one thread in each library; that core is the last one that
    the judge may use, so that the judge can keep to another. It is sandboxed where this machine
    can do that; code runs unsandboxed only if the limits say so. `protection` says how it is kept
    apart. After an error, or at the end of the block, it is gone with all that it has started.
    """

    def __init__(self, contender: Contender, *, limits: Limits = USUAL_LIMITS) -> None:
        self.contender = _without_links(contender)
        self.limits = limits
        self.protection: Mapping[str, Protection] = {}
        self._open = ExitStack()
        self._answered_bytes = 0

    # ------------------------------------------------------------ its life

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process and all that it has started, and remove its folder."""
        self._open.close()

    def _start(self) -> None:
        if not hasattr(socket, "AF_UNIX") or sys.platform == "win32":
            raise SettingError("the judge starts contenders on Linux and macOS only")
        is_sandboxed = check_sandbox(self.contender.code, unconfined=self.limits.unconfined)
        remove_stale_folders(PURPOSE)
        folder = self._open.enter_context(owned_folder(PURPOSE)).resolve()
        self._words: IO[bytes] = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        ours, theirs = socket.socketpair()
        self._watch: Watch | None = None
        self._channel = Channel(ours, while_waiting=self._check_limits)
        self._open.callback(self._channel.close)
        with theirs:
            self._started = self._start_process(theirs.fileno(), folder, is_sandboxed=is_sandboxed)
        self._channel.allow(self.limits.start_s)
        restrictions = Restrictions(
            memory_bytes=self.limits.memory_bytes,
            core=max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            sandboxed=is_sandboxed,
            may_start_processes=self.limits.processes > 1,
        )
        first = {"contender": asdict(self.contender), "restrictions": asdict(restrictions)}
        self._hear_note("ready", first, "starting")
        self.pid = _process_in(self._started) if is_sandboxed else self._started.leader
        alone = is_sandboxed and self.limits.processes == 1
        self._watch = Watch(self.pid, alone=alone, files=folder if is_sandboxed else None)
        self._open.callback(self._watch.close)
        self.protection = self._protection(restrictions)

    def _start_process(self, descriptor: int, folder: Path, *, is_sandboxed: bool) -> Started:
        """Start the worker, and see to it that all of it is ended when the block ends."""
        command = [sys.executable, "-P", "-c", START.format(descriptor)]
        cache = _cache(self.contender, folder)
        cache.mkdir(parents=True, exist_ok=True)
        settings: dict[str, Any] = {
            "pass_fds": (descriptor,),
            "stdout": self._words,
            "stderr": self._words,
            "env": environment_of(self.contender, folder),
        }
        if is_sandboxed:
            return self._open.enter_context(
                started_in_sandbox(
                    command,
                    mounts_of(self.contender, folder),
                    memory_bytes=self.limits.memory_bytes,
                    tasks=self.limits.threads + OTHER_TASKS,
                    **settings,
                )
            )
        child = start_child(command, purpose="for a contender", cwd=folder, **settings)
        self._open.callback(_end_tree, child)
        return Started(child, child.pid)

    def _protection(self, restrictions: Restrictions) -> Mapping[str, Protection]:
        """Return how it is kept apart, and make sure that it is so."""
        cores = Protection(
            "all" if restrictions.core is None else "1", restrictions.core is not None
        )
        if not restrictions.sandboxed:
            reason = "--unconfined was given" if self.limits.unconfined else why_no_sandbox()
            return {"sandbox": Protection(reason, is_in_force=False), "cores": cores}
        if not FILTERED.search(
            Path(f"/proc/{self.pid}/status").read_text("ascii", errors="replace")
        ):
            raise SettingError("the filter of system calls is not in force; reinstall pyseccomp")
        by = "a control group" if self._started.groups else "limits of the process, and watching"
        return {
            "sandbox": Protection("bubblewrap"),
            "system calls": Protection("a filter (libseccomp)"),
            "memory": Protection(f"{self.limits.memory_bytes / 2**30:.3g} GiB by {by}"),
            "threads": Protection(f"{self.limits.threads} by {by}"),
            "cores": cores,
        }

    # ------------------------------------------------------------ asking

    def load(self) -> Loading:
        """Build its model; the time is that of the judge's clock, the rest is what it reports."""
        self._channel.allow(self.limits.start_s)
        started = perf_counter()
        self._hear_note("loaded", {"do": "load"}, "building")
        seconds = perf_counter() - started
        said = self._hear_note("described", {"do": "describe"}, "measuring its size")
        describing_s = perf_counter() - started - seconds
        self._channel.allow(self.limits.answer_s)
        self._check_memory()
        try:
            notes = tuple(str(each) for each in said["notes"])
            size = bytes_of_code(self.contender) if self.contender.code else int(said["file_bytes"])
            return Loading(seconds, size, tuple(said["plans"]), notes, describing_s)
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            # Code may say what it likes.
            raise self._ended("E8", "it told nothing sensible about what it built") from error

    def ask(self, kind: Kind, question: npt.NDArray[Any], *, count: int = 0) -> Answer:
        """Ask one question and wait for the whole answer."""
        array = np.ascontiguousarray(question)
        code, shape = array_fields(array)
        body = array.tobytes()
        header = packed_header(KINDS[kind], code, shape, len(body), wanted=count)
        channel = self._channel
        if channel.has_unread():
            raise self._spoke_unasked()
        try:
            started = perf_counter()
            channel.send(header, body)
            message = channel.receive()
            seconds = perf_counter() - started
        except (SilenceError, EOFError, OSError, MessageError) as error:
            raise self._broken(error, "answering") from error
        if message.kind != ANSWER:
            raise self._told(message, "answering")
        self._answered_bytes += len(message.body)
        if self._answered_bytes > ANSWERS_BYTES:
            raise self._ended("T6", f"its answers have more than {ANSWERS_BYTES >> 20} MiB")
        if not 0 <= message.seconds <= seconds:
            raise self._ended(
                "T1", f"it says that it took {message.seconds:g} s; our clock shows {seconds:g} s"
            )
        self._check_memory()
        return Answer(message.array(), seconds, message.seconds, message.is_intact)

    # ------------------------------------------------------------ turns

    def hold(self) -> None:
        """Stop the process while it is the other side's turn: both share a core.

        It is stopped when this returns, since a signal may arrive late on a busy machine.
        """
        self._signal(signal.SIGSTOP)
        self._watched.wait_until_stopped(STOPPING_S)
        self._check_limits()

    def release(self) -> None:
        """Resume the process."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # one that is gone is told of when it is asked
            os.killpg(self._started.leader, number)

    # ------------------------------------------------------------ watching

    def usage(self) -> Usage:
        """Return what it has used since it was ready, as seen from outside."""
        modules = self._hear_note("modules", {"do": "modules"}, "telling its modules", list)
        told = {str(each) for each in modules}
        usage = self._watched.usage(told)
        self._check_limits()
        return usage

    def pause(self, seconds: float) -> float:
        """Ask nothing for some time, and return the processor time that was used meanwhile."""
        before = self._watched.cpu_s()
        time.sleep(seconds)
        used = self._watched.cpu_s() - before
        self._check_limits()
        return used

    @property
    def _watched(self) -> Watch:
        assert self._watch is not None, "it has not begun"
        return self._watch

    def _check_memory(self) -> None:
        """Look at the memory of the process alone, which takes a microsecond."""
        if self._watched.held_bytes() > self.limits.memory_bytes:
            self._check_limits()

    def _check_limits(self) -> None:
        """Look at all that its processes hold: while it is waited for, and when its turn ends."""
        if self._watch is None:
            return
        if broken := self._watch.broken_limit(self.limits):
            raise self._ended("T6", broken)

    # ------------------------------------------------------------ notes and ends

    def _hear_note(
        self, name: str, said: Mapping[str, Any], doing: str, kind: type[Any] = dict
    ) -> Any:
        """Send a note and give what the answer to it holds under a name."""
        try:
            self._channel.send_note(said)
            message = self._channel.receive()
            heard = message.note().get(name) if message.kind == NOTE else None
        except (SilenceError, EOFError, OSError, MessageError) as error:
            raise self._broken(error, doing) from error
        if not isinstance(heard, kind):
            raise self._told(message, doing)
        return heard

    def _told(self, message: Message, doing: str) -> ContenderError:
        """Return the error for a note that says what went wrong, or for nonsense."""
        if message.kind != NOTE:
            return self._ended("T4", f"it gave an answer while {doing}, and nothing was asked")
        said = _read_note(message)
        rule = "A1" if said.get("rule") == "A1" else "E8"
        return self._ended(rule, str(said.get("error", f"it said nonsense while {doing}")))

    def _broken(self, error: BaseException, doing: str) -> ContenderError:
        """Return the error for a process that said nothing, nothing sensible, or is gone."""
        if isinstance(error, MessageError):
            return self._ended("A1", f"while {doing}: {error}")
        if isinstance(error, SilenceError):
            return self._ended("T6", f"while {doing}, {error}; it was ended")
        try:
            how = how_it_ended(self._started.code(ENDING_S))
        except subprocess.TimeoutExpired:
            how = "hung up and went on"
        if self._started.ran_out_of_memory:
            how = f"needed more than {self.limits.memory_bytes / 2**20:,.0f} MiB and was ended"
        return self._ended("T6", f"while {doing}, its process {how}")

    def _spoke_unasked(self) -> ContenderError:
        if self._started.child.poll() is not None:
            return self._broken(EOFError(), "waiting")
        return self._ended("T4", "it answered although nothing was asked")

    def _ended(self, rule: str, seen: str) -> ContenderError:
        """End the process, and give the error with the last that it wrote."""
        self._words.seek(max(0, self._words.seek(0, os.SEEK_END) - 4096))
        words = last_words(self._words.read().decode("utf-8", errors="replace"))
        self.close()
        return ContenderError(rule, f"{seen}; it wrote: {words}" if words else seen)


def _process_in(started: Started) -> int:
    """Return the number of the process that bubblewrap has started in a sandbox, seen from here."""
    with suppress(psutil.Error):
        for each in psutil.Process(started.leader).children():
            return int(each.pid)
    raise SettingError("a contender has ended before it was asked")


def _end_tree(child: subprocess.Popen[bytes]) -> None:
    """End a process, and what it has started, also what has left its group."""
    started = descendants(child.pid)
    end_child(child)
    for each in started:
        with suppress(psutil.Error):
            each.kill()


def _read_note(message: Message) -> dict[str, Any]:
    try:
        return message.note()
    except MessageError:
        return {}
