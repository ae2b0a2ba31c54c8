"""Child processes: starting them, asking them, and ending them with all that they have started."""

from __future__ import annotations

import json
import os
import platform
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any, BinaryIO

from tinytorch.errors import SettingError, TinyTorchError

WORDS_KEPT = 600


def start_child(
    command: Sequence[str] | str, *, purpose: str = "", **settings: Any
) -> subprocess.Popen[Any]:
    """Start a process in its own group; `settings` are those of :class:`subprocess.Popen`.

    Its stdin is a pipe that only we hold. A child that waits for the end of it learns when we are
    gone, however we went. `purpose` is for the error when it cannot be started.
    """
    usual: dict[str, Any] = {"stdin": subprocess.PIPE, "start_new_session": True}
    try:
        return subprocess.Popen(command, **(usual | settings))
    except OSError as error:
        program = command if isinstance(command, str) else command[0]
        what = f"{program} cannot be started{purpose and f' {purpose}'}"
        raise SettingError(f"{what}: {error.strerror or error}") from error


def run_command(
    command: str, *, folder: str | os.PathLike[str], environment: Mapping[str, str]
) -> tuple[int, str]:
    """Run a command of the shell to its end; return its code, and all that it has printed.

    What it has started is ended with it, also when this call is interrupted.
    """
    # A file, since reading a pipe to its end would wait for grandchildren.
    with tempfile.TemporaryFile() as output:
        child = start_child(
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
        )
        try:
            return child.wait(), _text_in(output)
        finally:
            end_child(child)


