"""The layers of a PyTorch model that quantizers know, and putting others into their places."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.formats.ranges import RangeObserver, choose_range
from tinytorch.models.inputs import ModelCall
from tinytorch.models.pytorch import TorchAdapter, tensors_in
from tinytorch.transforms.quantize import NO_DATA
from tinytorch.transforms.support.weights_torch import is_transposed_linear

KINDS: dict[type[nn.Module], str] = {
    nn.Linear: "linear",
    nn.Conv2d: "convolution",
    nn.Embedding: "embedding",
    nn.LSTM: "recurrent",
    nn.GRU: "recurrent",
}
"""Layers by their exact class: a subclass may compute something else."""


def kind_of(module: nn.Module) -> str | None:
    """Name the kind of a layer: linear, convolution, embedding, recurrent; None for others."""
    return "linear" if is_transposed_linear(module) else KINDS.get(type(module))


def weights_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights that a quantizer replaces, by name; biases are not among them.

    None where a hook computes the weight anew before each call, as weight normalisation does.
    """
    own = dict(module.named_parameters(recurse=False))
    if KINDS.get(type(module)) == "recurrent":
        return {name: tensor for name, tensor in own.items() if name.startswith("weight_")}
    return {"weight": own["weight"]} if "weight" in own else {}


def as_linear(module: nn.Module) -> nn.Module:
    """Return the `Linear` that computes the same as a `Conv1D` of transformers; others as they are.

    GPT-2 and its kin hold (inputs, outputs), where `Linear` and all quantizers want the transposed
    matrix. No number is copied: the weight is a view.
    """
    if not is_transposed_linear(module):
        return module
    weight: torch.Tensor = module.weight  # type: ignore[assignment]
    inputs, outputs = weight.shape
    linear = nn.Linear(inputs, outputs, device="meta")
    linear.weight = nn.Parameter(weight.detach().T, requires_grad=False)
    linear.bias = module.bias  # type: ignore[assignment]
    return linear


class QuantizedEmbedding(nn.Embedding):
    """Look up rows of an INT8 table of torchao and turn only these into floats.

    torchao itself would turn the whole table into floats at every call.
    """

    def __init__(self, embedding: nn.Embedding, weight: nn.Parameter) -> None:
        super().__init__(
            embedding.num_embeddings, embedding.embedding_dim, embedding.padding_idx, device="meta"
        )
        self.weight = weight

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the rows of the ids, in the dtype of the table before."""
        table: Any = self.weight
        rows = nn.functional.embedding(input, table.qdata)
        scale = nn.functional.embedding(input, table.scale)
        return (rows * scale).to(table.dtype)


# ---------------------------------------------------------------- quantizer: what a quantizer of
# torch or torchao takes, and what it makes of a layer

Settings = Mapping[str, Any]
"""The settings of one step of a plan: mode, bits, device, group_size, input_range, ..."""


def _takes_all(layer: Any, settings: Settings) -> str:
    return ""


@dataclass(frozen=True)
class Quantizer:
    """One quantizer, for one kind of layer.

    `carry_out` gives the layer to put instead of a float one; `weight_bytes` counts from the
    shapes what then stands for its weights. `needs_ranges`: the layer must have been observed;
    `is_symmetric`: zero is in the middle of the range of its inputs. `needs_numbers`: it cannot
    make of a layer on the `meta` device what a file is then loaded into.
    """

    by: str
    mode: str
    carry_out: Callable[[Any, Settings], nn.Module]
    weight_bytes: Callable[[Any, Settings], int]
    bits: int = 8
    why_not: Callable[[Any, Settings], str] = _takes_all
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)
    needs_ranges: bool = False
    is_symmetric: bool = False
    needs_numbers: bool = False

    def quantized(self, layer: nn.Module, settings: Settings) -> nn.Module:
        """Quantize a layer; one without numbers becomes what a file is loaded into."""
        if self.needs_numbers and weight_of(layer).is_meta:
            layer = layer.to_empty(device="cpu")
            with torch.no_grad():
                for each in layer.parameters():
                    each.fill_(1)
        return self.carry_out(layer, settings)


def weight_of(layer: nn.Module) -> nn.Parameter:
    """Return the weight of a layer, the first one if it has several."""
    return next(iter(weights_of(layer).values()))


def shape_of(layer: nn.Module) -> tuple[int, ...]:
    """Return the shape of the weight."""
    return tuple(weight_of(layer).shape)


# ---------------------------------------------------------------- calibration of PyTorch models:
# what comes into each layer, and what goes out, on typical data


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
    calls: Sequence[ModelCall],
    *,
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
    run_calls(model, calls)
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


def require_calls(calls: Sequence[ModelCall]) -> Sequence[ModelCall]:
    """Return the calls on calibration data, or raise if there are none."""
    if not calls:
        raise SettingError(NO_DATA)
    return calls


def run_calls(model: nn.Module, calls: Sequence[ModelCall]) -> None:
    """Call a model on batches, without gradients; an error names the batch."""
    adapter = TorchAdapter()
    for number, call in enumerate(calls):
        name = f"batch {number} of {len(calls)}"
        try:
            with torch.no_grad(), adapter.preserving(model):
                model(*adapter.copy_inputs(call.arguments), **call.keywords)
        except SettingError as error:
            raise SettingError(f"{name}: {error}") from error
        except Exception as error:  # whatever a model raises for inputs that it cannot take
            reason = f"{type(error).__name__}: {error}"
            raise SettingError(f"{name} does not fit the model: {reason}") from error
