"""A side that runs in fresh processes: another commit, another Python, other settings."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.comparison.sides import Known
from tinytorch.errors import MeasurementError, ModelError, SettingError, TinyTorchError
from tinytorch.measure.interleaving import LATENCY, Reading
from tinytorch.models.workload import Preparation

__all__ = ["Isolated", "ProcessSide"]

WORKER = Path(__file__).with_name("worker.py")
TURN_S, SETTLED_TURN_S = 2e-3, 0.02
SETTLE_S = 0.04
"""Idle threads of OpenBLAS and OpenMP spin for about 30 ms before they sleep; until then they would
slow the other process down."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
LINES_KEPT = 20
LISTENING_S = 1.0
"""So long we wait for the last words of a process that has ended."""


@dataclass(frozen=True)
class Isolated:
    """A target that runs in processes of its own, a fresh one for every round.

    `folder` is where they start and what they import first, `python` their interpreter,
    `variables` are added to the environment (an empty value removes one). A request that takes
    longer than `timeout_s` is given up.
    """

    target: str
    python: str = sys.executable
    folder: str | os.PathLike[str] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if self.folder is not None and not Path(self.folder).is_dir():
            raise SettingError(f"there is no folder {os.fspath(self.folder)} to run in")
        if not self.timeout_s > 0:
            raise SettingError(f"timeout_s={self.timeout_s}; it must be positive")

    @property
    def environment(self) -> dict[str, str]:
        """Give the environment variables of the processes."""
        merged = {**os.environ, **self.variables}
        if self.folder is not None:
            paths = [os.fspath(Path(self.folder).resolve()), merged.get("PYTHONPATH", "")]
            merged["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        return {name: value for name, value in merged.items() if value != ""}

    @property
    def is_single_threaded(self) -> bool:
        own = self.environment
        return os.cpu_count() == 1 or all(own.get(name) == "1" for name in THREAD_VARIABLES)


class ProcessSide:
    """One side of a comparison, served by a worker process that is started anew for each round."""

    can_rebuild = True
    runs_here = False
    warms_itself = True
    untimed_call_s = 0.0
    slow_call_s = 0.0
    device_timing: str | None = None
    clock_name = "wall"
    known = Known()
    framework = ""
    devices: tuple[str, ...] = ()
    """Those are watched by this process; what others compute on is out of reach."""
    preparations: tuple[Preparation, ...] = ()

    def __init__(self, isolated: Isolated, *, name: str) -> None:
        self.name = name
        self.isolated = isolated
        self.notes: list[str] = []
        self._worker: _Worker | None = None
        self._is_built = False
        self.is_on_device = False
        self._settle_s = 0.0 if isolated.is_single_threaded else SETTLE_S

    @property
    def least_turn_s(self) -> float:
        return SETTLED_TURN_S if self._settle_s else TURN_S

    def release(self) -> None:
        """End the process and start the next, which loads while the other side does too."""
        self.close()
        self._start()

    def build(self) -> None:
        """Wait until a process has built the target."""
        if self._worker is None:
            self._start()
        if not self._is_built:
            self.is_on_device = self._answer()["is_on_device"]
            self._is_built = True

    def time_on_device(self, timing: str) -> None:
        """Time calls that run on a device from now on: single ones, or sustained ones."""
        self.device_timing = timing

    def time(self, loops: int, *, before: int = 0) -> Reading:
        """Call the target in its process, once idle threads of the other one sleep."""
        if self._settle_s:
            time.sleep(self._settle_s)
        # A call before wakes the threads, and fills the caches.
        one_by_one = self.device_timing == LATENCY
        answer = self.ask("time", loops=loops, before=max(1, before), one_by_one=one_by_one)
        return Reading(answer["seconds"], answer["lost_s"])

    def ask(self, what: str, **settings: Any) -> Any:
        """Send a request to the process and give its answer."""
        self.build()
        assert self._worker is not None
        self._worker.send({"do": what, **settings})
        return self._answer()

    def arrays(self, what: str) -> tuple[Any, dict[str, npt.NDArray[Any]]]:
        """Ask for something that comes as a file of arrays."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "arrays.npz"
            answer = self.ask(what, file=str(file))
            if not file.exists():
                return answer, {}
            with np.load(file, allow_pickle=False) as found:
                return answer, {name: found[name] for name in found}

    @contextmanager
    def opened(self) -> Iterator[None]:
        """End the process after everything that is done with it."""
        try:
            yield
        finally:
            self.close()

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.end()
        self._worker, self._is_built = None, False

    def _start(self) -> None:
        self._worker = _Worker(self.isolated, self.name)
        self._worker.send({"do": "build", "target": self.isolated.target})

    def _answer(self) -> Any:
        assert self._worker is not None
        try:
            return self._worker.answer()
        except BaseException as error:
            self.close()
            if isinstance(error, TinyTorchError):
                error.about(self.name)
            raise


class _Worker:
    """A worker process and the lines that go to and fro."""

    def __init__(self, isolated: Isolated, name: str) -> None:
        self._name, self._timeout_s = name, isolated.timeout_s
        self._last_lines: deque[str] = deque(maxlen=LINES_KEPT)
        try:
            self._process = subprocess.Popen(
                [isolated.python, os.fspath(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=isolated.environment,
                cwd=isolated.folder,
                start_new_session=True,
            )
        except OSError as error:
            raise SettingError(f"{isolated.python} cannot be started: {error.strerror}") from error
        self._listener = Thread(target=self._keep_lines, daemon=True)
        self._listener.start()

    def send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # When it has ended, reading the answer says how.
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def answer(self) -> Any:
        line = self._read_line()
        if not line.endswith("\n"):
            how = _end_in_words(self._process.wait())
            self._listener.join(LISTENING_S)
            last = " / ".join(each for each in self._last_lines if each) or "nothing"
            raise ModelError(f"{self._name}: its process {how}; it said: {last[-500:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise ModelError(f"{self._name} raised {answer['error']}")
        return answer["answer"]

    def end(self) -> None:
        """End the process, and those that it has started."""
        try:
            os.killpg(self._process.pid, 9)
        except (OSError, AttributeError):
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _read_line(self) -> str:
        pipe = self._process.stdout
        assert pipe is not None
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            # Answers are one line each, and none is waiting in a buffer before it was asked for.
            if not selector.select(self._timeout_s):
                raise MeasurementError(
                    f"{self._name} gave no answer within {self._timeout_s:g} s and was ended; "
                    "allow more with a longer timeout"
                )
        return pipe.readline()

    def _keep_lines(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._last_lines.append(line.rstrip())


def _end_in_words(code: int) -> str:
    """Say how a process ended; a negative code is the signal that ended it."""
    if code >= 0:
        return f"ended with {code}"
    known = {each.value: f" ({each.name})" for each in signal.Signals}
    return f"was ended by signal {-code}{known.get(-code, '')}"
