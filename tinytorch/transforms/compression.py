"""ModelCompressor: prune, quantize, encode, and weigh what comes out."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tinytorch.codec import Coded
from tinytorch.comparison.accuracy import AccuracyComparison, compare_accuracy
from tinytorch.core.kernels import Array
from tinytorch.core.layers import Linear
from tinytorch.core.module import Module, keeping_modes
from tinytorch.core.optimizers import Adam, Optimizer
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.core.training import CosineSchedule
from tinytorch.errors import SettingError
from tinytorch.formats.affine import QuantizedArray, value_limits
from tinytorch.formats.entropy import entropy_bytes
from tinytorch.formats.weights_file import describe_weights, write_weights
from tinytorch.models.adapter import Adapter, adapter_for, namespace_of, replace_layers
from tinytorch.models.core import named_tensors
from tinytorch.models.workload import Scores, Workload
from tinytorch.showing import Shown
from tinytorch.transforms.compressed_file import (
    State,
    as_floats,
    compressed_state,
    idle_keeps,
    plain_state,
    quantize_weight,
    with_state,
    write_state,
)
from tinytorch.transforms.low_rank import low_rank_approximate
from tinytorch.transforms.plan import Plan, Skipped
from tinytorch.transforms.prune import (
    Masks,
    Prune,
    check_sparsity,
    count_weights,
    set_zero,
    sparsity_of,
    weights_of,
)
from tinytorch.transforms.prune.layers import LayerKind, kind_of, share_out, smallest, weight_scores
from tinytorch.transforms.remove_channels import RemoveChannels
from tinytorch.transforms.support.observing import check_loader
from tinytorch.transforms.support.training import (
    ConstrainedOptimizer,
    CubicSchedule,
    Project,
    SparsitySchedule,
    fine_tune,
)
from tinytorch.transforms.support.weights import factored_layer, scores_of

# ---------------------------------------------------------------- what compressing a model gave:
# the model, its file, and what each stage did, measured


@dataclass(frozen=True)
class CompressionStage(Coded):
    """A model on its way: `original`, `pruned` or `quantized`.

    sparsity: the share of the weights with two or more axes that are zero. file_bytes: the size of
    a plain file, with every number in its place. encoded_bytes: that of the compact file with the
    same numbers. Both were written. accuracy: the scores beside those of the original; None for
    the original itself, and where nothing could be evaluated.
    """

    name: str
    sparsity: float
    file_bytes: int
    encoded_bytes: int
    accuracy: AccuracyComparison | None = field(default=None, repr=False)  # it has every score


@dataclass(frozen=True, eq=False, repr=False)
class CompressionResult(Coded, Shown):
    """A compressed model, and the evidence.

    model: an ordinary float model, which holds exactly what `load_compressed` gives: the weights
    that the file stands for, in the dtypes of the original (whole numbers times their scale are
    float32, and are rounded once more where those are narrower). state: what the file holds; the
    bits of bfloat16 are an array of whole numbers. stages: what each step changed; the last one is
    the result. bound_bytes: a yardstick for the code of the file, see :func:`bound_bytes`.
    header_bytes: what names, shapes and settings take in the file, which is part of `file_bytes`.
    naive_parts: the factors whose product is often taken for the size. skipped: layers that were
    not pruned. notes: what to know before believing the numbers.
    """

    name: str
    model: Any
    state: State
    stages: tuple[CompressionStage, ...]
    bound_bytes: float
    header_bytes: int
    naive_parts: Mapping[str, float]
    baseline_score: float | None = None
    metric: str = "accuracy"
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()

    also_written = (
        *("name", "original_bytes", "file_bytes", "ratio", "naive_ratio", "bound_ratio"),
        *("above_bound", "coding_above_bound"),
    )
    renames: ClassVar = {"model": None, "state": None}

    # ------------------------------------------------------------ sizes

    @property
    def original_bytes(self) -> int:
        """The size of the checkpoint of the original model."""
        return self.stages[0].file_bytes

    @property
    def file_bytes(self) -> int:
        """The size of the compressed file, as :meth:`save` writes it without metadata."""
        return self.stages[-1].encoded_bytes

    @property
    def ratio(self) -> float:
        """How many times smaller the compressed file is than the checkpoint."""
        return self.original_bytes / self.file_bytes

    @property
    def naive_ratio(self) -> float:
        """The product of the parts, which counts neither places of zeros, nor scales or biases."""
        return float(np.prod(list(self.naive_parts.values())))

    @property
    def bound_ratio(self) -> float | None:
        """How many times smaller `bound_bytes` are than the checkpoint; None if they are 0."""
        return self.original_bytes / self.bound_bytes if self.bound_bytes else None

    @property
    def above_bound(self) -> float | None:
        """By which share the file is larger than `bound_bytes`, header included; None at 0."""
        return self.file_bytes / self.bound_bytes - 1 if self.bound_bytes else None

    @property
    def coding_above_bound(self) -> float | None:
        """By which share the encoded numbers are larger than `bound_bytes`, without the header."""
        coded = self.file_bytes - self.header_bytes
        return coded / self.bound_bytes - 1 if self.bound_bytes else None

    # ------------------------------------------------------------ the rest

    @property
    def sparsity(self) -> float:
        return self.stages[-1].sparsity

    @property
    def accuracy(self) -> AccuracyComparison | None:
        """The scores of the result beside those of the original; None if nothing was evaluated."""
        return self.stages[-1].accuracy

    def save(self, path: str | Path, metadata: Mapping[str, Any] | None = None) -> int:
        """Write the compressed file, atomically; returns its bytes. `load_compressed` reads it."""
        return write_state(path, self.state, metadata)

    def __repr__(self) -> str:
        found = "not compared" if self.accuracy is None else self.accuracy.verdict
        names = " > ".join(stage.name for stage in self.stages)
        return (
            f"CompressionResult({self.name}, {names}: {self.file_bytes:,} bytes instead of "
            f"{self.original_bytes:,}, {self.sparsity:.1%} zeros, {self.metric} {found})"
        )


def bound_bytes(state: State) -> float:
    """Compute the bytes of these numbers if single values are entropy-coded, and the rest is not.

    Whole numbers with a scale take the zeroth-order entropy of their values: no code that knows how
    often each value occurs in the array, and nothing more, is shorter. Among floats only zeros are
    coded: where they are takes its entropy. All else counts with its full width: other floats,
    scales, zero points, and numbers such as the steps of a norm. What says which array it is, is
    not counted.

    It is a yardstick, not a limit. A code that sees more, such as zeros in rows or the exponents of
    floats, can take less.
    """
    total = 0.0
    for each in state.values():
        if isinstance(each, QuantizedArray):
            count = each.scale.size
            total += entropy_bytes(each.values) if each.values.size else 0.0
            total += each.scale.nbytes + (0 if each.scheme.symmetric else count)
            continue
        floats = as_floats(each)
        if floats.dtype.kind != "f":
            total += each.nbytes
            continue
        is_zero = floats == 0
        places = entropy_bytes(is_zero) if each.size else 0.0
        total += places + int((~is_zero).sum()) * each.itemsize
    return total


# ---------------------------------------------------------------- ModelCompressor: prune,
# quantize, encode, and weigh what comes out

PRUNING_SHARE = 0.7
"""The part of the training during which weights are pruned; the rest is for recovering."""
FEWEST_PRUNINGS, MOST_STEPS_BETWEEN = 20, 10
"""How gradual it is: so many times in a short training, every so many steps in a long one."""
ROUNDING_RATE = 3e-4
"""Of Adam, falling along a cosine: the weights are good already and only have to change steps."""

MakeOptimizer = Callable[[list[Tensor]], Optimizer]
StepReport = Callable[[int, int, float], None]


@dataclass(frozen=True)
class ModelCompressor:
    """The whole way from a float model to a small file.

    sparsity, scope, score, prune_embeddings: as for :class:`Prune`; a sparsity of 0 prunes nothing.
    bits: 8 or 4, for the weights of linear layers, convolutions and embeddings, one scale for each;
    None leaves floats. keep: patterns of layers that are neither pruned nor quantized.

    With training data, pruning happens gradually during `epochs`, by the `schedule` (cubic over the
    first 70% of the steps unless given), and then the rounding is trained for `rounding_epochs`:
    gradients go straight through it. Without data both happen at once, which costs more accuracy:
    the defaults are mild. With data, sparsity=0.9 and bits=4 are a good start.

    margin: what the mean score may lose, in its own unit, to be called not worse.
    """

    sparsity: float = 0.5
    bits: int | None = 8
    scope: str = "model"
    score: str = "magnitude"
    prune_embeddings: bool = False
    keep: tuple[str, ...] = ()
    epochs: int = 3
    rounding_epochs: int = 1
    schedule: SparsitySchedule | None = None
    margin: float = 0.01

    def __post_init__(self) -> None:
        checked = self._pruning
        object.__setattr__(self, "keep", checked.keep)
        object.__setattr__(self, "sparsity", checked.sparsity)
        if self.bits is not None:
            value_limits(self.bits)
        for name in ("epochs", "rounding_epochs"):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, Integral) or count < 0:
                raise SettingError(f"{name} is a number of passes over the data, got {count!r}")
            object.__setattr__(self, name, int(count))
        if not isinstance(self.margin, Real) or not self.margin >= 0:
            raise SettingError(f"margin={self.margin}; it must be zero or a positive number")

    def compress(
        self,
        workload: Any,
        loader: Any = None,
        *,
        loss: Any = None,
        optimizer: MakeOptimizer | None = None,
        on_step: StepReport | None = None,
    ) -> CompressionResult:
        """Compress a copy of a workload's model, or of a bare model, and measure every stage.

        `loader` gives batches of (inputs, targets) of training data. `loss` and `optimizer`, a
        function of the parameters, are as for :func:`fine_tune`. `on_step(done, total, loss)` is
        called after each step of the pruning, and then of the rounding, which counts from 1 again;
        it replaces the progress line.
        """
        workload = _as_workload(workload)
        training = _Training(loader, loss, optimizer, on_step)
        self._check_used(training)
        adapter = adapter_for(workload.model, workload.arguments)
        notes: list[str] = []
        skipped: tuple[Skipped, ...] = ()
        with _Scales(workload, adapter, self.margin) as scales:
            original = compressed_state(workload.model)
            scales.weigh("original", workload.model, original)
            pruned, state = workload.model, original
            if self.sparsity > 0:
                plan = self._pruning.plan(workload)
                skipped, notes = plan.skipped, list(plan.notes)
                pruned = self._pruned(workload, training)
                state = compressed_state(pruned)
                scales.weigh("pruned", pruned, state)
            model = pruned
            if self.bits is not None:
                notes += idle_keeps(pruned, self.keep) if self.sparsity == 0 else ()
                state = compressed_state(pruned, bits=self.bits, keep=self.keep)
                state = self._rounded(pruned, state, training, notes)
                model = with_state(pruned, state)
                scales.weigh("quantized", model, state, is_packed=True)
            elif self.sparsity == 0:
                model = adapter.clone(pruned)
            done = ["pruned"] * (self.sparsity > 0) + ["rounded"] * (self.bits is not None)
            if loader is None and done:
                notes.append(f"no training data: {' and '.join(done)} at once")
            return CompressionResult(
                name=workload.name,
                model=model,
                state={name: _apart(each) for name, each in state.items()},
                stages=tuple(scales.stages),
                bound_bytes=bound_bytes(state),
                header_bytes=scales.header_bytes,
                naive_parts=self._naive_parts(scales.stages, original, state, notes),
                baseline_score=scales.baseline_score,
                metric=workload.metric,
                skipped=skipped,
                notes=(*notes, *scales.notes),
            )

    def _check_used(self, training: _Training) -> None:
        """Raise for settings of a training that does not take place."""
        given = {
            "schedule": self.schedule,
            "loss": training.loss,
            "optimizer": training.optimizer,
        }
        unused = [name for name, each in given.items() if each is not None]
        if training.loader is None and unused:
            raise SettingError(
                f"{' and '.join(unused)} without training data would mean nothing; give compress() "
                "a loader, such as a DataLoader or a list of batches"
            )

    @property
    def _pruning(self) -> Prune:
        return Prune(
            sparsity=self.sparsity,
            scope=self.scope,
            score=self.score,
            prune_embeddings=self.prune_embeddings,
            keep=self.keep,
        )

    def _pruned(self, workload: Workload, training: _Training) -> Any:
        """Prune at once, or gradually where there is data to train with."""
        transform, steps = self._pruning, training.steps(self.epochs)
        if not steps:
            return transform.apply(workload, transform.plan(workload))
        pruning = max(1, round(PRUNING_SHARE * steps))
        every = max(1, min(MOST_STEPS_BETWEEN, pruning // FEWEST_PRUNINGS))
        schedule = self.schedule or CubicSchedule(steps=pruning, every=every)
        return fine_tune(
            workload,
            training.loader,
            transform,
            epochs=self.epochs,
            loss=training.loss,
            optimizer=training.optimizer,
            schedule=schedule,
            on_step=training.on_step,
        )

    def _rounded(self, model: Any, state: State, training: _Training, notes: list[str]) -> State:
        """Train with rounded weights where there is data; give the whole numbers that result."""
        steps = training.steps(self.rounding_epochs)
        if not steps:
            return state
        if not isinstance(model, Module):
            notes.append("only models of tinytorch are trained with rounded weights; this was not")
            return state
        return _train_rounded(model, state, training, self.rounding_epochs)

    def _naive_parts(
        self, stages: list[CompressionStage], original: State, state: State, notes: list[str]
    ) -> dict[str, float]:
        """Return the naive compression factors, as if every weight took its share of the file."""
        parts = {}
        pruned = next((each for each in stages if each.name == "pruned"), None)
        if pruned is not None and pruned.sparsity < 1:
            parts["zeros"] = 1 / (1 - pruned.sparsity)
        elif pruned is not None:
            notes.append("all weights are zero: there is no factor for that in the naive product")
        if self.bits is not None:
            names = [name for name, each in state.items() if isinstance(each, QuantizedArray)]
            floats = [original[name] for name in names]
            size = sum(np.size(_plain(each)) for each in floats)
            if size:
                parts["bits"] = 8 * sum(_plain(each).nbytes for each in floats) / size / self.bits
        return parts


@dataclass(frozen=True)
class _Training:
    """What there is to train with."""

    loader: Any
    loss: Any
    optimizer: MakeOptimizer | None
    on_step: StepReport | None

    def __post_init__(self) -> None:
        if self.loader is None:
            return
        check_loader(self.loader)
        if not len(self.loader):
            raise SettingError(
                "training needs batches, and the loader has none; leave it out to compress at once"
            )

    def steps(self, epochs: int) -> int:
        return 0 if self.loader is None else epochs * len(self.loader)


class _Scales:
    """Writes a file for each stage into a folder that is gone afterwards, and evaluates it."""

    def __init__(self, workload: Workload, adapter: Adapter, margin: float) -> None:
        self._workload, self._adapter, self._margin = workload, adapter, margin
        self._folder = tempfile.TemporaryDirectory(prefix="tinytorch-")
        self._baseline: Scores | None = None
        self.stages: list[CompressionStage] = []
        self.header_bytes = 0
        self.notes: list[str] = []
        if workload.evaluate is None:
            self.notes.append(f"{workload.name} has no evaluate(): no accuracy was measured")

    def __enter__(self) -> _Scales:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    @property
    def baseline_score(self) -> float | None:
        return None if self._baseline is None else float(np.mean(self._baseline))

    def weigh(self, name: str, model: Any, state: State, *, is_packed: bool = False) -> None:
        """Add a stage. A packed one is written as whole numbers, others as any checkpoint is."""
        plain, encoded = (Path(self._folder.name) / f"{name}.{kind}" for kind in ("plain", "small"))
        if is_packed:
            write_weights(plain, plain_state(state))
        else:
            self._adapter.save(model, plain)
        write_state(encoded, state)
        file_bytes = encoded.stat().st_size
        kept = sum(each.nbytes for each in describe_weights(encoded).arrays)
        self.header_bytes = file_bytes - kept
        self.stages.append(
            CompressionStage(
                name, sparsity_of(model), plain.stat().st_size, file_bytes, self._evaluated(model)
            )
        )

    def _evaluated(self, model: Any) -> AccuracyComparison | None:
        if self._workload.evaluate is None:
            return None
        scores = scores_of(self._workload, model)
        if self._baseline is None:
            self._baseline = scores
            return None
        return compare_accuracy(
            self._baseline, scores, margin=self._margin, metric=self._workload.metric
        )


# ---------------------------------------------------------------- rounded weights


def _train_rounded(model: Module, state: State, training: _Training, epochs: int) -> State:
    """Train a copy whose weights lie on the grids of a state; give what it ends with.

    Zeros stay zeros, but a weight that is zero throughout was not pruned, and learns. Scales stay
    as they are: whole numbers move.
    """
    twin = adapter_for(model).clone(model)
    tensors = named_tensors(twin)
    grids = {name: each for name, each in state.items() if isinstance(each, QuantizedArray)}
    parameters = [each for each in twin.parameters() if each.requires_grad]
    trained = {id(each) for each in parameters}
    constraints = [
        (tensors[name], _on_grid(grid, tensors[name].data != 0))
        for name, grid in grids.items()
        if id(tensors[name]) in trained and tensors[name].data.any()
    ]
    free = {name for name in grids if not tensors[name].data.any()}
    if not parameters:
        return state
    schedule = None
    if training.optimizer is None:
        moving: Optimizer = Adam(parameters, lr=ROUNDING_RATE)
        schedule = CosineSchedule(ROUNDING_RATE, training.steps(epochs))
    else:
        moving = training.optimizer(parameters)
    with keeping_modes(twin):
        twin.train()
        twin.fit(
            training.loader,
            training.loss,
            ConstrainedOptimizer(moving, constraints),
            epochs,
            schedule=schedule,
            on_step=training.on_step,
        )
    # what was zero throughout had no grid yet
    grids |= {
        name: quantize_weight(tensors[name].data, grids[name].scheme.bits, name=name)
        for name in free
    }
    return {
        name: _whole_numbers(grids[name], tensor.data) if name in grids else tensor.data
        for name, tensor in tensors.items()
    }


def _on_grid(grid: QuantizedArray, kept: Array) -> Project:
    def project(free: Array) -> Array:
        return _whole_numbers(grid, np.where(kept, free, 0)).dequantize()

    return project


def _whole_numbers(grid: QuantizedArray, values: Array) -> QuantizedArray:
    """Return the values of a grid that are nearest to some floats."""
    lowest, highest = value_limits(grid.scheme.bits, grid.scheme.symmetric)
    whole = np.clip(np.rint(values / grid.scale), lowest, highest).astype(np.int8)
    return replace(grid, values=whole)


def _plain(each: Array | QuantizedArray) -> Array:
    return each.values if isinstance(each, QuantizedArray) else each


def _apart(each: Array | QuantizedArray) -> Array | QuantizedArray:
    """Return a copy of a float array: models may be trained on, the result must not change."""
    return each if isinstance(each, QuantizedArray) else each.copy()


def _as_workload(given: Any) -> Workload:
    """Wrap a bare model in a workload without inputs, for where no data is needed."""
    if isinstance(given, Workload):
        return given
    return Workload(type(given).__name__, given, ())


# ---------------------------------------------------------------- the classic names: pruning and
# compressing in one call. Thin layers over the parts beside this
#
# `magnitude_prune` and `structured_prune` change the model that they are given, as they always did;
# everything else leaves its input alone.


def measure_sparsity(model: Any) -> float:
    """Return the percentage of a model's weights that are zero, 0 to 100.

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
    adapter = adapter_for(model)
    named = weights_of(model)
    scores = [weight_scores(_ranked(name, adapter.values(each))) for name, each in named.items()]
    sizes = [math.prod(each.shape) for each in scores]
    most = sum(
        max(size - 1, int((each < 0).sum())) for size, each in zip(sizes, scores, strict=True)
    )
    counts = share_out(scores, min(round(sparsity * sum(sizes)), most))
    for weight, each, count in zip(named.values(), scores, counts, strict=True):
        set_zero(adapter, weight, smallest(each, count))
    return model


