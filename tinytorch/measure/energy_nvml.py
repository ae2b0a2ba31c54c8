"""The energy counter of an NVIDIA device, through the library that comes with its driver."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytorch.measure.nvml import UNAVAILABLE, NvmlDevice, open_nvml

if TYPE_CHECKING:
    from tinytorch.measure.energy import EnergyMeter

__all__ = ["NvmlMeter", "find_nvml"]


@dataclass(frozen=True)
class NvmlMeter:
    """The counter of one device, in millijoules since the driver was loaded."""

    name: str
    device: NvmlDevice

    def read(self) -> int:
        """Read the counter in millijoules."""
        counted = ctypes.c_ulonglong()
        self.device.ask("nvmlDeviceGetTotalEnergyConsumption", ctypes.byref(counted))
        return counted.value

    def joules_between(self, before: int, after: int) -> float:
        """Give the joules between two readings."""
        return (after - before) * 1e-3


def find_nvml(device: str, library: Any = None) -> tuple[tuple[EnergyMeter, ...], tuple[str, ...]]:
    """Find the counter of a device such as `cuda:0`; the second result says what is in the way."""
    try:
        meter = NvmlMeter(f"NVML {device}", open_nvml(device, library))
        meter.read()  # devices before Volta have no counter
    except UNAVAILABLE as error:
        return (), (f"NVML {device}: {error}",)
    return (meter,), ()
