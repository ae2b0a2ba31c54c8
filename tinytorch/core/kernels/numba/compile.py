"""Turning loops into machine code: compile when first called, keep the result, use all cores.

A kernel is an ordinary function over arrays. :func:`compiled` makes two versions of it, one in
which ``prange`` shares its iterations among threads and one in which it is a plain ``range``; the
call says how much there is to do, and little work is not worth waking up threads for."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import threading
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from types import FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba.core import event

from tinytorch.core.files import cache_folder
from tinytorch.core.kernels.backend import Array

KERNELS = "tinytorch.core.kernels."
"""Where the names of modules begin whose sources decide about machine code."""


PARALLEL_WORK = 1 << 15
"""Work, in elements that are read once, below which one thread is faster than waking up others."""

SPINS = 10_000
"""How often an idle OpenMP thread looks for work before it sleeps: about half a millisecond.

Waking up a thread takes up to 0.1 ms, so it should stay awake from one kernel of a model to the
next. The usual 300,000 turns keep a core busy for so long that others, such as the threads of a
BLAS library that runs in between, have to wait.
"""

# `boundscheck` must be off explicitly, since a variable of the environment can switch it on.
LOOPS: dict[str, Any] = {
    "nogil": True,
    "boundscheck": False,
    "error_model": "numpy",
    # Sums may be reordered and products contracted, but NaN and infinity keep their meaning.
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
}


def _thread_count() -> int:
    """Return the cores that this process may use, limited by OMP_NUM_THREADS."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    usable = int(numba.config.NUMBA_NUM_THREADS)
    return min(usable, int(wanted)) if wanted.isdecimal() and int(wanted) > 0 else usable


THREADS = _thread_count()


class _Team:
    """Whether other threads can help, and what has to be minded with numba's way to start them."""

    def __init__(self) -> None:
        self._start_lock = threading.Lock()
        self.is_started = False
        self._one_at_a_time: threading.Lock | None = None
        self.is_available = THREADS > 1
        if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
            os.register_at_fork(after_in_child=self._after_fork)

    def start(self) -> None:
        """Start the threads so that they sleep soon after they have done their work."""
        with self._start_lock:
            if self.is_started:
                return
            if numba.config.THREADING_LAYER == "default":
                numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
            kept = os.environ.get("GOMP_SPINCOUNT")
            os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))  # read once, when OpenMP is loaded
            try:
                numba.get_num_threads()  # loads the library that starts them
                if numba.threading_layer() == "workqueue":
                    self._one_at_a_time = threading.Lock()  # two callers at once would end it all
            except (ValueError, RuntimeError, numba.core.errors.NumbaError) as error:
                self.is_available = False
                _tell(f"kernels run on one thread, since no more could be started ({error})")
            finally:
                if kept is None:
                    os.environ.pop("GOMP_SPINCOUNT", None)
            self.is_started = True

    def _after_fork(self) -> None:
        """A copy of the process has none of its threads; OpenMP would end it if it asked."""
        self._start_lock = threading.Lock()
        self.is_available = self.is_available and not self.is_started

    def run(self, parallel: Any, serial: Any, arguments: tuple[Any, ...]) -> Any:
        """Run the parallel version, or the serial one while another caller holds the threads."""
        lock = self._one_at_a_time
        if lock is None:
            return parallel(*arguments)
        if not lock.acquire(blocking=False):
            return serial(*arguments)
        try:
            return parallel(*arguments)
        finally:
            lock.release()


team = _Team()


class Compiled:
    """A kernel in two versions, both compiled for the types of their arguments when first used."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self.serial = _jit(function)
        self.parallel = _jit(_twin(function), parallel=True) if THREADS > 1 else self.serial

    def __call__(self, *arguments: Any, work: int) -> Any:
        """Run it; `work` is about how many elements are touched, see PARALLEL_WORK."""
        if not team.is_started:
            team.start()
        try:
            return self._run(arguments, work)
        except OSError as error:  # compiled but not kept, and not run yet
            _tell(f"a compiled kernel cannot be kept ({error}): the next process compiles it again")
            return self._run(arguments, work)

    def _run(self, arguments: tuple[Any, ...], work: int) -> Any:
        if work < PARALLEL_WORK or not team.is_available:
            return self.serial(*arguments)
        return team.run(self.parallel, self.serial, arguments)


def compiled(function: Callable[..., Any]) -> Compiled:
    """Compile a kernel whose outermost loop is over `prange`."""
    return Compiled(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a function that is a part of kernels."""
    return numba.njit(forceinline=True, **LOOPS)(function)


def inlined_in_order(function: Callable[..., Any]) -> Any:
    """Compile a part of kernels whose operations must not be reordered."""
    settings = LOOPS | {"fastmath": {"contract", "nsz"}}
    return numba.njit(forceinline=True, **settings)(function)


def _twin(function: Any) -> Callable[..., Any]:
    """Return a copy under another name: numba keeps machine code by name, whatever its options."""
    twin = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__ + "_in_parallel",
        function.__defaults__,
        function.__closure__,
    )
    twin.__qualname__ = function.__qualname__ + "_in_parallel"
    twin.__module__ = function.__module__
    return twin


