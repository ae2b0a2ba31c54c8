"""Tensors and layers of PyTorch: buffers, values, layouts, putting other layers in, wrappers."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tinytorch.core.files import write_atomically
from tinytorch.errors import BackendError, CheckpointError
from tinytorch.models.adapter import Array, Layout
from tinytorch.models.records import TensorSpec

# ---------------------------------------------------------------- what a tensor of PyTorch is made
# of: the buffers that it holds, and its description

COMPRESSED_ROWS = (torch.sparse_csr, torch.sparse_bsr)
COMPRESSED_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)


def digest_of(tensor: torch.Tensor) -> str:
    """Return a hash of the type, shape and numbers of a tensor: about a second per gigabyte."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    for part in parts_of(tensor):
        if part.numel():
            plain = part.detach().cpu().contiguous()
            digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the plain tensors behind one: the values and indices of a sparse one, for example."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in parts_of(getattr(tensor, name))]
    if tensor.layout == torch.strided:
        return [tensor]
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in COMPRESSED_ROWS:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in COMPRESSED_COLUMNS:
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def held_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes held: fewer than the elements' for a sparse or expanded tensor."""
    total = 0
    for part in parts_of(tensor):
        nbytes = part.numel() * part.element_size()
        storage = storage_of(part)
        total += nbytes if storage is None else min(nbytes, storage.nbytes())
    return total


def storage_of(tensor: torch.Tensor) -> Any:
    """Return the storage of a tensor, or None where there is none (sparse, packed, fake)."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def as_spec(tensor: torch.Tensor, *, is_view: bool = False) -> TensorSpec:
    """Describe a tensor."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested:
        sizes = tuple(tuple(row) for row in tensor._nested_tensor_size().tolist())
        spec = TensorSpec((), dtype, 0, is_view, sizes)
        return TensorSpec((), dtype, spec.size * tensor.element_size(), is_view, sizes)
    stored = None
    if tensor.layout not in (torch.strided, torch._mkldnn):  # type: ignore[attr-defined]
        stored = parts_of(tensor)[-1].numel()
    return TensorSpec(tuple(tensor.shape), dtype, held_bytes(tensor), is_view, stored=stored)


def flat_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in the arguments or results of an operator."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from flat_tensors(item)
    elif isinstance(value, dict):
        yield from flat_tensors(list(value.values()))


# ---------------------------------------------------------------- values of PyTorch: tensors as
# arrays, copies of them, and a model's state in a file

PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""What a safetensors file can hold; other classes keep their numbers somewhere else."""


def as_arrays(tensor: torch.Tensor) -> tuple[Array, ...]:
    """Copy a tensor to the CPU as an array, a ragged one as several.

    What NumPy cannot hold (bfloat16, numbers of eight bits) and half precision become float32,
    quantized numbers what they stand for, sparse tensors dense.
    """
    if tensor.is_meta:
        raise BackendError(
            "the output is on the meta device, which computes nothing; run the model on a device "
            "that does"
        )
    tensor = tensor.detach()
    if tensor.is_nested:
        return tuple(array for part in tensor.unbind() for array in as_arrays(part))
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.cpu()
    if tensor.is_floating_point() and tensor.dtype != torch.float64:
        tensor = tensor.float()
    elif tensor.dtype == torch.complex32:
        tensor = tensor.to(torch.complex64)
    return (np.array(tensor.resolve_conj().resolve_neg().numpy()),)


def copied_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor with its memory layout; expanded axes stay expanded."""
    part = single(tensor)
    twin = part.clone(memory_format=torch.preserve_format)
    if part.shape != tensor.shape:
        twin = twin.expand(tensor.shape)
    return twin.requires_grad_(tensor.requires_grad)


