"""Prune: the transform that sets the least important weights of a model to zero."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from math import prod
from numbers import Real
from pathlib import Path
from typing import Any, Self

import numpy as np

from tinytorch.core.checkpoints import read_arrays, write_arrays
from tinytorch.core.kernels import Array
from tinytorch.errors import CheckpointError, SettingError
from tinytorch.models.adapter import Adapter, adapter_for, namespace_of
from tinytorch.models.workload import Workload
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import Plan, Step, Transform, check_choice
from tinytorch.transforms.prune import layers
from tinytorch.transforms.support.observing import checked_patterns, see_calibration

# ---------------------------------------------------------------- masks: which weights of a model
# stay, and which are zero

KEY = "tinytorch_masks"
"""Marks the files that hold masks."""


@dataclass(frozen=True, eq=False)
class Masks:
    """Which weights of a model stay, as arrays of bool by the name of the parameter.

    A weight that several layers share has one mask, under the first of its names.
    """

    kept: Mapping[str, Array]

    def __post_init__(self) -> None:
        for name, mask in self.kept.items():
            kind = getattr(mask, "dtype", type(mask).__name__)
            if kind != np.bool_:
                raise SettingError(f"the mask of {name!r} must be an array of bool, got {kind}")

    @classmethod
    def of(cls, model: Any, names: Iterable[str] | None = None) -> Self:
        """Return the masks of the present zeros in linear layers and convolutions.

        `names` are those of other parameters to use instead.
        """
        adapter = adapter_for(model)
        weights = adapter.named_tensors(model)
        if names is None:
            prunables, _ = layers.find_prunables(model)
            chosen = [each.name for each in prunables if not each.is_left]
        else:
            chosen = list(names)
            _check_known(chosen, weights)
        arrays = ((name, adapter.arrays(weights[name])[0]) for name in chosen)
        return cls({name: array != 0 for name, array in arrays})

    def apply(self, model: Any) -> None:
        """Set all weights that do not stay to zero, in place; nothing changes unless all fit."""
        adapter = adapter_for(model)
        weights = adapter.named_tensors(model)
        _check_known(self.kept, weights)
        for name, mask in self.kept.items():
            shape = tuple(weights[name].shape)
            if shape != mask.shape:
                raise SettingError(
                    f"the mask of {name!r} has shape {mask.shape}, the parameter has {shape}; "
                    "the masks are those of another model"
                )
        for name, mask in self.kept.items():
            set_zero(adapter, weights[name], ~mask)

    @property
    def size(self) -> int:
        """How many weights the masks cover."""
        return sum(mask.size for mask in self.kept.values())

    @property
    def zeros(self) -> int:
        """How many of them are zero."""
        return self.size - sum(int(np.count_nonzero(mask)) for mask in self.kept.values())

    @property
    def sparsity(self) -> float:
        """The share of the weights that are zero; 0 for no weights."""
        return self.zeros / self.size if self.size else 0.0

    def save(self, path: str | Path) -> None:
        """Write the masks to a safetensors file, atomically."""
        write_arrays(path, self.kept, {KEY: 1})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what :meth:`save` wrote."""
        arrays, metadata = read_arrays(path)
        if KEY not in metadata:
            raise CheckpointError(f"{path} holds no masks; Masks.save() writes such a file")
        return cls(arrays)


def set_zero(adapter: Adapter, weight: Any, chosen: Any) -> None:
    """Set the chosen numbers of a tensor to zero, in place."""
    values = adapter.values(weight)
    xp = namespace_of(values)
    adapter.write(weight, xp.where(xp.asarray(chosen, device=values.device), 0, values))


def _check_known(names: Iterable[str], weights: Mapping[str, Any]) -> None:
    unknown = [name for name in names if name not in weights]
    if unknown:
        raise SettingError(
            f"the model has no parameter {unknown[0]!r}; it has {', '.join(list(weights)[:5])}"
        )


# ---------------------------------------------------------------- prune: the transform that sets
# the least important weights of a model to zero

SCOPES = ("model", "layer")
SCORES = ("magnitude", "activation")
NO_CALIBRATION = (
    "score='activation' needs calibration data: give the workload `calibration`, some typical "
    "inputs from the training data; score='magnitude' needs none"
)
NOT_REACHED = "the calibration data never reached it"
NO_COMMON_INPUT = "the layers that share its weight meet it with inputs of different kinds"


