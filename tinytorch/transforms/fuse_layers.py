"""FuseLayers: the transform that makes one layer of a linear layer and the activation after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tinytorch.core import operations
from tinytorch.core.activations import GELU, ReLU, Sigmoid, Tanh
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.module import Module, check_floating_point
from tinytorch.core.tensor import Tensor, apply
from tinytorch.errors import ShapeError
from tinytorch.models.workload import Workload
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import TIME, Plan, Skipped, Step, Transform, Variant

# ---------------------------------------------------------------- a linear layer with its
# activation as one kernel


class FusedLinear(Module):
    """activation(x @ weight + bias) in one kernel; a `Linear` and what came after it."""

    def __init__(self, linear: Linear, activation: Module) -> None:
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.weight = linear.weight
        self.bias = linear.bias
        self.training = linear.training
        self.activation = activation_word(activation)

    def forward(self, x: Tensor) -> Tensor:
        check_floating_point(self, x)
        if x.ndim == 0 or x.shape[-1] != self.in_features:
            raise ShapeError(f"{self!r} needs input (..., {self.in_features}), got {x.shape}")
        parameters = (self.weight,) if self.bias is None else (self.weight, self.bias)
        return apply(operations.Linear(self.activation), x, *parameters)

    def extra_repr(self) -> str:
        sizes = f"{self.in_features}, {self.out_features}"
        return f"{sizes}, bias={self.bias is not None}, activation={self.activation!r}"


class InFront(Module):
    """What is left of a layer that the one in front of it computes, so that names stay."""

    def forward(self, x: Any) -> Any:
        return x


WORDS: dict[type[Module], str] = {ReLU: "relu", Tanh: "tanh", Sigmoid: "sigmoid"}


def activation_word(activation: Module) -> str:
    """Return what the kernel calls an activation, or "" where it does not have it."""
    if type(activation) is GELU:
        return "gelu_tanh" if activation.approximate == "tanh" else "gelu"
    return WORDS.get(type(activation), "")


# ---------------------------------------------------------------- FuseLayers: the transform that
# makes one layer of a linear layer and the activation after it

NOT_PREDICTED = {
    "speedup": "how much the saved pass over the activations matters depends on the backend and "
    "the size; compare() measures it",
    "shrinkage": "the same parameters are held",
}


@dataclass(frozen=True)
class FuseLayers(Transform):
    """Compute a `Linear` and the activation that follows it in a Sequential as one layer.

    The activation is applied to a part of the result while that is still in a cache, where the
    backend can. Names and parameters stay; instead of the activation stays an empty layer.
    Layers that offer `with_activation`, as quantized ones do, are fused by it.
    """

    variants = (Variant("fused-layers", "fuse adjacent layers into one kernel"),)
    role, place, order = "fusing", 6, 50
    risk, serves = "exact", TIME
    frameworks = ("core",)
    follows_weights = True
    may_compete = True

    def make_plan(self, workload: Workload, profile: Profile | None) -> Plan:
        """Find pairs of a linear layer and an activation. Nothing is run."""
        model = workload.model
        if not isinstance(model, Module):
            return self.skipping(f"it is a {type(model).__name__}, no Module of tinytorch")
        steps, skipped = [], []
        for path, linear, after in _pairs(model):
            reason = _why_not(linear, after)
            if reason:
                skipped.append(Skipped(path, reason))
            else:
                assert after is not None
                what = f"fused with the {type(after).__name__} after it"
                why = "saves one pass over the activations"
                steps.append(Step(path, what, why, {"activation": activation_word(after)}))
        return self.planned(steps, skipped, not_predicted=NOT_PREDICTED)

    def change(self, model: Any, workload: Workload, plan: Plan) -> Any:
        modules = dict(model.named_modules())
        for layer in plan.layers:
            container, _, index = layer.rpartition("layers.")
            owner, place = modules[container.removesuffix(".")], int(index)
            linear, after = owner.layers[place : place + 2]
            owner.layers[place : place + 2] = [_fused(linear, after), InFront()]
        return model


def _pairs(model: Module) -> Iterator[tuple[str, Module, Module | None]]:
    """Yield the linear layers of plain Sequentials, with their names and what follows them."""
    for prefix, module in model.named_modules():
        if type(module).forward is not Sequential.forward or not isinstance(module, Sequential):
            continue
        for place, layer in enumerate(module.layers):
            if isinstance(layer, Linear) or _fuses_itself(layer):
                after = module.layers[place + 1] if place + 1 < len(module.layers) else None
                yield (f"{prefix}." if prefix else "") + f"layers.{place}", layer, after


def _fuses_itself(layer: Any) -> bool:
    return isinstance(layer, Module) and hasattr(layer, "with_activation")


def _fused(layer: Any, after: Module) -> Module:
    if _fuses_itself(layer):
        fused: Module = layer.with_activation(activation_word(after))
        return fused
    return FusedLinear(layer, after)


def _why_not(linear: Any, after: Module | None) -> str:
    if after is None:
        return "no activation follows in its Sequential"
    if not activation_word(after):
        return f"the {type(after).__name__} that follows is not fused"
    if type(linear) is not Linear and not _fuses_itself(linear):
        return f"it is a {type(linear).__name__}, which may compute something else than a Linear"
    if linear._execution or after._execution:
        return "it or its activation has its own backend or checkpoint"
    return ""
