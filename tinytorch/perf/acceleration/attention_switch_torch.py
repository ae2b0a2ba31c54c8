"""Models of transformers have a switch for how they compute attention."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

__all__ = [
    "BY_HAND",
    "FUSED",
    "implementation",
    "outermost",
    "switch_over",
    "switchable",
    "why_no_switch",
]

BY_HAND = "eager"
FUSED = "sdpa"
SOFTCAP = re.compile(r"attn.*soft_?cap|soft_?cap.*attn")


def outermost(model: nn.Module, is_meant: Callable[[nn.Module], bool]) -> dict[str, nn.Module]:
    """Give the modules of a kind that are inside of no other one, by their paths."""
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        is_inside = any(path.startswith(f"{outer}." if outer else "") for outer in found)
        if not is_inside and is_meant(module):
            found[path] = module
    return found


def switchable(model: nn.Module) -> dict[str, nn.Module]:
    """Give the outermost modules that have such a switch, by their paths."""
    return outermost(model, lambda module: hasattr(module, "set_attn_implementation"))


def implementation(module: nn.Module) -> str:
    """Say how a model computes attention; by hand if a part of it does."""
    named = {getattr(each, "_attn_implementation", None) for each in _configs(module)} - {None}
    return BY_HAND if BY_HAND in named else "/".join(sorted(map(str, named)))


def why_no_switch(module: nn.Module, keywords: Mapping[str, Any]) -> str:
    """Say why attention of a model must stay as it is, or nothing."""
    name = type(module).__name__
    can_switch = getattr(module, "_can_set_attn_implementation", None)
    if not getattr(module, "_supports_sdpa", True) or (can_switch and not can_switch()):
        return f"{name} of transformers does not support {FUSED!r} attention"
    for config in _configs(module):
        for setting, value in vars(config).items():
            if SOFTCAP.search(setting) and value is not None:
                return f"its scores are capped ({setting}={value!r}), which {FUSED!r} leaves out"
        if getattr(config, "output_attentions", False):
            return "its attention weights are returned (output_attentions=True in its config)"
    for keyword in ("output_attentions", "head_mask"):
        value = keywords.get(keyword)
        if value is not None and value is not False:
            return f"it is called with {keyword}=..., which needs the attention weights"
    return ""


def switch_over(model: nn.Module, paths: tuple[str, ...]) -> nn.Module:
    """Let these parts of a model compute their attention fused, in place, and give the model."""
    for path in paths:
        switch: Any = model.get_submodule(path)
        switch.set_attn_implementation(FUSED)
    return model


def _configs(module: nn.Module) -> Iterator[Any]:
    """Yield the configs of a model and of its parts, each once."""
    seen: set[int] = set()
    for each in module.modules():
        config = getattr(each, "config", None)
        if config is not None and hasattr(config, "__dict__") and id(config) not in seen:
            seen.add(id(config))
            yield config
