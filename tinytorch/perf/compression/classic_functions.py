"""The classic names: pruning and compressing in one call. Thin layers over the parts beside this.

`magnitude_prune` and `structured_prune` change the model that they are given, as they always did;
everything else leaves its input alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from tinytorch.adapters.adapter import adapter_for
from tinytorch.adapters.surgery import replace_layers
from tinytorch.core.backends import Array
from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.errors import SettingError
from tinytorch.perf.compression.factored_layers import factored_layer
from tinytorch.perf.compression.low_rank import low_rank_approximate
from tinytorch.perf.compression.masks import Masks, set_zero
from tinytorch.perf.compression.prunable_layers import LayerKind, kind_of
from tinytorch.perf.compression.prune import check_sparsity
from tinytorch.perf.compression.remove_channels import RemoveChannels
from tinytorch.perf.compression.scores import share_out, smallest, weight_scores
from tinytorch.perf.compression.sparsity import count_weights, sparsity_of, weights_of
from tinytorch.workloads.plan import Plan
from tinytorch.workloads.workload import Workload

__all__ = [
    "Compressor",
    "MagnitudePruner",
    "StructuredPruner",
    "compress_model",
    "magnitude_prune",
    "measure_sparsity",
    "structured_prune",
]


def measure_sparsity(model: Any) -> float:
    """Give the percentage of a model's weights that are zero, 0 to 100.

    Weights are the parameters with two or more axes, each counted once; biases and norms are not
    among them. Sparse, shared and quantized layers count as the weights that they stand for.
    ``Compressor.measure_sparsity`` gives the same as a fraction.

    >>> layer = Linear(4, 2, rng=0)
    >>> layer.weight.data[:, 1] = 0
    >>> measure_sparsity(layer), Compressor.measure_sparsity(layer)
    (50.0, 0.5)
    """
    return 100 * sparsity_of(model)


def magnitude_prune(model: Any, sparsity: float = 0.5) -> Any:
    """Set the smallest weights of a model to zero, **in place**, and give the model.

    Of the n weights that `measure_sparsity` counts, all layers together, ``round(sparsity * n)``
    are zero afterwards; each layer keeps at least one. Those in sparse, shared or quantized layers
    stay as they are and are none of the n. `sparsity` is a fraction. Tables of embeddings are
    weights as well; the transform ``Prune`` leaves them alone, and works on a copy.
    """
    check_sparsity(sparsity)
    named = weights_of(model)
    weights = list(named.values())
    scores = [weight_scores(_ranked(name, _as_array(each))) for name, each in named.items()]
    size = sum(each.size for each in scores)
    most = sum(max(each.size - 1, int((each < 0).sum())) for each in scores)
    counts = share_out(scores, min(round(sparsity * size), most))
    for weight, each, count in zip(weights, scores, counts, strict=True):
        _set_zero(weight, smallest(each, count))
    return model


def structured_prune(model: Any, prune_ratio: float = 0.5) -> Any:
    """Set whole outputs of linear layers and convolutions to zero, **in place**; give the model.

    In each layer these are `prune_ratio` of its outputs, those whose weights have the smallest L2
    norm: columns of a linear layer's weight, kernels of a convolution, with their biases. One
    output always stays. The shapes stay, too: ``StructuredPruner`` really removes channels, and
    never the outputs of the model.
    """
    _check_ratio("prune_ratio", prune_ratio)
    if adapter_for(model).name == "pytorch":
        raise SettingError(
            "zeros in whole outputs are for models of tinytorch; RemoveChannels really removes "
            "channels of PyTorch models"
        )
    chosen_layers: dict[int, tuple[Any, LayerKind]] = {}
    for path, layer in adapter_for(model).modules(model).items():
        kind = kind_of(layer)
        if kind is not None and not kind.is_table:
            _ranked(f"{path}.weight", layer.weight.data)
            chosen_layers.setdefault(id(layer.weight), (layer, kind))
    for layer, kind in chosen_layers.values():
        outputs = np.moveaxis(layer.weight.data, kind.output_axis, 0)
        norms = np.linalg.norm(outputs.reshape(len(outputs), -1).astype(np.float64), axis=1)
        weakest = smallest(norms, max(0, min(round(prune_ratio * len(norms)), len(norms) - 1)))
        chosen = np.zeros(layer.weight.shape, np.bool_)
        np.moveaxis(chosen, kind.output_axis, 0)[weakest] = True
        set_zero(layer.weight, chosen)
        if layer.bias is not None:
            set_zero(layer.bias, weakest)
    return model


@dataclass
class MagnitudePruner:
    """Gives pruned copies: of all weights of a model, the `sparsity` smallest are zero.

    `masks` are those of the last model that was pruned: ``pruner.masks.apply(model)`` sets the same
    weights to zero again, for example after a step of training.
    """

    sparsity: float = 0.5
    masks: Masks | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_sparsity(self.sparsity)

    def prune(self, model: Any) -> Any:
        """Give a pruned copy of a model, as `magnitude_prune` would make it."""
        pruned = magnitude_prune(adapter_for(model).clone(model), self.sparsity)
        named = weights_of(pruned).items()
        self.masks = Masks({name: _as_array(weight) != 0 for name, weight in named})
        return pruned


@dataclass
class StructuredPruner:
    """Gives smaller models: `ratio` of the channels are removed, with all that belongs to them.

    It is ``RemoveChannels(ratio=...)`` in one call; `plan` says what the last call removed.
    """

    ratio: float = 0.5
    plan: Plan | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_ratio("ratio", self.ratio)

    def prune(self, model: Any, example_inputs: Any) -> Any:
        """Give a smaller copy; channels are followed through a call on the example inputs."""
        inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
        transform = RemoveChannels(ratio=self.ratio)
        workload = Workload(type(model).__name__, model, inputs)
        self.plan = transform.plan(workload)
        return transform.apply(workload, self.plan)


def compress_model(model: Any, config: Mapping[str, float]) -> tuple[Any, dict[str, Any]]:
    """Give a compressed copy of a model, and what was done to it.

    `config` may have ``low_rank`` (the share of the rank that linear layers keep, where that is
    smaller), ``structured_prune`` (the share of outputs that become zero) and ``magnitude_prune``
    (the share of the weights that are zero afterwards). They are applied in this order, so that
    zeros survive. ``structured_prune_ratio`` and ``magnitude_sparsity`` are other names of two.

    The second result has original and final sparsity (fractions), parameters and bytes held, the
    number of weights that are not zero, and the steps in `applied`.
    """
    steps = _checked_config(config)
    twin = adapter_for(model).clone(model)
    before = _counts(twin)
    for name, value in steps.items():
        twin = STEPS[name](twin, value)
    after = _counts(twin)
    stats: dict[str, Any] = {f"original_{name}": value for name, value in before.items()}
    stats |= {f"final_{name}": value for name, value in after.items()}
    held = before["bytes"] / after["bytes"] if after["bytes"] else float("nan")
    return twin, stats | {"compression_ratio": held, "applied": list(steps)}


class Compressor:
    """The same functions under one name; its sparsities are fractions, 0 to 1."""

    measure_sparsity = staticmethod(sparsity_of)
    magnitude_prune = staticmethod(magnitude_prune)
    structured_prune = staticmethod(structured_prune)
    low_rank_approximate = staticmethod(low_rank_approximate)
    compress_model = staticmethod(compress_model)


# ---------------------------------------------------------------- parts


def _factor_linear_layers(model: Any, rank_ratio: float) -> Any:
    """Replace linear layers by two thin ones where that takes fewer weights, in place."""
    if adapter_for(model).name == "pytorch":
        raise SettingError("low_rank is for models of tinytorch; LowRank takes PyTorch models")
    layers = [each for each in adapter_for(model).modules(model).values() if type(each) is Linear]
    weights = [id(each.weight) for each in layers]
    factored = {}
    for layer in layers:
        u, s, v = low_rank_approximate(layer.weight, rank_ratio)
        is_shared = weights.count(id(layer.weight)) > 1
        if not is_shared and u.size + v.size < layer.weight.size:
            halves = Parameter(u * np.sqrt(s)), Parameter(np.sqrt(s)[:, None] * v)
            factored[id(layer)] = factored_layer(layer, *halves)
    return replace_layers(model, factored)


STEPS: dict[str, Callable[[Any, float], Any]] = {
    "low_rank": _factor_linear_layers,
    "structured_prune": structured_prune,
    "magnitude_prune": magnitude_prune,
}
"""In the order in which they are applied: zeros would not survive factoring."""
OTHER_NAMES = {
    "structured_prune_ratio": "structured_prune",
    "magnitude_sparsity": "magnitude_prune",
}


def _checked_config(config: Any) -> dict[str, float]:
    """Give the steps of a configuration in their order."""
    if not isinstance(config, Mapping):
        raise SettingError(
            f"a configuration is a dictionary such as {{'magnitude_prune': 0.8}}, got "
            f"{type(config).__name__}"
        )
    named = {OTHER_NAMES.get(name, name): value for name, value in config.items()}
    unknown = [name for name in named if name not in STEPS]
    if unknown or len(named) < len(config):
        wrong = f"unknown key {unknown[0]!r}" if unknown else "one step has two names"
        raise SettingError(f"{wrong} in the configuration; there are {', '.join(STEPS)}")
    return {name: named[name] for name in STEPS if name in named}


def _counts(model: Any) -> dict[str, Any]:
    specs = adapter_for(model).parameters(model)
    size, zeros = count_weights(model)
    return {
        "sparsity": zeros / size if size else 0.0,
        "parameters": sum(each.size for each in specs if not each.is_buffer),
        "nonzero_weights": size - zeros,
        "bytes": sum(each.nbytes for each in specs),
    }


def _check_ratio(name: str, ratio: Any) -> None:
    is_number = isinstance(ratio, Real) and not isinstance(ratio, bool)
    if not is_number or not 0 <= ratio < 1:
        raise SettingError(f"{name} is a share, at least 0 and below 1, got {ratio!r}")


def _ranked(name: str, weight: Array) -> Array:
    """Give a weight if there is a smallest and a largest of its numbers."""
    if not np.isfinite(weight).all():
        raise SettingError(
            f"{name.lstrip('.')!r} holds NaN or infinity, which cannot be ranked; mend it before"
        )
    return weight


def _as_array(weight: Any) -> Array:
    if isinstance(weight, Tensor):
        return weight.data
    array: Array = weight.detach().float().cpu().numpy()  # NumPy has no bfloat16
    return array


def _set_zero(weight: Any, chosen: Array) -> None:
    if isinstance(weight, Tensor):
        set_zero(weight, chosen)
        return
    from tinytorch.perf.compression.masks_torch import set_zero_torch

    set_zero_torch(weight, chosen)
