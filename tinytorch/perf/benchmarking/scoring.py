"""How good are a model's outputs: a score for each example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.adapters.adapter import Adapter, adapter_for
from tinytorch.errors import ModelError
from tinytorch.perf.benchmarking.examples import Examples
from tinytorch.perf.benchmarking.model_inputs import fitted_inputs
from tinytorch.workloads.workload import call_model

__all__ = ["ACCURACY", "NEGATIVE_ERROR", "Scored", "main_output", "score_examples", "score_outputs"]

ACCURACY = "accuracy"
NEGATIVE_ERROR = "negative mean squared error"

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Scored:
    """A score for each example, higher is better, and what their mean is called."""

    metric: str
    scores: tuple[float, ...]
    notes: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))


def score_examples(model: Any, examples: Examples) -> Scored:
    """Run a model on all examples and score each.

    A model of a framework must be in the mode in which it is to be judged. See
    :func:`score_outputs` for what a score is.
    """
    adapter = adapter_for(model, examples.batches[0].inputs)
    metric, scores, broken = "", [], 0
    for batch in examples.batches:
        assert batch.targets is not None
        inputs = fitted_inputs(model, batch.inputs)
        with adapter.naming_failures(model):
            given = call_model(model, *inputs)
        outputs = main_output(adapter, given)
        batch_metric, batch_scores = score_outputs(outputs, batch.targets)
        if metric not in ("", batch_metric):
            raise ModelError(f"one batch is scored by {metric}, another by {batch_metric}")
        metric = batch_metric
        scores.append(batch_scores)
        broken += _count_broken(outputs)
    together = np.concatenate(scores)
    notes = (f"{broken} of {len(together)} outputs are not finite",) if broken else ()
    return Scored(metric, tuple(together.tolist()), notes)


def score_outputs(outputs: Array, targets: Array) -> tuple[str, npt.NDArray[np.float64]]:
    """Give the name of the metric, and a score for each example of a batch.

    **Class numbers** (whole numbers, with one output per class on the last axis, or on the second
    as images have it): `accuracy`, 1 where the largest output is the target, else 0; of several
    targets per example, such as characters of a text, the share. Targets may be one-hot, and
    outputs may be whole numbers: predicted classes. Where an output is NaN, the answer is wrong.

    **Everything else** with outputs shaped as targets: `negative mean squared error`, which is no
    accuracy and has its own name.
    """
    if not outputs.ndim or len(outputs) != len(targets):
        raise ModelError(f"the model gave outputs {outputs.shape} for {len(targets)} examples")
    predicted, wanted = _classes(outputs, targets)
    if predicted is not None:
        hits = (predicted == wanted).reshape(len(targets), -1)
        return ACCURACY, hits.mean(axis=1, dtype=np.float64)
    if outputs.size != targets.size or outputs.dtype.kind not in "fiub":
        raise ModelError(
            f"outputs {outputs.shape} {outputs.dtype} do not fit targets {targets.shape}: give "
            "class numbers with one output for each class, or values of the shape of the outputs"
        )
    differences = outputs.astype(np.float64).reshape(len(targets), -1)
    differences = differences - targets.astype(np.float64).reshape(len(targets), -1)
    if not np.isfinite(differences).all():
        raise ModelError("outputs or targets are not finite, so there is no squared error")
    return NEGATIVE_ERROR, -np.mean(differences**2, axis=1)


def _classes(outputs: Array, targets: Array) -> tuple[Array | None, Array]:
    """Give predicted and wanted classes; None where the targets are no classes."""
    if not (targets == np.round(targets)).all():
        return None, targets
    if outputs.shape == targets.shape and _is_one_hot(targets):
        targets = targets.argmax(axis=-1)
    if targets.ndim == outputs.ndim and targets.shape[-1] == 1 < outputs.shape[-1]:
        targets = targets[..., 0]  # a column of class numbers
    if outputs.ndim == targets.ndim + 1:
        axis = _class_axis(outputs.shape, targets.shape)
        if axis is not None and outputs.shape[axis] > 1:
            return _largest(outputs, axis), targets
    if outputs.shape == targets.shape and outputs.dtype.kind in "iub" and targets.dtype.kind != "f":
        return outputs, targets
    if targets.dtype.kind == "f":
        return None, targets
    raise ModelError(
        f"integer targets {targets.shape} are class numbers, and outputs {outputs.shape} "
        f"{outputs.dtype} do not say which class they mean: give one output for each class, or "
        "predicted classes as integers; for regression, give targets as floats"
    )


def _class_axis(outputs: tuple[int, ...], targets: tuple[int, ...]) -> int | None:
    if outputs[:-1] == targets:
        return -1
    if outputs[:1] + outputs[2:] == targets:
        return 1
    return None


def _largest(outputs: Array, axis: int) -> Array:
    """Give the class of the largest output; -1, which is no class, where one is not a number."""
    return np.where(np.isnan(outputs).any(axis=axis), -1, outputs.argmax(axis=axis))


def _is_one_hot(targets: Array) -> bool:
    if targets.ndim < 2 or targets.shape[-1] < 2:
        return False
    return bool(np.isin(targets, (0, 1)).all() and (targets.sum(axis=-1) == 1).all())


def _count_broken(outputs: Array) -> int:
    if outputs.dtype.kind != "f":
        return 0
    return int((~np.isfinite(outputs.reshape(len(outputs), -1))).any(axis=1).sum())


def main_output(adapter: Adapter, output: Any) -> Array:
    """Give the array to score: the logits where an output names them, else the first one."""
    if isinstance(output, Mapping) and "logits" in output:
        output = output["logits"]
    if isinstance(output, list) and not any(hasattr(each, "shape") for each in output):
        output = np.array(output)  # rows of plain numbers
    arrays = adapter.arrays(output)
    if not arrays:
        raise ModelError(f"the model returned a {type(output).__name__}, which holds no numbers")
    return arrays[0]