def structured_prune(model: Any, prune_ratio: float = 0.5) -> Any:
    """Set whole outputs of linear layers and convolutions to zero, **in place**; give the model.

    In each layer these are `prune_ratio` of its outputs, those whose weights have the smallest L2
    norm: columns of a linear layer's weight, kernels of a convolution, with their biases. One
    output always stays. The shapes stay, too: ``StructuredPruner`` really removes channels, and
    never the outputs of the model.
    """
    _check_ratio("prune_ratio", prune_ratio)
    adapter = adapter_for(model)
    chosen_layers: dict[int, tuple[Any, LayerKind]] = {}
    for path, layer in adapter.modules(model).items():
        kind = kind_of(layer)
        if kind is not None and not kind.is_table:
            _ranked(f"{path}.weight", adapter.values(layer.weight))
            chosen_layers.setdefault(id(layer.weight), (layer, kind))
    for layer, kind in chosen_layers.values():
        weight = adapter.values(layer.weight)
        xp = namespace_of(weight)
        outputs = xp.moveaxis(weight, kind.output_axis, 0)
        rows = xp.asarray(outputs.reshape(len(outputs), -1), dtype=xp.float64)
        norms = xp.linalg.norm(rows, axis=1)
        weakest = smallest(norms, max(0, min(round(prune_ratio * len(norms)), len(norms) - 1)))
        chosen = xp.zeros_like(weight, dtype=xp.bool)
        xp.moveaxis(chosen, kind.output_axis, 0)[weakest] = True
        set_zero(adapter, layer.weight, chosen)
        if layer.bias is not None:
            set_zero(adapter, layer.bias, weakest)
    return model


