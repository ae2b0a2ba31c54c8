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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

__all__ = ["KernelTrace"]

MARK = "tinytorch mark "
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
"""Categories of events in a trace: what the device does, and what makes it do so."""
US = 1e-6


class KernelTrace:
    """A block in which every kernel is traced; after it, the time that kernels took is known.

    Time between two marks is that of what was launched between them, without gaps. Kernels that run
    at the same time count once.
    """

    def __init__(self, device: str) -> None:
        index: Any = torch.device(device).index  # None is the current one
        self._device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
        self._marks = 0
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
        with warnings.catch_warnings(), suppress(RuntimeError):  # somebody else traces already
            warnings.simplefilter("ignore")
            profiling: Any = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
            profiling.__enter__()
            self._profile = profiling
        return self

    def __exit__(self, *_: object) -> None:
        if self._profile is None:
            return
        torch.cuda.synchronize(self._device)
        with warnings.catch_warnings(), TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            self._profile.__exit__(None, None, None)
            file = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(file))
            self._read(json.loads(file.read_text("utf-8"))["traceEvents"])
        self._profile = None

    def mark(self) -> int:
        """Mark a moment of the program."""
        number = self._marks
        self._marks += 1
        with record_function(f"{MARK}{number}"):
            return number

    def seconds(self, begin: int, end: int) -> float:
        """Give how long the device computed what was launched between two marks."""
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
        self._moments = moments
        self._launched = np.array([launched for launched, _ in pairs])
        self._spent = np.concatenate([[0.0], np.cumsum([own * US for _, own in pairs])])


def _alone(kernels: Iterable[tuple[float, float, int]]) -> Iterator[tuple[float, float, int]]:
    """Give the begin of each kernel, and how long it ran after all before it had ended."""
    latest = -math.inf
    for began, ended, which in sorted(kernels):
        yield began, max(0.0, ended - max(began, latest)), which
        latest = max(latest, ended)
