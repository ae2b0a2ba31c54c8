"""ModelCompressor: prune, quantize, encode, and weigh what comes out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch.adapters.adapter import Adapter, adapter_for
from tinytorch.adapters.core_tensors import named_tensors
from tinytorch.comparison.accuracy import AccuracyComparison, compare_accuracy
from tinytorch.core.backends import Array
from tinytorch.core.module import Module, keeping_modes
from tinytorch.core.optimizers import Adam, Optimizer
from tinytorch.core.tensor import Tensor
from tinytorch.core.training import CosineSchedule
from tinytorch.errors import SettingError
from tinytorch.formats.affine import QuantizedArray, value_limits
from tinytorch.formats.weights_file import describe_weights, write_weights
from tinytorch.perf.compression.compressed_model import (
    State,
    compressed_state,
    idle_keeps,
    plain_state,
    quantize_weight,
    with_state,
    write_state,
)
from tinytorch.perf.compression.compression_result import (
    CompressionResult,
    CompressionStage,
    bound_bytes,
)
from tinytorch.perf.compression.constrained_training import ConstrainedOptimizer, Project
from tinytorch.perf.compression.evaluation import scores_of
from tinytorch.perf.compression.fine_tuning import fine_tune
from tinytorch.perf.compression.prune import Prune
from tinytorch.perf.compression.sparsity import sparsity_of
from tinytorch.perf.compression.sparsity_schedules import CubicSchedule, SparsitySchedule
from tinytorch.workloads.plan import Skipped
from tinytorch.workloads.training_checks import check_loader
from tinytorch.workloads.workload import Scores, Workload

__all__ = ["ModelCompressor"]

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
        """Give the factors that one multiplies who takes every weight for its share of the file."""
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
    """Give the values of a grid that are nearest to some floats."""
    lowest, highest = value_limits(grid.scheme.bits, grid.scheme.symmetric)
    whole = np.clip(np.rint(values / grid.scale), lowest, highest).astype(np.int8)
    return replace(grid, values=whole)


def _plain(each: Array | QuantizedArray) -> Array:
    return each.values if isinstance(each, QuantizedArray) else each


def _apart(each: Array | QuantizedArray) -> Array | QuantizedArray:
    """Give an array in memory of its own: models may be trained on, the result stays."""
    return each if isinstance(each, QuantizedArray) else each.copy()


def _as_workload(given: Any) -> Workload:
    """Take a bare model for a workload without inputs, which is enough where no data is needed."""
    if isinstance(given, Workload):
        return given
    return Workload(type(given).__name__, given, ())
