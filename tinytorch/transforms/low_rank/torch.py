"""What factoring the weights of PyTorch models needs of PyTorch. Imported after torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

from tinytorch.errors import SettingError, first_line
from tinytorch.models.inputs import ModelCall
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_tensors import replace_modules
from tinytorch.models.workload import Workload
from tinytorch.transforms.support.observing import calls_of, run_call
from tinytorch.transforms.support.weights import WeightLayers
from tinytorch.transforms.support.weights_torch import CONFIG_LACKS, has_config, transposed_linear

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Exactly these, and the Conv1D of transformers: a subclass may compute something else."""


def kinds() -> Collection[type]:
    """Return the classes of layers that can be factored, that of transformers if imported."""
    transposed = transposed_linear()
    return KINDS if transposed is None else (*KINDS, transposed)


def config_notes(model: Any) -> tuple[str, ...]:
    """Return a note where a model is built from a configuration, which has no word for ranks."""
    return (CONFIG_LACKS,) if has_config(model) else ()


def leave_needed(workload: Workload, layers: WeightLayers) -> None:
    """Skip layers whose weight the model reads itself."""
    free = sorted(path for path, each in layers.found.items() if not each.reason)
    if calls_of(workload) and free:
        for path, error in _needing_own_class(workload, calls_of(workload)[0], free):
            layers.found[path].reason = f"the model needs a layer of this class there: {error}"


def _needing_own_class(
    workload: Workload, call: ModelCall, paths: list[str]
) -> Iterator[tuple[str, str]]:
    """Yield the layers without which a model fails if another module stands in their places."""
    twin: nn.Module = TorchAdapter().clone(workload.model)
    layers = [twin.get_submodule(path) for path in paths]
    wrapped = replace_modules(twin, {layer: nn.Sequential(layer) for layer in layers})
    try:
        run_call(wrapped, call, fast_paths=True)
    except SettingError as error:
        if len(paths) == 1:
            yield paths[0], first_line(error.__cause__ or error)
            return
        middle = len(paths) // 2
        yield from _needing_own_class(workload, call, paths[:middle])
        yield from _needing_own_class(workload, call, paths[middle:])


def factored_layer(layer: Any, first: nn.Parameter, second: nn.Parameter) -> nn.Sequential:
    """Return two layers that replace one; its bias, the same object, is in the second."""
    one: Any
    other: Any
    rank = len(first)
    if isinstance(layer, _ConvNd):
        kind: Any = type(layer)
        one = kind(
            layer.in_channels,
            rank,
            layer.kernel_size,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            padding_mode=layer.padding_mode,
            bias=False,
            device="meta",
        )
        other = kind(rank, layer.out_channels, 1, bias=False, device="meta")
    else:
        one = nn.Linear(first.shape[1], rank, bias=False, device="meta")
        other = nn.Linear(rank, len(second), bias=False, device="meta")
    one.weight, other.weight, other.bias = first, second, layer.bias
    return nn.Sequential(one, other)
