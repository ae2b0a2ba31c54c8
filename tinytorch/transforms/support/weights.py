"""Layers of a model whose weights can take another form."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.kernels import Array
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.module import Module
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.errors import ModelError, SettingError
from tinytorch.models.adapter import Adapter, adapter_for, namespace_of
from tinytorch.models.core import named_tensors
from tinytorch.models.workload import Scores, Workload, call_model
from tinytorch.transforms.plan import Gain, Plan, Skipped, Step
from tinytorch.transforms.support.observing import called_layers, calls_of, why_kept
from tinytorch.transforms.support.trimming import knows_its_size

# ---------------------------------------------------------------- the linear layers and
# convolutions of a TinyTorch model, whose weights can take another form

KINDS = (Linear, Conv2d)
"""Exactly these: a subclass may compute something else."""
NOT_CALLED = "it was not called: its weight may be used in another way"


@dataclass
class WeightLayer:
    """A layer with a weight, and what is going to happen to it."""

    layer: Any
    tensor: Any
    """The parameter that holds the weight, None where it is computed."""
    what: str = ""
    why: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    new_bytes: int = 0
    """What holds the weight in its other form."""
    reason: str = ""
    """Why it stays as it is, if so."""

    @property
    def weight(self) -> Any:
        """The numbers of the weight, as an array of its framework."""
        return self.tensor.data


@dataclass(frozen=True)
class WeightLayers:
    """Those of a model by path, on a copy of it; and the layers of other kinds that hold floats."""

    found: Mapping[str, WeightLayer]
    others: tuple[Skipped, ...]
    adapter: Adapter
    modules: Mapping[str, Any]
    bytes_held: int

    def choose(self, fit: Callable[[WeightLayer], None]) -> None:
        """Call `fit` to set what becomes of each layer, or the reason why it stays.

        Layers with the same weight get the same: it is held once, in the one form or the other.
        """
        fitted: dict[int, WeightLayer] = {}
        for each in self.found.values():
            if each.reason:
                continue
            known = fitted.setdefault(id(each.tensor), each)
            if known is each:
                fit(each)
            else:
                each.what, each.why, each.settings = known.what, known.why, known.settings
                each.new_bytes, each.reason = known.new_bytes, known.reason
        self.keep_what_shares()

    def keep_what_shares(self) -> None:
        """Skip a layer if another one needs its weight unchanged: it would be held twice."""
        users: dict[int, list[str]] = {}
        for path, module in self.modules.items():
            for _, tensor in self.adapter.own_tensors(module):
                users.setdefault(id(tensor), []).append(path)
        for path, each in self.found.items():
            users.setdefault(id(each.tensor), []).append(path)
        for path, each in self.found.items():
            staying = [
                user
                for user in users.get(id(each.tensor), ())
                if user != path and (user not in self.found or self.found[user].reason)
            ]
            if staying and not each.reason:
                each.reason = f"it shares its weight with {staying[0]!r}, which is not changed"

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(
            Step(path, each.what, each.why, each.settings)
            for path, each in self.found.items()
            if not each.reason
        )

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        staying = (Skipped(path, each.reason) for path, each in self.found.items() if each.reason)
        return (*self.others, *staying)

    @property
    def shrinkage(self) -> Gain | None:
        """How many times fewer bytes are held; exact, as everything follows from the shapes."""
        changed = [each for each in self.found.values() if not each.reason]
        if not changed:
            return None
        by_weight = {id(each.tensor): each for each in changed}
        saved = sum(each.weight.nbytes - each.new_bytes for each in by_weight.values())
        return Gain.of_bytes(self.bytes_held, self.bytes_held - saved, "counted from the shapes")


def find_weight_layers(
    workload: Workload,
    keep: tuple[str, ...],
    *,
    verb: str,
    kinds: Collection[type] = KINDS,
    weight_of: Callable[[Any], Any] | None = None,
) -> WeightLayers:
    """Find the layers of some classes on a copy of the model, which is called to see them at work.

    `verb` says what would be done to them, as in "can be factored". `weight_of` gives the weight of
    one, where that is not a parameter of its own.
    """
    adapter = adapter_for(workload.model, workload.arguments)
    twin = adapter.clone(workload.model)
    modules = dict(adapter.modules(twin))
    found: dict[str, WeightLayer] = {}
    for path, layer in modules.items():
        if type(layer) in kinds:
            own = dict(adapter.own_tensors(layer))
            weight = weight_of(layer) if weight_of else own.get("weight")
            reason = why_kept(path, keep) or _why_not(adapter, layer, weight)
            found[path] = WeightLayer(layer, weight, reason=reason)
    layers = {path: each.layer for path, each in found.items() if not each.reason}
    called = set(layers)
    if calls_of(workload):
        called = called_layers(twin, layers, workload, fast_paths=True)
    for path in layers.keys() - called:
        found[path].reason = NOT_CALLED
    others = [
        Skipped(path, reason)
        for path, layer in modules.items()
        if path not in found and (reason := _why_unknown(adapter, layer, kinds, verb))
    ]
    if not isinstance(workload.model, Module) and not found and not others:
        others.append(Skipped("", f"no layer of tinytorch was found in {workload.name}"))
    held = adapter.held_bytes(workload.model)
    return WeightLayers(found, tuple(others), adapter, modules, held)


def _why_not(adapter: Adapter, layer: Any, weight: Any) -> str:
    if weight is None:
        return "its weight is computed anew before each call"
    if "forward" in vars(layer):
        return "its forward was replaced on this object by another function"
    reason = adapter.why_unreadable(weight)
    if reason:
        return reason
    values = adapter.values(weight)
    is_finite = bool(namespace_of(values).isfinite(values).all())
    return "" if is_finite else "its weight holds NaN or infinity"


def _why_unknown(adapter: Adapter, layer: Any, kinds: Collection[type], verb: str) -> str:
    """Return why a layer of another kind is skipped; "" if it holds no weights itself."""
    is_packed = bool(adapter.packed_form(layer))
    own = [
        each
        for _, each in adapter.own_tensors(layer)
        if (is_packed or adapter.is_parameter(each)) and not adapter.why_unreadable(each)
    ]
    if not own:
        return ""
    name, count = type(layer).__name__, sum(math.prod(each.shape) for each in own)
    base = next((known for known in kinds if isinstance(layer, known)), None)
    if base is not None:
        return f"a {name} is a {base.__name__} that may compute something else"
    return f"{name} is not a layer that can be {verb}; its {count:,} numbers stay"


def carry_out(
    twin: Any,
    plan: Plan,
    build: Callable[[Any, Mapping[str, Any]], Any],
    *,
    kinds: Collection[type] = KINDS,
) -> Any:
    """Put what `build(layer, settings)` makes of the plan's layers into a copy, and return it."""
    adapter = adapter_for(twin)
    modules = dict(adapter.modules(twin))
    wrong = next((path for path in plan.layers if type(modules.get(path)) not in kinds), None)
    if wrong is not None:
        raise SettingError(
            f"the model has no layer {wrong!r} as the plan of {plan.transform} knows it; make a "
            "plan for this model"
        )
    new = {
        id(modules[step.layer]): build(modules[step.layer], step.settings) for step in plan.steps
    }
    model = adapter.replace_layers(twin, new)
    replaced = set(map(id, new.values()))
    replaced -= set(map(id, adapter.modules(model).values()))
    if replaced:
        lost = [step.layer for step in plan.steps if id(new[id(modules[step.layer])]) in replaced]
        raise ModelError(f"layer {lost[0]!r} could not be replaced where the model holds it")
    return model


