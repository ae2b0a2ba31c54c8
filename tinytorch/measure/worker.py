"""The child's end of a child process: answer requests until there are no more.

Run as a file, by any Python: it needs the standard library alone. Its argument is JSON: `serve`
names what answers, `module:name` or `file.py:name`; `path` is where to import from (default: the
working folder first); `scratch` a folder for temporary files. Requests and answers are lines of
JSON; what the service prints goes to stderr.
"""

import importlib
import importlib.util
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO, TextIO

PARENT_CHECKED_EVERY_S = 0.5
LONGEST = 600
OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
    "alloc_failed",
)


def main() -> None:
    """Answer requests; end with all that the service has started."""
    settings = json.loads(sys.argv[1])
    # The folder of this file is no place to import from; the one that we were started in is.
    own = os.path.dirname(os.path.abspath(__file__))
    others = [each for each in sys.path if os.path.abspath(each) != own]
    sys.path[:] = settings.get("path") or [os.getcwd(), *others]
    scratch = settings.get("scratch")
    tempfile.tempdir = scratch or tempfile.tempdir
    requests, answers = private_channels()
    watch = threading.Thread(target=end_with_parent, args=(os.getppid(), scratch), daemon=True)
    watch.start()
    service, process = Service(settings["serve"], requests), os.getpid()
    for line in iter(requests.readline, b""):
        answer = service.reply(json.loads(line))
        if os.getpid() != process:  # a copy that the service has left behind must not answer
            os._exit(0)
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except BrokenPipeError:  # the process that asked is gone
            break
    end_with_group()


class Service:
    """What answers requests: a function, or an object of a class that is made at first use.

    The class is called with this object. `requests` is the stream, in case something follows in it.
    """

    def __init__(self, place: str, requests: BinaryIO) -> None:
        self.requests = requests
        self._place = place
        self._found: Any = None

    def guarded(self, function: Callable[[], object]) -> Callable[[], object]:
        """Call a function once, and let copies of this process end in it if it makes some."""
        forks, guarded = Forks.count, ending_copies(function)
        guarded()
        # The check takes longer than some functions.
        return guarded if Forks.count != forks else function

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request, or what was raised instead."""
        try:
            if self._found is None:
                found = load_object(self._place)
                self._found = found(self) if isinstance(found, type) else found
            name = request.pop("do", None)
            action = self._found if name is None else getattr(self._found, name)
            return {"answer": action(**request)}
        except BaseException as error:  # whatever a service raises is an answer
            return {"error": described(error)}


def load_object(place: str) -> Any:
    """Return what `module:name` or `file.py:name` says."""
    where, _, name = place.rpartition(":")
    module = import_file(where) if where.endswith(".py") else importlib.import_module(where)
    return getattr(module, name)


def import_file(path: str) -> Any:
    """Import a file as a separate module; it can import its neighbours."""
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[: -len(".py")], path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = os.path.dirname(os.path.abspath(path))
    sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


def described(error: BaseException) -> dict[str, Any]:
    """Return an exception as JSON: its class, its words, and whether it is one of tinytorch."""
    return {
        "class": type(error).__name__,
        "words": " ".join(str(error).split())[:LONGEST],
        "is_ours": any(each.__name__ == "TinyTorchError" for each in type(error).__mro__),
        "is_memory": is_out_of_memory(error),
    }


def is_out_of_memory(error: "BaseException | None") -> bool:
    """Return whether an exception, or one behind it, says that memory ran out."""
    while error is not None:
        kind = type(error)
        if isinstance(error, MemoryError) or "OutOfMemory" in kind.__name__:
            return True
        may_say_so = isinstance(error, (RuntimeError, OSError)) or kind.__module__[:5] == "torch"
        if may_say_so and any(each in str(error).lower() for each in OUT_OF_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


def private_channels() -> tuple[BinaryIO, TextIO]:
    """Reserve stdin and stdout: other code reads nothing, and what it prints goes to stderr."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def end_with_parent(parent: int, scratch: "str | None" = None) -> None:
    """End, with all that was started here, when the process that asks is gone."""
    wait_for_end(parent)
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)
    end_with_group()
    os._exit(1)


def wait_for_end(parent: int) -> None:
    """Return as soon as the parent is gone: by a wait that costs nothing where Linux has one."""
    try:
        handle = os.pidfd_open(parent)
    except (AttributeError, OSError):  # another system, an old kernel, or a sandbox without it
        while os.getppid() == parent:
            time.sleep(PARENT_CHECKED_EVERY_S)
        return
    try:
        if os.getppid() == parent:  # or the number may be that of somebody else by now
            select.select([handle], [], [])
    finally:
        os.close(handle)


def end_with_group() -> None:
    """End this process with all that it has started, if they are a process group."""
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)


class Forks:
    """How often this process was copied."""

    count = 0

    @classmethod
    def add(cls) -> None:
        cls.count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=Forks.add)


def ending_copies(function: Callable[[], object]) -> Callable[[], object]:
    """Make a fork of this process exit where the function returns: it would answer as well."""
    process = os.getpid()

    def guarded() -> object:
        try:
            return function()
        finally:
            if os.getpid() != process:
                os._exit(0)

    return guarded


if __name__ == "__main__":
    main()
