"""Starting a child process, ending it with all that it has started, and saying how it ended."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinytorch.errors import SettingError

__all__ = [
    "EndedChild",
    "end_child",
    "how_it_ended",
    "is_running",
    "last_words",
    "own_start",
    "owned_folder",
    "remove_stale_folders",
    "run_child",
    "start_child",
]


WORDS_KEPT = 600


@dataclass(frozen=True)
class EndedChild:
    """A process that is gone. `code` is None when it took too long and was ended.

    `messages` is what it wrote to stderr, unless that went to the same place as its output.
    """

    code: int | None
    output: str
    messages: str = ""

    @property
    def is_late(self) -> bool:
        return self.code is None


def start_child(
    command: Sequence[str], *, purpose: str = "", **settings: Any
) -> subprocess.Popen[Any]:
    """Start a process in a group of its own; `settings` are those of :class:`subprocess.Popen`.

    Its stdin is a pipe that only we hold. A child that waits for the end of it learns when we are
    gone, however we went. `purpose` is for the error when it cannot be started.
    """
    usual: dict[str, Any] = {"stdin": subprocess.PIPE, "start_new_session": True}
    try:
        return subprocess.Popen(command, **(usual | settings))
    except OSError as error:
        what = f"{command[0]} cannot be started{purpose and f' {purpose}'}"
        raise SettingError(f"{what}: {error.strerror or error}") from error


def run_child(
    command: Sequence[str],
    *,
    timeout_s: float,
    folder: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    together: bool = False,
    purpose: str = "",
) -> EndedChild:
    """Run a process to its end, or until `timeout_s` have passed, and give what it has said.

    The process, and those that it has started, are ended in any case, also when this call is
    interrupted. `together` keeps output and messages in their order.
    """
    # Files, since reading pipes to their end would close stdin, and wait for grandchildren.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as messages:
        child = start_child(
            command,
            purpose=purpose,
            stdout=output,
            stderr=subprocess.STDOUT if together else messages,
            cwd=folder,
            env=environment,
        )
        code: int | None = None
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_child(child)
        return EndedChild(code, _text_in(output), _text_in(messages))


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
    """Say how a process ended; a negative code is the signal that ended it.

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
    """Give the end of what a process has said, in one line.

    >>> last_words("first\\n\\n  second\\n")
    'first / second'
    """
    lines = (" ".join(line.split()) for line in text.splitlines())
    return " / ".join(line for line in lines if line)[-limit:]


def _text_in(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode("utf-8", errors="replace"))


# ---------------------------------------------------------------- temporary folders that know
# whose they are, so that those of killed processes can be removed

CLOCK_STEP_S = 10.0
"""The start of a process is told relative to the clock, which may be set while it runs. Another
process with the same number does not start within so short a time."""
OWNER = re.compile(r"(?P<pid>\d+)-(?P<started>\d+)-\w+")


@contextmanager
def owned_folder(purpose: str) -> Iterator[Path]:
    """Give a new temporary folder, which is gone when the block ends.

    Its name holds the machine and the process, so there is no moment at which it has no owner.
    """
    import psutil

    process = psutil.Process()
    owner = f"{process.pid}-{process.create_time() * 1e3:.0f}"
    with tempfile.TemporaryDirectory(
        prefix=f"{_prefix(purpose)}{owner}-", ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def remove_stale_folders(purpose: str) -> tuple[Path, ...]:
    """Remove the folders of processes on this machine that were killed, and name them."""
    removed, prefix = [], _prefix(purpose)
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        owner = OWNER.fullmatch(folder.name.removeprefix(prefix))
        if owner and not is_running(int(owner["pid"]), int(owner["started"]) / 1e3):
            shutil.rmtree(folder, ignore_errors=True)  # another user's stays
            removed.append(folder)
    return tuple(removed)


def own_start() -> float:
    """Give when this process was started, for :func:`is_running`."""
    import psutil

    return psutil.Process().create_time()


def is_running(pid: int, started: float) -> bool:
    """Say whether the process with a number that was started at some time is still there."""
    import psutil

    try:
        process = psutil.Process(pid)
        return (
            abs(process.create_time() - started) < CLOCK_STEP_S
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.AccessDenied:
        return True  # nobody can tell, so it is left alone
    except (psutil.Error, ValueError):
        return False


def _prefix(purpose: str) -> str:
    host = re.sub(r"[^\w.]", "_", platform.node())
    return f"tinytorch-{purpose}-{host}-"