# ---------------------------------------------------------------- layers in two thin parts: what a
# linear layer or a convolution becomes at a lower rank
#
# They have what the layers had whose places they take, so that code which reads the `weight` or
# `in_features` of a layer finds them.


class _Factored(Sequential):
    """Two layers, of which the second adds the bias."""

    @property
    def bias(self) -> Tensor | None:
        bias: Tensor | None = self.layers[1].bias
        return bias


class FactoredLinear(_Factored):
    """A `Linear` as two thin ones, (in, rank) and (rank, out)."""

    def __init__(self, layer: Linear, first: Parameter, second: Parameter) -> None:
        rank = first.shape[1]
        one = Linear(layer.in_features, rank, bias=False, rng=0)
        other = Linear(rank, layer.out_features, bias=False, rng=0)
        one.weight, other.weight, other.bias = first, second, layer.bias
        super().__init__(one, other)

    @property
    def weight(self) -> Tensor:
        """The product (in, out) of both weights, computed on each access."""
        return self.layers[0].weight @ self.layers[1].weight

    # those of the parts, which may be resized
    in_features = property(lambda self: self.layers[0].in_features)
    out_features = property(lambda self: self.layers[1].out_features)


class FactoredConv2d(_Factored):
    """A `Conv2d` without groups as one to `rank` channels and one of 1x1."""

    def __init__(self, layer: Conv2d, first: Parameter, second: Parameter) -> None:
        rank = len(first.data)
        one = Conv2d(
            layer.in_channels,
            rank,
            layer.kernel_size,
            layer.stride,
            layer.padding,
            dilation=layer.dilation,
            bias=False,
            rng=0,
        )
        other = Conv2d(rank, layer.out_channels, 1, bias=False, rng=0)
        one.weight, other.weight, other.bias = first, second, layer.bias
        super().__init__(one, other)

    @property
    def weight(self) -> Tensor:
        """The kernels (out, in, height, width), computed on each access."""
        first, second = self.layers[0].weight, self.layers[1].weight
        rank = first.shape[0]
        product = second.reshape(-1, rank) @ first.reshape(rank, -1)
        return product.reshape(-1, *first.shape[1:])

    in_channels = property(lambda self: self.layers[0].in_channels)
    out_channels = property(lambda self: self.layers[1].out_channels)
    kernel_size = property(lambda self: self.layers[0].kernel_size)
    stride = property(lambda self: self.layers[0].stride)
    padding = property(lambda self: self.layers[0].padding)
    dilation = property(lambda self: self.layers[0].dilation)
    groups = property(lambda self: self.layers[0].groups)


