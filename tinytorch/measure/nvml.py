"""The library that comes with NVIDIA's driver: finding a device, and asking about it."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from typing import Any

from tinytorch.errors import MeasurementError

__all__ = ["NOTHING_FOUND", "TOO_SMALL", "UNAVAILABLE", "NvmlDevice", "open_nvml"]

LIBRARY = "libnvidia-ml.so.1"
NOTHING_FOUND, TOO_SMALL = 6, 7
"""What the library answers when there is nothing, as no use of a device in the last second, and
when an array has no room for everything: how much it is, it says."""
UNAVAILABLE = (OSError, AttributeError, ValueError, IndexError, MeasurementError)
"""What is in the way where there is no driver, no such device, or an older library."""


@dataclass(frozen=True)
class NvmlDevice:
    """One device, as the driver's library knows it."""

    library: Any
    handle: Any

    def call(self, name: str, *arguments: Any) -> int:
        """Call a function of the library about this device, and give its status."""
        status: int = getattr(self.library, name)(self.handle, *arguments)
        return status

    def ask(self, name: str, *arguments: Any) -> None:
        """Call a function of the library about this device; raise with what it says."""
        _check(self.library, self.call(name, *arguments))

    def number(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> int | None:
        """Ask for one whole number; None where the device, or this driver, does not tell."""
        found = kind()
        try:
            self.ask(name, *arguments, ctypes.byref(found))
        except (AttributeError, MeasurementError):
            return None
        return int(found.value)


def open_nvml(device: str, library: Any = None) -> NvmlDevice:
    """Find a device such as `cuda:0`. What may be raised is in `UNAVAILABLE`."""
    opened = ctypes.CDLL(LIBRARY) if library is None else library
    _check(opened, opened.nvmlInit_v2())
    return NvmlDevice(opened, _handle(opened, identity(device)))


def _handle(library: Any, identified: int | str) -> Any:
    handle = ctypes.c_void_p()
    if isinstance(identified, int):
        find = library.nvmlDeviceGetHandleByIndex_v2
        _check(library, find(ctypes.c_uint(identified), ctypes.byref(handle)))
    else:
        find = library.nvmlDeviceGetHandleByUUID
        _check(library, find(identified.encode(), ctypes.byref(handle)))
    return handle


def identity(device: str) -> int | str:
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
