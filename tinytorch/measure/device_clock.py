"""A clock that waits for the GPU, in programs that use one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from tinytorch.measure.clocks import WALL, Clock, Function

__all__ = [
    "DeviceClock",
    "fitting_clock",
    "has_unseen_work",
    "running_cuda",
    "times_single_calls",
    "used_devices",
    "wait_for_devices",
]

UNSEEN_SHARE, UNSEEN_S = 0.1, 1e-4
"""Work that goes on for so long, as a share of a call and at least, after its stream is done."""


@dataclass(frozen=True)
class DeviceClock:
    """The wall clock, read only when every CUDA device that the program uses is idle.

    Calls return before a device has done its work. Each one is waited for, so that the time is the
    latency that a caller sees; with `is_sustained` only the last one is, which is throughput.
    Without a device in use there is nothing to wait for, and both are the same.
    """

    is_sustained: bool = False

    name = "wall"
    resolution_s = WALL.resolution_s
    is_disturbed_by_host = True  # it is the program that gives a device its work

    def time(self, function: Function, loops: int) -> float:
        """Return the seconds of `loops` calls together, until the devices are done too."""
        devices = used_devices()  # asking takes longer than some kernels, so not while timing
        wait_for_devices(devices)
        if not devices:
            # The first call may be what starts CUDA.
            return WALL.time(lambda: _in_a_row(function, loops), 1)
        if self.is_sustained:
            return WALL.time(lambda: _in_a_row(function, loops, devices), 1)

        def call_and_wait() -> None:
            function()
            wait_for_devices(devices)

        return WALL.time(call_and_wait, loops)


def _in_a_row(function: Function, loops: int, devices: tuple[int, ...] = ()) -> None:
    for _ in range(loops):
        function()
    wait_for_devices(devices or used_devices())


def times_single_calls(clock: Clock) -> bool:
    """Return whether a clock waits for a device after every call: latency needs no inner loops."""
    return isinstance(clock, DeviceClock) and not clock.is_sustained and bool(used_devices())


def fitting_clock() -> Clock:
    """Give the wall clock, or the one that waits when torch, and maybe a GPU, is in use."""
    return DeviceClock() if "torch" in sys.modules else WALL


def used_devices() -> tuple[int, ...]:
    """Give the CUDA devices on which this program holds memory; none where CUDA is not in use."""
    cuda = running_cuda()
    if cuda is None:
        return ()
    return tuple(each for each in range(cuda.device_count()) if cuda.memory_reserved(each))


def wait_for_devices(devices: tuple[int, ...]) -> None:
    """Return when these devices have done what they were given."""
    cuda = running_cuda() if devices else None
    if cuda is not None:
        for device in devices:
            cuda.synchronize(device)


def running_cuda() -> Any:
    """Give `torch.cuda` if somebody has imported torch and CUDA is running, else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def has_unseen_work(function: Function, device: str) -> bool:
    """Tell whether a call leaves work on a device that its current stream does not wait for.

    Events on the stream would not see that work, and show a time that is too short.
    """
    cuda = running_cuda()
    if cuda is None:
        return False
    cuda.synchronize(device)
    started = perf_counter()
    function()
    cuda.current_stream(device).synchronize()
    seen = perf_counter()
    cuda.synchronize(device)
    return perf_counter() - seen > max(UNSEEN_S, UNSEEN_SHARE * (seen - started))
