"""Pruning PyTorch models: the same plans, with scores on the model's device. After torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from tinytorch.errors import SettingError
from tinytorch.models.pytorch import TorchAdapter, tensors_in
from tinytorch.models.pytorch_tensors import packed_objects
from tinytorch.models.workload import Workload, call_model
from tinytorch.transforms.plan import Plan, Skipped, Step
from tinytorch.transforms.prune.layers import ZERO_ALREADY, Prunable, make_plan
from tinytorch.transforms.support.observing import why_kept

if TYPE_CHECKING:
    from tinytorch.transforms.prune import Prune

__all__ = [
    "TorchKind",
    "apply_torch",
    "check_rankable_torch",
    "find_prunables_torch",
    "kind_of_torch",
    "least_important_torch",
    "maskable_names",
    "named_weights",
    "plan_torch",
    "planned_weight_torch",
    "ranks_within_outputs",
    "relative_scores",
    "set_zero_torch",
    "share_out",
    "smallest",
    "weight_scores",
]


# ---------------------------------------------------------------- the weights of a PyTorch model
# that can be pruned, and setting some to zero. After torch

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
TABLE = "embeddings are left alone unless prune_embeddings=True"


@dataclass(frozen=True)
class TorchKind:
    """How the layers of one class hold their weight and meet it with their inputs.

    `input_axis` is the axis of the channels of an input, None for a table that is looked up;
    `spread(layer, norms)` gives one norm per input in a shape that fits the weight.
    """

    output_axis: int = 0
    input_axis: int | None = -1
    spread: Callable[[Any, torch.Tensor], torch.Tensor] = lambda _, norms: norms[None]
    computes_with: tuple[str, ...] = ("forward",)


def _spread_over_kernels(layer: Any, norms: torch.Tensor) -> torch.Tensor:
    """Give each output channel the norms of the input channels of its group."""
    rows = norms.reshape(layer.groups, -1)  # (groups, in / groups)
    rows = rows.repeat_interleave(layer.weight.shape[0] // layer.groups, dim=0)
    return rows.reshape(*rows.shape, *(1 for _ in layer.kernel_size))


def _convolution(axes: int) -> TorchKind:
    methods = ("forward", "_conv_forward")
    return TorchKind(input_axis=-1 - axes, spread=_spread_over_kernels, computes_with=methods)


KINDS: dict[type[nn.Module], TorchKind] = {
    nn.Linear: TorchKind(),
    nn.Conv1d: _convolution(1),
    nn.Conv2d: _convolution(2),
    nn.Conv3d: _convolution(3),
    nn.Embedding: TorchKind(input_axis=None),
}
"""Layers by their class; of its subclasses those that inherit how they compute."""
TRANSPOSED = TorchKind(output_axis=1, spread=lambda _, norms: norms[:, None])
"""The `Conv1D` of transformers: a linear layer with a weight (inputs, outputs)."""


def _known() -> dict[type[nn.Module], TorchKind]:
    """Give the table, with what transformers adds where somebody has imported that."""
    source = sys.modules.get("transformers.pytorch_utils")
    transposed = getattr(source, "Conv1D", None)
    return KINDS if transposed is None else {**KINDS, transposed: TRANSPOSED}


def kind_of_torch(layer: Any) -> TorchKind | None:
    """Give the kind of a layer; None for those that hold no weight, or that nobody knows."""
    for base, kind in _known().items():
        if isinstance(layer, base) and all(
            getattr(type(layer), name) is getattr(base, name) for name in kind.computes_with
        ):
            return kind
    return None


def named_weights(model: Any) -> dict[str, torch.Tensor]:
    """Give every parameter of a model, once, under its first name."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for path, module in TorchAdapter().modules(model).items():
        if isinstance(module, nn.Module):
            for name, item in module.named_parameters(recurse=False):
                found.setdefault(id(item), (f"{path}.{name}" if path else name, item))
    return dict(found.values())


def maskable_names(model: Any) -> list[str]:
    """Give the names of the weights of linear layers and convolutions."""
    prunables, _ = find_prunables_torch(model)
    return [each.name for each in prunables if not each.is_left]


def set_zero_torch(weight: torch.Tensor, chosen: Any) -> None:
    """Set the chosen weights to zero, in place."""
    with torch.no_grad():
        weight.masked_fill_(torch.as_tensor(chosen, device=weight.device), 0)


