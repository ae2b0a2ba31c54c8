"""Removing channels and heads of PyTorch models, with torch-pruning. Imported after torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tinytorch.errors import ModelError, SettingError
from tinytorch.models.adapter import rebuilt
from tinytorch.models.inputs import ModelCall
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_tensors import why_no_module
from tinytorch.models.workload import Workload
from tinytorch.transforms import remove_channels
from tinytorch.transforms.plan import Plan, Skipped, Step
from tinytorch.transforms.remove_channels.groups import find_heads, trace_groups
from tinytorch.transforms.support import observing
from tinytorch.transforms.support.trimming import Removal
from tinytorch.transforms.support.weights_torch import (
    fit_config,
    set_sizes,
    trim,
)

if TYPE_CHECKING:
    from tinytorch.transforms.remove_channels import RemoveChannels


# ---------------------------------------------------------------- whether a PyTorch model without
# some channels computes what it should. Imported after torch

HALVES = (torch.float16, torch.bfloat16)
LARGEST_ERRORS = {torch.float16: 0.05, torch.bfloat16: 0.1}
"""Sums in another order differ by about a rounding per layer; a channel that is missed, by more."""
LARGEST_ERROR_TF32 = 1e-2


def leave_broken(workload: Workload, groups: Sequence[remove_channels.ChannelGroup]) -> None:
    """Set the reason of each group without which the model computes something else."""
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
        self._calls = observing.calls_of(workload)[:2]
        first = next(self._model.parameters())
        self._limit = LARGEST_ERRORS.get(first.dtype, remove_channels.LARGEST_ERROR)
        if first.dtype in HALVES:
            self._widen()
        if first.is_cuda and self._limit == remove_channels.LARGEST_ERROR:
            self._limit = LARGEST_ERROR_TF32

    def _widen(self) -> None:
        """Compute in float32, where that can be done: the limit is then a sharp one."""
        wide = TorchAdapter().clone(self._model).float()
        calls = [_widened(each) for each in self._calls]
        try:
            observing.outputs_of(wide, calls[0])
        except SettingError:
            return  # a dtype is written down in the code of the model
        self._model, self._calls, self._limit = wide, calls, remove_channels.LARGEST_ERROR

    def leave_broken(self, groups: Sequence[remove_channels.ChannelGroup]) -> None:
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

    def why_broken(self, groups: Sequence[remove_channels.ChannelGroup]) -> str:
        if not groups:
            return ""
        chosen = [(group, range(0, group.size, 2)) for group in groups]
        return remove_channels.why_broken(self._model, self._calls, chosen, self._limit)


def _widened(call: ModelCall) -> ModelCall:
    def widen(leaf: Any) -> Any:
        is_half = isinstance(leaf, torch.Tensor) and leaf.dtype in HALVES
        return leaf.float() if is_half else leaf

    return replace(
        call,
        arguments=rebuilt(call.arguments, widen),
        keywords={name: rebuilt(value, widen) for name, value in call.keywords.items()},
    )


# ---------------------------------------------------------------- removing channels and heads of
# PyTorch models, with torch-pruning. Imported after torch

NOT_INSTALLED = (
    "torch-pruning, which follows the channels of PyTorch models, is not installed: "
    "pip install torch-pruning"
)
NOT_CALLED = "it was not called on the inputs"
OTHER_LAYERS = (
    "{name} calls other layers than the inputs do ({layer!r}): what must shrink together depends "
    "on the numbers"
)
FIT_UNKNOWN = (
    "{layers} keep their sizes because the inputs never reach them; other inputs that do may no "
    "longer fit"
)
INNER_SIZES = ("intermediate_size", "n_inner", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim")
"""What configs call the width inside of a block."""


def plan_torch(workload: Workload, settings: RemoveChannels) -> Plan:
    """Follow the channels of a PyTorch model through one call, and choose those that go."""
    reason = why_no_module(workload.model)
    if not reason and importlib.util.find_spec("torch_pruning") is None:
        reason = NOT_INSTALLED
    if reason:
        return remove_channels.make_plan(workload, settings, (), [Skipped("", reason)])
    called, reason = _called_layers(workload)
    groups: list[remove_channels.ChannelGroup] = []
    if not reason:
        try:
            groups = _find_groups(workload, called)
        except ModelError as error:
            reason = str(error)
    if reason:
        return remove_channels.make_plan(workload, settings, (), [Skipped("", reason)])
    for group in groups:
        kept = (why for path in group.layers if (why := observing.why_kept(path, settings.keep)))
        group.reason = next(kept, group.reason)
    free = [group for group in groups if not group.reason]
    leave_broken(workload, free)
    free = [group for group in free if not group.reason]
    remove_channels.put_in_order(workload, free, settings)
    chosen = remove_channels.chosen_units(workload, free, settings)
    skipped = list(_skipped(workload.model, groups, chosen, called))
    steps = tuple(
        remove_channels.step_of(workload, group, units, settings)
        for group in free
        if (units := chosen[id(group)])
    )
    paths = [path for group in groups for path in group.layers]
    notes = observing.idle_patterns(settings.keep, paths, change="made smaller")
    unreached = [each.layer for each in skipped if each.reason == NOT_CALLED]
    if steps and unreached:
        notes = (*notes, FIT_UNKNOWN.format(layers=", ".join(unreached)))
    return remove_channels.make_plan(workload, settings, steps, skipped, notes)


def trim_torch(
    model: nn.Module, removal: Removal, sizes: Iterable[Mapping[str, Mapping[str, int]]]
) -> None:
    """Remove indices from tensors, in place; layers learn their new sizes, and those given."""
    trim(model, removal)
    for each in sizes:
        set_sizes(model, each)


def config_note(model: nn.Module, steps: Sequence[Step]) -> str:
    """Update the sizes in the config of a smaller model, in place, and return a note about it."""
    return fit_config(model, _config_changes(model, steps)) if steps else ""


def _config_changes(model: nn.Module, steps: Sequence[Step]) -> dict[str, Any]:
    """Return the changes of a config: numbers that were the size of groups that have changed."""
    config = getattr(model, "config", None)
    changes: dict[str, Any] = {}
    for step in steps:
        before, gone = step.settings["channels"], step.settings["gone"]
        if step.settings["kind"] == "heads":
            changes |= _head_counts(config, before, before - gone)
            continue
        for name in INNER_SIZES:
            said = getattr(config, name, None)
            if said is None and name == "n_inner":
                said = 4 * getattr(config, "hidden_size", 0)  # what GPT-2 takes it for
            if said == before:
                changes[name] = before - gone
    return changes


def _head_counts(config: Any, before: int, after: int) -> dict[str, int]:
    """Return the numbers of heads; the width of one no longer follows from the others."""
    queries = getattr(config, "num_attention_heads", None)
    if not isinstance(queries, int):
        return {}
    counts = {"num_attention_heads": after * queries // before, "num_key_value_heads": after}
    size = getattr(config, "head_dim", None) or config.hidden_size // queries
    return {name: counts[name] for name in counts if hasattr(config, name)} | {"head_dim": size}


# ---------------------------------------------------------------- looking at the model


def _weight_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that hold a parameter of two or more axes themselves."""
    return {
        path: module
        for path, module in model.named_modules()
        if any(each is not None and each.dim() > 1 for each in module._parameters.values())
    }


