"""SparseLayers: the transform that computes without the zeros of a pruned model, where it pays."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from tinytorch.comparison.sequential import Rule, estimate_ratio, time_until_known
from tinytorch.comparison.sides import LocalSide
from tinytorch.core.dispatch import active_backend, run, state
from tinytorch.core.kernels import Array, Kernel
from tinytorch.core.kernels.reference_quantized import (
    check_sparse,
    index_type,
    pack_sparse,
    unpack_sparse,
)
from tinytorch.core.layers import Linear, Product
from tinytorch.core.module import Module, check_floating_point
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.errors import BackendError, DTypeError, GraphError, SettingError, ShapeError
from tinytorch.measure.environment import describe_environment, observe
from tinytorch.measure.estimate import Estimate
from tinytorch.models.adapter import adapter_for
from tinytorch.models.core import own_tensors
from tinytorch.models.workload import Workload
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import Gain, Plan, Skipped, Transform, Variant, check_choice
from tinytorch.transforms.prune import Prune
from tinytorch.transforms.support.observing import (
    checked_patterns,
    idle_patterns,
    see_calibration,
)
from tinytorch.transforms.support.weights import (
    WeightLayer,
    WeightLayers,
    carry_out,
    find_weight_layers,
)

# ---------------------------------------------------------------- SparseLinear: a linear layer
# that holds, reads and multiplies only weights that are not zero


class SparseLinear(Module):
    """x @ weight + bias, where the weight (in, out) is held output by output without its zeros.

    `values` are the weights, `indices` the inputs that they meet (two bytes each up to 65,536
    inputs, else four), and ``pointers[j] : pointers[j + 1]`` says which of them belong to output j.
    It computes no gradients. Its multiply-accumulates are counted as what is multiplied: the rows
    times the weights that are not zero. What a zero would meet is not looked at, so infinities and
    NaN there do not spread.
    """

    def __init__(
        self,
        values: Array,
        indices: Array,
        pointers: Array,
        bias: Array | None = None,
        *,
        in_features: int,
    ) -> None:
        self.in_features, self.out_features = in_features, pointers.size - 1
        self.weight_size = self.in_features * self.out_features
        self.activation: str | None = None
        self.values = Tensor(values)
        self.indices = Tensor(indices)
        self.pointers = Tensor(pointers)
        self.bias = None if bias is None else Tensor(np.array(bias))
        self._checked: tuple[Array, ...] = ()
        self._arrays()

    @classmethod
    def of(cls, linear: Linear) -> Self:
        """Return a layer that computes the same as a Linear; nothing is held in common."""
        if not isinstance(linear, Linear):
            raise DTypeError(f"SparseLinear is made of a Linear, not of {linear!r}")
        bias = None if linear.bias is None else linear.bias.data
        packed = pack_sparse(linear.weight.data)
        layer = cls(*packed, bias, in_features=linear.in_features)
        layer.training = linear.training
        return layer

    def dense(self) -> Linear:
        """Return an ordinary layer, with all its weights bit for bit (but -0 is 0 now)."""
        linear = Linear(self.in_features, self.out_features, self.bias is not None, rng=0)
        linear.weight = Parameter(self.weight.data)
        if self.bias is not None:
            linear.bias = Parameter(self.bias.data.copy())
        linear.training = self.training
        return linear

    def forward(self, x: Tensor) -> Tensor:
        check_floating_point(self, x)
        if x.data.ndim == 0 or x.data.shape[-1] != self.in_features:
            raise ShapeError(f"{self!r} needs input (..., {self.in_features}), got {x.shape}")
        if x.requires_grad and state.grad_enabled:
            raise GraphError(
                f"{self!r} lets no gradient through; call it inside of no_grad(), or train the "
                "layer that dense() gives"
            )
        kind, arrays, settings = self.product()
        result = run(kind, x.data, *arrays, **settings)
        return Tensor(result if result.dtype == x.data.dtype else result.astype(x.data.dtype))

    def product(self) -> Product:
        """Return the kernel that computes this layer, and what it takes after x."""
        bias = None if self.bias is None else self.bias.data
        settings = {} if self.activation is None else {"activation": self.activation}
        return "sparse_linear", (*self._arrays(), bias), settings

    def _arrays(self) -> tuple[Array, Array, Array]:
        """Return values, indices and pointers; those that were assigned are checked once."""
        arrays = (self.values.data, self.indices.data, self.pointers.data)
        known = self._checked
        if not known or any(one is not other for one, other in zip(arrays, known, strict=True)):
            self._check_weight(*arrays)
            self._checked = arrays
        return arrays

    def _check_weight(self, values: Array, indices: Array, pointers: Array) -> None:
        """Raise unless this is a weight, such as one from a file should be: the kernels trust it.

        Its size is that of this layer.
        """
        if pointers.shape != (self.out_features + 1,):
            raise ShapeError(
                f"{self.out_features} outputs have {self.out_features + 1} pointers, got "
                f"{pointers.shape}"
            )
        if indices.dtype != index_type(self.in_features):
            raise DTypeError(
                f"indices of {self.in_features} inputs are {index_type(self.in_features)}, got "
                f"{indices.dtype}"
            )
        check_sparse(values, indices, pointers, inputs=self.in_features)
        outputs = np.repeat(np.arange(self.out_features), np.diff(pointers))
        places = outputs * self.in_features + indices
        if (np.diff(places) <= 0).any():
            raise ShapeError("the indices of each output of a sparse matrix ascend; these do not")

    def with_activation(self, word: str) -> Self:
        """Return the same layer, which applies an activation to its result in the same kernel."""
        twin = copy.copy(self)
        twin.activation = word
        return twin

    @property
    def weight(self) -> Tensor:
        """The weight (in, out) with its zeros, computed at each access, never held."""
        return Tensor(unpack_sparse(*self._arrays(), inputs=self.in_features))

    @property
    def sparsity(self) -> float:
        """The share of the weights that is zero."""
        return 1 - self.values.size / self.weight_size

    def memory_usage(self) -> dict[str, Any]:
        """Return the bytes of the dense layer and those that are really held, and their ratio."""
        held = sum(tensor.data.nbytes for _, tensor in self._named_tensors())
        bias = 0 if self.bias is None else self.bias.data.nbytes
        original = self.weight_size * self.values.data.itemsize + bias
        return {
            "original_bytes": original,
            "sparse_bytes": held,
            "compression_ratio": original / held,
        }

    def extra_repr(self) -> str:
        sizes = f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
        activation = f", activation={self.activation!r}" if self.activation else ""
        return f"{sizes}, sparsity={self.sparsity:.3f}{activation}"


def sparse_bytes(weight: Array) -> int:
    """Count what a weight (in, out) takes without its zeros: values, indices and pointers."""
    inputs, outputs = weight.shape
    kept = int(np.count_nonzero(weight))
    per_pointer = 4 if kept < 2**31 else 8
    return kept * (weight.itemsize + index_type(inputs).itemsize) + (outputs + 1) * per_pointer


# ---------------------------------------------------------------- whether the sparse product of a
# weight is faster than the dense one, measured on this machine

FLOOR = 0.02
"""A ratio is known when it is more than this off 1, or its interval this narrow."""

_known: dict[tuple[int, int, int, int, str], SparseTime] = {}
"""By inputs, outputs, rows, weights that are left, and backend: for this process."""


@dataclass(frozen=True)
class SparseTime:
    """The time of the sparse product of a weight over that of the dense one; below 1 it is less.

    `where` says for which product, and what computed it.
    """

    ratio: Estimate
    where: str


def time_sparse(weight: Array, rows: int, *, budget_s: float = 0.1, seed: int = 0) -> SparseTime:
    """Time the dense and the sparse product of a weight (in, out) with some rows, in turns.

    On the active backend. About `budget_s` is spent, and more where a few calls take longer;
    another weight of this size with as many zeros is not timed again by this process.
    """
    backend = active_backend()
    inputs, outputs = weight.shape
    key = (inputs, outputs, rows, int(np.count_nonzero(weight)), backend.name)
    if key not in _known:
        kernels = (backend.kernels["linear"], backend.kernels["sparse_linear"])
        ratio = _ratio(weight, rows, kernels, budget_s=budget_s, seed=seed)
        size = f"{inputs} x {outputs} with {_count(rows, 'row')}"
        place = f"this machine ({backend.name}, {_count(_threads(backend.name), 'thread')})"
        _known[key] = SparseTime(ratio, f"for {size} on {place}")
    return _known[key]


def _ratio(
    weight: Array, rows: int, kernels: tuple[Kernel, Kernel], *, budget_s: float, seed: int
) -> Estimate:
    linear, sparse_linear = kernels
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, len(weight)), np.float32)
    packed = pack_sparse(weight)
    _check_alike(x, weight, linear(x, weight), sparse_linear(x, *packed))

    def calling(kernel: Kernel, arrays: Sequence[Array]) -> Callable[[], Callable[[], object]]:
        def make() -> Callable[[], object]:
            copies = [each.copy() for each in (x, *arrays)]  # lie elsewhere in each round
            return lambda: kernel(*copies)

        return make

    timed = time_until_known(
        LocalSide("the dense product", calling(linear, (weight,)), can_rebuild=True, rng=rng),
        LocalSide("the sparse product", calling(sparse_linear, packed), can_rebuild=True, rng=rng),
        Rule(budget_s=budget_s),
        is_known=_is_known,
        rng=rng,
    )
    return estimate_ratio([each.log_ratio for each in timed.rounds], timed.alpha)


def _is_known(ratio: Estimate) -> bool:
    is_apart = ratio.high < 1 - FLOOR or ratio.low > 1 + FLOOR
    return is_apart or ratio.high < ratio.low * (1 + FLOOR)


def _check_alike(x: Array, weight: Array, dense: Array, sparse: Array) -> None:
    """Raise unless both are the same product, but for the rounding of its sums."""
    # the sum of the magnitudes of all terms is at most the product of both norms
    scale = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weight, axis=0)
    allowed = 2 * (len(weight) + 1) * np.finfo(np.float32).eps * scale
    if not (np.abs(dense - sparse) <= allowed).all():
        raise BackendError(
            "the sparse product does not give what the dense one gives, so nothing was timed; "
            "TINYTORCH_BACKEND=numpy computes without compiled kernels"
        )


def _threads(backend: str) -> int:
    if backend != "numba":
        return describe_environment().threads_in_force
    from tinytorch.core.kernels.numba.compile import THREADS

    return THREADS


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")


# ---------------------------------------------------------------- SparseLayers: the transform

GOALS = ("latency", "memory")
NO_CONVOLUTION = "there is no sparse kernel for convolutions; RemoveChannels makes them smaller"
NO_PROFILE = (
    "each step says what its layer gains; for the model it depends on their share of its time, "
    "which plan(workload, profile) reads from a profile"
)
NO_TORCH = (
    "PyTorch has its own sparse tensors: on a CPU at 90% sparsity we measured "
    "weight.to_sparse_csr() @ x.T to be slower than a dense layer of 784 x 128, and about twice as "
    "fast as one of 1024 x 1024 with 16 rows or more"
)


@dataclass(frozen=True)
class SparseLayers(Transform):
    """Hold and multiply only the weights that are not zero, in linear layers.

    goal="latency": where it is measured to be faster, at the layer's sparsity and with the rows
    that it gets from the example inputs (:func:`time_sparse`); goal="memory": where it holds
    fewer bytes. keep: patterns of layers that stay. The result is for inference: sparse layers let
    no gradients through, so its tensors need none.
    """

    variants = (
        Variant(
            "pruned-sparse",
            "prune 80% of the weights; sparse kernels where faster",
            preceded_by=(Prune(sparsity=0.8),),
        ),
    )
    role, place, order = "numbers", 4, 80
    frameworks = ("core",)
    setup_s = 10.0
    follows_weights = True  # zeros take less room in a file than the places of all other weights
    for_others = NO_TORCH
    may_compete, effect = True, "leaves out weights that are zero"

    goal: str = "latency"
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choice("goal", self.goal, GOALS)
        object.__setattr__(self, "keep", checked_patterns(self.keep))

    def make_plan(self, workload: Workload, profile: Profile | None) -> Plan:
        """Return the plan: count zeros, and measure whether they pay. A copy is called."""
        layers = find_weight_layers(workload, self.keep, verb="sparse")
        for each in layers.found.values():
            each.reason = each.reason or _why_not(each, layers)
        before, known = observe(), len(_known)
        layers.choose(
            _deciding_by_time(workload, layers) if self.goal == "latency" else _decide_by_bytes
        )
        doubts = observe().doubts_since(before) if len(_known) > known else ()
        notes = (*idle_patterns(self.keep, layers.found, change="sparse"), *doubts)
        if not layers.steps:
            return self.planned((), _skipped(layers), notes=notes)
        speedup = None if profile is None else _speedup(layers, profile)
        return self.planned(
            layers.steps,
            _skipped(layers),
            speedup=speedup,
            shrinkage=layers.shrinkage,
            not_predicted=_why_no_speedup(self.goal, profile) if speedup is None else {},
            notes=notes,
        )

    def change(self, model: Any, workload: Workload, plan: Plan) -> Any:
        """Make the layers of the plan sparse."""
        model = carry_out(model, plan, _build)
        for module in adapter_for(model, workload.arguments).modules(model).values():
            for _, tensor in own_tensors(module):
                tensor.requires_grad, tensor.grad = False, None  # sparse layers let none through
        return model


def _build(layer: Any, settings: Mapping[str, Any]) -> SparseLinear:
    kept = int(np.count_nonzero(layer.weight.data))
    if kept != settings["weights"]:
        raise SettingError(
            f"{layer!r} has {kept:,} weights that are not zero, and had {settings['weights']:,} "
            "when the plan was made; make a new one"
        )
    return SparseLinear.of(layer)


# ---------------------------------------------------------------- layer by layer


def _why_not(each: WeightLayer, layers: WeightLayers) -> str:
    """Return why a layer cannot be sparse, whatever the goal."""
    if type(each.layer) is Conv2d:
        return NO_CONVOLUTION
    weight = each.weight
    if weight.dtype != np.float32:
        return f"its weight holds {weight.dtype}, and the sparse kernel takes float32"
    if weight.all():
        return "its weight has no zeros; Prune makes some"
    own = {id(tensor) for _, tensor in own_tensors(each.layer)}
    for path, module in layers.modules.items():
        if module is not each.layer and own & {id(tensor) for _, tensor in own_tensors(module)}:
            return f"it shares its weight or bias with {path!r}, so that it would be held twice"
    return ""


def _decide_by_bytes(each: WeightLayer) -> None:
    weight, after = each.weight, sparse_bytes(each.weight)
    if after >= weight.nbytes:
        each.reason = (
            f"at {_sparsity(each):.1%} sparsity it would hold {after:,} bytes instead of "
            f"{weight.nbytes:,}: a weight that is not zero takes its index, too"
        )
        return
    why = f"its weight holds {after:,} bytes instead of {weight.nbytes:,}"
    _choose(each, why, {})


def _deciding_by_time(workload: Workload, layers: WeightLayers) -> Callable[[WeightLayer], None]:
    """Return the function that decides by time, after seeing how many rows each layer gets."""
    rows = _rows_seen(workload, layers)
    paths = {id(each.layer): path for path, each in layers.found.items()}

    def decide(each: WeightLayer) -> None:
        path = paths[id(each.layer)]
        if path in rows:
            _decide_by_time(each, time_sparse(each.weight, rows[path]), rows[path])
        else:
            each.reason = "needs example inputs: the number of rows that it gets is unknown"

    return decide


def _decide_by_time(each: WeightLayer, timed: SparseTime, rows: int) -> None:
    ratio, of = timed.ratio, f"at {_sparsity(each):.1%} sparsity {timed.where}"
    if ratio.is_less_than(1.0):
        measured = {"rows": rows, **_as_gains(ratio)}
        _choose(each, f"{1 / ratio.value:.1f} times as fast {of}", measured)
    elif ratio.is_more_than(1.0):
        each.reason = f"dense is {ratio.value:.1f} times as fast {of}"
    else:
        each.reason = f"inconclusive {of}: sparse takes {ratio.low:.2f}x to {ratio.high:.2f}x"


def _choose(each: WeightLayer, why: str, measured: Mapping[str, Any]) -> None:
    kept = int(np.count_nonzero(each.weight))
    each.what = f"sparse: {kept:,} of {each.weight.size:,} weights"
    each.why = why
    each.settings = {"weights": kept, "sparsity": _sparsity(each), **measured}
    each.new_bytes = sparse_bytes(each.weight)


def _as_gains(ratio: Estimate) -> dict[str, float]:
    gain = ratio.inverse
    return {"speedup": gain.value, "speedup_low": gain.low, "speedup_high": gain.high}


def _sparsity(each: WeightLayer) -> float:
    return 1 - np.count_nonzero(each.weight) / each.weight.size


def _skipped(layers: WeightLayers) -> tuple[Skipped, ...]:
    """Return all that stays; layers that are sparse already hold floats, but that is no news."""
    return tuple(
        Skipped(each.layer, "it is sparse already")
        if isinstance(layers.modules.get(each.layer), SparseLinear)
        else each
        for each in layers.skipped
    )


# ---------------------------------------------------------------- seeing and predicting


def _rows_seen(workload: Workload, layers: WeightLayers) -> dict[str, int]:
    """Return the most rows that each layer gets in a call on the example inputs, by its path."""
    paths = [path for path, each in layers.found.items() if not each.reason]
    if not workload.arguments or not paths:
        return {}
    adapter = adapter_for(workload.model, workload.arguments)
    twin = adapter.clone(workload.model)
    modules = dict(adapter.modules(twin))
    rows: dict[str, int] = {}

    def see(path: str, x: Any) -> None:
        rows[path] = max(rows.get(path, 1), math.prod(x.shape[:-1]))

    inputs = replace(workload, calibration=(workload.inputs,))
    see_calibration(twin, {path: modules[path] for path in paths}, inputs, see)
    return rows


def _speedup(layers: WeightLayers, profile: Profile) -> Gain | None:
    """Predict by Amdahl's law, from the share of each layer; None where it did not run."""
    by_path = {layer.path: layer for layer in profile.layers if layer.kind == Linear.__name__}
    chosen = [step for step in layers.steps if "speedup" in step.settings]
    if not chosen or not all(step.layer in by_path for step in chosen):
        return None
    left = {"speedup": 1.0, "speedup_low": 1.0, "speedup_high": 1.0}
    total = 0.0
    for step in chosen:
        share = profile.share(by_path[step.layer])
        total += share
        for name in left:
            left[name] -= share * (1 - 1 / step.settings[name])
    value, low, high = (1 / left[name] for name in ("speedup", "speedup_low", "speedup_high"))
    basis = f"Amdahl's law: these layers take {total:.0%} of a call in the profile"
    return Gain(value, low, high, basis=basis)


def _why_no_speedup(goal: str, profile: Profile | None) -> dict[str, str]:
    if goal == "memory":
        return {"speedup": 'only bytes were counted; goal="latency" measures the time of layers'}
    if profile is None:
        return {"speedup": NO_PROFILE}
    return {"speedup": "the profile is of another model: not all of these layers ran in it"}