def find_prunables_torch(
    model: Any, *, keep: Iterable[str] = (), embeddings: bool = False
) -> tuple[list[Prunable], list[Skipped]]:
    """Give the weights that can be pruned, each once, and the layers that hold others."""
    modules = TorchAdapter().modules(model)
    names = {id(tensor): name for name, tensor in named_weights(model).items()}
    found: dict[Any, Prunable] = {}
    skipped: list[Skipped] = []
    for path, layer in modules.items():
        kind = kind_of_torch(layer)
        weight = layer._parameters.get("weight") if kind else None
        if kind is None or weight is None:
            reason = _why_unknown(layer, kind)
            skipped += [Skipped(path, reason)] if reason else []
            continue
        reason = _why_not(weight) or why_kept(path, keep)
        if kind.input_axis is None and not embeddings:
            reason = reason or TABLE
        if "forward" in vars(layer):
            reason = reason or "its forward was replaced on this object by another function"
        prunable = found.setdefault(_key(weight), _prunable(names[id(weight)], weight))
        prunable.reasons[path] = reason
    for path, layer in modules.items():
        if kind_of_torch(layer) is None and isinstance(layer, nn.Module):
            for tensor in layer.parameters(recurse=False):
                if _key(tensor) in found:
                    reason = f"it shares its weight with {path!r}, which is not pruned"
                    found[_key(tensor)].leave(reason)
    return list(found.values()), skipped


def check_rankable_torch(prunables: Iterable[Prunable]) -> None:
    """Raise if a weight that is to be pruned holds what is neither small nor large."""
    for each in prunables:
        if not each.is_left and not torch.isfinite(each.weight.detach()).all():
            raise SettingError(each.not_finite)


def _key(weight: torch.Tensor) -> Any:
    """Tell weights apart by the memory that they have, where they have some."""
    if _why_not(weight):
        return id(weight)
    return weight.device, weight.data_ptr()


def _prunable(name: str, weight: torch.Tensor) -> Prunable:
    if _why_not(weight):
        return Prunable(name, weight, 0, 0, (), {})
    size = weight.numel()
    zeros = size - int(torch.count_nonzero(weight.detach()))
    return Prunable(name, weight, size, zeros, tuple(weight.shape), {})


def _why_not(weight: torch.Tensor) -> str:
    """Say why nobody can look at the numbers of a weight, or nothing."""
    if isinstance(weight, UninitializedParameter):
        return "its weight has no shape yet; call the model once before"
    if weight.is_meta:
        return "its weight is on the meta device, without numbers"
    if weight.is_quantized or type(weight.detach()) is not torch.Tensor:
        kind = type(weight.detach()).__name__
        return f"its weight is held in another form ({kind}); prune the model it was made from"
    if weight.dtype not in DTYPES:
        return f"its weight holds {str(weight.dtype).removeprefix('torch.')}, no floats to rank"
    return "" if weight.numel() else "its weight is empty"


def _why_unknown(layer: Any, kind: TorchKind | None) -> str:
    """Say why a layer is left alone; nothing if it holds no numbers itself."""
    if not isinstance(layer, nn.Module):
        return ""
    name = type(layer).__name__
    if kind is not None:
        return "its weight is computed anew before each call"
    if any(True for _ in packed_objects(layer)):
        return f"{name} holds its weight in another form; prune the model that it was made from"
    own = list(layer.parameters(recurse=False))
    if not own:
        return ""
    base = next((known for known in _known() if isinstance(layer, known)), None)
    if base is not None:
        return f"a {name} is a {base.__name__} that may compute something else"
    count = sum(each.numel() for each in own if not isinstance(each, UninitializedParameter))
    return f"{name} is not a layer that is pruned; its {count:,} numbers stay"


# ---------------------------------------------------------------- how much each weight of a
# PyTorch model matters, computed where it lies. Imported after torch
#
# The same scores as in ``scores.py``, in float32, or float64 for such weights.

BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
"""Floats that are not negative are ordered as the whole numbers with the same bits, and the one
negative score, of zeros that are there already, lies below them in both."""


def weight_scores(weight: torch.Tensor, input_norms: torch.Tensor | None = None) -> torch.Tensor:
    """Give magnitudes, times the norms of the inputs if given, which fit by broadcasting."""
    weight = weight.detach()
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    scores = weight.abs().to(wide)
    if input_norms is not None:
        scores = scores * input_norms.to(scores)
    return scores.masked_fill_(weight == 0, ZERO_ALREADY)


def relative_scores(scores: torch.Tensor) -> torch.Tensor:
    """Divide by the norm of all scores of the layer, so that those of several layers compare."""
    alive = scores >= 0
    norm = torch.linalg.vector_norm(scores.clamp(min=0), dtype=torch.float64).item()
    return torch.where(alive, scores / norm, ZERO_ALREADY) if norm else scores