@dataclass(frozen=True)
class Prune(Transform):
    """Set the least important weights of linear layers and convolutions to zero.

    sparsity: the share of these weights that are zero afterwards, at least 0 and below 1. Zeros
    that are there already count; of n weights exactly ``round(sparsity * n)`` are zero, but one
    weight of each layer always stays, because a layer without weights cuts the model in two.

    scope: "model" takes the least important of all weights together, "layer" this share of each.

    score: "magnitude" is the absolute value. "activation" multiplies it with the norm of the
    weight's input over the calibration data (Sun et al., 2023), which is what the layer's output
    changes by without this weight. These changes have the unit of one output, so they are compared
    as that allows: with scope "layer" among the weights of each output, which all lose the same
    share; with scope "model" as shares of what their layer gives, since a layer whose numbers are
    ten times as large is not ten times as important. A table whose rows are looked up counts with
    its magnitudes.

    prune_embeddings: whether tables and the heads tied to them lose weights as well. Norms and
    biases never do. keep: patterns of layers that stay as they are.

    Without SparseLayers or a compressed file, zeros take as much memory and time as other numbers.
    """

    role, place, order = "numbers", 4, 70
    makes_repeats = True
    may_compete, effect = True, "sets weights to zero"

    sparsity: float = 0.5
    scope: str = "model"
    score: str = "magnitude"
    prune_embeddings: bool = False
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_sparsity(self.sparsity)
        object.__setattr__(self, "sparsity", float(self.sparsity))  # also a number of NumPy
        check_choice("scope", self.scope, SCOPES)
        check_choice("score", self.score, SCORES)
        object.__setattr__(self, "keep", checked_patterns(self.keep))

    def make_plan(self, workload: Workload, profile: Profile | None) -> Plan:
        """Return the plan: how many weights of which layers become zero.

        With score "activation", a copy of the model is called on the calibration data.
        """
        if self.score == "activation" and not workload.calibration:
            raise SettingError(NO_CALIBRATION)
        adapter = adapter_for(workload.model, workload.arguments)
        # only a model that is called has to be a copy
        is_called = self.score == "activation"
        model = adapter.clone(workload.model) if is_called else workload.model
        prunables, skipped = layers.find_prunables(
            model, keep=self.keep, embeddings=self.prune_embeddings
        )
        layers.check_rankable(adapter, prunables)
        if is_called:
            _observe_inputs(model, prunables, workload)
        modules = adapter.modules(model)

        def share(chosen: Sequence[layers.Prunable], count: int) -> Sequence[int]:
            ranked = [
                self._scores(
                    adapter.values(each.weight), main_layer(each.layers, modules), each.input_norms
                )
                for each in chosen
            ]
            return layers.share_out(ranked, count)

        return layers.make_plan(asdict(self), prunables, skipped, share)

    def change(self, model: Any, workload: Workload, plan: Plan) -> Any:
        """Set as many weights as planned to zero."""
        adapter = adapter_for(model, workload.arguments)
        modules, tensors = adapter.modules(model), adapter.named_tensors(model)
        for step in plan.steps:
            weight = planned_weight(step, tensors)
            chosen = self.least_important(adapter.values(weight), step, modules)
            set_zero(adapter, weight, chosen)
        return model

    def least_important(self, weight: Any, step: Step, modules: Mapping[str, Any]) -> Any:
        """Mark the weights, an array, that a step of a plan sets to zero."""
        layer = main_layer(step.settings.get("layers", (step.layer,)), modules)
        scores = self._scores(weight, layer, step.settings.get("input_norms"))
        return layers.smallest(scores, step.settings["zeros"])

    def _scores(self, weight: Any, layer: Any, norms: Sequence[float] | None) -> Any:
        kind = layers.kind_of(layer)
        assert kind is not None
        if self.score == "magnitude":
            return layers.weight_scores(weight)
        if norms is None or kind.spread is None:
            scores = layers.weight_scores(weight)
        else:
            xp = namespace_of(weight)
            each_input = xp.asarray(norms, dtype=xp.float64, device=weight.device)
            scores = layers.weight_scores(weight, kind.spread(layer, each_input))
        if self.scope == "layer":
            return layers.ranks_within_outputs(scores, kind.output_axis)
        return layers.relative_scores(scores)


def check_sparsity(sparsity: Any) -> None:
    """Raise unless this is a share of the weights that leaves some."""
    if isinstance(sparsity, bool) or not isinstance(sparsity, Real):
        raise SettingError(f"sparsity is a share between 0 and 1, got {sparsity!r}")
    sparsity = float(sparsity)
    if not 0 <= sparsity <= 1:
        hint = f"; {sparsity:g}% is {sparsity / 100:g}" if 1 < sparsity < 100 else ""
        raise SettingError(f"sparsity must be at least 0 and below 1, got {sparsity:g}{hint}")
    if sparsity == 1:
        raise SettingError(
            "sparsity=1 would set every weight to zero, and the model would give the same for "
            "every input; 0.99 keeps one weight in a hundred"
        )