@dataclass
class MagnitudePruner:
    """Makes pruned copies: of all weights of a model, the `sparsity` smallest are zero.

    `masks` are those of the last model that was pruned: ``pruner.masks.apply(model)`` sets the same
    weights to zero again, for example after a step of training.
    """

    sparsity: float = 0.5
    masks: Masks | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_sparsity(self.sparsity)

    def prune(self, model: Any) -> Any:
        """Return a pruned copy of a model, as `magnitude_prune` would make it."""
        pruned = magnitude_prune(adapter_for(model).clone(model), self.sparsity)
        named = weights_of(pruned).items()
        self.masks = Masks.of(pruned, [name for name, _ in named])
        return pruned


@dataclass
class StructuredPruner:
    """Makes smaller models: `ratio` of the channels are removed, with all that belongs to them.

    It is ``RemoveChannels(ratio=...)`` in one call; `plan` says what the last call removed.
    """

    ratio: float = 0.5
    plan: Plan | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_ratio("ratio", self.ratio)

    def prune(self, model: Any, example_inputs: Any) -> Any:
        """Return a smaller copy; channels are followed through a call on the example inputs."""
        inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
        transform = RemoveChannels(ratio=self.ratio)
        workload = Workload(type(model).__name__, model, inputs)
        self.plan = transform.plan(workload)
        return transform.apply(workload, self.plan)


def compress_model(model: Any, config: Mapping[str, float]) -> tuple[Any, dict[str, Any]]:
    """Return a compressed copy of a model, and a report.

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
    """Return the steps of a configuration in their order."""
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


def _ranked(name: str, weight: Any) -> Any:
    """Return a weight if there is a smallest and a largest of its numbers."""
    if not namespace_of(weight).isfinite(weight).all():
        raise SettingError(
            f"{name.lstrip('.')!r} holds NaN or infinity, which cannot be ranked; fix it before"
        )
    return weight
