"""Calibration of PyTorch models: what comes into each layer, and what goes out, on typical data."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tinytorch.adapters.pytorch import TorchAdapter, tensors_in
from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.formats.ranges import RangeObserver, choose_range

__all__ = ["Seen", "observe_layers", "require_batches", "run_batches"]

Batches = Sequence[tuple[Any, ...]]
NO_CALIBRATION = (
    "static quantization needs calibration data: give the workload `calibration`, some typical "
    "inputs from the training data; mode='dynamic' needs none"
)


@dataclass
class Seen:
    """What one layer got and gave; `axes` are the numbers of axes that its inputs had."""

    inputs: RangeObserver = field(default_factory=RangeObserver)
    outputs: RangeObserver = field(default_factory=RangeObserver)
    axes: set[int] = field(default_factory=set)

    def settings(self, ranges: str, *, symmetric: bool) -> dict[str, Any]:
        """Choose ranges, and give them with what was seen, for the settings of a step."""
        seen = self.inputs.statistics
        return {
            "input_range": choose_range(seen, ranges, symmetric=symmetric),
            "output_range": choose_range(self.outputs.statistics, ranges),
            "input_axes": tuple(sorted(self.axes)),
            "seen": seen.summary,
        }


def observe_layers(
    model: nn.Module,
    layers: Mapping[str, nn.Module],
    batches: Batches,
    *,
    keywords: Mapping[str, Any],
    measured: Container[str] = (),
) -> dict[str, Seen]:
    """Call a copy of a model and give what its layers saw; those that are not called are absent.

    The copy cannot be used for anything else afterwards. Layers are watched by replacing
    `forward`: hooks would turn off the fast paths on which some layers are not called. Ranges are
    kept of the layers in `measured`; of the others only that they were called.
    """
    found: dict[str, Seen] = {}
    for path, layer in layers.items():
        layer.forward = _watched(path, layer.forward, found, path in measured)
    run_batches(model, batches, keywords)
    return found


def _watched(
    path: str, forward: Callable[..., Any], found: dict[str, Seen], is_measured: bool
) -> Callable[..., Any]:
    def watched(*inputs: Any, **settings: Any) -> Any:
        output = forward(*inputs, **settings)
        seen = found.setdefault(path, Seen())
        if is_measured:
            try:
                first = tensors_in((*inputs, *settings.values()))[0]
                seen.axes.add(first.dim())
                seen.inputs.update(_array(first))
                seen.outputs.update(_array(tensors_in(output)[0]))
            except TinyTorchError as error:
                raise SettingError(f"layer {path!r}: {error}") from error
        return output

    return watched


def _array(tensor: torch.Tensor) -> Any:
    return tensor.detach().float().cpu().numpy()


def require_batches(batches: Batches) -> Batches:
    """Give the batches, or raise if there are none."""
    if not batches:
        raise SettingError(NO_CALIBRATION)
    return batches


def run_batches(model: nn.Module, batches: Batches, keywords: Mapping[str, Any]) -> None:
    """Call a model on batches, without gradients; an error names the batch."""
    adapter = TorchAdapter()
    for number, arguments in enumerate(batches):
        name = f"batch {number} of {len(batches)}"
        try:
            with torch.no_grad(), adapter.preserving(model):
                model(*adapter.copy_inputs(arguments), **keywords)
        except SettingError as error:
            raise SettingError(f"{name}: {error}") from error
        except Exception as error:  # whatever a model raises for inputs that it cannot take
            reason = f"{type(error).__name__}: {error}"
            raise SettingError(f"{name} does not fit the model: {reason}") from error