def single(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view without the expanded axes, which can be written to."""
    tensor = tensor.detach()
    if tensor.layout == torch.strided and not tensor.is_nested:
        for axis, step in enumerate(tensor.stride()):
            tensor = tensor.narrow(axis, 0, 1) if step == 0 and tensor.shape[axis] > 1 else tensor
    return tensor


# ---------------------------------------------------------------- files


def merged_state(roots: Iterable[tuple[str, torch.nn.Module]]) -> dict[str, Any]:
    """Merge the `state_dict` of several modules, under their paths."""
    return {
        f"{path}.{name}" if path else name: value
        for path, module in roots
        for name, value in module.state_dict().items()
    }


def write_state(state: Mapping[str, Any], path: Path) -> None:
    """Write a state to one file, atomically: safetensors, or what `torch.save` writes.

    A tensor under several names is written once; the file's metadata has the other names. The
    second format is for what safetensors cannot hold, such as packed weights.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with write_atomically(path) as temporary:
            if not all(_is_plain(value) for value in state.values()):
                torch.save(dict(state), temporary)
                return
            tensors, names = _each_once(state)
            save_file(tensors, temporary, metadata=names)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error


def _is_plain(value: Any) -> bool:
    return (
        type(value) in PLAIN_CLASSES
        and value.layout == torch.strided
        and not (value.is_quantized or value.is_nested or value.is_meta)
        and value.dtype != torch.complex32
    )


def _each_once(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return tensors ready for safetensors, and for every further name the first one."""
    first: dict[Any, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    names: dict[str, str] = {}
    for name, tensor in state.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        known = first.setdefault(place, name) if tensor.numel() else name
        if known != name:
            names[name] = known
            continue
        fills_storage = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        owns = tensor.is_contiguous() and fills_storage
        tensors[name] = tensor if owns else tensor.clone(memory_format=torch.contiguous_format)
    return tensors, names


# ---------------------------------------------------------------- putting other layers into a
# model of PyTorch, wherever the old ones are. Imported after torch

HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def why_no_module(model: Any) -> str:
    """Return why the layers of a model cannot be changed, or nothing."""
    if not isinstance(model, nn.Module):
        return f"it is a {type(model).__name__}, and only the layers of a Module can be changed"
    if isinstance(model, torch.jit.ScriptModule):
        return "it is compiled by torch.jit; change the model that it was made from"
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return "it is spread over devices; change the model in its .module"
    if any(is_compiled(module) for module in model.modules()):
        return "it is compiled; change it first and call torch.compile on the result"
    for name, each in model.named_parameters():
        if nn.parameter.is_lazy(each):
            return "some of its parameters have no shape yet; call the model once before"
        if each.is_meta:
            return f"{name!r} is on the meta device, without numbers"
    return ""


def is_compiled(module: Any) -> bool:
    """Return whether `torch.compile(module)` or `module.compile()` was called."""
    attributes = getattr(module, "__dict__", {})
    return "dynamo_ctx" in attributes or attributes.get("_compiled_call_impl") is not None


def replace_modules(model: nn.Module, replaced: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Put other layers into a model in place, wherever the old ones are, and return the model.

    Hooks and mode of the old ones go over. If the model itself is replaced, the new one is given.
    """
    for old, new in replaced.items():
        if old is not new:
            new.train(old.training)
            for name in HOOKS:
                getattr(new, name).update(getattr(old, name, {}))
    for holder in list(model.modules()):
        for name, child in holder._modules.items():
            if child is not None:
                holder._modules[name] = replaced.get(child, child)
    return replaced.get(model, model)


# ---------------------------------------------------------------- a PyTorch model that is called
# in another way. Imported after torch


class WrappedModel(nn.Module):
    """A model inside of another call: the layers are those of `model`, and so is every attribute.

    Subclasses say how it is called: `around_call`, or `forward`. The mode (`train`, `eval`) is that
    of the model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model":  # while it is made or copied
                raise
            return getattr(self.model, name)

    def around_call(self) -> AbstractContextManager[None]:
        """Return a block for settings of torch that code sees when it is compiled and when it runs.

        `forward` enters it by itself, unless it is compiled: then it is entered around all of that.
        """
        return nullcontext()

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Call the model inside of that block."""
        if torch.compiler.is_compiling():
            return self.model(*inputs, **keywords)
        with self.around_call():
            return self.model(*inputs, **keywords)


class PreparedModel(WrappedModel):
    """A model that was compiled or captured: a copy of it starts without what was prepared."""

    not_copied: ClassVar[tuple[str, ...]] = ()
    """Attributes that belong to this one alone."""

    def _set_up(self) -> None:
        """Make the attributes that are not copied."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Do without what was prepared for weights that were moved or converted."""
        raise NotImplementedError

    def _apply(self, *arguments: Any, **settings: Any) -> Any:
        """Move or convert the model, as `to()` does."""
        changed: Any = super()._apply(*arguments, **settings)  # type: ignore[no-untyped-call]
        self._forget()
        return changed

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {name: value for name, value in state.items() if name not in self.not_copied}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._set_up()


def wrappers_of(model: Any) -> Iterator[WrappedModel]:
    """Yield the wrappers around a model, the outermost first."""
    while isinstance(model, WrappedModel):
        yield model
        model = model.model


@contextmanager
def around_calls(model: Any) -> Iterator[None]:
    """Enter the blocks of all wrappers around a model, for who goes past their `forward`."""
    with ExitStack() as entered:
        for wrapper in wrappers_of(model):
            entered.enter_context(wrapper.around_call())
        yield


def innermost(model: Any) -> Any:
    """Return the model inside of all wrappers."""
    for wrapper in wrappers_of(model):
        model = wrapper.model
    return model


# ---------------------------------------------------------------- weights that quantized layers of
# PyTorch keep in objects of C++: what is in them, in bytes

BYTES_PER_STEP = 8
"""A scale and a zero point as kernels hold them, four bytes each."""
HALF_BYTES = (torch.quint4x2,)

KERNELS = {
    "Conv2dPackedParamsBase": torch.ops.quantized.conv2d,
    "Conv3dPackedParamsBase": torch.ops.quantized.conv3d,
    "LinearPackedParamsBase": torch.ops.quantized.linear,
}
"""The class of packed weights -> what computes with them."""

PackedWeight = tuple[str, int, int]
"""The name inside of the layer, how many numbers, how many bytes."""


def packed_objects(module: Any) -> Iterator[tuple[str, torch.ScriptObject]]:
    """Yield the objects of C++ that a layer itself holds, with the names of its attributes."""
    for name, value in getattr(module, "__dict__", {}).items():
        if isinstance(value, torch.ScriptObject) and not isinstance(value, torch._C.ScriptModule):
            yield name, value


def packed_weights(module: Any) -> list[PackedWeight]:
    """Return what a layer keeps in objects of C++, by their unpacked size.

    That is the values, a scale and a zero point of four bytes for each channel, and the bias.
    oneDNN keeps the unpacked values beside the packed ones, and they count twice. What FBGEMM adds
    is not seen: padding and one sum per output (a few percent). An object that cannot be unpacked
    raises what its own code raises.
    """
    if getattr(module, "holds_weights_elsewhere", False):
        raise TypeError("another engine holds the weights")
    found: list[PackedWeight] = []
    for name, packed in packed_objects(module):
        tensors = list(_tensors_of(packed))
        if not tensors:
            raise TypeError(f"{name} unpacks to no tensors")
        size = sum(tensor.numel() for tensor in tensors)
        nbytes = sum(unpacked_bytes(tensor) for tensor in tensors)
        if is_held_twice(packed):
            nbytes += sum(
                each.numel() * each.element_size() for each in tensors if each.is_quantized
            )
        found.append((name, size, nbytes))
    return found


def packing_of(packed: torch.ScriptObject) -> str:
    """Return a text that is equal for weights that the same kernels have packed.

    The class is the same for all engines, and torch does not expose which one packed. The text is
    the error of the kernels for an input that none of them supports, which differs by engine. It
    is only for comparison with another such text.
    """
    name = str(packed._type().name())  # type: ignore[attr-defined]
    inner = [packing_of(each) for each in _inner_objects(packed)]
    if name not in KERNELS:
        return " ".join([name, *inner])
    refused = torch._empty_affine_quantized(
        (1, 1, 1, 1), scale=1.0, zero_point=0, dtype=torch.qint32
    )
    try:
        KERNELS[name](refused, packed, 1.0, 0)
    except (RuntimeError, NotImplementedError) as error:
        return f"{name}: {(str(error).splitlines() or [''])[0]}"
    return name


def is_held_twice(packed: torch.ScriptObject) -> bool:
    """Return whether oneDNN has packed weights: it keeps the unpacked ones as well."""
    return packing_of(packed) in _packings_by_onednn()


@cache
def _packings_by_onednn() -> frozenset[str]:
    """Return how weights are packed by oneDNN alone; nothing where torch is built without it."""
    engines = torch.backends.quantized
    if "onednn" not in engines.supported_engines:
        return frozenset()
    before = engines.engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weight = torch.quantize_per_tensor(torch.ones(1, 1, 1, 1), 1.0, 0, torch.qint8)
        try:
            engines.engine = "onednn"
            pair = [1, 1]
            packed = (
                torch.ops.quantized.conv2d_prepack(weight, None, pair, [0, 0], pair, 1),
                torch.ops.quantized.linear_prepack(weight.reshape(1, 1), None),
            )
        except (RuntimeError, NotImplementedError):
            return frozenset()
        finally:
            engines.engine = before
    return frozenset(map(packing_of, packed))


def unpacked_bytes(tensor: torch.Tensor) -> int:
    """Count the values of a tensor and, if it is quantized, its scales and zero points."""
    nbytes = tensor.numel() * tensor.element_size()
    if not tensor.is_quantized:
        return nbytes
    if tensor.dtype in HALF_BYTES:
        nbytes = -(-tensor.numel() // 2)
    per_tensor = tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
    steps = 1 if per_tensor else tensor.q_per_channel_scales().numel()
    return nbytes + BYTES_PER_STEP * steps


def _tensors_of(packed: torch.ScriptObject) -> Iterator[torch.Tensor]:
    """Yield weights and biases, each once; integers in the state are settings."""
    seen: set[int] = set()
    for leaf in _leaves(packed):
        if (leaf.is_quantized or leaf.is_floating_point()) and leaf.data_ptr() not in seen:
            seen.add(leaf.data_ptr())
            yield leaf


def _inner_objects(packed: torch.ScriptObject) -> Iterator[torch.ScriptObject]:
    """Yield the packed weights that another object holds, such as those of a recurrent cell."""
    try:
        state = packed.__getstate__()
    except (RuntimeError, TypeError):  # not exposed
        return
    found = [state]
    while found:
        each = found.pop()
        if isinstance(each, torch.ScriptObject):
            yield each
        elif isinstance(each, (list, tuple)):
            found.extend(each)


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, torch.ScriptObject):
        yield from _leaves(value.__getstate__())


# ---------------------------------------------------------------- how a PyTorch model lies in
# memory, is packed and is called: what a copy of it must share

ASPECTS: dict[str, Callable[[torch.Tensor], object]] = {
    "class": lambda tensor: type(tensor).__name__,
    "dtype": lambda tensor: tensor.dtype,
    "shape": lambda tensor: tuple(tensor.shape),
    "strides": lambda tensor: tensor.stride() if tensor.layout == torch.strided else None,
    "memory layout": lambda tensor: tensor.layout,
    "device": lambda tensor: tensor.device,
    "requires_grad": lambda tensor: tensor.requires_grad,
}
"""What decides which kernels a tensor is computed with, and how fast they are."""


def layout_of(
    modules: Mapping[str, Any], tensors: Iterable[tuple[str, torch.Tensor, bool]]
) -> Layout:
    """Return every aspect of every tensor, and how each layer is packed and called."""
    found: dict[tuple[str, str], object] = {}
    for name, tensor, _ in tensors:
        if not tensor.is_nested:
            found |= {(name, aspect): read(tensor) for aspect, read in ASPECTS.items()}
    for path, module in modules.items():
        own = getattr(module, "__dict__", {})
        if "forward" in own:
            found[path, "forward of its own"] = True
        if "dynamo_ctx" in own or own.get("_compiled_call_impl") is not None:
            found[path, "compiled code"] = True
        for name, packed in packed_objects(module):
            found[f"{path}.{name}" if path else name, "packed weights"] = packing_of(packed)
    return found
