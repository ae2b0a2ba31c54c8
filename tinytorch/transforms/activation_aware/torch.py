"""Scaling weights by the size of their inputs before they are rounded. Imported after torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from tinytorch.models.inputs import ModelCall
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.workload import Workload
from tinytorch.transforms.activation_aware import ActivationAwareQuantize
from tinytorch.transforms.plan import Plan, Step
from tinytorch.transforms.quantize.torch import DEFAULT_GROUP
from tinytorch.transforms.support.observing import (
    calls_of,
    relative_change,
    run_call,
    watching,
    why_kept,
)
from tinytorch.transforms.support.weights_torch import is_transposed_linear, owners_of_tensors

POWERS = tuple(number / 20 for number in range(20))
"""The scale of a column is the mean size of its inputs to one of these powers; 0 is plain."""
SMALLEST = 1e-4
EXACT = 1e-4
"""So much may outputs change, by their root mean square, when a scale is moved: rounding."""
DIGITS = 5
NO_PLACE = "no linear layer takes its inputs from where a scale can be divided out"
NEEDS_DATA = "needs calibration data: scales follow the inputs of layers"


@dataclass(frozen=True)
class Site:
    """Linear layers that share their inputs, and where these come from: a norm or linear layer."""

    source: str
    users: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The same for all blocks of a model: the names without numbers."""
        return re.sub(r"\d+", "#", " ".join((self.source, *self.users)))


def plan_torch(workload: Workload, settings: ActivationAwareQuantize) -> Plan:
    """Find where weights can be scaled, choose the scales, and plan to round what comes of it."""
    if not workload.calibration:
        return settings.skipping(NEEDS_DATA)
    twin = TorchAdapter().clone(workload.model).eval()
    call = calls_of(workload)[0]
    sites = [
        each
        for each in exact_sites(twin, call)
        if not any(why_kept(user, settings.keep) for user in each.users)
    ]
    if not sites:
        return settings.skipping(NO_PLACE)
    seen = _inputs(twin, {each.users[0] for each in sites}, workload, settings.samples)
    sites = [each for each in sites if each.users[0] in seen]
    before = [_outputs(twin, each) for each in workload.calibration_calls]
    steps = list[Step]()
    for site in sites:
        power, scale, left = best_scale(twin, site, seen[site.users[0]], settings)
        if not power:
            continue
        scale_site(twin, site, scale)
        held = [float(f"{each:.{DIGITS}g}") for each in scale.tolist()]
        what = f"divided by the size of what it gives to the power of {power:g}"
        why = f"{left:.2f}x of the error of plain rounding on the calibration data"
        steps.append(Step(site.source, what, why, {**asdict(site), "power": power, "scale": held}))
    for call, expected in zip(workload.calibration_calls, before, strict=True):
        change, broken = relative_change(expected, _outputs(twin, call))
        if broken or change > EXACT:  # a layer that the example did not reach
            return settings.skipping("scales change what the model computes on calibration data")
    rounding = settings.rounding.plan(replace(workload, model=twin))
    if rounding.is_empty:
        return settings.skipping("nothing can be quantized", *rounding.skipped)
    steps += [Step(x.layer, x.what, x.why, {"rounding": asdict(x)}) for x in rounding.steps]
    plain = f"scaled {len(steps) - len(rounding.steps)} of {len(sites)} places where that is exact"
    return settings.planned(
        steps,
        rounding.skipped,
        shrinkage=rounding.shrinkage,
        not_predicted=rounding.not_predicted,
        notes=(*rounding.notes, plain),
    )


def apply_torch(
    model: nn.Module, workload: Workload, plan: Plan, settings: ActivationAwareQuantize
) -> nn.Module:
    """Scale the weights, and round them as planned."""
    rounded = []
    for step in plan.steps:
        if "rounding" in step.settings:
            rounded.append(Step(**step.settings["rounding"]))
            continue
        site = Site(step.settings["source"], tuple(step.settings["users"]))
        scale_site(model, site, torch.tensor(step.settings["scale"]))
    unknown = {"speedup": "", "shrinkage": ""}
    quantize = settings.rounding
    own = Plan(quantize.name, quantize.to_dict(), tuple(rounded), not_predicted=unknown)
    changed: nn.Module = quantize.change(model, workload, own)
    return changed


# ---------------------------------------------------------------- where a scale can be divided out


def exact_sites(model: nn.Module, call: ModelCall) -> list[Site]:
    """Return the sites where scaling changes nothing but roundings, tried on all of one kind.

    Whether a source has other users, or what lies between is linear, no name tells: outputs do.
    """
    found: dict[str, list[Site]] = {}
    for each in (*_behind_norms(model, call), *_behind_linears(model)):
        found.setdefault(each.kind, []).append(each)
    ran = set[str]()
    linears = {path: each for path, each in model.named_modules() if is_linear(each)}
    with watching(linears, lambda path, inputs, output: ran.add(path)):
        expected = _outputs(model, call)
    kept, taken = list[Site](), set[str]()
    for sites in found.values():
        free = [x for x in sites if ran.issuperset(x.users) and not taken & set(x.users)]
        scales = [_random_scale(model, each) for each in free]
        for site, scale in zip(free, scales, strict=True):
            scale_site(model, site, scale)
        change, broken = relative_change(expected, _outputs(model, call))
        for site, scale in zip(free, scales, strict=True):
            scale_site(model, site, 1 / scale)
        if not broken and change <= EXACT:
            kept += free
            taken |= {user for each in free for user in each.users}
    return kept


def _outputs(model: nn.Module, call: ModelCall) -> list[Any]:
    output = run_call(model, call)
    return [each for each in TorchAdapter().arrays(output) if each.dtype.kind == "f"]


