"""Memory of a CUDA device while sizes are tried, and the settings a new process must take over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = [
    "allocated_peak",
    "fence_device",
    "forget_peak",
    "free_bytes",
    "give_memory_back",
    "settings_in_force",
    "take_settings",
]


def settings_in_force() -> dict[str, Any]:
    """Give what decides about the speed of PyTorch in this process, ready for JSON."""
    return {
        "threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
    }


def take_settings(settings: Mapping[str, Any]) -> None:
    """Work with the settings of another process."""
    torch.set_num_threads(settings["threads"])
    torch.set_float32_matmul_precision(settings["matmul_precision"])
    torch.set_default_dtype(getattr(torch, settings["default_dtype"]))


def free_bytes(device: str) -> int:
    """Give what nobody holds on a device, and what this process holds without using it."""
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + unused)


def fence_device(device: str, allowed_bytes: int) -> bool:
    """Let every allocation beyond so many bytes more fail, for the rest of this process."""
    _, total = torch.cuda.mem_get_info(device)
    most = torch.cuda.memory_allocated(device) + allowed_bytes
    torch.cuda.set_per_process_memory_fraction(min(1.0, most / total), device)
    return True


def forget_peak(device: str) -> None:
    """Begin to watch how much is allocated at most."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)


def allocated_peak(device: str) -> int:
    """Give the most that was allocated at once since :func:`forget_peak`."""
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device))


def give_memory_back() -> None:
    """Give unused memory back to the devices: the next size finds all of it in one piece."""
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use
