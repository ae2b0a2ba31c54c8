"""Cutting indices out of the weights of a model, in place, with the sizes that layers know."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np

from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.embeddings import Embedding
from tinytorch.core.layers import Linear
from tinytorch.core.spatial import BatchNorm2d, Conv2d
from tinytorch.errors import SettingError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.core import named_tensors
from tinytorch.transforms.plan import Skipped, Step
from tinytorch.transforms.support.channels import Place, Unit
from tinytorch.transforms.support.observing import why_kept

__all__ = [
    "Judge",
    "Lengths",
    "Removal",
    "Removed",
    "Survey",
    "choose_layers",
    "is_part",
    "joined",
    "knows_its_size",
    "lengths_of",
    "let_layers_know",
    "staying_layers",
    "steps_of",
    "trim",
    "why_no_stream",
    "why_part_kept",
    "zero_out",
]


Removal = Mapping[Place, tuple[int, ...]]
"""The indices that go, by axis of a weight."""
Lengths = Mapping[Place, int]
"""How long these axes were when that was planned."""


def joined(units: Iterable[Unit]) -> Removal:
    """Give everything that goes with some units, in order."""
    indices: dict[Place, set[int]] = {}
    for unit in units:
        for place, found in unit.items():
            indices.setdefault(place, set()).update(found)
    return {place: tuple(sorted(found)) for place, found in indices.items()}


def lengths_of(model: Any, removal: Removal) -> Lengths:
    tensors = named_tensors(model)
    return {place: tensors[place.tensor].shape[place.axis] for place in removal}


def trim(model: Any, removal: Removal, lengths: Lengths | None = None) -> None:
    """Cut indices out of the weights, and let the layers know their new sizes."""
    _check(model, removal, lengths or {})
    tensors = named_tensors(model)
    for place, indices in removal.items():
        tensor = tensors[place.tensor]
        tensor.data = np.ascontiguousarray(np.delete(tensor.data, indices, axis=place.axis))
        tensor.grad = None
    let_layers_know(model)


def let_layers_know(model: Any) -> None:
    """Let the layers of a model know the sizes that their weights have by now."""
    for module in adapter_for(model).modules(model).values():
        for kind, sizes in SIZES.items():
            if isinstance(module, kind):
                vars(module).update(sizes(module))
        if _is_linear(module):
            vars(module).update(_sizes_of_linear(module))


def knows_its_size(layer: Any) -> bool:
    """Tell whether a layer has a size that follows from the shape of its weights."""
    return _is_linear(layer) or isinstance(layer, tuple(SIZES))


def _is_linear(layer: Any) -> bool:
    return getattr(layer, "__dict__", {}).keys() >= {"in_features", "out_features", "weight"}


def zero_out(model: Any, removal: Removal) -> None:
    """Set the same indices to zero instead, which needs no other size."""
    _check(model, removal, {})
    tensors = named_tensors(model)
    for place, indices in removal.items():
        array = tensors[place.tensor].data.copy()
        np.moveaxis(array, place.axis, 0)[list(indices)] = 0
        tensors[place.tensor].data = array


def _check(model: Any, removal: Removal, lengths: Lengths) -> None:
    tensors = named_tensors(model)
    for place, indices in removal.items():
        tensor = tensors.get(place.tensor)
        length = tensor.shape[place.axis] if tensor is not None and place.axis < tensor.ndim else 0
        if max(indices) >= length or length != lengths.get(place, length):
            seen = "no such weight" if tensor is None else f"one of shape {tensor.shape}"
            wanted = f" of {lengths[place]}" if place in lengths else ""
            raise SettingError(
                f"index {max(indices)}{wanted} of axis {place.axis} of {place.tensor!r} is to be "
                f"removed, but the model has {seen}; make a plan for this model"
            )


def _sizes_of_linear(layer: Any) -> dict[str, int]:
    if layer.weight.ndim != 2:
        return {}
    return {"in_features": layer.weight.shape[0], "out_features": layer.weight.shape[1]}


def _sizes_of_attention(layer: MultiHeadAttention) -> dict[str, int]:
    """Count the heads by what the queries are made with, which may be two layers in one's place."""
    products = [each for each in layer.q_proj.modules() if isinstance(each, Linear)]
    if not products:
        return {}
    return {
        "embed_dim": products[0].weight.shape[0],
        "num_heads": products[-1].weight.shape[1] // layer.head_dim,
    }


