"""Examples to measure models on, from the many forms in which people hold them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.core.dataloader import DataLoader
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.errors import ModelError, SettingError
from tinytorch.models.adapter import Adapter, adapter_for, owner_of, rebuilt
from tinytorch.models.workload import call_model

EVALUATION_BATCH = 250
"""Whole arrays are evaluated in batches of this size."""
TIMED_EXAMPLES = 32
"""Default batch size of a timed call on whole arrays."""
FORMS = (
    "(inputs, targets), a TensorDataset, a DataLoader, a list of batches, or a dictionary with "
    '"inputs" and "targets"'
)

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Batch:
    """The arguments of one call of a model, and what it should give."""

    inputs: tuple[Any, ...]
    targets: Array | None

    @property
    def size(self) -> int | None:
        """Number of examples; None where the inputs have no axis in common."""
        lengths = {_length(value) for value in self.inputs}
        return lengths.pop() if len(lengths) == 1 else None

    def part(self, start: int, stop: int) -> Batch:
        """Return examples `start` to `stop`."""
        targets = None if self.targets is None else self.targets[start:stop]
        return Batch(tuple(_rows(value, start, stop) for value in self.inputs), targets)


@dataclass(frozen=True)
class Examples:
    """Batches of examples, always the same ones in the same order.

    `is_one_piece` tells that they came as whole arrays and were cut here.
    """

    batches: tuple[Batch, ...]
    is_one_piece: bool = False

    @property
    def has_targets(self) -> bool:
        return all(batch.targets is not None for batch in self.batches)

    def timed_inputs(self, batch_size: int | None = None) -> tuple[Any, ...]:
        """Return the arguments of the timed call.

        That is the first batch, and of whole arrays the first 32 examples; `batch_size` takes so
        many of the first batch instead.
        """
        first = self.batches[0]
        if batch_size is None:
            batch_size = TIMED_EXAMPLES if self.is_one_piece else None
        elif first.size is None or batch_size > first.size:
            raise SettingError(
                f"batch_size={batch_size}, but the first batch has {first.size or 'no'} examples"
            )
        return first.inputs if batch_size is None else first.part(0, batch_size).inputs


def read_examples(source: Any) -> Examples:
    """Read examples in any of these forms.

    - ``(inputs, targets)``: arrays, tensors or lists; `inputs` may be a tuple for several arguments
    - a `TensorDataset`, of TinyTorch or PyTorch: the last tensor holds the targets
    - a `DataLoader`, of either, or any iterable of such batches or of single examples
    - a dictionary with ``"inputs"`` and, where there are any, ``"targets"``
    - an array, a tensor or a nested list of numbers alone: inputs without targets

    A loader is gone through once, and what it gives is kept, so that every model sees the same.
    """
    if isinstance(source, Examples):
        return source
    examples = _read(source)
    if not examples.batches or not all(batch.size != 0 for batch in examples.batches):
        raise SettingError("the data holds no example; there is nothing to measure on")
    for batch in examples.batches:
        _check_lengths(batch)
    if len({batch.targets is None for batch in examples.batches}) > 1:
        raise SettingError("some batches have targets and some have none; give all or none")
    return examples


def _read(source: Any) -> Examples:
    tensors = getattr(source, "tensors", None)
    if isinstance(source, Mapping):
        return _whole(*_parts_of_mapping(source))
    if isinstance(tensors, (tuple, list)) and tensors:
        inputs, targets = tuple(tensors[:-1]), tensors[-1]
        return _whole(inputs, targets) if inputs else _whole(targets, None)
    if _is_array(source) or _is_nested_list(source):
        return Examples((_batch(source, None),))
    if _is_pair(source):
        return _whole(source[0], source[1])
    return _from_items(_items_of(source))


def _is_pair(source: Any) -> bool:
    """Return whether a pair is inputs and targets, rather than two batches."""
    if not isinstance(source, (tuple, list)) or len(source) != 2:
        return False
    if isinstance(source, list):
        return all(_is_array(each) for each in source)
    return not all(isinstance(each, (tuple, Mapping)) for each in source)


def _parts_of_mapping(source: Mapping[Any, Any]) -> tuple[Any, Any]:
    if "inputs" not in source:
        raise SettingError(
            f'a dictionary of data needs "inputs" and "targets"; this one has '
            f"{', '.join(map(repr, source)) or 'nothing'}"
        )
    return source["inputs"], source.get("targets")


def _items_of(source: Any) -> list[Any]:
    if isinstance(source, (str, bytes)):
        raise SettingError(f"{source!r} is a text and no data; give {FORMS}")
    if not hasattr(source, "__iter__") and hasattr(source, "__getitem__"):
        return [source[index] for index in range(len(source))]
    try:
        with _keeping_epoch(source):
            return list(source)
    except TypeError as error:
        raise SettingError(
            f"a {type(source).__name__} holds no examples ({error}); give {FORMS}"
        ) from None


@contextmanager
def _keeping_epoch(source: Any) -> Iterator[None]:
    """Keep the epoch of a TinyTorch loader, which determines its order."""
    epoch = source.epoch if isinstance(source, DataLoader) else None
    try:
        yield
    finally:
        if epoch is not None:
            source.epoch = epoch


def _from_items(items: list[Any]) -> Examples:
    batches = [_batch(*_parts_of_item(item)) for item in items]
    are_single = [batch.targets is not None and batch.targets.ndim == 0 for batch in batches]
    if batches and all(are_single):
        return _stacked(batches)
    return Examples(tuple(batches))


def _parts_of_item(item: Any) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        return _parts_of_mapping(item)
    if isinstance(item, (tuple, list)):
        if not item:
            raise SettingError(f"an empty batch; give {FORMS}")
        return (tuple(item[:-1]), item[-1]) if len(item) > 1 else (tuple(item), None)
    if _is_array(item):
        return item, None
    raise SettingError(f"a batch is a {type(item).__name__}; give (inputs, targets) for each")


def _stacked(examples: list[Batch]) -> Examples:
    """Stack single examples into batches."""
    try:
        columns = zip(*(batch.inputs for batch in examples), strict=True)
        inputs = tuple(np.stack([_as_array(value) for value in column]) for column in columns)
    except ValueError as error:
        raise SettingError(
            f"the examples differ in shape, so they make no batch: {error}"
        ) from None
    return _whole(
        inputs, np.stack([batch.targets for batch in examples if batch.targets is not None])
    )


def _whole(inputs: Any, targets: Any) -> Examples:
    """Cut whole arrays into batches."""
    everything = _batch(inputs, targets)
    _check_lengths(everything)
    count = everything.size
    if count is None or targets is None:
        return Examples((everything,))
    starts = range(0, count, EVALUATION_BATCH)
    return Examples(
        tuple(everything.part(start, start + EVALUATION_BATCH) for start in starts),
        is_one_piece=True,
    )


def _batch(inputs: Any, targets: Any) -> Batch:
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    values = tuple(each if _is_array(each) else _as_array(each) for each in arguments)
    return Batch(values, None if targets is None else _checked_targets(targets))


def _checked_targets(targets: Any) -> Array:
    array = _as_array(targets)
    if array.dtype.kind not in "biuf":
        raise SettingError(
            f"targets of dtype {array.dtype} cannot be scored; give class numbers or values"
        )
    return array


def _check_lengths(batch: Batch) -> None:
    if batch.targets is None:
        return
    lengths = [_length(value) for value in batch.inputs]
    wanted = len(batch.targets) if batch.targets.ndim else None
    if any(length != wanted for length in lengths):
        shapes = [tuple(getattr(value, "shape", ())) for value in batch.inputs]
        raise SettingError(
            f"inputs {shapes} and targets {batch.targets.shape} differ in the number of examples"
        )


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _is_nested_list(value: Any) -> bool:
    """Return whether this is a nested list of plain numbers."""
    first = value
    while isinstance(first, list) and first:
        first = first[0]
    return isinstance(value, list) and isinstance(first, (int, float))


def _length(value: Any) -> int | None:
    shape = tuple(value.shape)
    return int(shape[0]) if shape else None


def _rows(value: Any, start: int, stop: int) -> Any:
    return Tensor(value.data[start:stop]) if isinstance(value, Tensor) else value[start:stop]


def _as_array(value: Any) -> Array:
    """Convert a tensor, an array or a list to an array; Python floats become float32."""
    if isinstance(value, Tensor):
        return value.data
    if hasattr(value, "detach"):  # PyTorch, also on another device
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        return np.asarray(value)
    try:
        is_list = isinstance(value, (list, tuple)) and any(_is_array(each) for each in value)
        array = np.stack([_as_array(each) for each in value]) if is_list else np.asarray(value)
    except ValueError as error:
        raise SettingError(f"the data makes no array: {error}") from None
    if array.dtype.kind == "O":
        raise SettingError(
            f"the data makes no array: it holds {type(value).__name__}; give {FORMS}"
        )
    has_dtype = is_list or isinstance(value, (np.ndarray, np.generic))
    is_python_float = array.dtype == np.float64 and not has_dtype
    return array.astype(np.float32) if is_python_float else array


# ---------------------------------------------------------------- what a model is called with:
# inputs of a shape, its own example, or arrays made to fit it


def own_example(model: Any) -> tuple[Any, ...]:
    """Return the inputs that a model declares itself.

    That is its `example_inputs` (a value, or a method without arguments), or else one example of
    the size that its first layer with a size takes.
    """
    owner = owner_of(model)
    told = getattr(owner, "example_inputs", None)
    if told is not None:
        told = told() if callable(told) else told
        return told if isinstance(told, tuple) else (told,)
    adapter = adapter_for(model)
    for layer in adapter.modules(model).values():
        for attribute, shape_for in FIRST_LAYERS.items():
            size = getattr(layer, attribute, None)
            if isinstance(size, int):
                return (adapter.example(shape_for(owner, layer, size), model),)
    raise SettingError(
        f"{type(owner).__name__} does not tell what it takes: no layer has a size for its input; "
        "give it inputs, such as measure_performance(model, x)"
    )


def _of_features(owner: Any, layer: Any, size: int) -> tuple[int, ...]:
    return (1, size)


def _of_tokens(owner: Any, layer: Any, size: int) -> tuple[int, ...]:
    context = getattr(owner, "max_seq_len", None)
    if not isinstance(context, int):
        raise SettingError(
            f"{type(owner).__name__} reads tokens, and has no max_seq_len that tells how many; "
            "give it inputs, such as measure_performance(model, ids)"
        )
    return (1, context)


def _of_images(owner: Any, layer: Any, size: int) -> tuple[int, ...]:
    raise SettingError(
        f"{type(owner).__name__} begins with a convolution of {size} channels, which takes images "
        "of any height and width; give it inputs, such as measure_performance(model, images)"
    )


FIRST_LAYERS: dict[str, Callable[[Any, Any, int], tuple[int, ...]]] = {
    "in_features": _of_features,
    "num_embeddings": _of_tokens,
    "in_channels": _of_images,
}
"""What tells the size of a layer's input, and the shape that follows for one example."""


