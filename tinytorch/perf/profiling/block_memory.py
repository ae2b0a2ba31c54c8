"""The memory of one block, by every meter that sees a part of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tinytorch.measure.device_clock import used_devices
from tinytorch.measure.memory import ProcessMemory, TracedMemory, process_memory, traced_memory

__all__ = ["MB", "BlockMemory", "metering"]

MB = 2**20


@dataclass
class BlockMemory:
    """What a block allocated: through Python and NumPy, as PyTorch tensors, on CUDA devices.

    The meters may be read inside the block; afterwards they stay as they were at its end. Peaks
    are sums over the meters: exact where one of them dominates, else at most too high, because
    Python's peak and PyTorch's need not come at the same moment.
    """

    traced: TracedMemory
    tensors: Any  # a HostTensors, or None without torch
    device: Any  # a DeviceMemory, or None without CUDA
    process_before: ProcessMemory
    process_after: ProcessMemory | None = None

    @property
    def can_end(self) -> bool:
        """Whether the block may end now, before what was entered inside of it."""
        return self.tensors is None or bool(self.tensors.is_innermost)

    @property
    def baseline_bytes(self) -> int:
        """What was traced when the block began."""
        return self.traced.baseline_bytes

    @property
    def allocated_bytes(self) -> int:
        """What the block allocated and has not freed; negative when it freed more."""
        return self.traced.allocated_bytes + (self.tensors.current_bytes if self.tensors else 0)

    @property
    def peak_above_baseline_bytes(self) -> int:
        """The most that the block held at once, beyond what was there before."""
        above = self.traced.peak_above_baseline_bytes
        return above + (self.tensors.peak_bytes if self.tensors else 0)

    def stats(self) -> dict[str, Any]:
        """Give the numbers in MB (2**20 bytes).

        `baseline_mb`, `final_mb` and `peak_mb` are what Python, NumPy and PyTorch held on the host
        for what was allocated since tracing began, `allocated_mb` is final minus baseline. The
        `process_` keys are the operating system's view of the whole process, the `device_` keys
        CUDA's beyond what was there before, None without CUDA.
        """
        after = self.process_after or process_memory()
        baseline, tensors, device = self.baseline_bytes, self.tensors, self.device
        return {
            "baseline_mb": baseline / MB,
            "final_mb": (baseline + self.allocated_bytes) / MB,
            "peak_mb": (baseline + self.peak_above_baseline_bytes) / MB,
            "allocated_mb": self.allocated_bytes / MB,
            "tensor_peak_mb": tensors.peak_bytes / MB if tensors else None,
            "process_before_mb": self.process_before.rss_bytes / MB,
            "process_after_mb": after.rss_bytes / MB,
            "process_peak_mb": None if after.peak_rss_bytes is None else after.peak_rss_bytes / MB,
            "device_peak_mb": device.peak_bytes / MB if device else None,
            "device_allocated_mb": device.current_bytes / MB if device else None,
        }


@contextmanager
def metering() -> Iterator[BlockMemory]:
    """Measure the memory of a block with all meters that apply.

    Blocks may be nested, and a tracer that somebody else started keeps running. Code runs slower
    meanwhile, so never time it here.
    """
    with ExitStack() as meters:
        device = tensors = None
        if "torch" in sys.modules:
            from tinytorch.perf.profiling.tensor_memory_torch import (
                metering_device,
                metering_tensors,
            )

            device = meters.enter_context(metering_device()) if used_devices() else None
            tensors = meters.enter_context(metering_tensors())
        before = process_memory()
        memory = BlockMemory(meters.enter_context(traced_memory()), tensors, device, before)
        yield memory
    memory.process_after = process_memory()
