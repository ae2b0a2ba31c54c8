"""A model as one small file: whole numbers, zeros left out, everything in as few bits as it needs.

The file is the one of :mod:`tinytorch.formats.weights_file` with compact encodings, and has the
names and shapes that the model has. It holds no code and no structure: `load_compressed` takes a
model that was built anew, and gives a copy of it with the weights of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch.core.kernels import Array
from tinytorch.errors import CheckpointError, SettingError, TinyTorchError
from tinytorch.formats.affine import QuantizedArray, Scheme, quantize_array, value_limits
from tinytorch.formats.weights_file import read_weights, write_weights
from tinytorch.models.adapter import adapter_for
from tinytorch.models.core import named_tensors
from tinytorch.transforms.prune.layers import find_prunables
from tinytorch.transforms.support.observing import checked_patterns, idle_patterns
from tinytorch.transforms.support.trimming import let_layers_know
from tinytorch.transforms.support.weights import why_not_resized

State = Mapping[str, Array | QuantizedArray]
"""What a file holds of a model: arrays by the names of its tensors, some of them whole numbers."""

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
"""The 16 bits of bfloat16, which NumPy does not have."""

OWN = "own"
"""Where the metadata of the file has what the caller wants to keep."""
SHORT_FLOATS = "bfloat16"
"""Where it has the names of arrays that hold the bits of bfloat16, as U16."""
MOST_PROBLEMS = 5


def save_compressed(
    path: str | Path,
    model: Any,
    *,
    bits: int | None = None,
    keep: Iterable[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> int:
    """Write a model of TinyTorch or PyTorch to one file, atomically; returns the bytes written.

    With `bits` (8 or 4) the weights of linear layers, convolutions and embeddings are rounded to
    whole numbers with one scale each, but for layers that match a pattern of `keep`; biases, norms
    and all other numbers stay as they are. (One scale for each output leaves less error, but takes
    more bytes: on the zoo 12% to 17%, at the same accuracy with 8 bits or with training.) Without
    `bits` everything comes back bit for bit, also bfloat16; zeros still take next to no room.
    """
    keep = checked_patterns(keep)
    if bits is not None and (idle := idle_keeps(model, keep)):
        raise SettingError("; ".join(idle))
    return write_state(path, compressed_state(model, bits=bits, keep=keep), metadata)


def load_compressed(
    path: str | Path, model: Any, *, resize: bool = False
) -> tuple[Any, dict[str, Any]]:
    """Return a copy of a model with the weights of a file, and the metadata saved with them.

    The model says what the structure is, for example one that was just built; its own weights do
    not matter, and it is not changed. The copy holds exactly what the file stands for, in the
    dtypes of the model: floats are rounded where those are narrower, and it is an error if one is
    beyond them; other numbers must have the dtype of the file.

    A model whose channels were removed has the same layers, but smaller ones. With `resize`, layers
    of the copy become as small as those of the file; without, that is an error, because it could as
    well be the file of another model. Layers that a transform has replaced by others (LowRank,
    SparseLayers) have other names: apply the same transform before.
    """
    file = read_weights(path)
    own = file.metadata.get(OWN, {})
    if set(file.metadata) - {OWN, SHORT_FLOATS} or not isinstance(own, dict):
        hint = "; load_quantized() reads files of save_quantized()" * ("mode" in file.metadata)
        raise CheckpointError(
            f"{path} is no file of save_compressed(): its metadata has "
            f"{', '.join(map(repr, sorted(file.metadata)))}{hint}"
        )
    try:
        state = _with_short_floats(file.arrays, file.metadata.get(SHORT_FLOATS, []))
        return with_state(model, state, resize=resize), dict(own)
    except CheckpointError as error:
        raise CheckpointError(f"{path} does not fit {type(model).__name__}: {error}") from error


def compressed_state(model: Any, *, bits: int | None = None, keep: Iterable[str] = ()) -> State:
    """Return what a file holds of a model; layers that match a pattern of `keep` stay in floats."""
    if bits is not None:
        value_limits(bits)
    keep = checked_patterns(keep)
    if adapter_for(model).name == "pytorch":
        from tinytorch.transforms.compressed_file.torch import torch_arrays

        arrays = torch_arrays(model)
    else:
        arrays = {name: tensor.data for name, tensor in named_tensors(model).items()}
    if not arrays:
        raise SettingError(f"{type(model).__name__} holds no numbers that a file could keep")
    if bits is None:
        return arrays
    weights = _weight_names(model, keep)
    return {
        name: quantize_weight(array, bits, name=name) if name in weights else array
        for name, array in arrays.items()
    }


def idle_keeps(model: Any, keep: Sequence[str]) -> tuple[str, ...]:
    """Return a note for each pattern that keeps no layer from being rounded."""
    if not keep:
        return ()
    paths = [path for each in find_prunables(model, embeddings=True)[0] for path in each.layers]
    return idle_patterns(keep, paths, change="rounded")


def quantize_weight(weight: Array, bits: int, *, name: str = "") -> QuantizedArray:
    """Round a weight to whole numbers with one scale; with 4 bits, that of the least error."""
    try:
        return quantize_array(
            as_floats(weight),
            Scheme(bits=bits, symmetric=True),
            fit="mse" if bits == 4 else "range",
        )
    except TinyTorchError as error:
        raise type(error)(f"weight {name!r}: {error}") from error


def write_state(path: str | Path, state: State, metadata: Mapping[str, Any] | None = None) -> int:
    """Write what :func:`compressed_state` gave; returns the bytes written."""
    short = [name for name, each in state.items() if _plain(each) is not each]
    contents: dict[str, Any] = {OWN: dict(metadata)} if metadata else {}
    contents |= {SHORT_FLOATS: sorted(short)} if short else {}
    return write_weights(path, plain_state(state), contents, compact=True)


def plain_state(state: State) -> State:
    """Return a state as a weights file takes it: the bits of bfloat16 are whole numbers there."""
    return {name: _plain(each) for name, each in state.items()}


def as_floats(array: Array) -> Array:
    """Return the numbers that the bits of bfloat16 stand for; other arrays as they are."""
    if array.dtype != BFLOAT16:
        return array
    wide = np.asarray(array.view(np.uint16).astype(np.uint32) << np.uint32(16))
    return wide.view(np.float32)


def _with_short_floats(state: State, names: Any) -> State:
    """Return a state of a file with those arrays as bfloat16 that its metadata says are."""
    found: dict[str, Any] = dict(state)
    for name in names if isinstance(names, list) else [names]:
        each = found.get(name) if isinstance(name, str) else None
        if not isinstance(each, np.ndarray) or each.dtype != np.uint16:
            raise CheckpointError(f"its metadata says that {name!r} holds bfloat16; it does not")
        found[name] = each.view(BFLOAT16)
    return found


def _plain(each: Array | QuantizedArray) -> Array | QuantizedArray:
    if isinstance(each, QuantizedArray) or each.dtype != BFLOAT16:
        return each
    return each.view(np.uint16)


def with_state(model: Any, state: State, *, resize: bool = False) -> Any:
    """Return a copy of a model that holds what a state stands for; raise unless everything fits."""
    arrays = {
        name: each.dequantize() if isinstance(each, QuantizedArray) else each
        for name, each in state.items()
    }
    adapter = adapter_for(model)
    twin = adapter.clone(model)
    if adapter.name == "pytorch":
        from tinytorch.transforms.compressed_file.torch import fill_torch

        if resize:
            raise SettingError(
                "layers of PyTorch are not resized; build the smaller model, for example with "
                "RemoveChannels and the same settings, and load into that"
            )
        fill_torch(twin, arrays)
        return twin
    arrays = {name: as_floats(array) for name, array in arrays.items()}
    tensors = named_tensors(twin)
    check_fits(arrays, tensors, resize=resize)
    resized = [name for name, tensor in tensors.items() if arrays[name].shape != tensor.shape]
    reason = why_not_resized(twin, {name: arrays[name] for name in resized})
    if reason:
        raise CheckpointError(reason)
    with np.errstate(over="ignore"):
        cast = {name: arrays[name].astype(tensor.dtype) for name, tensor in tensors.items()}
    raise_problems(
        [
            problem
            for name, array in cast.items()
            for problem in beyond_reach(name, arrays[name], np.isinf(array), str(array.dtype))
        ]
    )
    for name, tensor in tensors.items():
        tensor.data = cast[name]
        tensor.grad = None
    if resized:
        let_layers_know(twin)
    return twin


def _can_hold(wanted: Any, given: np.dtype[Any]) -> bool:
    """Floats of other widths are converted; whole numbers must be the same."""
    return bool(wanted.kind == given.kind == "f" or wanted == given)


def check_fits(
    arrays: Mapping[str, Array],
    tensors: Mapping[str, Any],
    *,
    resize: bool | None = None,
    can_hold: Callable[[Any, np.dtype[Any]], bool] = _can_hold,
) -> None:
    """Raise unless each tensor has an array of its kind and, if not resized, its shape.

    `resize` is None where it cannot be asked for. `can_hold` tells whether a tensor of a dtype can
    take the numbers of an array.
    """
    problems = [
        f"the file has {name!r}, the model does not" for name in arrays if name not in tensors
    ]
    is_smaller = False
    for name, tensor in tensors.items():
        array, shape = arrays.get(name), tuple(tensor.shape)
        if array is None:
            problems.append(f"the model has {name!r}, the file does not")
        elif not can_hold(tensor.dtype, array.dtype):
            problems.append(f"{name!r} holds {array.dtype}, the model needs {tensor.dtype}")
        elif array.shape != shape and not resize:
            problems.append(f"{name!r} has shape {array.shape}, the model needs {shape}")
            is_smaller = resize is not None
    hint = "; resize=True makes layers as small as those of the file" if is_smaller else ""
    raise_problems(problems, hint)


def beyond_reach(name: str, wide: Array, is_infinite: Array, dtype: str) -> list[str]:
    """Return what to say if floats became infinite in a dtype that does not reach so far."""
    if wide.dtype.kind != "f":
        return []
    lost = is_infinite & ~np.isinf(wide)
    return [f"{name!r} holds {wide[lost][0]:g}, beyond {dtype}"] if lost.any() else []


def raise_problems(problems: Sequence[str], hint: str = "") -> None:
    """Raise if there are problems with a file; of many, some are named."""
    if problems:
        more = len(problems) - MOST_PROBLEMS
        rest = f"; and {more} more" if more > 0 else ""
        raise CheckpointError("; ".join(problems[:MOST_PROBLEMS]) + rest + hint)


def _weight_names(model: Any, keep: tuple[str, ...]) -> set[str]:
    """Return the weights of layers that take whole numbers, under all of their names."""
    prunables, _ = find_prunables(model, keep=keep, embeddings=True)
    found = [each for each in prunables if not each.is_left]
    if adapter_for(model).name == "pytorch":
        from tinytorch.transforms.compressed_file.torch import without_wrappers

        return {without_wrappers(each.name) for each in found}
    own = {id(each.weight.data) for each in found}  # two tensors on one array are one weight
    return {name for name, tensor in named_tensors(model).items() if id(tensor.data) in own}