def _random_scale(model: nn.Module, site: Site) -> torch.Tensor:
    width = columns_of(model.get_submodule(site.users[0])).shape[1]
    return 0.5 + 1.5 * torch.rand(width, generator=torch.Generator().manual_seed(width))


def _behind_norms(model: nn.Module, call: ModelCall) -> Iterator[Site]:
    """Yield the linear layers that get the very tensor that a norm gave."""
    shared = _shared(model)
    modules = dict(model.named_modules())
    norms = {path: each for path, each in modules.items() if _is_norm(each)}
    linears = {path: x for path, x in modules.items() if is_linear(x) and path not in shared}
    gave: dict[str, Any] = {}
    users: dict[str, list[str]] = {}

    def see(path: str, inputs: tuple[Any, ...], output: Any) -> None:
        if path in norms:
            gave[path] = output
            return
        source = next((name for name, each in gave.items() if each is inputs[0]), None)
        if source is not None and path not in users.setdefault(source, []):
            users[source].append(path)

    with watching(norms | linears, see):
        run_call(model, call)
    for source, found in users.items():
        if source not in shared:
            yield Site(source, tuple(found))


def _behind_linears(model: nn.Module) -> Iterator[Site]:
    """Yield pairs of linear layers of one module in which one may feed the other."""
    shared = _shared(model)
    for path, parent in model.named_modules():
        prefix = f"{path}." if path else ""
        own = {
            f"{prefix}{name}": each
            for name, each in parent.named_children()
            if is_linear(each) and f"{prefix}{name}" not in shared
        }
        for user, second in own.items():
            for source, first in own.items():
                if user != source and len(columns_of(first)) == columns_of(second).shape[1]:
                    yield Site(source, (user,))


def _shared(model: nn.Module) -> set[str]:
    """Return the modules that hold a tensor together with another one: both would change."""
    owners = owners_of_tensors(model).values()
    return {name.rpartition(".")[0] for names in owners if len(names) > 1 for name in names}


def _is_norm(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    is_vector = isinstance(weight, torch.Tensor) and weight.dim() == 1
    return is_vector and "Norm" in type(module).__name__


# ---------------------------------------------------------------- linear layers of both layouts


def is_linear(module: Any) -> bool:
    """Return whether it is exactly a linear layer, of torch or of transformers."""
    return type(module) is nn.Linear or is_transposed_linear(module)


def columns_of(layer: nn.Module) -> torch.Tensor:
    """Return the weight as (outputs, inputs), a view."""
    weight: Any = layer.weight
    found: torch.Tensor = weight.data.T if is_transposed_linear(layer) else weight.data
    return found


def scale_site(model: nn.Module, site: Site, scale: torch.Tensor) -> None:
    """Multiply the columns of the users by a scale (inputs,), and divide it out in the source."""
    for user in site.users:
        columns = columns_of(model.get_submodule(user))
        columns.mul_(scale.to(columns))
    source: Any = model.get_submodule(site.source)
    divided = columns_of(source).T if is_linear(source) else source.weight.data
    divided.div_(scale.to(divided))
    if getattr(source, "bias", None) is not None:
        source.bias.data.div_(scale.to(source.bias))


# ---------------------------------------------------------------- which scale


def _inputs(
    model: nn.Module, paths: Iterable[str], workload: Workload, samples: int
) -> Mapping[str, torch.Tensor]:
    """Return rows (samples, inputs) of what comes into layers on the calibration data, evenly."""
    layers = {path: model.get_submodule(path) for path in paths}
    rows: dict[str, list[torch.Tensor]] = {path: [] for path in layers}

    def see(path: str, inputs: tuple[Any, ...], output: Any) -> None:
        found = inputs[0].detach().reshape(-1, inputs[0].shape[-1])
        rows[path].append(found[:: max(1, len(found) // samples)].clone())

    with torch.no_grad(), watching(layers, see):
        for call in workload.calibration_calls:
            run_call(model, call)
    found = {path: torch.cat(each) for path, each in rows.items() if each}
    return {path: each[:: max(1, len(each) // samples)][:samples] for path, each in found.items()}


def best_scale(
    model: nn.Module, site: Site, rows: torch.Tensor, settings: ActivationAwareQuantize
) -> tuple[float, torch.Tensor, float]:
    """Return the power, the scale, and the squared error over that of plain rounding."""
    rows = rows.float()
    size = rows.abs().mean(0)
    weights = [columns_of(model.get_submodule(user)).float() for user in site.users]
    expected = [rows @ weight.T for weight in weights]
    found = []
    for power in POWERS:
        scale = size.pow(power).clamp(min=SMALLEST)
        scale = scale / (scale.max() * scale.min()).sqrt()
        error = 0.0
        for weight, exact in zip(weights, expected, strict=True):
            rounded = fake_rounded(weight * scale, settings.bits, settings.group_size) / scale
            error += float((rows @ rounded.T - exact).square().sum())
        found.append((error, power, scale))
    error, power, scale = min(found, key=lambda each: each[0])
    return power, scale, error / found[0][0] if found[0][0] else 1.0


def fake_rounded(weight: torch.Tensor, bits: int, group_size: int | None) -> torch.Tensor:
    """Return a weight (outputs, inputs) as torchao's quantizers hold it, in floats.

    INT8 is symmetric with a scale for each row, INT4 between the ends of each group of inputs.
    """
    if bits == 8:
        step = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127.5
        return (weight / step).round().clamp(-128, 127) * step
    size = group_size or DEFAULT_GROUP
    if weight.shape[1] % size:
        return weight
    groups = weight.reshape(len(weight), -1, size)  # (outputs, groups, size)
    low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    step = (high - low).clamp(min=1e-12) / 15
    found = ((groups - low) / step).round() * step + low
    return found.reshape(weight.shape)
