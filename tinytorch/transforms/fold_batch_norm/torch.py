"""Folding batch norms of PyTorch into the layers before them. Imported after torch."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import TraceError
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.utils._python_dispatch import TorchDispatchMode

from tinytorch.errors import ModelError, SettingError, first_line
from tinytorch.models.pytorch import TorchAdapter, tensors_in
from tinytorch.models.pytorch_tensors import HOOKS, replace_modules
from tinytorch.models.workload import Workload, call_model
from tinytorch.transforms.fold_batch_norm import FoldBatchNorm
from tinytorch.transforms.plan import Gain, Plan, Skipped, Step
from tinytorch.transforms.support import torch as support

# ---------------------------------------------------------------- which layer's output a batch
# norm reads, and whether it is the only reader. Imported after torch
#
# Two witnesses: one call, in which every operation is watched, says what happened to each output of
# a layer; the code of the module around both, traced by torch.fx, says the same for every other
# call.


@dataclass
class Flow:
    """What one call did.

    `source` has the layer whose output was the input of each norm, `axes` how many axes that had.
    `read_elsewhere` are layers whose output something but one norm read, changed, gave out or kept,
    `weight_read` those whose weight or bias was read by others than the layer.
    """

    calls: Counter[str] = field(default_factory=Counter)
    source: dict[str, str] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)
    read_elsewhere: set[str] = field(default_factory=set)
    weight_read: set[str] = field(default_factory=set)
    error: str = ""


def watch_flow(workload: Workload, layers: Collection[str], norms: Collection[str]) -> Flow:
    """Call a copy of the model once, and follow the outputs of some layers."""
    adapter = TorchAdapter()
    watch = _Watch()
    try:
        model: nn.Module = adapter.clone(workload.model)
        inputs, keywords = support.copied_arguments(adapter, workload)
        with (
            adapter.preserving(workload.model),
            adapter.without_gradients(),
            watch.hooked(model, layers, norms),
            watch,
        ):
            torch.manual_seed(support.SEED)
            output = call_model(model, *inputs, **keywords)
        watch.see_given_out(output)
        del output
    except Exception as error:  # a model may raise anything
        return Flow(error=f"it cannot be called: {first_line(error)}")
    watch.see_kept()
    return watch.flow


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation, and in hooks every call of a layer."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flow = Flow()
        # the outputs of layers that are still alive; a number of a dead one may be another's
        self._made: dict[int, tuple[str, weakref.ref[torch.Tensor]]] = {}
        self._reader: dict[str, str] = {}  # the norm that reads the output of a layer
        self._running = ""  # the norm or the layer that is being called
        self._weights: dict[int, str] = {}  # the layers that parameters belong to

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tensors_in((args, kwargs or {})):
            owner = self._weights.get(id(tensor), self._running)
            if owner != self._running:
                self.flow.weight_read.add(owner)
            layer = self._layer_of(tensor)
            if layer and (not self._running or self._reader.get(layer) != self._running):
                self.flow.read_elsewhere.add(layer)
        return func(*args, **(kwargs or {}))

    def _layer_of(self, tensor: torch.Tensor) -> str:
        layer, alive = self._made.get(id(tensor), ("", None))
        return layer if alive is not None and alive() is tensor else ""

    @contextmanager
    def hooked(
        self, model: nn.Module, layers: Collection[str], norms: Collection[str]
    ) -> Iterator[None]:
        """Watch these layers while the block runs."""
        modules = dict(model.named_modules())
        hooks = []
        for path in layers:
            own = modules[path].parameters(recurse=False)
            self._weights |= {id(each): path for each in own}
            hooks.append(modules[path].register_forward_pre_hook(self._before_layer(path)))
            hooks.append(modules[path].register_forward_hook(self._after_layer(path)))
        for path in norms:
            hooks.append(modules[path].register_forward_pre_hook(self._before_norm(path)))
            hooks.append(modules[path].register_forward_hook(self._after_norm))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _before_layer(self, path: str) -> Callable[..., None]:
        def see(module: nn.Module, inputs: Any) -> None:
            self._running = path

        return see

    def _after_layer(self, path: str) -> Callable[..., None]:
        def see(module: nn.Module, inputs: Any, output: Any) -> None:
            self._running = ""
            self.flow.calls[path] += 1
            if isinstance(output, torch.Tensor):
                self._made[id(output)] = path, weakref.ref(output)

        return see

    def _before_norm(self, path: str) -> Callable[..., None]:
        def see(module: nn.Module, inputs: Any) -> None:
            self.flow.calls[path] += 1
            self._running = path
            if len(inputs) != 1 or not isinstance(inputs[0], torch.Tensor):
                return
            layer = self._layer_of(inputs[0])
            if layer:
                self.flow.source[path] = layer
                self.flow.axes[path] = inputs[0].dim()
                if self._reader.setdefault(layer, path) != path:
                    self.flow.read_elsewhere.add(layer)

        return see

    def _after_norm(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._running = ""

    def see_given_out(self, output: Any) -> None:
        layers = {self._layer_of(tensor) for tensor in tensors_in(output)}
        self.flow.read_elsewhere |= layers - {""}

    def see_kept(self) -> None:
        """Whoever holds an output after the call may read it later."""
        alive = {layer for layer, tensor in self._made.values() if tensor() is not None}
        self.flow.read_elsewhere |= alive


# ---------------------------------------------------------------- all other calls


def why_not_always(model: nn.Module, layer: str, norm: str) -> str:
    """Return why other calls may use the output of a layer elsewhere than in a norm, or nothing.

    The code of the innermost module around both is traced, all else unchanged. The model
    is a copy: its code runs with symbols instead of tensors.
    """
    around = _common_path(layer, norm)
    inner = {path: path[len(around) + 1 :] if around else path for path in (layer, norm)}
    name = repr(around) if around else "the model"
    try:
        graph = _Around(inner.values()).trace(model.get_submodule(around))
    except TraceError:
        return f"the code of {name} decides by its inputs what to call"
    except Exception as error:  # the code of a model meets symbols that it does not know
        return (
            f"torch.fx cannot trace the code of {name}, so other calls may use the output of "
            f"{layer!r} elsewhere ({first_line(error)})"
        )
    found: Mapping[str, list[fx.Node]] = {
        path: [node for node in graph.nodes if _is_call(node, target)]
        for path, target in inner.items()
    }
    if any(len(nodes) != 1 for nodes in found.values()):
        return f"the code of {name} does not always call both of them once"
    ((first,), (second,)) = found[layer], found[norm]
    targets = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
    if any(target.startswith(f"{path}.") for target in targets for path in inner.values()):
        return f"the code of {name} reads weights of {layer!r} or of the norm itself"
    if [*first.users] != [second] or second.args[:1] != (first,):
        return f"the output of {layer!r} is used elsewhere, too"
    return ""


class _Around(fx.Tracer):
    """Follows the code down to the two layers, and into no other one."""

    def __init__(self, wanted: Collection[str]) -> None:
        super().__init__()
        self.wanted = tuple(wanted)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        inside = f"{module_qualified_name}."
        return not any(path.startswith(inside) for path in self.wanted)


def _is_call(node: fx.Node, target: str) -> bool:
    return node.op == "call_module" and node.target == target


def _common_path(one: str, other: str) -> str:
    parts = []
    for left, right in zip(one.split(".")[:-1], other.split(".")[:-1], strict=False):
        if left != right:
            break
        parts.append(left)
    return ".".join(parts)


# ---------------------------------------------------------------- folding batch norms of PyTorch
# into the layers before them. Imported after torch

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
"""Exactly these: a subclass may compute something else."""
NO_SPEEDUP = (
    "how much the saved pass over the activations matters depends on the sizes; compare() "
    "measures it"
)
FOR_EVALUATION = "the copy is for evaluation: calling it in training mode is an error"
WHY = "saves one pass over the activations"


class FoldedNorm(nn.Identity):
    """Stands where a batch norm was that the layer before it now computes, for evaluation alone.

    axes: how many axes its input has, where the norm would take others and mean something else.
    """

    def __init__(self, axes: int | None = None) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        if self.training:
            raise ModelError(
                "this batch norm was folded for evaluation; call eval() on the model, or train the "
                "one that it was made from"
            )
        if self.axes is not None:  # traceable, unlike an `if` on the input
            torch._assert(  # type: ignore[no-untyped-call]
                input.dim() == self.axes,
                f"the norm was folded for inputs of {self.axes} axes; fold it for these inputs",
            )
        return input

    def extra_repr(self) -> str:
        return "" if self.axes is None else f"axes={self.axes}"


# ---------------------------------------------------------------- planning


def apply_torch(model: nn.Module, workload: Workload, plan: Plan, settings: FoldBatchNorm) -> Any:
    """Return the copy of the model with these norms folded."""
    return fold_pairs(model, plan.steps)


def plan_torch(workload: Workload, settings: FoldBatchNorm) -> Plan:
    """Watch a call, find the pairs, and try them."""
    model = workload.model
    reason = support.why_unchangeable(model)
    modules = {} if reason else dict(model.named_modules())
    norms = [path for path, module in modules.items() if isinstance(module, _BatchNorm)]
    if not reason and not norms:
        reason = "it has no batch norm"
    if reason:
        return settings.skipping(reason)
    flow = watch_flow(workload, [*_layers(modules)], norms)
    if flow.error:
        return settings.skipping(flow.error)
    reasons = {path: _why_not(model, modules, path, flow) for path in norms}
    twin: nn.Module = TorchAdapter().clone(model)
    for path in [path for path, why in reasons.items() if not why]:
        reasons[path] = why_not_always(twin, flow.source[path], path)
    skipped = tuple(Skipped(path, why) for path, why in reasons.items() if why)
    steps = tuple(_step(path, flow) for path, why in reasons.items() if not why)
    if not steps:
        return settings.planned((), skipped)
    return _tried(workload, settings, steps, skipped)


def _layers(modules: Mapping[str, nn.Module]) -> Iterator[str]:
    for path, module in modules.items():
        if isinstance(module, (nn.Linear, _ConvNd)):
            yield path


def _step(norm: str, flow: Flow) -> Step:
    layer = flow.source[norm]
    settings = {"layer": layer, "axes": flow.axes[norm]}
    return Step(norm, f"folded into {layer!r}", WHY, settings)


def _tried(
    workload: Workload,
    settings: FoldBatchNorm,
    steps: tuple[Step, ...],
    skipped: tuple[Skipped, ...],
) -> Plan:
    trial = support.try_change(
        workload,
        lambda model: fold_pairs(model, steps),
        tolerance=support.rounding_of(workload.model),
    )
    if not trial.works:
        reason = support.refusal(workload.model, trial)
        return settings.skipping(reason, *skipped)
    before = TorchAdapter().held_bytes(workload.model)
    return settings.planned(
        steps,
        skipped,
        shrinkage=Gain.of_bytes(before, trial.held_bytes, "counted on a copy"),
        not_predicted={"speedup": NO_SPEEDUP},
        notes=(support.trial_note(trial), FOR_EVALUATION),
    )


# ---------------------------------------------------------------- reasons


def _why_not(model: nn.Module, modules: Mapping[str, Any], path: str, flow: Flow) -> str:
    """Return why a norm stays, or nothing; what is simplest to understand comes first."""
    norm = modules[path]
    reason = _why_not_norm(norm) or _why_not_called(path, flow)
    if reason:
        return reason
    source = flow.source.get(path)
    if source is None:
        return "its input is not the output of a convolution or linear layer"
    layer = modules[source]
    reason = _why_not_layer(layer) or _why_not_called(source, flow)
    if reason:
        return f"{source!r} in front of it cannot take it: {reason}"
    if source in flow.read_elsewhere:
        return f"the output of {source!r} is used elsewhere, too"
    if source in flow.weight_read:
        return f"the weight of {source!r} is used elsewhere, too"
    if flow.axes[path] != layer.weight.dim():
        where = "the last axis" if isinstance(layer, nn.Linear) else "the first axis"
        return f"its channels are not the outputs of {source!r}: these are {where}"
    held = {
        each.dtype
        for each in (layer.weight, norm.running_mean, norm.running_var, norm.weight)
        if each is not None
    }
    if len(held) > 1:
        return f"it holds another dtype than {source!r}"
    return _why_shared(model, path, source) or _why_not_finite(layer, norm, source)


def _why_not_norm(norm: Any) -> str:
    if type(norm) not in NORMS:
        return f"{type(norm).__name__} is a batch norm that may compute something else"
    if norm.training:
        return "it is in training mode, where it normalises by each batch; call eval() first"
    if norm.running_mean is None or norm.running_var is None:
        return "it keeps no running statistics, and normalises by each batch"
    return _why_touched(norm, ("weight", "bias") if norm.affine else ())


def _why_not_layer(layer: Any) -> str:
    if type(layer) not in LAYERS:
        return f"{type(layer).__name__} may compute something else than its base"
    return _why_touched(layer, ("weight",))


def _why_touched(module: Any, names: Iterable[str]) -> str:
    if any(module._parameters.get(name) is None for name in names):
        return "its weight is computed anew before each call"
    if "forward" in vars(module):
        return "its forward was replaced on this object by another function"
    if any(getattr(module, name, None) for name in HOOKS):
        return "a hook watches it, and would see other values"
    own = [each for each in module._parameters.values() if each is not None]
    if any(type(each.detach()) is not torch.Tensor or not each.is_floating_point() for each in own):
        return "its weight is held in another form than floats"
    return ""


def _why_not_called(path: str, flow: Flow) -> str:
    calls = flow.calls[path]
    if calls == 0:
        return "it was not called"
    return f"it is called {calls} times in one call of the model" if calls > 1 else ""


def _why_shared(model: nn.Module, norm: str, layer: str) -> str:
    """A layer or weight with two names may be used in a place that this call did not show."""
    wanted = {id(model.get_submodule(path)): path for path in (norm, layer)}
    named = [id(module) for _, module in model.named_modules(remove_duplicate=False)]
    twice = [path for module, path in wanted.items() if named.count(module) > 1]
    if twice:
        return f"{twice[0]!r} stands in several places of the model"
    owners = Counter(id(each) for module in model.modules() for each in module._parameters.values())
    own = [*model.get_submodule(layer).parameters(recurse=False)]
    shared = any(owners[id(each)] > 1 for each in own)
    return f"{layer!r} shares its weight with another layer" if shared else ""


def _why_not_finite(layer: Any, norm: Any, name: str) -> str:
    finite = all(bool(torch.isfinite(each).all()) for each in folded(layer, norm))
    return "" if finite else f"the weights of {name!r} would not be finite"


# ---------------------------------------------------------------- carrying out


def folded(layer: Any, norm: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight and the bias of a layer that also does what the norm after it does.

    Computed in float64, and given in the dtype of the weight.
    """
    dtype = layer.weight.dtype
    scale = (norm.running_var.double() + norm.eps).rsqrt()  # (channels,)
    if norm.weight is not None:
        scale = scale * norm.weight.detach().double()
    shift = -norm.running_mean.double() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.detach().double()
    if layer.bias is not None:
        shift = shift + layer.bias.detach().double() * scale
    weight = layer.weight.detach().double()
    if isinstance(layer, _ConvTransposeNd):  # (inputs, channels / groups, ...)
        grouped = weight.reshape(layer.groups, -1, *weight.shape[1:])
        factor = scale.reshape(layer.groups, 1, -1, *(1 for _ in layer.kernel_size))
        product = (grouped * factor).reshape(weight.shape)
    else:  # (channels, ...)
        product = weight * scale.reshape(-1, *(1 for _ in weight.shape[1:]))
    return product.to(dtype), shift.to(dtype)


def fold_pairs(model: nn.Module, steps: Iterable[Step]) -> nn.Module:
    """Fold the norms of a plan in place, and give the model."""
    modules: dict[str, Any] = dict(model.named_modules())
    replaced: dict[nn.Module, nn.Module] = {}
    for step in steps:
        norm: Any = modules.get(step.layer)
        layer: Any = modules.get(step.settings["layer"])
        if type(norm) not in NORMS or type(layer) not in LAYERS:
            raise SettingError(
                f"the model has no norm {step.layer!r} after {step.settings['layer']!r}, as the "
                f"plan knows it; make a plan for this model"
            )
        weight, bias = folded(layer, norm)
        is_learned = layer.weight.requires_grad
        # the layout of the weight stays
        weight = torch.empty_like(layer.weight).copy_(weight)
        layer.weight = nn.Parameter(weight.detach(), requires_grad=is_learned)
        layer.bias = nn.Parameter(bias, requires_grad=is_learned)
        # BatchNorm1d alone takes inputs of several numbers of axes
        is_strict = isinstance(norm, (nn.BatchNorm1d, nn.SyncBatchNorm))
        replaced[norm] = FoldedNorm(step.settings["axes"] if is_strict else None)
    return replace_modules(model, replaced)
