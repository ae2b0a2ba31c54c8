"""Is a module with fused attention the same as by hand? Asked on real and on random inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from tinytorch.adapters.pytorch import TorchAdapter, tensors_in
from tinytorch.adapters.values import rebuilt
from tinytorch.comparison.outputs import compare_outputs
from tinytorch.perf.acceleration.attention_kernel_torch import AnotherCall
from tinytorch.perf.acceleration.attention_module_torch import PLAIN, call_kind
from tinytorch.perf.acceleration.attention_triangles_torch import HIDDEN
from tinytorch.perf.acceleration.trial_torch import ROUNDING, first_line, why_unlike

__all__ = ["BLIND", "Proof", "prove", "tolerance_for", "why_stateful"]

TOLERANCES = {torch.float64: 1e-10, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""A few units of rounding: by hand, weights are rounded before they are summed."""
PROBES = ("random", "low", "high")
"""What masks are in a probe: the last two hide everything and nothing, or the other way round."""
PROBED = 1e-2
"""So far outputs may be off in probes, where scores of 1e4 lose digits in either way."""
SEED = 0
BLIND = (
    "a query whose keys are all masked gets NaN by hand and 0 fused; on the inputs of the workload "
    "there is none"
)
UNFIT = "its masks or scales have more axes than its scores"

Proof = tuple[str, tuple[str, ...]]
"""Why the outputs are not the same, if so, and notes."""


def tolerance_for(*values: Any) -> float:
    """Give how far outputs may be off, for the coarsest dtype among the tensors in these."""
    found = {each.dtype for value in values for each in tensors_in(value)}
    return max(
        (TOLERANCES.get(dtype, ROUNDING) for dtype in found if dtype.is_floating_point),
        default=ROUNDING,
    )


def why_stateful(module: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> str:
    """Say what a call changes beside giving its outputs, which a graph would not, or nothing."""
    given = _copied((inputs, dict(keywords)))
    before, tensors = _held(module), tensors_in(given)
    versions = [each._version for each in tensors]
    with torch.no_grad():
        module.forward(*given[0], **given[1])
    if [each._version for each in tensors] != versions:
        return "a call writes to its inputs"
    after = _held(module)
    changed = [name for name in before | after if not _is_held(name, before, after)]
    if not changed:
        return ""
    return f"a call changes its attribute {changed[0][1]!r}, which somebody may read later"


def _held(module: nn.Module) -> dict[tuple[int, str], tuple[Any, Any]]:
    """Give the attributes of a module and of those inside, and how often they were written to."""
    return {
        (id(each), name): (value, _version(value))
        for each in module.modules()
        for name, value in {**vars(each), **each._buffers, **each._parameters}.items()
    }


def _version(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return None if value.is_inference() else value._version
    return len(value) if isinstance(value, (list, dict, set)) else None


def _is_held(name: Any, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> bool:
    (one, first), (other, second) = before.get(name, (None, 0)), after.get(name, (None, 0))
    is_same = one is other or (isinstance(one, PLAIN) and one == other)
    return is_same and first == second


def prove(
    module: nn.Module,
    fused: Callable[..., Any],
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> Proof:
    """Call a module by hand and fused, on these arguments and on random ones of the same kind."""
    reason, _ = _compare(module, fused, inputs, keywords)
    if reason:
        return reason if reason == UNFIT else f"its outputs would not be the same: {reason}", ()
    device = next((each.device for each in tensors_in((inputs, keywords))), torch.device("cpu"))
    generator = torch.Generator(device).manual_seed(SEED)
    notes: set[str] = set()
    for probe in PROBES:
        draw = partial(_random_like, generator=generator, probe=probe)
        drawn = rebuilt((inputs, dict(keywords)), draw)
        try:
            module.forward(*_copied(drawn[0]), **_copied(drawn[1]))
        except Exception:  # by hand, too, there is no answer to such inputs
            continue
        reason, is_blind = _compare(module, fused, *drawn, at_least=PROBED)
        if reason:
            return f"its outputs would not be the same on random inputs: {reason}", ()
        if is_blind:
            notes.add(BLIND)
    return "", tuple(sorted(notes))


def _compare(
    module: nn.Module,
    fused: Callable[..., Any],
    inputs: Any,
    keywords: Any,
    *,
    at_least: float = 0.0,
) -> tuple[str, bool]:
    """Say how far both are apart, if too far, and whether some are numbers that were NaN."""
    _, tensors = call_kind(module.training, _copied(inputs), _copied(keywords))
    with torch.no_grad():
        expected = module.forward(*_copied(inputs), **_copied(keywords))
        try:
            found = fused(module, *tensors)
        except AnotherCall:
            return UNFIT, False
        except Exception as error:  # the kernel may not take what it is given
            return first_line(error), False
    if _structure(expected) != _structure(found):
        return f"it gives {_structure(found)} in the place of {_structure(expected)}", False
    adapter = TorchAdapter()
    pairs = zip(adapter.arrays(expected), adapter.arrays(found), strict=True)
    one, other, is_blind = [], [], False
    for by_hand, result in pairs:
        lost = np.isnan(by_hand) if by_hand.dtype.kind == "f" else np.zeros(by_hand.shape, bool)
        is_blind |= bool((lost & ~np.isnan(result)).any()) if lost.any() else False
        one.append(by_hand)
        other.append(np.where(lost, by_hand, result) if lost.any() else result)
    tolerance = max(at_least, tolerance_for(inputs, keywords, expected))
    return why_unlike(compare_outputs(one, other), tolerance), is_blind


def _structure(value: Any) -> Any:
    """Give what an output is made of: types, and the dtypes and shapes of tensors."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{tuple(value.shape)}"
    if isinstance(value, Mapping):
        parts = {name: _structure(each) for name, each in value.items()}
        return f"{type(value).__name__} of {parts}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of {[_structure(each) for each in value]}"
    return type(value).__name__


def _copied(value: Any) -> Any:
    return rebuilt(value, lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)


def _random_like(leaf: Any, generator: torch.Generator, probe: str) -> Any:
    """Draw another tensor of the kind: a mask for a mask, numbers of the same spread for numbers.

    Whole numbers stay, since they may be indices; but what is all 0 or 1 may be a mask.
    """
    if not isinstance(leaf, torch.Tensor) or not leaf.numel() or leaf.is_complex():
        return leaf
    share = {"random": 0.5, "low": 0.0, "high": 1.0}[probe]
    coin = torch.rand(leaf.shape, generator=generator, device=leaf.device) < share
    if bool(((leaf == 0) | (leaf == 1)).all()):
        return coin.to(leaf.dtype)
    if not leaf.is_floating_point():
        return leaf
    if bool((leaf <= 0).all()) and bool((leaf <= HIDDEN).any()):
        return torch.where(coin, torch.zeros_like(leaf), leaf.min())
    drawn = torch.randn(leaf.shape, generator=generator, device=leaf.device)
    spread = leaf.float().std(correction=0).nan_to_num(1.0)
    return (drawn * spread + leaf.float().mean()).to(leaf.dtype)
