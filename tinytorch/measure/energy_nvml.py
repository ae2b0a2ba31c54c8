"""The energy counter of an NVIDIA device, through the library that comes with its driver."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytorch.errors import MeasurementError

if TYPE_CHECKING:
    from tinytorch.measure.energy import EnergyMeter

__all__ = ["NvmlMeter", "find_nvml"]

LIBRARY = "libnvidia-ml.so.1"


@dataclass(frozen=True)
class NvmlMeter:
    """The counter of one device, in millijoules since the driver was loaded."""

    name: str
    library: Any
    handle: Any

    def read(self) -> int:
        """Read the counter in millijoules."""
        counted = ctypes.c_ulonglong()
        ask = self.library.nvmlDeviceGetTotalEnergyConsumption
        _check(self.library, ask(self.handle, ctypes.byref(counted)))
        return counted.value

    def joules_between(self, before: int, after: int) -> float:
        """Give the joules between two readings."""
        return (after - before) * 1e-3


def find_nvml(device: str, library: Any = None) -> tuple[tuple[EnergyMeter, ...], tuple[str, ...]]:
    """Find the counter of a device such as `cuda:0`; the second result says what is in the way."""
    try:
        opened = ctypes.CDLL(LIBRARY) if library is None else library
        _check(opened, opened.nvmlInit_v2())
        meter = NvmlMeter(f"NVML {device}", opened, _handle(opened, _identity(device)))
        meter.read()  # devices before Volta have no counter
    except (OSError, AttributeError, ValueError, IndexError, MeasurementError) as error:
        return (), (f"NVML {device}: {error}",)
    return (meter,), ()


def _handle(library: Any, identity: int | str) -> Any:
    handle = ctypes.c_void_p()
    if isinstance(identity, int):
        find = library.nvmlDeviceGetHandleByIndex_v2
        _check(library, find(ctypes.c_uint(identity), ctypes.byref(handle)))
    else:
        find = library.nvmlDeviceGetHandleByUUID
        _check(library, find(identity.encode(), ctypes.byref(handle)))
    return handle


def _identity(device: str) -> int | str:
    """Say which device of the machine a name means in this program.

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


def _check(library: Any, status: int) -> None:
    if status == 0:
        return
    explain = library.nvmlErrorString
    explain.restype = ctypes.c_char_p
    text = explain(ctypes.c_int(status))
    raise MeasurementError(text.decode() if text else f"error {status}")
