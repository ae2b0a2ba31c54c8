"""Putting other layers into a model of PyTorch, wherever the old ones are. Imported after torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["replace_modules", "why_no_module"]

HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def why_no_module(model: Any) -> str:
    """Say why the layers of a model cannot be changed, or nothing."""
    if not isinstance(model, nn.Module):
        return f"it is a {type(model).__name__}, and only the layers of a Module can be changed"
    if isinstance(model, torch.jit.ScriptModule):
        return "it is compiled by torch.jit; change the model that it was made from"
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return "it is spread over devices; change the model in its .module"
    if any(_is_compiled(module) for module in model.modules()):
        return "it is compiled; change it first and call torch.compile on the result"
    for name, each in model.named_parameters():
        if nn.parameter.is_lazy(each):
            return "some of its parameters have no shape yet; call the model once before"
        if each.is_meta:
            return f"{name!r} is on the meta device, without numbers"
    return ""


def _is_compiled(module: nn.Module) -> bool:
    """Tell whether `torch.compile(module)` or `module.compile()` was called."""
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None


def replace_modules(model: nn.Module, replaced: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Put other layers into a model in place, wherever the old ones are, and give the model.

    Hooks and mode of the old ones go over. If the model itself is replaced, the new one is given.
    """
    for old, new in replaced.items():
        if old is not new:
            new.train(old.training)
            for name in HOOKS:
                getattr(new, name).update(getattr(old, name, {}))
    for holder in list(model.modules()):
        for name, child in holder._modules.items():
            if child is not None:
                holder._modules[name] = replaced.get(child, child)
    return replaced.get(model, model)
