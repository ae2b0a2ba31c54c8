"""SparseLayers: the transform that computes without the zeros of a pruned model, where it pays."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from tinytorch import __version__
from tinytorch.codec import Coded
from tinytorch.comparison.sequential import Rule, estimate_ratio, time_until_known
from tinytorch.comparison.sides import LocalSide
from tinytorch.core.dispatch import active_backend, run, state
from tinytorch.core.files import cache_folder, write_atomically
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
from tinytorch.measure.environment import describe_environment
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


# ---------------------------------------------------------------- keeping measured crossovers on
# disk: one file for each machine, its libraries and threads

SCHEMA = 1
"""Raise it when the meaning of a field changes; files of another version are measured again."""

Key = tuple[int, int, int, str]
"""Inputs, outputs, rows and backend."""


def crossover_file(fingerprint: str) -> Path:
    """Return the file that holds, or will hold, the crossovers of a machine."""
    return cache_folder() / f"crossovers-{fingerprint}.json"


def load_crossovers(path: Path) -> dict[Key, dict[str, Any]]:
    """Read crossovers; none where there are none, or none that this version understands."""
    try:
        content = json.loads(path.read_text("utf-8"))
        if (content["schema"], content["version"]) != (SCHEMA, __version__):
            return {}
        return {_key(fields): fields for fields in content["crossovers"]}
    # Whatever is wrong with the file: it can be measured again.
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def save_crossover(path: Path, key: Key, fields: dict[str, Any]) -> bool:
    """Add one to a file, and tell whether that worked; without it, it is measured again."""
    rows = list((load_crossovers(path) | {key: fields}).values())
    content = {"schema": SCHEMA, "version": __version__, "crossovers": rows}
    try:
        with write_atomically(path) as temporary:
            temporary.write_text(json.dumps(content, indent=1), "utf-8")
    except OSError:
        return False
    return True


def _key(fields: dict[str, Any]) -> Key:
    return fields["inputs"], fields["outputs"], fields["rows"], fields["backend"]


# ---------------------------------------------------------------- from which sparsity on a sparse
# product is faster than a dense one, measured on this machine

SPARSITIES = (0.5, 0.75, 0.9, 0.95, 0.99)
"""Where both are timed. Between two of them the time grows with the number of weights."""
FLOOR = 0.02
"""A point is known when its ratio is more than this off 1, or its interval this narrow."""

_known: dict[tuple[str, Key], Crossover] = {}


@dataclass(frozen=True)
class CrossoverPoint:
    """Both products at one sparsity: medians in seconds, and sparse over dense time."""

    sparsity: float
    dense_s: float
    sparse_s: float
    ratio: Estimate
    rounds: int


@dataclass(frozen=True)
class Crossover(Coded):
    """The sparsity at which a dense and a sparse product of some size take the same time.

    `points` are what was measured, in ascending order of sparsity; `doubts` say what speaks against
    the times, such as a busy machine.
    """

    inputs: int
    outputs: int
    rows: int
    backend: str
    threads: int
    points: tuple[CrossoverPoint, ...]
    doubts: tuple[str, ...] = ()

    strict = True

    def ratio_at(self, sparsity: float) -> Estimate:
        """Estimate sparse over dense time at a sparsity; below 1 sparse is faster.

        Between points the ratio is taken to grow with the share of weights that is left; below the
        first it is only known to be larger, beyond the last to be smaller than there.
        """
        left = [1 - point.sparsity for point in reversed(self.points)]

        def at(name: str) -> float:
            ratios = [getattr(point.ratio, name) for point in reversed(self.points)]
            return float(np.interp(1 - sparsity, left, ratios))

        return Estimate(at("value"), at("low"), at("high"))

    @property
    def sparsity(self) -> float | None:
        """From which sparsity on sparse is faster; None if it never is.

        The least sparsity that was tried means that it may be faster below that, too.
        """
        return self._crossing(lambda ratio: ratio.value)

    @property
    def low(self) -> float | None:
        """Below this sparsity dense is shown to be faster; None if that holds for all of them.

        The least sparsity that was tried means that dense is not shown to be faster anywhere.
        """
        return self._crossing(lambda ratio: ratio.low)

    @property
    def high(self) -> float | None:
        """From this sparsity on sparse is shown to be faster; None if it nowhere is."""
        return self._crossing(lambda ratio: ratio.high)

    def _crossing(self, read: Callable[[Estimate], float]) -> float | None:
        """Walk down from the highest sparsity as long as sparse is faster."""
        above: CrossoverPoint | None = None
        for point in reversed(self.points):
            if read(point.ratio) > 1:
                if above is None:
                    return None
                fast, slow = read(above.ratio), read(point.ratio)
                part = (1 - fast) / (slow - fast)
                return above.sparsity - part * (above.sparsity - point.sparsity)
            above = point
        return self.points[0].sparsity

    @property
    def where(self) -> str:
        """Return what was measured, and on what."""
        return (
            f"for {self.inputs} x {self.outputs} with {_count(self.rows, 'row')} on this machine "
            f"({self.backend}, {_count(self.threads, 'thread')})"
        )

    @property
    def note(self) -> str:
        """Return in a sentence from where on sparse is faster."""
        first, last = self.points[0].sparsity, self.points[-1].sparsity
        if self.low is None:
            return f"dense is faster at every sparsity up to {last:.0%} {self.where}"
        if self.high is None or self.sparsity is None:
            doubt = "whether sparse is faster is inconclusive at any sparsity"
            return f"{doubt} up to {last:.0%} {self.where}"
        if self.high == first:
            return f"sparse is faster from {first:.0%} sparsity on, the least tried, {self.where}"
        if self.low == first:
            return (
                f"sparse is shown to be faster from {self.high:.0%} sparsity on {self.where}; "
                f"below that no difference is shown, and below {first:.0%} it was not tried"
            )
        ends = (f"{self.low:.0%}", f"{self.high:.0%}")
        interval = "" if ends[0] == ends[1] else f" (between {ends[0]} and {ends[1]})"
        return f"dense is faster below {self.sparsity:.0%} sparsity{interval} {self.where}"


def measure_crossover(
    inputs: int,
    outputs: int,
    rows: int,
    *,
    budget_s: float = 0.5,
    seed: int = 0,
    fresh: bool = False,
) -> Crossover:
    """Time a dense and a sparse product of this size in turns, at several sparsities.

    On the active backend. About `budget_s` is spent, and more where a few calls take longer. What
    was measured before is not measured again by this process, nor by another one on this machine
    with the same versions, unless it has to be `fresh`. Times that something speaks against, see
    `doubts`, are not kept for other processes.
    """
    sizes: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "rows": rows}
    for name, size in sizes.items():
        if not isinstance(size, (int, np.integer)) or size < 1:
            raise SettingError(f"{name}={size!r}; a product has at least one of them")
    if not 0 < budget_s < math.inf:
        raise SettingError(f"budget_s={budget_s}; measuring needs some seconds")
    backend, environment = active_backend(), describe_environment()
    key = (int(inputs), int(outputs), int(rows), backend.name)
    path = crossover_file(environment.fingerprint)
    place = (str(path), key)
    if not fresh:
        known = _known[place] if place in _known else _stored(path, key)
        if known is not None:
            return _known.setdefault(place, known)
    threads = _threads(backend.name, environment.threads_in_force)
    kernels = (backend.kernels["linear"], backend.kernels["sparse_linear"])
    points, doubts = _measure(key[:3], kernels, budget_s=budget_s, seed=seed)
    measured = Crossover(*key, threads, points, doubts)
    if not doubts:  # on a busy machine it holds for now only
        save_crossover(path, key, measured.to_dict())
    _known[place] = measured
    return measured


def _stored(path: Path, key: Key) -> Crossover | None:
    try:
        return Crossover.from_dict(load_crossovers(path)[key])
    except (LookupError, TypeError, ValueError):
        return None  # it can be measured again


def _measure(
    sizes: tuple[int, int, int], kernels: tuple[Kernel, Kernel], *, budget_s: float, seed: int
) -> tuple[tuple[CrossoverPoint, ...], tuple[str, ...]]:
    inputs, outputs, rows = sizes
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, inputs), np.float32)
    full = rng.standard_normal((inputs, outputs), np.float32)
    order = rng.random((inputs, outputs), np.float32)
    points: list[CrossoverPoint] = []
    doubts: list[str] = []
    for sparsity in SPARSITIES:
        weight = np.where(order < sparsity, np.float32(0), full)
        point, found = _measure_point(
            sparsity, x, weight, kernels, budget_s=budget_s / len(SPARSITIES), rng=rng
        )
        points.append(point)
        doubts += found
    return tuple(points), merge_doubts(doubts)


def _measure_point(
    sparsity: float,
    x: Array,
    weight: Array,
    kernels: tuple[Kernel, Kernel],
    *,
    budget_s: float,
    rng: np.random.Generator,
) -> tuple[CrossoverPoint, tuple[str, ...]]:
    linear, sparse_linear = kernels
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
    ratio = estimate_ratio([each.log_ratio for each in timed.rounds], timed.alpha)
    dense_s = float(np.median([s for each in timed.rounds for s in each.baseline]))
    sparse_s = float(np.median([s for each in timed.rounds for s in each.candidate]))
    return CrossoverPoint(sparsity, dense_s, sparse_s, ratio, len(timed.rounds)), timed.doubts


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


def _threads(backend: str, of_blas: int) -> int:
    if backend != "numba":
        return of_blas
    from tinytorch.core.kernels.numba.compile import THREADS

    return THREADS


_NUMBER = r"\d+(?:[.,]\d+)*%?"
_NUMBERS = re.compile(f"{_NUMBER}(?: to {_NUMBER})?")


def merge_doubts(doubts: Iterable[str]) -> tuple[str, ...]:
    """Merge sentences that differ only in their numbers into one with their range.

    >>> merge_doubts(["preempted 5 times", "the load is high", "preempted 12 times"])
    ('preempted 5 to 12 times', 'the load is high')
    """
    alike: dict[tuple[str, ...], list[list[str]]] = {}
    for each in doubts:
        words = tuple(_NUMBERS.split(each))
        alike.setdefault(words, []).append(_NUMBERS.findall(each))
    merged = []
    for words, numbers in alike.items():
        ranges = [_range(found) for found in zip(*numbers, strict=True)]
        pairs = zip(words, (*ranges, ""), strict=True)
        merged.append("".join(word + number for word, number in pairs))
    return tuple(merged)


def _range(numbers: Iterable[str]) -> str:
    """Return the least and the most of numbers as they are written, some of them ranges already."""
    single = [end for each in numbers for end in each.split(" to ")]
    ordered = sorted(single, key=lambda each: float(each.rstrip("%").replace(",", "")))
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")


# ---------------------------------------------------------------- SparseLayers: the transform that
# computes without the zeros of a pruned model, where it pays

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
    that it gets from the example inputs (:func:`measure_crossover`); goal="memory": where it holds
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
    is_slow = True
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
        doubts: list[str] = []
        layers.choose(
            _deciding_by_time(workload, layers, doubts)
            if self.goal == "latency"
            else _decide_by_bytes
        )
        notes = (*idle_patterns(self.keep, layers.found, change="sparse"), *merge_doubts(doubts))
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

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Return a copy of the model with the layers of the plan sparse."""
        plan.check_made_by(self.name, self.to_dict())
        model = carry_out(workload, plan, _build)
        if plan.is_empty:
            return model
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
            f"at {_sparsity(each):.1%} sparsity it would hold {after:,} bytes in the place of "
            f"{weight.nbytes:,}: a weight that is not zero takes its index, too"
        )
        return
    why = f"its weight holds {after:,} bytes in the place of {weight.nbytes:,}"
    _choose(each, why, {})


