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
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt
import psutil

from tinytorch.competition.cell.building import bytes_below
from tinytorch.competition.cell.confinement import PACKAGE, Confinement, Protection, program_paths
from tinytorch.competition.cell.contender import (
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
from tinytorch.competition.cell.messages import (
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
from tinytorch.competition.entry import MANIFEST, files_below
from tinytorch.competition.events import find_event
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

__all__ = [
    "ContenderError",
    "ContenderProcess",
    "Watch",
    "bytes_of_code",
    "confinement_of",
    "descendants",
    "environment_of",
]


# ---------------------------------------------------------------- what a contender finds around
# it: variables, files that it may read, and where it may write

ADDRESSES_BYTES = 4 << 30
"""Libraries reserve addresses that they never use; this many are free beside the memory."""
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


def confinement_of(contender: Contender, folder: Path, limits: Limits) -> Confinement:
    """Return what a contender may read and write: its files, the program, and a fresh folder."""
    own: list[str] = []
    listed: list[str] = []
    if contender.weights is not None:
        own.append(str(Path(contender.weights).resolve()))
    if contender.code is not None:
        home = _home(contender).resolve()
        # What is not hashed, such as earlier runs and compiled copies, cannot be read.
        own += [str(home / MANIFEST), *(str(home / name) for name in files_below(home))]
        listed.append(str(home))
    cache = _cache(contender, folder)
    cache.mkdir(parents=True, exist_ok=True)
    return Confinement(
        readable=(*program_paths(), *own),
        writable=(str(folder), str(cache)),
        address_space_bytes=limits.memory_bytes + ADDRESSES_BYTES,
        core=max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        may_start_processes=limits.processes > 1,
        listed=tuple(listed),
    )


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
RESET_PEAK = "5"
INSTALLED_PACKAGE = re.compile(r"/(?:site|dist)-packages/(\w+)")


class Watch:
    """Counts what a process, and those that it starts, use from now on."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
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

    def cpu_s(self, *, with_children: bool = False) -> float:
        """Return the processor time since the watch began."""
        used = self._clock_s() - self._start_s
        if not with_children:
            return used
        return used + sum(map(_spent_s, descendants(self._process.pid)))

    def usage(self, modules: Iterable[str] = ()) -> Usage:
        """Return all that was used. Packages whose libraries were loaded are added to the modules.

        Memory is counted in pages; a peak is never less than one.
        """
        everybody = [self._process, *descendants(self._process.pid)]
        growth = self._peak_bytes() - self._start_bytes
        loaded = self._mapped_packages() - self._packages
        return Usage(
            cpu_s=self.cpu_s(with_children=True),
            memory_bytes=max(0, self.held_bytes() - self._start_bytes),
            peak_bytes=max(self._page_bytes, growth),
            threads=sum(map(_thread_count, everybody)),
            processes=len(everybody),
            modules=tuple(sorted({*modules, *loaded})),
        )

    def _clock_s(self) -> float:
        try:
            return time.clock_gettime(~self._process.pid << 3 | PROCESS_CLOCK)
        except (OSError, AttributeError):
            return _spent_s(self._process)

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


def _spent_s(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _thread_count(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.num_threads())
    return 0


# ---------------------------------------------------------------- the judge's side of a
# contender's process: start it, ask it, watch what it uses, end it

START = "from tinytorch.competition.cell.contender_worker import main; main({})"
PURPOSE = "tinytorch-contender"
KINDS: dict[Kind, int] = {"forward": FORWARD, "generate": GENERATE}
ENDING_S = 5.0


class ContenderProcess:
    """A contender in a separate process, which is started when a block is entered.

    The process runs on one core, with one thread in each library; that core is the last one that
    the judge may use, so that the judge can keep to another. `protection` says how it is kept
    apart, see :func:`confine`. After an error, or at the end of the block, it is gone with all
    that it has started.
    """

    def __init__(self, contender: Contender, *, limits: Limits = USUAL_LIMITS) -> None:
        self.contender = contender
        self.limits = limits
        self.protection: Mapping[str, Protection] = {}
        self._open = ExitStack()

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
        remove_stale_folders(PURPOSE)
        folder = self._open.enter_context(owned_folder(PURPOSE)).resolve()
        self._words: IO[bytes] = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        self._open.callback(self._channel.close)
        with theirs:
            self._child = start_child(
                [sys.executable, "-P", "-c", START.format(theirs.fileno())],
                purpose="for a contender",
                pass_fds=(theirs.fileno(),),
                stdout=self._words,
                stderr=self._words,
                cwd=folder,
                env=environment_of(self.contender, folder),
            )
        self._open.callback(self._end)
        self._channel.allow(self.limits.start_s)
        first = {
            "contender": asdict(self.contender),
            "confinement": asdict(confinement_of(self.contender, folder, self.limits)),
        }
        ready = self._hear_note("ready", first, "starting")
        self.protection = {name: Protection(**state) for name, state in ready.items()}
        self._watch = Watch(self._child.pid)
        self._open.callback(self._watch.close)

    def _end(self) -> None:
        """End the process, and what it has started, also what has left its group."""
        started = descendants(self._child.pid)
        end_child(self._child)
        for each in started:
            with suppress(psutil.Error):
                each.kill()

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
        if not 0 <= message.seconds <= seconds:
            raise self._ended(
                "T1", f"it says that it took {message.seconds:g} s; our clock shows {seconds:g} s"
            )
        self._check_memory()
        return Answer(message.array(), seconds, message.seconds, message.is_intact)

    # ------------------------------------------------------------ turns

    def hold(self) -> None:
        """Stop the process while it is the other side's turn: both share a core."""
        self._signal(signal.SIGSTOP)

    def release(self) -> None:
        """Resume the process."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # one that is gone is told of when it is asked
            os.killpg(self._child.pid, number)

    # ------------------------------------------------------------ watching

    def usage(self) -> Usage:
        """Return what it has used since it was ready, as seen from outside."""
        modules = self._hear_note("modules", {"do": "modules"}, "telling its modules", list)
        told = {str(each) for each in modules}
        usage = self._watch.usage(told)
        self._check_memory()
        if usage.processes > self.limits.processes:
            raise self._ended(
                "T6", f"it runs {usage.processes} processes; {self.limits.processes} are allowed"
            )
        return usage

    @property
    def cpu_s(self) -> float:
        """The processor time of the process since it was ready, without those it has started."""
        return self._watch.cpu_s()

    def pause(self, seconds: float) -> float:
        """Ask nothing for some time, and return the processor time that was used meanwhile."""
        before = self._watch.cpu_s(with_children=True)
        time.sleep(seconds)
        return self._watch.cpu_s(with_children=True) - before

    def _check_memory(self) -> None:
        held = self._watch.held_bytes()
        if held > self.limits.memory_bytes:
            raise self._ended(
                "T6",
                f"it holds {held / 2**20:,.0f} MiB; {self.limits.memory_bytes / 2**20:,.0f} are "
                "allowed",
            )

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
            how = how_it_ended(self._child.wait(ENDING_S))
        except subprocess.TimeoutExpired:
            how = "hung up and went on"
        return self._ended("T6", f"while {doing}, its process {how}")

    def _spoke_unasked(self) -> ContenderError:
        if self._child.poll() is not None:
            return self._broken(EOFError(), "waiting")
        return self._ended("T4", "it answered although nothing was asked")

    def _ended(self, rule: str, seen: str) -> ContenderError:
        """End the process, and give the error with the last that it wrote."""
        self._words.seek(max(0, self._words.seek(0, os.SEEK_END) - 4096))
        words = last_words(self._words.read().decode("utf-8", errors="replace"))
        self.close()
        return ContenderError(rule, f"{seen}; it wrote: {words}" if words else seen)


def _read_note(message: Message) -> dict[str, Any]:
    try:
        return message.note()
    except MessageError:
        return {}
