"""A side that runs in fresh processes: another commit, another Python, other settings."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tinytorch.comparison.sides import Arrays, Known
from tinytorch.errors import MeasurementError, ModelError, SettingError, check_number
from tinytorch.measure.child_process import TIMED_OUT, Child, ChildError
from tinytorch.measure.interleaving import LATENCY, Reading
from tinytorch.models.adapter import Array
from tinytorch.models.workload import Preparation, Workload

WORKER = f"{Path(__file__).with_name('worker.py')}:Worker"
TURN_S, SETTLED_TURN_S = 2e-3, 0.02
SETTLE_S = 0.04
"""Idle threads of OpenBLAS and OpenMP spin for about 30 ms before they sleep; until then they would
slow the other process down."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Isolated:
    """A target that runs in separate processes, a fresh one for every round.

    `folder` is where they start and what they import first, `python` their interpreter,
    `variables` are added to the environment (an empty value removes one). A request that takes
    longer than `timeout_s` is aborted.
    """

    target: str
    python: str = sys.executable
    folder: str | os.PathLike[str] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if self.folder is not None and not Path(self.folder).is_dir():
            raise SettingError(f"there is no folder {os.fspath(self.folder)} to run in")
        check_number("timeout_s", self.timeout_s, above=0)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables of the processes."""
        merged = {**os.environ, **self.variables}
        if self.folder is not None:
            paths = [os.fspath(Path(self.folder).resolve()), merged.get("PYTHONPATH", "")]
            merged["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        return {name: value for name, value in merged.items() if value != ""}

    def start(self, *, purpose: str = "") -> Child:
        """Start a process that answers requests about the target (see worker.py)."""
        return Child(
            WORKER,
            python=self.python,
            folder=self.folder,
            environment=self.environment,
            purpose=purpose,
        )

    @property
    def is_single_threaded(self) -> bool:
        own = self.environment
        return os.cpu_count() == 1 or all(own.get(name) == "1" for name in THREAD_VARIABLES)


class ProcessSide:
    """One side of a comparison, served by a worker process that is started anew for each round."""

    in_process: Literal[False] = False
    workload: Workload | None = None
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
        self._worker: Child | None = None
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
        """Send a request to the process and return its answer."""
        self.build()
        assert self._worker is not None
        self._worker.send(what, **settings)
        return self._answer()

    def arrays(self, what: str) -> tuple[Any, dict[str, Array]]:
        """Request something that comes as a file of arrays."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "arrays.npz"
            answer = self.ask(what, file=str(file))
            if not file.exists():
                return answer, {}
            with np.load(file, allow_pickle=False) as found:
                return answer, {name: found[name] for name in found}

    def outputs(self) -> Arrays:
        """Call the target once and return the arrays in what it returns."""
        _, found = self.arrays("outputs")
        return tuple(found[str(index)] for index in range(len(found)))

    def scores(self, measured_by: Workload | None = None) -> tuple[Array | None, str]:
        """Return the score of each held-out example, and what their mean is called."""
        metric, found = self.arrays("evaluate")
        return found.get("scores"), metric or ""

    def attention_mask(self) -> Array | None:
        """Return which positions of the inputs count, (batch, sequence); None for all."""
        return self.arrays("attention_mask")[1].get("mask")

    def input_shapes(self) -> list[tuple[int, ...]] | None:
        """Return None: only its process knows what the target is called with."""
        return None

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
            self._worker.close()
        self._worker, self._is_built = None, False

    def _start(self) -> None:
        self._worker = self.isolated.start()
        self._worker.send("build", target=self.isolated.target)

    def _answer(self) -> Any:
        assert self._worker is not None
        try:
            return self._worker.answer(self.isolated.timeout_s)
        except ChildError as error:
            self.close()
            if error.kind == TIMED_OUT:
                hint = "allow more with a longer timeout"
                late = MeasurementError(f"{self.name} {error}; {hint}")
                raise late.about(self.name) from error
            raise ModelError(f"{self.name}{_failed(error)}").about(self.name) from error
        except BaseException:
            self.close()
            raise


def _failed(error: ChildError) -> str:
    if not error.raised:
        return f": {error}"
    return f" raised {': '.join(filter(None, (error.raised, error.detail)))}"