def ranks_within_outputs(scores: torch.Tensor, output_axis: int) -> torch.Tensor:
    """Replace each score by its rank among the weights of the same output."""
    rows = scores.movedim(output_axis, 0)
    flat = rows.reshape(len(rows), -1)
    order = flat.argsort(dim=1, stable=True)
    ranks = torch.empty_like(flat)
    places = torch.arange(flat.shape[1], dtype=flat.dtype, device=flat.device)
    ranks.scatter_(1, order, places.expand_as(flat))
    ranks.masked_fill_(flat < 0, ZERO_ALREADY)
    return ranks.reshape(rows.shape).movedim(0, output_axis)


def smallest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Mark exactly `count` of the smallest scores; of equal ones, those that come first."""
    bits = scores.reshape(-1).view(BITS[scores.dtype])
    limit = _limit(lambda each: int((bits < each).sum()), count, bits.dtype)
    chosen = bits < limit
    missing = count - int(chosen.sum())
    if missing:
        chosen[(bits == limit).nonzero().reshape(-1)[:missing]] = True
    return chosen.reshape(scores.shape)


def share_out(scores: Sequence[torch.Tensor], count: int) -> list[int]:
    """Tell how many of the `count` smallest scores of several layers lie in each.

    The largest of each layer stays, unless the layer is zero throughout. The scores need not be
    brought together, nor lie on one device.
    """
    wide = torch.float64 if any(s.dtype == torch.float64 for s in scores) else torch.float32
    bits = [each.to(wide).reshape(-1).view(BITS[wide]) for each in scores]
    most = [len(each) - 1 if bool((each >= 0).any()) else len(each) for each in bits]
    if count > sum(most):
        raise SettingError(f"{count:,} scores are asked for, there are {sum(most):,}")

    def below(limit: int) -> list[int]:
        """Count what lies below a limit, but for the one that stays."""
        counts = (int((each < limit).sum()) for each in bits)
        return [min(found, bound) for found, bound in zip(counts, most, strict=True)]

    limit = _limit(lambda each: sum(below(each)), count, BITS[wide])
    shares = below(limit)
    left = count - sum(shares)
    for index, bound in enumerate(most):
        equal = min(left, bound - shares[index], int((bits[index] == limit).sum()))
        shares[index] += equal
        left -= equal
    return shares


def _limit(below: Callable[[int], int], count: int, dtype: torch.dtype) -> int:
    """Find the largest limit with not more than `count` numbers below it, bit by bit.

    That is one comparison of all numbers for each bit, many times faster than sorting on a GPU.
    """
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    while low < high:
        middle = low + (high - low + 1) // 2
        low, high = (middle, high) if below(middle) <= count else (low, middle - 1)
    return low


# ---------------------------------------------------------------- pruning PyTorch models: the same
# plans, with scores on the model's device. After torch

NOT_REACHED = "the calibration data never reached it"
NO_COMMON_INPUT = "the layers that share its weight meet it with inputs of different kinds"


def plan_torch(workload: Workload, transform: Prune) -> Plan:
    """Say how many weights of which layers of a PyTorch model become zero."""
    adapter = TorchAdapter()
    is_observed = transform.score == "activation"
    model = adapter.clone(workload.model) if is_observed else workload.model
    prunables, skipped = find_prunables_torch(
        model, keep=transform.keep, embeddings=transform.prune_embeddings
    )
    check_rankable_torch(prunables)
    modules = adapter.modules(model)
    if is_observed:
        _observe_inputs(model, prunables, workload)

    def share(chosen: Sequence[Prunable], count: int) -> Sequence[int]:
        ranked = [
            _scores(transform, each.weight, _main_layer(each.layers, modules), each.input_norms)
            for each in chosen
        ]
        return share_out(ranked, count)

    return make_plan(asdict(transform), prunables, skipped, share)


def apply_torch(workload: Workload, plan: Plan, transform: Prune) -> Any:
    """Give a copy of a PyTorch model in which as many weights as planned are zero."""
    adapter = TorchAdapter()
    twin = adapter.clone(workload.model)
    modules, weights = adapter.modules(twin), named_weights(twin)
    for step in plan.steps:
        weight = planned_weight_torch(step, weights)
        set_zero_torch(weight, least_important_torch(transform, weight, step, modules))
    return twin


def planned_weight_torch(step: Step, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Give the weight that a step means, or raise if the model has another one there."""
    weight = weights.get(step.settings["weight"])
    if weight is None or weight.numel() < step.settings["zeros"]:
        raise SettingError(
            f"the model has no weight {step.settings['weight']!r} of which "
            f"{step.settings['zeros']:,} can become zero; make a plan for this model"
        )
    return weight


