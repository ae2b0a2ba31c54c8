"""A device on a clock that only host and device work move: calls return before they are done."""

from types import SimpleNamespace

import pytest
from scripted_sides import ToldTime, use_told_time

from tinytorch.comparison import compare, sides
from tinytorch.comparison import evidence as tails
from tinytorch.measure import interleaving as displacement
from tinytorch.measure import timing as device_clock
from tinytorch.measure.timing import StandardClock


class ScriptedDevice:
    """A queue of work: `call` gives it some and returns, `synchronize` waits until it is done."""

    def __init__(self, clock: ToldTime) -> None:
        self.clock = clock
        self.idle_from = 0.0
        self.log: list[str] = []

    def call(self, name: str, host_s: float, device_s: float) -> None:
        """Spend some time in the program, then queue up some for the device."""
        self.log.append(name)
        self.clock.now += host_s
        self.idle_from = max(self.idle_from, self.clock.now) + device_s

    def synchronize(self, device: object = None) -> None:
        self.log.append("wait")
        self.clock.now = max(self.clock.now, self.idle_from)

    def plain_loop(self, name: str, host_s: float, device_s: float, calls: int = 20) -> float:
        """Return what a user's loop shows: wait, read the clock, call, wait, read the clock."""
        seconds = 0.0
        for _ in range(calls):
            self.synchronize()
            started = self.clock.now
            self.call(name, host_s, device_s)
            self.synchronize()
            seconds += self.clock.now - started
        return seconds / calls


def use_scripted_device(patch: pytest.MonkeyPatch) -> ScriptedDevice:
    """Let the comparer find this device in use, and read its clock."""
    clock = ToldTime()
    device = ScriptedDevice(clock)
    cuda = SimpleNamespace(
        device_count=lambda: 1,
        memory_reserved=lambda index: 1024,
        memory_snapshot=list,
        synchronize=device.synchronize,
    )
    use_told_time(patch, clock)
    wall = StandardClock("wall", lambda: round(clock.now * 1e9), 1e-9)
    patch.setattr(device_clock, "running_cuda", lambda: cuda)
    patch.setattr(device_clock, "WALL", wall)
    patch.setattr(sides, "WALL", wall)
    patch.setattr(sides, "fitting_clock", device_clock.DeviceClock)
    patch.setattr(sides, "perf_counter", clock)
    patch.setattr(compare, "perf_counter", clock)
    patch.setattr(tails, "perf_counter", clock)
    # No processor time passes while the scripted clock moves: nothing was displaced.
    patch.setattr(displacement, "_are_waits_counted", lambda: False)
    return device