def end_child(child: subprocess.Popen[Any]) -> None:
    """End a process and those that it has started, and close the pipes to it."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (OSError, AttributeError):  # all gone; or a system without groups
        child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def how_it_ended(code: int) -> str:
    """Return how a process ended; a negative code is the signal that ended it.

    >>> how_it_ended(3), how_it_ended(-15)
    ('ended with code 3', 'was killed by SIGTERM')
    """
    if code >= 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    memory = "; the machine may have run out of memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{memory}"


def last_words(text: str, limit: int = WORDS_KEPT) -> str:
    """Return the end of what a process has said, in one line.

    >>> last_words("first\\n\\n  second\\n")
    'first / second'
    """
    lines = (" ".join(line.split()) for line in text.splitlines())
    return " / ".join(line for line in lines if line)[-limit:]


def _text_in(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode("utf-8", errors="replace"))


# ---------------------------------------------------------------- asking a child process: requests
# and answers are lines of JSON (see worker.py)

WORKER = Path(__file__).with_name("worker.py")
WATCHED_EVERY_S = 0.5
LISTENING_S = 1.0
CRASHED, OUT_OF_MEMORY, RAISED = "crashed", "out of memory", "raised"
TIMED_OUT = "timed out"


class ChildError(TinyTorchError):
    """A request without an answer. `kind` is CRASHED, OUT_OF_MEMORY, RAISED or TIMED_OUT.

    `raised` is the class of the exception there, where there was one, and `detail` its message.
    """

    def __init__(self, kind: str, words: str, *, raised: str = "", detail: str = "") -> None:
        super().__init__(words)
        self.kind, self.raised, self.detail = kind, raised, detail


class Child:
    """A process that answers requests, until it is closed or an answer does not come.

    `serve` names what answers there: `module:name` or `file.py:name`, a function or a class.
    `path` is where it imports from; by default its working folder comes first.
    """

    def __init__(
        self,
        serve: str,
        *,
        python: str | None = None,
        path: Sequence[str] | None = None,
        scratch: str | os.PathLike[str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
        purpose: str = "",
    ) -> None:
        settings = {"serve": serve, "path": path, "scratch": scratch and os.fspath(scratch)}
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            self.process = start_child(
                [python or sys.executable, os.fspath(WORKER), json.dumps(settings)],
                purpose=purpose,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                cwd=folder,
                env=environment,
            )
        except BaseException:
            self._messages.close()
            raise
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._listener = Thread(target=self._listen, args=(self.process.stdout,), daemon=True)
        self._listener.start()

    def ask(self, do: str | None = None, *, timeout_s: float, **settings: Any) -> Any:
        """Send a request and wait for its answer."""
        self.send(do, **settings)
        return self.answer(timeout_s)

    def send(
        self,
        do: str | None = None,
        *,
        followed_by: Callable[[BinaryIO], object] | None = None,
        **settings: Any,
    ) -> None:
        """Send a request; `followed_by` writes what the service reads after it."""
        pipe = self.process.stdin
        assert pipe is not None
        with suppress(OSError):  # when it has ended, reading the answer says how
            pipe.write((json.dumps({"do": do, **settings}) + "\n").encode())
            if followed_by is not None:
                followed_by(pipe)  # type: ignore[arg-type]
            pipe.flush()

    def answer(self, timeout_s: float, while_waiting: Callable[[], None] = lambda: None) -> Any:
        """Wait for the next answer; without one the process is ended and a ChildError raised.

        `while_waiting` is called now and then.
        """
        try:
            line = self._next_line(timeout_s, while_waiting)
        except BaseException:
            self.close()
            raise
        answer = json.loads(line)
        if "error" not in answer:
            return answer["answer"]
        error = answer["error"]
        words = error["words"] if error["is_ours"] and error["words"] else ""
        words = words or ": ".join(filter(None, (error["class"], error["words"])))
        kind = OUT_OF_MEMORY if error["is_memory"] else RAISED
        raise ChildError(kind, words, raised=error["class"], detail=error["words"])

    def heard(self) -> str:
        """Return what the process has printed."""
        return _text_in(self._messages)

    def close(self) -> None:
        """End the process and those that it has started."""
        if self._messages.closed:
            return
        # Closing a pipe waits for whoever reads from it, so the listener has to leave first.
        pipe, self.process.stdout = self.process.stdout, None
        end_child(self.process)
        self._listener.join(LISTENING_S)
        if pipe is not None and not self._listener.is_alive():
            pipe.close()
        self._messages.close()

    def _listen(self, pipe: Iterable[bytes]) -> None:
        for line in pipe:
            self._lines.put(line)
        self._lines.put(b"")

    def _next_line(self, timeout_s: float, while_waiting: Callable[[], None]) -> bytes:
        end = perf_counter() + timeout_s
        while True:
            try:
                left_s = max(0.0, end - perf_counter())
                line = self._lines.get(timeout=min(WATCHED_EVERY_S, left_s))
                break
            except queue.Empty:
                while_waiting()
                if perf_counter() >= end:
                    words = f"gave no answer within {timeout_s:.3g} s and was ended"
                    raise ChildError(TIMED_OUT, words) from None
        if line.endswith(b"\n"):
            return line
        code = self.process.wait()
        said = last_words(self.heard()) or "nothing"
        raise ChildError(CRASHED, f"its process {how_it_ended(code)}; it said: {said}")


def import_path() -> list[str]:
    """Return the folders that a child imports from as this process does: the working one, too."""
    here = os.getcwd()
    found = [path or here for path in sys.path]
    return found if here in found else [here, *found]


# ---------------------------------------------------------------- temporary folders that know
# whose they are, so that those of killed processes can be removed

CLOCK_STEP_S = 10.0
"""The start of a process is told relative to the clock, which may be set while it runs. Another
process with the same number does not start within so short a time."""
OWNER = re.compile(r"(?P<pid>\d+)-(?P<started>\d+)-\w+")


@contextmanager
def owned_folder(purpose: str) -> Iterator[Path]:
    """Return a new temporary folder, which is gone when the block ends.

    Its name holds the machine and the process, so there is no moment at which it has no owner.
    """
    with tempfile.TemporaryDirectory(
        prefix=owned_name(purpose), ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def owned_name(purpose: str) -> str:
    """Return the beginning of a name that tells which process on which machine owns something."""
    import psutil

    process = psutil.Process()
    return f"{_prefix(purpose)}{process.pid}-{process.create_time() * 1e3:.0f}-"


def remove_stale_folders(purpose: str) -> tuple[Path, ...]:
    """Remove the folders of processes on this machine that were killed, and name them."""
    folders = Path(tempfile.gettempdir()).glob(f"{_prefix(purpose)}*")
    stale = tuple(folder for folder in folders if is_stale(folder, purpose))
    for folder in stale:
        shutil.rmtree(folder, ignore_errors=True)  # another user's stays
    return stale


def is_stale(folder: Path, purpose: str) -> bool:
    """Return whether a folder was owned by a process on this machine that is gone."""
    owner = OWNER.fullmatch(folder.name.removeprefix(_prefix(purpose)))
    return owner is not None and not is_running(int(owner["pid"]), int(owner["started"]) / 1e3)


def is_running(pid: int, started: float) -> bool:
    """Return whether the process with a number that was started at some time is still there."""
    import psutil

    try:
        process = psutil.Process(pid)
        return (
            abs(process.create_time() - started) < CLOCK_STEP_S
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.AccessDenied:
        return True  # not known, so it is left alone
    except (psutil.Error, ValueError):
        return False


def _prefix(purpose: str) -> str:
    host = re.sub(r"[^\w.]", "_", platform.node())
    return f"tinytorch-{purpose}-{host}-"
