"""What a CUDA device computes between two marks, by torch's own trace. Imported after torch.

Where a program waits for the device in the middle of a call, the call cannot be queued up before it
runs, and events around a layer tell how long the device waited for the program as well. A trace
knows when each kernel ran, and when it was launched.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from tinytorch.errors import MeasurementError

MARK = "tinytorch mark "
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
"""Categories of events in a trace: work of the device, and its launches."""
US = 1e-6


class KernelTrace:
    """A block in which every kernel is traced; after it, the time that kernels took is known.

    Time between two marks is that of what was launched between them, without gaps. Kernels that run
    at the same time count once.
    """

    def __init__(self, device: str) -> None:
        index: Any = torch.device(device).index  # None is the current one
        self._device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
        self._numbers = count()  # layers may run in several threads at once
        self._marked_us: dict[int, float] = {}
        self._moments: Mapping[int, float] = {}
        self._launched = np.empty(0)
        self._spent = np.zeros(1)
        self._profile: Any = None

    @property
    def has_kernels(self) -> bool:
        """Whether anything was seen: some machines do not allow it."""
        return bool(self._launched.size)

    def __enter__(self) -> KernelTrace:
        torch.cuda.synchronize(self._device)
        if _is_tracing():  # a second trace takes the events of the first, which finds none then
            return self
        with warnings.catch_warnings(), suppress(RuntimeError):  # torch cannot trace here
            warnings.simplefilter("ignore")
            profiling: Any = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
            profiling.__enter__()
            self._profile = profiling
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        profiling, self._profile = self._profile, None
        if profiling is None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind is not None:
                _turn_off(profiling)
                return
            try:
                torch.cuda.synchronize(self._device)
                profiling.__exit__(None, None, None)
            except BaseException:
                _turn_off(profiling)
                raise
            self._read(_events_of(profiling))

    def mark(self) -> int:
        """Mark a moment of the program."""
        number = next(self._numbers)
        self._marked_us[number] = perf_counter() / US
        with record_function(f"{MARK}{number}"):
            return number

    def seconds(self, begin: int, end: int) -> float:
        """Return the device time of what was launched between two marks."""
        if not self._moments:
            raise MeasurementError(
                "nothing was traced: another profiler of torch is active; end that, and "
                "measure again"
            )
        moments = [self._moments[begin], self._moments[end]]
        first, last = np.searchsorted(self._launched, moments)
        return float(self._spent[last] - self._spent[first])

    def _read(self, events: Iterable[Mapping[str, Any]]) -> None:
        moments: dict[int, float] = {}
        launches: dict[int, float] = {}
        kernels: list[tuple[float, float, int]] = []
        for each in events:
            kind, details = each.get("cat"), each.get("args", {})
            if kind == "user_annotation" and each["name"].startswith(MARK):
                moments[int(each["name"].removeprefix(MARK))] = each["ts"]
            elif kind in LAUNCHES and "correlation" in details:
                launches[details["correlation"]] = each["ts"]
            elif kind in ON_DEVICE and details.get("device") == self._device.index:
                kernels.append((each["ts"], each["ts"] + each["dur"], details["correlation"]))
        pairs = sorted((launches.get(which, began), own) for began, own, which in _alone(kernels))
        self._moments = self._with_lost(moments)
        self._launched = np.array([launched for launched, _ in pairs])
        self._spent = np.concatenate([[0.0], np.cumsum([own * US for _, own in pairs])])

    def _with_lost(self, moments: dict[int, float]) -> dict[int, float]:
        """Add marks that torch has not traced, as those of other threads, by the own clock."""
        lost = self._marked_us.keys() - moments.keys()
        if not lost or not moments:
            return moments
        known = sorted((self._marked_us[number], at) for number, at in moments.items())
        own, traced = np.array(known).T
        found = dict(moments)
        for number in lost:  # between the traced marks around it, whatever tracing those took
            at = self._marked_us[number]
            outside = at - np.clip(at, own[0], own[-1])
            found[number] = float(np.interp(at, own, traced) + outside)
        return found


def _is_tracing() -> bool:
    return torch._C._autograd._profiler_enabled()


def _turn_off(profiling: Any) -> None:
    """Abandon a trace, suppressing errors.

    Torch synchronises with the device first. A failed device would raise there, which would hide
    the error being raised and leave the profiler on.
    """
    with suppress(Exception):
        profiling.profiler.use_device = None  # nothing to wait for
        profiling.__exit__(None, None, None)
    if _is_tracing():
        with suppress(Exception):
            torch._C._autograd._disable_profiler()


def _events_of(profiling: Any) -> list[dict[str, Any]]:
    """Return what was traced, by the file that torch writes."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiling.export_chrome_trace(str(file))
        events: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))["traceEvents"]
    return events


def _alone(kernels: Iterable[tuple[float, float, int]]) -> Iterator[tuple[float, float, int]]:
    """Yield the start of each kernel, and how long it ran after all before it had ended."""
    latest = -math.inf
    for began, ended, which in sorted(kernels):
        yield began, max(0.0, ended - max(began, latest)), which
        latest = max(latest, ended)