def factored_layer(
    layer: Any, first: Parameter, second: Parameter
) -> FactoredLinear | FactoredConv2d:
    """Return two layers that replace one; its bias, the same object, is in the second."""
    if isinstance(layer, Linear):
        return FactoredLinear(layer, first, second)
    return FactoredConv2d(layer, first, second)


# ---------------------------------------------------------------- layers that get smaller weights
# than they were built with, as after channels were removed


def why_not_resized(model: Any, arrays: Mapping[str, Array]) -> str:
    """Return why the tensors of a model cannot take the shapes of these arrays, or "".

    Layers only become smaller, and only those that know their size from their weights.
    """
    modules, tensors = adapter_for(model).modules(model), named_tensors(model)
    for name, array in arrays.items():
        shape = tensors[name].shape
        layer = modules[name.rpartition(".")[0]]
        if array.ndim != len(shape) or any(
            new > old for new, old in zip(array.shape, shape, strict=True)
        ):
            return f"{name!r} has shape {array.shape}, larger than {shape} of the model"
        if not knows_its_size(layer):
            return (
                f"{name!r} has shape {array.shape}, the model {shape}, and a "
                f"{type(layer).__name__} cannot be resized; build the model with this size"
            )
    return _why_inconsistent(modules, arrays)


def _why_inconsistent(modules: Mapping[str, Any], arrays: Mapping[str, Array]) -> str:
    """Return which layer would be inconsistent in itself. Between layers, a call tells."""

    def shape_of(path: str, name: str) -> tuple[int, ...]:
        full = f"{path}.{name}" if path else name
        if full in arrays:
            return arrays[full].shape
        tensor = getattr(modules[path], name, None)
        return () if tensor is None else tuple(tensor.shape)

    for path in sorted({name.rpartition(".")[0] for name in arrays}):
        layer = modules[path]
        weight, bias = shape_of(path, "weight"), shape_of(path, "bias")
        outputs = weight[1] if hasattr(layer, "in_features") else weight[0]
        others = [bias, *(shape_of(path, name) for name in ("running_mean", "running_var"))]
        if any(each not in ((), (outputs,)) for each in others):
            return f"the weight of {path!r} has {outputs} outputs, but its other numbers do not"
    for path, layer in modules.items():
        if isinstance(layer, MultiHeadAttention):
            prefix = f"{path}." if path else ""
            widths = {shape_of(f"{prefix}{name}_proj", "weight")[1] for name in "qkv"}
            mixed = shape_of(f"{prefix}out_proj", "weight")[0]
            if widths != {mixed} or mixed % layer.head_dim:
                return f"{path!r} would not have whole heads of {layer.head_dim} numbers"
    return ""


# ---------------------------------------------------------------- scores of a model as it will be
# used


def scores_of(workload: Workload, model: Any) -> Scores:
    """Evaluate a copy of a model, with dropout and the like switched off.

    The model keeps its modes, and whatever else would change.
    """
    if workload.evaluate is None:
        raise SettingError(f"{workload.name} has no evaluate()")
    adapter = adapter_for(model, workload.arguments)
    twin = adapter.clone(model)
    adapter.switch_to_eval(twin)
    return workload.evaluate(twin)


# ---------------------------------------------------------------- counting bytes, and the
# multiply-accumulates of a call, on models of any framework


def counted_shrinkage(model: Any, smaller: Any) -> Gain:
    """Return how many times fewer bytes the second of two models holds."""
    before, after = (adapter_for(held).held_bytes(held) for held in (model, smaller))
    return Gain.of_bytes(before, after, "counted on a copy")


def count_macs(model: Any, workload: Workload) -> int:
    """Count the multiply-accumulates of contractions in one call on a workload's inputs.

    The model is called in evaluation mode, and is in its own mode afterwards.
    """
    adapter = adapter_for(model, workload.arguments)
    device = adapter.device(model, workload.arguments)
    with adapter.preserving(model), adapter.without_gradients(), _evaluating(adapter, model):
        recording = adapter.record(
            model,
            lambda: call_model(model, *workload.inputs, **workload.keywords),
            device=device,
            inputs=workload.arguments,
        )
    return sum(record.cost.macs for record in recording.operations if record.cost is not None)


def macs_note(before: int, after: int) -> str:
    """Return a note on the multiply-accumulates of a call before and after a change."""
    share = f" ({after / before:.1%} remain)" if before else ""
    return f"multiply-accumulates of a call: {before:,} before, {after:,} after{share}"


@contextmanager
def _evaluating(adapter: Adapter, model: Any) -> Iterator[None]:
    modules = [each for each in adapter.modules(model).values() if hasattr(each, "training")]
    modes = [(module, module.training) for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
