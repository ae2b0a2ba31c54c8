"""See whether a target works in an environment of its own, and which files it takes its code from.

Run as a file, by any Python that can import what the target needs, with one argument: JSON with
`target` and `worker`, the file that loads targets. The answer is one line of JSON; what the target
prints goes to stderr. The process ends when its stdin is closed.
"""

import importlib
import importlib.util
import json
import os
import platform
import signal
import sys
import threading
from typing import Any


def main() -> None:
    """Load the target, call it once, and say what was seen."""
    # The folder of this file is no place to import from; the one that we were started in is.
    sys.path[0] = os.getcwd()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)  # a target that reads must not wait for us
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=end_with_parent, args=(lifeline,), daemon=True).start()
    request = json.loads(sys.argv[1])
    answers.write(json.dumps(probe(request["target"], request["worker"])) + "\n")
    answers.flush()


def probe(target: str, worker_file: str) -> dict[str, Any]:
    """Load and call a target, and return what was observed."""
    seen: dict[str, Any] = {"python": platform.python_version()}
    try:
        worker = import_file(worker_file)
        workload = worker.load(target)
        function, context = worker.runner(workload)
        with context:
            function()
        seen["has_evaluate"] = getattr(workload, "evaluate", None) is not None
    except BaseException as error:  # whatever a target does is an answer
        seen["error"] = type(error).__name__ + ": " + str(error)
        seen["is_missing"] = is_missing(target)
    seen["modules"] = imported_files()
    return seen


def is_missing(target: str) -> bool:
    """Return whether a file, module or function is missing, rather than failing."""
    place, _, name = target.rpartition(":")
    try:
        if not place:
            return False
        if place.endswith(".py"):
            return not os.path.isfile(place) or not hasattr(import_file(place), name)
        if not has_module(place):
            return True
        return not hasattr(importlib.import_module(place), name)
    except BaseException:
        return False


def has_module(name: str) -> bool:
    """Return whether a module can be found; a parent that fails to import counts as found."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        if importlib.util.find_spec(".".join(parts[:length])) is None:
            return False
    return True


def imported_files() -> dict[str, str]:
    """Return the file of every imported module, by name."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name != "__main__" and isinstance(file, str) and file:
            found[name] = os.path.realpath(file)
    return found


def end_with_parent(lifeline: int) -> None:
    """Wait for the end of a pipe that only the parent holds; then end, with all we have started."""
    try:
        while os.read(lifeline, 1):
            pass
    except OSError:
        pass
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():  # so we were started
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def import_file(path: str) -> Any:
    """Import a file as a module of its own."""
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = os.path.dirname(os.path.abspath(path))
    sys.path.append(folder)  # so that the file can import its neighbours
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


if __name__ == "__main__":
    main()