def _deciding_by_time(
    workload: Workload, layers: WeightLayers, doubts: list[str]
) -> Callable[[WeightLayer], None]:
    """Return the function that decides by time, after seeing how many rows each layer gets."""
    rows = _rows_seen(workload, layers)
    paths = {id(each.layer): path for path, each in layers.found.items()}

    def decide(each: WeightLayer) -> None:
        path = paths[id(each.layer)]
        if path not in rows:
            each.reason = "needs example inputs: the number of rows that it gets is unknown"
            return
        inputs, outputs = each.weight.shape
        crossover = measure_crossover(inputs, outputs, rows[path])
        doubts.extend(crossover.doubts)
        _decide_by_time(each, crossover)

    return decide


def _decide_by_time(each: WeightLayer, crossover: Crossover) -> None:
    sparsity = _sparsity(each)
    if crossover.high is None or sparsity < crossover.high:
        seen = f"this layer has {sparsity:.1%}"
        if crossover.low is not None and sparsity >= crossover.low:
            seen += ", where no difference is shown"
        elif crossover.low == crossover.points[0].sparsity:
            seen += ", where it was not tried"
        each.reason = f"{crossover.note}; {seen}"
        return
    ratio = crossover.ratio_at(sparsity)
    why = f"{1 / ratio.value:.1f} times as fast at {sparsity:.1%} sparsity; {crossover.note}"
    measured = {"rows": crossover.rows, "crossover": crossover.sparsity, **_as_gains(ratio)}
    _choose(each, why, measured)


def _choose(each: WeightLayer, why: str, measured: Mapping[str, Any]) -> None:
    kept = int(np.count_nonzero(each.weight))
    each.what = f"sparse: {kept:,} of {each.weight.size:,} weights"
    each.why = why
    each.settings = {"weights": kept, "sparsity": _sparsity(each), **measured}
    each.new_bytes = sparse_bytes(each.weight)


def _as_gains(ratio: Any) -> dict[str, float]:
    return {
        "speedup": 1 / ratio.value,
        "speedup_low": 1 / ratio.high,
        "speedup_high": 1 / ratio.low,
    }


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
