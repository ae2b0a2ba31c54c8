"""NVIDIA devices: asking the driver, and how a device was doing while we measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from time import perf_counter, time
from typing import Any

from tinytorch.errors import MeasurementError
from tinytorch.measure.timing import running_cuda, used_devices

# ---------------------------------------------------------------- NVML through `nvidia-ml-py`:
# finding a device, and asking about it

NOT_INSTALLED = 'nvidia-ml-py is not installed; pip install ".[gpu]"'
UNAVAILABLE = (AttributeError, ValueError, IndexError, MeasurementError)
"""What is raised where there is no driver, no such device, or an older library."""


@dataclass(frozen=True)
class NvmlDevice:
    """One device; `library` is the module `pynvml`."""

    library: Any
    handle: Any

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a function of the library about this device; raise with what it says."""
        return _call(self.library, name, self.handle, *arguments)

    def number(self, name: str, *arguments: Any) -> int | None:
        """Query one whole number; None where the device, or this driver, does not provide it."""
        try:
            return int(self.ask(name, *arguments))
        except (AttributeError, MeasurementError):
            return None


def open_nvml(device: str, library: Any = None) -> NvmlDevice:
    """Find a device such as `cuda:0`. What may be raised is in `UNAVAILABLE`."""
    if library is None:
        try:
            import pynvml
        except ImportError as error:
            raise MeasurementError(NOT_INSTALLED) from error
        library = pynvml
    _call(library, "nvmlInit")
    identified = identity(device)
    find = "Index" if isinstance(identified, int) else "UUID"
    return NvmlDevice(library, _call(library, f"nvmlDeviceGetHandleBy{find}", identified))


def _call(library: Any, name: str, *arguments: Any) -> Any:
    try:
        return getattr(library, name)(*arguments)
    except library.NVMLError as error:
        raise MeasurementError(str(error)) from error


def identity(device: str) -> int | str:
    """Return which device of the machine a name means in this program.

    CUDA may count in another order than NVML, and a program may see only some of the devices, so
    the unique name that PyTorch knows is best; then comes the list in the environment.
    """
    number = device.partition(":")[2]
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_available():
        index = int(number) if number else cuda.current_device()
        if index >= cuda.device_count():
            raise ValueError(f"there are {cuda.device_count()} devices, counted from cuda:0 on")
        unique = getattr(cuda.get_device_properties(index), "uuid", None)
        if unique is not None:
            return f"GPU-{unique}"
    index = int(number or 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return index
    names = [each.strip() for each in visible.split(",") if each.strip()]
    if index >= len(names):
        raise ValueError(f"CUDA_VISIBLE_DEVICES={visible!r} shows {len(names)} devices")
    return int(names[index]) if names[index].isdigit() else names[index]


# ---------------------------------------------------------------- how an NVIDIA device was doing
# while we measured: clocks, limits, heat, and who else used it

SM_CLOCK, MEMORY_CLOCK = 1, 2
TEMPERATURE_OF_CHIP = 0
# Bits of the clocks event reasons that mean: slower than it could be.
LIMITS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "in step with another device",
    0x20: "heat",
    0x40: "heat (hardware slowdown)",
    0x80: "power brake",
}
LOOK_EVERY_S = 0.05
"""Asking the driver takes up to a millisecond; so often is enough to see a clock move."""
MOVED_SHARE = 0.05
"""A clock that moves by less than this share is a clock that stands still."""
RECENT_S = 1.0


@dataclass(frozen=True)
class DeviceState:
    """What the driver says about a device at one moment. None is what it does not say."""

    sm_clock_mhz: int | None = None
    most_sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    reasons: int | None = None

    @property
    def limits(self) -> tuple[str, ...]:
        """What makes the device slower than it could be at the moment."""
        return tuple(name for bit, name in LIMITS.items() if (self.reasons or 0) & bit)


@dataclass(frozen=True)
class OtherPrograms:
    """Other programs on a device; None where they cannot be separated from our own."""

    count: int
    nbytes: int | None = None
    busy_share: float | None = None