def main_layer(paths: Sequence[str], modules: Mapping[str, Any]) -> Any:
    """Return the layer that determines how a weight is ranked: one that multiplies, if any."""
    kinds = [(modules.get(path), layers.kind_of(modules.get(path))) for path in paths]
    for path, (_, kind) in zip(paths, kinds, strict=True):
        if kind is None:
            raise SettingError(
                f"the model has no layer {path!r} that can be pruned; make a plan for this model"
            )
    multiplying = [layer for layer, kind in kinds if kind is not None and kind.spread is not None]
    return multiplying[0] if multiplying else kinds[0][0]


def planned_weight(step: Step, tensors: Mapping[str, Any]) -> Any:
    """Return the weight that a step means, or raise if the model has another one there."""
    weight = tensors.get(step.settings["weight"])
    if weight is None or prod(weight.shape) < step.settings["zeros"]:
        raise SettingError(
            f"the model has no weight {step.settings['weight']!r} of which "
            f"{step.settings['zeros']:,} can become zero; make a plan for this model"
        )
    return weight


def _observe_inputs(model: Any, prunables: Sequence[layers.Prunable], workload: Workload) -> None:
    """Measure the norm of each input of each layer over the calibration data."""
    adapter = adapter_for(model)
    modules = adapter.modules(model)
    kinds = {path: layers.kind_of(modules[path]) for each in prunables for path in each.layers}
    multiplying = {path: kind for path, kind in kinds.items() if kind and kind.spread is not None}
    squares: dict[str, Array] = {}

    def see(path: str, x: Any) -> None:
        values = adapter.values(x)
        xp = namespace_of(values)
        rows = xp.moveaxis(values, multiplying[path].input_axis, -1)
        rows = xp.asarray(rows.reshape(-1, rows.shape[-1]), dtype=xp.float64)
        (total,) = adapter.arrays(xp.square(rows).sum(axis=0))
        if not np.isfinite(total).all():
            raise SettingError("it holds NaN or infinity")
        squares[path] = squares.get(path, 0) + total

    see_calibration(model, {path: modules[path] for path in multiplying}, workload, see)
    for each in prunables:
        users = [path for path in each.layers if path in multiplying]
        seen = {path: squares[path] for path in users if path in squares}
        if users and not seen:
            each.leave(NOT_REACHED)
        elif len({(multiplying[path], len(norms)) for path, norms in seen.items()}) > 1:
            each.leave(NO_COMMON_INPUT)
        elif seen:
            total = np.sum(list(seen.values()), axis=0)
            each.input_norms = tuple(np.sqrt(total).tolist())


# ---------------------------------------------------------------- how many of a model's weights
# are zero


def weights_of(model: Any) -> dict[str, Any]:
    """Return the parameters with two or more axes by name, each once.

    These are the weights of linear layers and convolutions, and the tables of embeddings; biases,
    norms and buffers are not among them.
    """
    adapter = adapter_for(model)
    tensors = {
        name: each
        for name, each in adapter.named_tensors(model).items()
        if adapter.is_parameter(each)
    }
    if not tensors and hasattr(model, "parameters"):
        tensors = {str(number): each for number, each in enumerate(model.parameters())}
    return {name: each for name, each in tensors.items() if np.ndim(adapter.values(each)) >= 2}


def sparsity_of(model: Any) -> float:
    """Return the share of the weights, those with two or more axes, that are zero; 0 for none.

    Layers that hold a weight in another form (sparse, shared, quantized) count as the weight that
    they stand for. Packed layers of PyTorch are not counted: no tensor shows what they hold.
    """
    size, zeros = count_weights(model)
    return zeros / size if size else 0.0


def count_weights(model: Any) -> tuple[int, int]:
    """Return the number of weights that `sparsity_of` counts, and how many are 0."""
    adapter = adapter_for(model)
    size = zeros = 0
    for weight in chain(weights_of(model).values(), _weights_in_other_forms(model)):
        values = adapter.values(weight)
        size += prod(values.shape)
        zeros += int((values == 0).sum())
    return size, zeros


def _weights_in_other_forms(model: Any) -> Iterator[Any]:
    """Yield the weights that layers stand for whose `values` are something else, each once.

    They are made one after the other, so that only one of them is there in full.
    """
    seen: set[int] = set()
    for module in adapter_for(model).modules(model).values():
        values = getattr(module, "values", None)
        if values is None or not hasattr(module, "weight_size"):
            continue
        if id(values) not in seen and hasattr(module, "weight"):
            seen.add(id(values))
            yield module.weight
