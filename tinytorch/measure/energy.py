"""Energy from the counters of the machine: RAPL of processors, NVML of NVIDIA's devices.

The counters see everything that the package or the device does, idle parts and other programs
included; nothing is subtracted."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from time import perf_counter
from typing import Any

from tinytorch.errors import MeasurementError, SettingError, check_number
from tinytorch.measure.gpu import UNAVAILABLE, open_nvml
from tinytorch.measure.samples import Samples

POWERCAP = Path("/sys/class/powercap")
PACKAGE = re.compile(r"intel-rapl:\d+")
"""A whole package; its parts have another number, and `intel-rapl-mmio` counts the same again."""
CALIBRATION_S = 0.1
MICRO, MILLI = 1e-6, 1e-3
"""Joules of a step of the counters of the kernel, and of NVML."""
EVERYTHING = "the counters include all that runs on {meters}, and what is used when idle"


@dataclass(frozen=True)
class EnergyMeter:
    """A counter of energy that only goes up, until it begins again at zero after `range` steps.

    A step is so many `joules`. Without a `range` it goes on for ever.
    """

    name: str
    read: Callable[[], int]
    joules: float
    range: int = 0

    def joules_between(self, before: int, after: int) -> float:
        """Return the joules between two readings; the counter may have begun again once."""
        steps = after - before
        return (steps if steps >= 0 else steps + self.range) * self.joules


def find_energy_meters(device: str) -> tuple[tuple[EnergyMeter, ...], tuple[str, ...]]:
    """Find the meters of a device, `cpu` or `cuda:0`; the second result says what is in the way."""
    if device == "cpu":
        return find_rapl()
    if device.partition(":")[0] == "cuda":
        return find_nvml(device)
    return (), (f"no energy counter is known for device {device!r}",)


def find_rapl(root: Path = POWERCAP) -> tuple[tuple[EnergyMeter, ...], tuple[str, ...]]:
    """Find the counters of the processor packages, and say why those that are there cannot be read.

    Packages are counted apart, so all of them together are the machine's processors.
    """
    meters: list[EnergyMeter] = []
    reasons: list[str] = []
    packages = [path for path in _entries(root) if PACKAGE.fullmatch(path.name)]
    for folder in packages:
        try:
            name = (folder / "name").read_text("ascii").strip()
            if not name.startswith("package"):
                continue  # psys is the whole platform, packages included
            read = partial(_number, folder / "energy_uj")
            read()
            range_uj = _number(folder / "max_energy_range_uj")
            meters.append(EnergyMeter(f"RAPL {name}", read, MICRO, range_uj))
        except PermissionError:
            reasons.append(
                f"RAPL: {folder / 'energy_uj'} may be read by root only; "
                "let your group read it, or measure as root"
            )
        except (OSError, ValueError) as error:
            reasons.append(f"RAPL: {folder.name} cannot be read: {error}")
    if reasons:  # some of the packages alone would understate the energy
        return (), tuple(reasons)
    if not meters:
        return (), (f"RAPL: there is no package in {root}; virtual machines rarely have one",)
    return tuple(meters), ()


def measure_energy(
    function: Callable[[], object],
    *,
    meters: Sequence[EnergyMeter],
    seconds: float = 2.0,
    windows: int = 4,
    wait: Callable[[], object] = lambda: None,
    name: str = "",
    call_s: float | None = None,
) -> Samples:
    """Return the joules per call of `function`, one value for each window of time.

    All `meters` are added up. Every window has the same number of calls, so that all windows
    together take about `seconds`; counters change only every few to a hundred milliseconds, so
    shorter is rougher. `wait` returns when a device has done what it was given. What a call takes
    is measured first, unless `call_s` says it. Notes say what else is in the values.
    """
    _check(meters, seconds, windows)
    if call_s is None:
        call_s = _seconds_per_call(function, wait)
    calls = max(1, round(seconds / windows / call_s))
    values = []
    for _ in range(windows):
        before = [_read(meter) for meter in meters]
        for _ in repeat(None, calls):
            function()
        wait()
        after = [_read(meter) for meter in meters]
        spent = zip(meters, before, after, strict=True)
        values.append(sum(meter.joules_between(one, other) for meter, one, other in spent) / calls)
    names = ", ".join(meter.name for meter in meters)
    if not any(values):
        raise MeasurementError(
            f"the energy counters ({names}) did not move in {windows} windows of "
            f"{seconds / windows:g} s; give more seconds"
        )
    samples = Samples(name, tuple(values), unit="J", loops=calls)
    return samples.with_notes(EVERYTHING.format(meters=names), *_doubts(values))


def _doubts(values: Sequence[float]) -> list[str]:
    still = sum(value == 0 for value in values)
    if not still:
        return []
    return [f"the counters did not move in {still} of {len(values)} windows; give more seconds"]


def _seconds_per_call(function: Callable[[], object], wait: Callable[[], object]) -> float:
    """Measure roughly, after one call to warm up."""
    function()
    wait()
    calls, start = 1, perf_counter()
    while True:
        for _ in repeat(None, calls):
            function()
        wait()
        elapsed = perf_counter() - start
        if elapsed >= CALIBRATION_S:
            return elapsed / (2 * calls - 1)
        calls *= 2


def _check(meters: Sequence[EnergyMeter], seconds: float, windows: int) -> None:
    if not meters:
        raise SettingError("no energy meters; find_energy_meters says which the machine has")
    check_number("seconds", seconds, above=0)
    check_number("windows", windows, least=1)


def _read(meter: EnergyMeter) -> int:
    try:
        return meter.read()
    except (OSError, ValueError) as error:
        raise MeasurementError(f"{meter.name} cannot be read any more: {error}") from error


def _entries(root: Path) -> list[Path]:
    try:
        return sorted(root.iterdir())
    except OSError:
        return []


def _number(path: Path) -> int:
    return int(path.read_text("ascii"))


def find_nvml(device: str, library: Any = None) -> tuple[tuple[EnergyMeter, ...], tuple[str, ...]]:
    """Find the counter of a device such as `cuda:0`; the second result says what is in the way."""
    try:
        read = partial(open_nvml(device, library).ask, "nvmlDeviceGetTotalEnergyConsumption")
        read()  # devices before Volta have no counter
    except UNAVAILABLE as error:
        return (), (f"NVML {device}: {error}",)
    return (EnergyMeter(f"NVML {device}", read, MILLI),), ()
