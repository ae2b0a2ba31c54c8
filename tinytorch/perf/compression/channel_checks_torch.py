"""Whether a PyTorch model without some channels computes what it should. Imported after torch.

A channel that was removed must do as little as one whose weights in the layers after it are zero. A
graph that was traced cannot promise that: it does not see sizes that are written down in the code
of a model, nor operations that mix channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tinytorch.adapters.pytorch import TorchAdapter
from tinytorch.adapters.values import rebuilt
from tinytorch.errors import ModelError, SettingError
from tinytorch.perf.compression.channel_groups_torch import ChannelGroup
from tinytorch.perf.compression.models_torch import (
    Call,
    calls_of,
    outputs_of,
    relative_change,
)
from tinytorch.perf.compression.trimming_torch import joined, set_sizes, trim, zero_out
from tinytorch.workloads.workload import Workload

__all__ = ["leave_broken"]

HALVES = (torch.float16, torch.bfloat16)
LARGEST_ERRORS = {torch.float16: 0.05, torch.bfloat16: 0.1}
"""Sums in another order differ by about a rounding per layer; a channel that is missed, by more."""
LARGEST_ERROR = 1e-3
LARGEST_ERROR_TF32 = 1e-2


def leave_broken(workload: Workload, groups: Sequence[ChannelGroup]) -> None:
    """Give a reason to each group without which the model does not compute what it should."""
    check = _Check(workload)
    several = [group for group in groups if group.size > 1]
    check.leave_broken(several)
    left = [group for group in several if not group.reason]
    broken = check.why_broken(left) if len(left) < len(several) else ""
    if broken:
        raise ModelError(f"{workload.name} cannot lose channels of several layers: {broken}")


class _Check:
    """Removes every second unit of some groups, and compares with zeros in their place."""

    def __init__(self, workload: Workload) -> None:
        self._model: nn.Module = TorchAdapter().clone(workload.model)
        self._calls = calls_of(workload)[:2]
        first = next(self._model.parameters())
        self._limit = LARGEST_ERRORS.get(first.dtype, LARGEST_ERROR)
        if first.dtype in HALVES:
            self._widen()
        if first.is_cuda and self._limit == LARGEST_ERROR:
            self._limit = LARGEST_ERROR_TF32

    def _widen(self) -> None:
        """Compute in float32, where that can be done: the limit is then a sharp one."""
        wide = TorchAdapter().clone(self._model).float()
        calls = [_widened(each) for each in self._calls]
        try:
            outputs_of(wide, calls[0])
        except SettingError:
            return  # a dtype is written down in the code of the model
        self._model, self._calls, self._limit = wide, calls, LARGEST_ERROR

    def leave_broken(self, groups: Sequence[ChannelGroup]) -> None:
        """Find the groups that break the model, by halves: mostly there is none."""
        reason = self.why_broken(groups)
        if not reason:
            return
        if len(groups) == 1:
            groups[0].reason = reason
            return
        middle = len(groups) // 2
        self.leave_broken(groups[:middle])
        self.leave_broken(groups[middle:])

    def why_broken(self, groups: Sequence[ChannelGroup]) -> str:
        if not groups:
            return ""
        chosen = [(group, range(0, group.size, 2)) for group in groups]
        zeroed = TorchAdapter().clone(self._model)
        zero_out(zeroed, joined(g.removal(units, consumers_only=True) for g, units in chosen))
        trimmed = TorchAdapter().clone(self._model)
        trim(trimmed, joined(group.removal(units) for group, units in chosen))
        for group, units in chosen:
            set_sizes(trimmed, group.sizes_without(len(units)))
        for call in self._calls:
            expected = outputs_of(zeroed, call)
            try:
                found = outputs_of(trimmed, call)
            except SettingError as error:
                message = str(error.__cause__ or error).splitlines() or [type(error).__name__]
                return f"the model does not compute without some of its channels: {message[0]}"
            change, reason = relative_change(expected, found)
            if reason:
                return f"{reason} without some of its channels"
            if change > self._limit:
                return "the model computes something else without some of its channels"
        return ""


def _widened(call: Call) -> Call:
    def widen(leaf: Any) -> Any:
        is_half = isinstance(leaf, torch.Tensor) and leaf.dtype in HALVES
        return leaf.float() if is_half else leaf

    return replace(
        call,
        arguments=rebuilt(call.arguments, widen),
        keywords={name: rebuilt(value, widen) for name, value in call.keywords.items()},
    )