def _jit(function: Callable[..., Any], *, parallel: bool = False) -> Any:
    """Compile lazily and keep the machine code in our own folder, if it can be written."""
    folder = _kernel_folder(function.__module__)
    reason = _why_not_kept(folder)
    if reason:
        _tell(f"compiled kernels are not kept in {folder.parent}, {reason}: every process compiles")
        return numba.njit(parallel=parallel, **LOOPS)(function)
    # The folder is looked up while decorating, and belongs to the whole process otherwise.
    kept, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder)
    try:
        return numba.njit(cache=True, parallel=parallel, **LOOPS)(function)
    finally:
        numba.config.CACHE_DIR = kept


@lru_cache
def _why_not_kept(folder: Path) -> str:
    """Return why machine code must not be read from a folder, or cannot be written; or nothing.

    It is run as it is found there: whoever can write to the folder, or put another in its place,
    would run code of theirs in this process.
    """
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        for each in (folder, folder.parent):
            if reason := _why_not_safe(each):
                return reason
        with TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"which cannot be written ({error.strerror or error})"


def _why_not_safe(folder: Path) -> str:
    """Return why others could put files into a folder, or nothing."""
    if not hasattr(os, "geteuid"):  # not on Windows, where a profile has its own permissions
        return ""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return f"for {folder} is a link"
    if status.st_uid != os.geteuid():
        return f"for {folder} belongs to another user"
    if status.st_mode & 0o022:
        return f"for others can write to {folder} (chmod go-w, once you know what is in it)"
    return ""


def _kernel_folder(module: str) -> Path:
    """Return the folder of machine code that was made from exactly the sources of a module.

    A kernel's code also holds what it calls in other modules, which numba does not look at when it
    loads the code again.
    """
    digest = hashlib.sha256()
    for source in sorted(_sources(module, set())):
        digest.update(Path(source).read_bytes())
    return cache_folder() / "kernels" / digest.hexdigest()[:16]


def _sources(module: str, seen: set[str]) -> set[str]:
    """Find the files of a module and of those of our backends that it uses, and that they use."""
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if loaded is None or file is None or file in seen:
        return seen
    seen.add(file)
    for value in list(vars(loaded).values()):
        # a module itself, or where a function, a compiled one included, comes from
        home = value.__name__ if isinstance(value, ModuleType) else _home(value)
        if home.startswith(KERNELS):
            _sources(home, seen)
    return seen


def _home(value: Any) -> str:
    return str(getattr(getattr(value, "py_func", value), "__module__", "") or "")


class _CompileNotice(event.Listener):  # type: ignore[misc]
    """Tell on a terminal that a kernel is being compiled, which takes a second or so."""

    def on_start(self, event: Any) -> None:
        if self._is_ours(event) and sys.stderr.isatty():
            name = event.data["dispatcher"].py_func.__name__
            sys.stderr.write(f"\rcompiling {name} for this machine, once ...\x1b[K")
            sys.stderr.flush()

    def on_end(self, event: Any) -> None:
        if self._is_ours(event) and sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    @staticmethod
    def _is_ours(event: Any) -> bool:
        return str(event.data["dispatcher"].py_func.__module__).startswith(KERNELS)


event.register("numba:compile", _CompileNotice())

_told: set[str] = set()


def _tell(text: str) -> None:
    """Warn once about each thing."""
    if text not in _told:
        _told.add(text)
        warnings.warn(f"numba backend: {text}", RuntimeWarning, stacklevel=3)


# ---------------------------------------------------------------- arrays as compiled kernels want
# them: dense, in few shapes, and of one type
#
# Numba compiles a kernel anew for each combination of dtypes, ranks, orders in memory, and whether
# an array may be written. So kernels get flat arrays or rows, and all inputs look writable to them.

FLOAT32 = np.dtype(np.float32)


class _Memory:
    """The memory of an array, without the mark that it must not be written."""

    def __init__(self, array: Array) -> None:
        self.array = array  # lives as long as anything that looks at its memory
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def readable(array: Array) -> Array:
    """Return an equal array that kernels can read: the same memory, or a copy if it has gaps.

    A kernel must not write what it got from here.
    """
    if array.flags.carray:  # C-contiguous, aligned and writable
        return array
    if array.flags.c_contiguous and array.flags.aligned:
        return np.asarray(_Memory(array))
    return np.array(array, order="C")


def flat(array: Array) -> Array:
    """Return the elements in a row, for kernels to read."""
    line = array.ravel()  # a copy only where elements do not lie in order
    return line if line.flags.carray else readable(line)


def rows_of(array: Array) -> Array:
    """Return all rows along the last axis, (rows, width), for kernels to read."""
    rows = array if array.ndim == 2 else array.reshape(-1, array.shape[-1])
    return rows if rows.flags.carray else readable(rows)


def has_rows(x: Array, axis: int = -1) -> bool:
    """Return whether it can be computed row by row: float32, not empty, along the last axis."""
    return x.dtype == FLOAT32 and x.size > 0 and x.ndim > 0 and axis in (-1, x.ndim - 1)


def empty_rows(array: Array) -> tuple[Array, Array]:
    """Return memory for a result of the same shape, and a view of its rows."""
    result = np.empty(array.shape, FLOAT32)
    return result, result.reshape(-1, array.shape[-1])


def shared_work(rows: Array, per_element: int = 1) -> int:
    """Return the elements that threads can share; a single row is not split."""
    return per_element * rows.size if len(rows) > 1 else 0