def least_important_torch(
    transform: Prune, weight: torch.Tensor, step: Step, modules: Mapping[str, Any]
) -> torch.Tensor:
    """Mark the weights that a step of a plan sets to zero."""
    layer = _main_layer(step.settings.get("layers", (step.layer,)), modules)
    scores = _scores(transform, weight, layer, step.settings.get("input_norms"))
    return smallest(scores, step.settings["zeros"])


def _main_layer(paths: Sequence[str], modules: Mapping[str, Any]) -> Any:
    """Give the layer that says how a weight is ranked: one that multiplies, if there is one."""
    kinds = {path: kind_of_torch(modules.get(path)) for path in paths}
    unknown = [path for path, kind in kinds.items() if kind is None]
    if unknown:
        raise SettingError(
            f"the model has no layer {unknown[0]!r} that can be pruned; make a plan for this model"
        )
    multiplying = [path for path, kind in kinds.items() if kind and kind.input_axis is not None]
    return modules[multiplying[0] if multiplying else paths[0]]


def _scores(
    transform: Prune, weight: torch.Tensor, layer: Any, norms: Sequence[float] | None
) -> torch.Tensor:
    kind = kind_of_torch(layer)
    assert kind is not None
    if transform.score == "magnitude":
        return weight_scores(weight)
    if norms is None:
        scores = weight_scores(weight)
    else:
        spread = kind.spread(layer, torch.tensor(norms, device=weight.device, dtype=torch.float64))
        scores = weight_scores(weight, spread)
    if transform.scope == "layer":
        return ranks_within_outputs(scores, kind.output_axis)
    return relative_scores(scores)


# ---------------------------------------------------------------- inputs on calibration data


def _observe_inputs(model: Any, prunables: Sequence[Prunable], workload: Workload) -> None:
    """Measure the norm of each input of each layer; the copy is of no other use afterwards."""
    modules = TorchAdapter().modules(model)
    kinds = {path: kind_of_torch(modules[path]) for each in prunables for path in each.layers}
    axes = {path: kind.input_axis for path, kind in kinds.items() if kind}
    squares: dict[str, torch.Tensor] = {}
    for path, axis in axes.items():
        if axis is not None:
            modules[path].forward = _watched(path, axis, modules[path].forward, squares)
    for module in modules.values():
        if isinstance(module, torch.nn.Module):
            module.training = False
    _run_calibration(model, workload)
    for each in prunables:
        users = [path for path in each.layers if axes[path] is not None]
        seen = {path: squares[path] for path in users if path in squares}
        if users and not seen:
            each.leave(NOT_REACHED)
        elif len({(kinds[path], len(norms)) for path, norms in seen.items()}) > 1:
            each.leave(NO_COMMON_INPUT)
        elif seen:
            total = torch.stack([norms.cpu() for norms in seen.values()]).sum(dim=0)
            each.input_norms = tuple(total.sqrt().tolist())


def _watched(
    path: str, axis: int, forward: Callable[..., Any], squares: dict[str, torch.Tensor]
) -> Callable[..., Any]:
    def watched(*inputs: Any, **settings: Any) -> Any:
        x = tensors_in((*inputs, *settings.values()))[0].detach()
        others = [each for each in range(x.dim()) if each != axis % x.dim()]
        if others:
            norms = torch.linalg.vector_norm(x, dim=others, dtype=torch.float64)
        else:
            norms = x.double().abs()
        if not torch.isfinite(norms).all():
            raise SettingError(f"input of layer {path!r}: it holds NaN or infinity")
        squares[path] = squares.get(path, torch.zeros_like(norms)) + norms.square()
        return forward(*inputs, **settings)

    return watched


def _run_calibration(model: Any, workload: Workload) -> None:
    adapter = TorchAdapter()
    for number, arguments in enumerate(workload.calibration):
        # what inputs are given by name may also come first in a batch
        keywords = workload.keywords if len(arguments) <= len(workload.inputs) else {}
        try:
            with torch.no_grad(), adapter.preserving(model), _without_fast_paths():
                call_model(model, *adapter.copy_inputs(arguments), **keywords)
        except SettingError as error:
            raise SettingError(f"calibration batch {number}, {error}") from error
        except Exception as error:  # whatever a model raises for inputs that it cannot take
            reason = f"{type(error).__name__}: {error}"
            raise SettingError(
                f"calibration batch {number} does not fit the model: {reason}"
            ) from error


@contextmanager
def _without_fast_paths() -> Iterator[None]:
    """Let encoder layers call their linear layers instead of one kernel for all of them."""
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)
