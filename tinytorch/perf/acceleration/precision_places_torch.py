"""Where in a PyTorch model a lower precision goes, and where not. Imported after torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tinytorch.perf.acceleration.precision_layers_torch import (
    CLASSES,
    is_lower_layer,
    is_plain_float,
    lower_class,
)
from tinytorch.workloads.kept_layers import why_kept
from tinytorch.workloads.plan import Skipped, Step

if TYPE_CHECKING:
    from tinytorch.perf.acceleration.lower_precision import LowerPrecision

__all__ = ["cast_modules", "find_layers", "kept_modules", "made_constants"]

NOT_CALLED = "it was not called: its weight may be used in another way"


# ---------------------------------------------------------------- converting a whole model


def made_constants(model: nn.Module) -> tuple[str, ...]:
    """Give the buffers with fractions that no checkpoint holds: the model computed them itself."""
    return tuple(
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, tensor in module._buffers.items()
        if name in module._non_persistent_buffers_set and is_plain_float(tensor)
    )


def kept_modules(model: nn.Module, keep: Iterable[str]) -> dict[str, str]:
    """Give the modules with floats of their own that stay as they are, with the reasons.

    Those that share a tensor with one of them stay, too.
    """
    floats = {path: own for path, module in model.named_modules() if (own := _own_floats(module))}
    kept = {path: reason for path in floats if (reason := why_kept(path, keep))}
    for path, reason in list(kept.items()):
        for other, tensors in floats.items():
            if other not in kept and floats[path] & tensors:
                kept[other] = f"it shares its weight with {path!r}, which is {reason}"
    return kept


def cast_modules(
    model: nn.Module, keep: Iterable[str], kept: Collection[str], called: Collection[str]
) -> tuple[str, ...]:
    """Give the outermost modules that are called and hold nothing but what stays as it is.

    Inside of them everything is computed as before.
    """
    found: list[str] = []
    for path, module in model.named_modules():
        has_floats = any(_own_floats(each) for each in module.modules())
        is_meant = path in kept or (has_floats and bool(why_kept(path, keep)))
        inside = any(path.startswith(f"{other}.") for other in found)
        if is_meant and path in called and not inside:
            found.append(path)
    return tuple(found)


def _own_floats(module: nn.Module) -> set[int]:
    own = (*module._parameters.values(), *module._buffers.values())
    return {id(each) for each in own if is_plain_float(each)}


# ---------------------------------------------------------------- layer by layer


def find_layers(
    model: nn.Module, settings: LowerPrecision, called: Collection[str]
) -> tuple[tuple[Step, ...], tuple[Skipped, ...]]:
    """Choose the layers that hold and compute a lower precision; say why the others do not."""
    dtype: torch.dtype = getattr(torch, settings.dtype)
    modules = dict(model.named_modules())
    reasons: dict[str, str] = {}
    for path, module in modules.items():
        if _own_parameters(module):
            reasons[path] = why_kept(path, settings.keep) or _why_not(module, dtype, path in called)
    tables = _settle_shared(modules, reasons, settings, called)
    common = {"how": settings.how, "dtype": settings.dtype}
    steps = [
        Step(
            path,
            tables.get(path, f"holds and multiplies {settings.dtype}"),
            "products take less time; sums, norms and softmax around it keep their digits",
            common | {"layer": type(modules[path]).__name__},
        )
        for path, reason in reasons.items()
        if not reason
    ]
    skipped = [Skipped(path, reason) for path, reason in reasons.items() if reason]
    return tuple(steps), tuple(skipped)


def _own_parameters(module: nn.Module) -> list[torch.Tensor]:
    own = [each for each in module._parameters.values() if each is not None]
    return [each for each in own if each.is_floating_point()]


def _why_not(module: Any, dtype: torch.dtype, is_called: bool) -> str:
    name = type(module).__name__
    if is_lower_layer(module):
        return "it holds a lower precision already"
    if lower_class(module) is None:
        base = next((known for known in CLASSES if isinstance(module, known)), None)
        if base is not None:
            return f"a {name} is a {base.__name__} that may compute something else"
        return f"{name} is no linear layer or convolution, and stays as it is"
    if module._parameters.get("weight") is None:
        return "its weight is computed anew before each call"
    if "forward" in vars(module):
        return "its forward was replaced on this object by another function"
    odd = next((each for each in _own_parameters(module) if not is_plain_float(each)), None)
    if odd is not None:
        return f"its weight is held as {type(odd.detach()).__name__}"
    held = module.weight.dtype
    if held == dtype or held.itemsize <= dtype.itemsize:
        return f"it holds {str(held).removeprefix('torch.')} already"
    return "" if is_called else NOT_CALLED


def _settle_shared(
    modules: Mapping[str, nn.Module],
    reasons: dict[str, str],
    settings: LowerPrecision,
    called: Collection[str],
) -> dict[str, str]:
    """Leave layers alone whose parameters others need as they are; give the tables that join in.

    A table that is looked up in and multiplied with, as in most language models, is held once: rows
    that are looked up are cast.
    """
    users: dict[int, list[str]] = {}
    for path in reasons:
        for each in _own_parameters(modules[path]):
            users.setdefault(id(each), []).append(path)
    tables: dict[str, str] = {}
    for path in [path for path, reason in reasons.items() if not reason]:
        sharers = {user for each in _own_parameters(modules[path]) for user in users[id(each)]}
        staying = [user for user in sorted(sharers) if reasons[user]]
        joining = [user for user in staying if _can_join(modules[user], user, settings, called)]
        if joining == staying:
            for user in joining:
                reasons[user] = ""
                tables[user] = f"holds {settings.dtype}, which it shares with {path!r}; casts rows"
        elif staying:
            reasons[path] = f"it shares its weight with {staying[0]!r}, which stays as it is"
    return tables


def _can_join(
    module: nn.Module, path: str, settings: LowerPrecision, called: Collection[str]
) -> bool:
    is_table = type(module) is nn.Embedding and module.max_norm is None
    return is_table and path in called and not why_kept(path, settings.keep)