def read_state(device: NvmlDevice) -> DeviceState:
    """Query everything that changes while a device works."""
    milliwatts = device.number("nvmlDeviceGetPowerUsage")
    reasons = device.number("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # the older name
        reasons = device.number("nvmlDeviceGetCurrentClocksThrottleReasons")
    return DeviceState(
        sm_clock_mhz=device.number("nvmlDeviceGetClockInfo", SM_CLOCK),
        most_sm_clock_mhz=device.number("nvmlDeviceGetMaxClockInfo", SM_CLOCK),
        memory_clock_mhz=device.number("nvmlDeviceGetClockInfo", MEMORY_CLOCK),
        temperature_c=device.number("nvmlDeviceGetTemperature", TEMPERATURE_OF_CHIP),
        power_w=None if milliwatts is None else milliwatts / 1000,
        reasons=reasons,
    )


# ---------------------------------------------------------------- who else uses it


def read_others(device: NvmlDevice, *, are_we_on_it: bool) -> OtherPrograms | None:
    """Return which programs beside this one compute on a device; None where it is unknown.

    Inside a container the driver may know this process by another number. Then it is unknown
    which program is ours, only that one of them is.
    """
    try:
        processes = device.ask("nvmlDeviceGetComputeRunningProcesses")
    except (AttributeError, MeasurementError):
        return None
    own = os.getpid()
    if are_we_on_it and all(each.pid != own for each in processes):
        return OtherPrograms(max(0, len(processes) - 1))
    others = [each for each in processes if each.pid != own]
    sizes = [each.usedGpuMemory for each in others]
    nbytes = None if None in sizes else sum(sizes)
    return OtherPrograms(len(others), nbytes, _busy_share(device, {each.pid for each in others}))


def _busy_share(device: NvmlDevice, pids: set[int]) -> float | None:
    """Return the share of the last second that some processes kept the device busy."""
    if not pids:
        return 0.0
    since = int((time() - RECENT_S) * 1e6)
    try:
        uses = device.ask("nvmlDeviceGetProcessUtilization", since)
    except AttributeError:
        return None
    except MeasurementError as error:
        is_idle = isinstance(error.__cause__, device.library.NVMLError_NotFound)
        return 0.0 if is_idle else None
    latest = {each.pid: each for each in sorted(uses, key=lambda each: each.timeStamp)}
    return sum(each.smUtil for pid, each in latest.items() if pid in pids) / 100


# ---------------------------------------------------------------- while measuring


def _model_of(device: str) -> str | None:
    cuda = running_cuda()
    return None if cuda is None else str(cuda.get_device_name(device))


class DeviceWatch:
    """Samples the state of a device while it is measured, and reports disturbances.

    Without a driver to query, nothing is reported.
    """

    def __init__(self, device: str, library: Any = None) -> None:
        self.device, self.name = device, _model_of(device)
        self.obstacle = ""
        self.states: list[DeviceState] = []
        self.others: OtherPrograms | None = None
        self._asked: NvmlDevice | None = None
        self._next_look = 0.0
        index = device.partition(":")[2] or "0"
        try:
            self._asked = open_nvml(device, library)
            is_ours = index.isdecimal() and int(index) in used_devices()
            self.others = read_others(self._asked, are_we_on_it=is_ours)
        except UNAVAILABLE as error:
            self.obstacle = str(error)

    def look(self) -> None:
        """Read the state, unless that was done a moment ago; call it right after some work."""
        now = perf_counter()
        if self._asked is None or now < self._next_look:
            return
        try:
            self.states.append(read_state(self._asked))
        except UNAVAILABLE as error:
            self._asked, self.obstacle = None, str(error)
        self._next_look = now + LOOK_EVERY_S

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each disturbance of the measurement."""
        found = (self._about_others(), self._about_limits() or self._about_clock())
        return tuple(note for note in found if note)

    def to_dict(self) -> Mapping[str, Any]:
        """Return what was seen, ready for JSON: ranges of what changes."""
        if self._asked is None:
            return {"name": self.name, "not_read": self.obstacle}
        return {
            "name": self.name,
            "looks": len(self.states),
            **{
                name: self._range(name)
                for name in DeviceState.__dataclass_fields__
                if name != "reasons"
            },
            "limits": self._limits(),
            "others": self.others and asdict(self.others),
        }

    def _range(self, name: str) -> list[float] | None:
        values = [value for each in self.states if (value := getattr(each, name)) is not None]
        return [min(values), max(values)] if values else None

    def _limits(self) -> list[str]:
        return list(dict.fromkeys(limit for each in self.states for limit in each.limits))

    def _about_limits(self) -> str:
        limits = self._limits()
        if not limits:
            return ""
        clocks, most = self._range("sm_clock_mhz"), self._range("most_sm_clock_mhz")
        to = f" (down to {clocks[0]:g} of {most[1]:g} MHz)" if clocks and most else ""
        share = sum(bool(each.limits) for each in self.states) / len(self.states)
        seen = "" if share == 1 else f", in {share:.0%} of the samples"
        return (
            f"{self.device} lowered its clock during the measurement: {', '.join(limits)}{to}{seen}"
        )

    def _about_clock(self) -> str:
        clocks = self._range("sm_clock_mhz")
        if clocks is None or clocks[1] - clocks[0] <= MOVED_SHARE * clocks[1]:
            return ""
        return (
            f"the clock of {self.device} moved between {clocks[0]:g} and {clocks[1]:g} MHz during "
            "the measurement"
        )

    def _about_others(self) -> str:
        others = self.others
        if others is None or not others.count or others.busy_share == 0:
            return ""
        who = "another process uses" if others.count == 1 else f"{others.count} others use"
        if others.busy_share is not None:
            return f"{who} {self.device} ({others.busy_share:.0%} busy before we began)"
        return f"{who} {self.device} (how busy it is with that, the driver does not tell)"