def _called_layers(workload: Workload) -> tuple[set[str], str]:
    """Return the layers with weights that the inputs reach, or why others are reached, too."""
    twin: nn.Module = TorchAdapter().clone(workload.model)
    layers = _weight_layers(twin)
    first: set[str] | None = None
    for call in observing.calls_of(workload):
        called: set[str] = set()

        def see(path: str, *_: Any, called: set[str] = called) -> None:
            called.add(path)

        with observing.watching(layers, see):
            observing.outputs_of(twin, call)
        if first is not None and called != first:
            layer = sorted(called ^ first)[0]
            return first, OTHER_LAYERS.format(name=call.name, layer=layer)
        first = called if first is None else first
    return first or set(), ""


def _find_groups(workload: Workload, called: set[str]) -> list[remove_channels.ChannelGroup]:
    """Return heads and channels in the order of the model's layers."""
    twin: nn.Module = TorchAdapter().clone(workload.model).eval()
    heads = [group for group in find_heads(twin) if called.issuperset(group.layers[1:])]
    groups = trace_groups(twin, observing.calls_of(workload)[0], heads)
    order = {path: number for number, (path, _) in enumerate(twin.named_modules())}
    return sorted([*heads, *groups], key=lambda group: order[group.layers[0]])


# ---------------------------------------------------------------- the plan


def _skipped(
    model: nn.Module,
    groups: Iterable[remove_channels.ChannelGroup],
    chosen: Mapping[int, Sequence[int]],
    called: set[str],
) -> Iterator[Skipped]:
    """Yield each layer with weights that loses no output, with the reason."""
    reasons: dict[str, str] = {}
    changing: set[str] = set()
    for group in groups:
        few = f"it has {group.size} {group.kind}, too few for this ratio to remove one"
        reason = group.reason or ("" if chosen[id(group)] else few)
        if reason:
            reasons |= dict.fromkeys(group.layers, reason)
        else:
            changing.update(group.layers)
    layers = _weight_layers(model)
    for path, module in model.named_modules():
        if path in changing or (path not in layers and path not in reasons):
            continue
        kind = type(module).__name__
        unknown = f"{kind} is not a layer whose channels can be removed"
        other = unknown if path in called else NOT_CALLED
        yield Skipped(path, reasons.get(path, other))