def fitted_inputs(model: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert arrays and tensors to the framework of the model, floats to its dtype.

    A plain function or object, which is of no framework, gets what it was given.
    """
    adapter = adapter_for(model)
    modules = adapter.modules(model)
    if adapter.name == "pytorch":
        fitted: tuple[Any, ...] = rebuilt(
            inputs, lambda value: torch_input(value, modules.values())
        )
        return fitted
    if any(isinstance(module, Module) for module in modules.values()):
        dtype = _floating_dtype(adapter, model)
        fitted = rebuilt(inputs, lambda value: _core_input(value, dtype))
        return fitted
    return inputs


def torch_input(value: Any, modules: Iterable[Any]) -> Any:
    """Return an array as a tensor of PyTorch where the model is, floats in its dtype.

    Tensors of PyTorch stay as they are: their owner has chosen dtype and device.
    """
    torch = sys.modules["torch"]
    array = value.data if isinstance(value, Tensor) else value
    if isinstance(array, torch.Tensor) or not isinstance(array, np.ndarray):
        return value
    tensor = torch.from_numpy(np.array(array))  # a copy, since PyTorch warns of read-only memory
    home = _home(modules)
    if tensor.is_floating_point() and home.is_floating_point():
        tensor = tensor.to(home.dtype)
    return tensor.to(home.device)


def _home(modules: Iterable[Any]) -> Any:
    """Return the first floating-point parameter or buffer of a model, or else any of them."""
    torch = sys.modules["torch"]
    held = [
        tensor
        for module in modules
        if isinstance(module, torch.nn.Module)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    ]
    floating = [tensor for tensor in held if tensor.is_floating_point()]
    return next(iter((*floating, *held)), torch.empty(0))


def _floating_dtype(adapter: Adapter, model: Any) -> np.dtype[Any] | None:
    """Return the dtype of the first floating-point tensor in a model."""
    for layer in adapter.modules(model).values():
        for value in getattr(layer, "__dict__", {}).values():
            if isinstance(value, Tensor) and value.data.dtype.kind == "f":
                return value.data.dtype
    return None


def _core_input(value: Any, dtype: np.dtype[Any] | None) -> Any:
    """Convert an array or a PyTorch tensor to a TinyTorch tensor; leave other values alone."""
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if not isinstance(value, np.ndarray):
        return value
    is_other_float = value.dtype.kind == "f" and dtype is not None and value.dtype != dtype
    return Tensor(value.astype(dtype) if is_other_float else value)


# ---------------------------------------------------------------- how good are a model's outputs:
# a score for each example

ACCURACY = "accuracy"
NEGATIVE_ERROR = "negative mean squared error"


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
    """Return the name of the metric, and a score for each example of a batch.

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
    """Return predicted and target classes; None for the first where targets are not classes."""
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
    """Return the argmax of the outputs; -1, which is no class, where one is NaN."""
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
    """Return the array to score: the logits where an output names them, else the first one."""
    if isinstance(output, Mapping) and "logits" in output:
        output = output["logits"]
    if isinstance(output, list) and not any(hasattr(each, "shape") for each in output):
        output = np.array(output)  # rows of plain numbers
    arrays = adapter.arrays(output)
    if not arrays:
        raise ModelError(f"the model returned a {type(output).__name__}, which holds no numbers")
    return arrays[0]