def _sizes_of_convolution(layer: Conv2d) -> dict[str, int]:
    outputs, inputs = layer.weight.shape[:2]
    is_depthwise = layer.groups > 1
    groups = outputs if is_depthwise else 1  # other groups are never trimmed
    if is_depthwise and layer.groups != layer.out_channels:
        return {}
    return {"in_channels": inputs * groups, "out_channels": outputs, "groups": groups}


SIZES: dict[type, Callable[[Any], dict[str, int]]] = {
    Conv2d: _sizes_of_convolution,
    BatchNorm2d: lambda layer: {"num_features": layer.weight.shape[0]},
    Embedding: lambda layer: {"embedding_dim": layer.weight.shape[1]},
    MultiHeadAttention: _sizes_of_attention,
}
"""What a layer knows about its size, from the shape of its weights; beside what is linear."""


# ---------------------------------------------------------------- which layers of a model are
# missed least, whatever framework it is of

Removed = Sequence[tuple[str, float]]
"""Layers in the order in which they go, each with how much the outputs change by then."""


class Survey(Protocol):
    """The layers of a model that can be taken out of their lists."""

    def removable_beside(self, gone: tuple[str, ...]) -> Collection[str]:
        """Give those that can go when some are gone already."""


class Judge(Protocol):
    """Tells how much the outputs of a model change."""

    def without(self, paths: tuple[str, ...]) -> tuple[float, str]:
        """Give the change without some layers, or the reason why the model fails then."""


def choose_layers(
    survey: Survey, judge: Judge, alone: Mapping[str, float], *, count: int
) -> Removed:
    """Remove the layer that is missed least, again and again; `alone` has the first changes."""
    chosen: list[tuple[str, float]] = []
    while len(chosen) < count:
        gone = tuple(path for path, _ in chosen)
        changes: dict[str, float] = {}
        for path in survey.removable_beside(gone):
            change, reason = (alone[path], "") if not gone else judge.without((*gone, path))
            if not reason:
                changes[path] = change
        if not changes:
            break
        least = min(changes, key=lambda path: changes[path])
        chosen.append((least, changes[least]))
    return chosen


def steps_of(removed: Removed, alone: Mapping[str, float]) -> tuple[Step, ...]:
    return tuple(
        Step(
            path,
            "removed",
            f"without it the outputs change by {alone[path]:.2%}"
            + (f", by {change:.2%} with those removed before" if number else ""),
            {"order": number, "change_alone": alone[path], "change_together": change},
        )
        for number, (path, change) in enumerate(removed)
    )


def staying_layers(
    survey: Survey, alone: Mapping[str, float], gone: Iterable[str]
) -> tuple[Skipped, ...]:
    """Say of each layer that could go, but stays, what it would change."""
    gone = tuple(gone)
    removable = survey.removable_beside(gone)
    return tuple(
        Skipped(
            path,
            f"without it the outputs would change by {change:.2%}"
            + ("" if path in removable else "; nothing else of its kind is in its list"),
        )
        for path, change in alone.items()
        if not any(is_part(path, each) for each in gone)
    )


def is_part(path: str, of: str) -> bool:
    """Tell whether a layer is another one, or in it."""
    return path == of or path.startswith(f"{of}.")


def why_no_stream(first: Any, output: Any, tensor: type) -> str:
    """Say why a layer that makes this output of this input cannot be left out, or nothing."""
    if not isinstance(first, tensor) or not isinstance(output, tensor):
        return "it takes or gives something else than one tensor"
    before, after = cast("Any", first), cast("Any", output)
    if before.shape != after.shape:
        return f"it makes {tuple(after.shape)} of {tuple(before.shape)}, so others need it"
    if before.dtype != after.dtype:
        return f"it makes {after.dtype} of {before.dtype}, so others need it"
    return ""


def why_part_kept(path: str, modules: Iterable[str], keep: tuple[str, ...]) -> str:
    """Say which pattern keeps a layer, or a part of it, which would go with it."""
    for part in modules:
        reason = why_kept(part, keep) if is_part(part, path) else ""
        if reason:
            return reason if part == path else f"{part!r} in it is {reason}"
    return ""
