"""The adapter for PyTorch models, on CPU and CUDA. Imported only after torch was."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from tinytorch.errors import BackendError, GraphError, ModelError, SettingError
from tinytorch.measure.timing import WALL, Clock, DeviceClock
from tinytorch.models.adapter import (
    Adapter,
    Array,
    GeneratingModel,
    Layout,
    ParameterSpec,
    Step,
    held_by,
    leaves,
    owner_of,
    path_outside,
)
from tinytorch.models.inputs import moving_inputs
from tinytorch.models.pytorch_recorder import (
    Resident,
    hold_back,
    optimizer_state,
    peak_of_live_bytes,
    record_step,
)
from tinytorch.models.pytorch_tensors import (
    PackedWeight,
    as_arrays,
    copied_tensor,
    held_bytes,
    is_compiled,
    layout_of,
    merged_state,
    packed_objects,
    packed_weights,
    replace_modules,
    single,
    why_no_module,
    wrappers_of,
    write_state,
)
from tinytorch.models.pytorch_trace import KernelTrace
from tinytorch.models.records import Recording

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Floats that torch computes with; the others only hold numbers."""

OPTIMIZERS: dict[str, Callable[[list[Any]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}


class TorchAdapter(Adapter):
    """`torch.nn.Module`, and objects with a `forward` that have such modules inside."""

    name = "pytorch"
    # `module.compile()` compiles what is behind the first of these, so that `forward` is part of it
    methods = (("_compiled_call_impl", "forward"),)

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []
        self._used = 0

    # ------------------------------------------------------------ the model

    def modules(self, model: Any) -> dict[str, Any]:
        owner = owner_of(model)
        if isinstance(owner, torch.nn.Module):
            return dict(owner.named_modules())
        found: dict[str, Any] = {"": owner}
        seen: set[torch.nn.Module] = set()
        for path, module in held_by(owner, torch.nn.Module):
            found |= dict(module.named_modules(seen, path))
        return found

    def watchable_modules(self, model: Any) -> dict[str, Any]:
        """Leave out what is inside of a compiled module: to touch it is to compile it again."""
        modules = self.modules(model)
        compiled = [path for path, module in modules.items() if is_compiled(module)]
        inside = tuple(f"{path}." if path else "" for path in compiled)
        return {
            path: module
            for path, module in modules.items()
            if path in compiled or not path.startswith(inside)
        }

    def parameters(self, model: Any) -> tuple[ParameterSpec, ...]:
        """Return every tensor with the bytes that it holds; packed weights count as unpacked."""
        tensors = tuple(
            ParameterSpec(
                name=name,
                path=name.rpartition(".")[0],
                size=tensor.numel(),
                nbytes=held_bytes(tensor),
                is_trainable=tensor.requires_grad,
                is_buffer=is_buffer,
            )
            for name, tensor, is_buffer in self._tensors(model)
        )
        packed = tuple(
            ParameterSpec(f"{path}.{name}" if path else name, path, size, nbytes, False)
            for path, weights in self._packed(model)
            for name, size, nbytes in weights or ()
        )
        return tensors + packed

    def packed_layers(self, model: Any) -> tuple[str, ...]:
        return tuple(path for path, weights in self._packed(model) if weights is None)

    def _packed(self, model: Any) -> Iterator[tuple[str, list[PackedWeight] | None]]:
        """Yield what each layer keeps in objects of C++; None where that cannot be unpacked."""
        for path, module in self.modules(model).items():
            try:
                yield path, packed_weights(module)
            except (RuntimeError, TypeError):
                yield path, None

    def _tensors(self, model: Any) -> Iterator[tuple[str, torch.Tensor, bool]]:
        """Yield every parameter and buffer once, under its first name."""
        seen: set[int] = set()
        for path, module in self.modules(model).items():
            if not isinstance(module, torch.nn.Module):
                continue
            prefix = f"{path}." if path else ""
            own = [
                (module.named_parameters(recurse=False), False),
                (module.named_buffers(recurse=False), True),
            ]
            for pairs, is_buffer in own:
                for name, tensor in pairs:
                    if id(tensor) not in seen:
                        seen.add(id(tensor))
                        yield prefix + name, tensor, is_buffer

    def device(self, model: Any, inputs: tuple[Any, ...], *, names: Collection[str] = ()) -> str:
        homes: dict[str, str] = {}
        for name, tensor, _ in self._tensors(model):
            if torch.nn.parameter.is_lazy(tensor):
                raise ModelError(f"{name} has no shape yet; call the model once before")
            homes.setdefault(str(tensor.device), name)
        given = {str(tensor.device) for tensor in tensors_in(inputs)}
        if len(homes) > 1:
            places = ", ".join(f"{name} on {home}" for home, name in homes.items())
            raise BackendError(f"the model is on several devices ({places}); profile one part")
        home = next(iter(homes), None) or next(iter(sorted(given)), "cpu")
        # Single numbers may stay on the CPU; everything else must be where the model is.
        strays = [t for t in tensors_in(inputs) if t.dim() and str(t.device) != home]
        if strays:
            shape = tuple(strays[0].shape)
            raise BackendError(
                f"an input {shape} is on {strays[0].device}, the model is on {home}; move the "
                f"inputs: {moving_inputs(inputs, names, home)}"
            )
        return home

    def clone(self, model: Any) -> Any:
        twin = copy.deepcopy(model)
        if isinstance(model, torch.nn.Module):
            _join_recurrent_weights(model, twin)
        return twin

    def layout(self, model: Any) -> Layout:
        return layout_of(self.modules(model), self._tensors(model))

    def generating(self, model: Any) -> GeneratingModel | None:
        wrappers = wrappers_of(model)
        return next((each for each in wrappers if isinstance(each, GeneratingModel)), None)

    def in_evaluation_mode(self, model: Any) -> Any:
        if not isinstance(model, torch.nn.Module) or not any(m.training for m in model.modules()):
            return model
        shared = (*model.parameters(), *model.buffers())
        try:
            twin = copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
        except Exception:  # a model may hold anything, also what cannot be copied
            return model
        return twin.eval()

    def save(self, model: Any, path: Path) -> None:
        owner = owner_of(model)
        is_module = isinstance(owner, torch.nn.Module)
        state = merged_state([("", owner)] if is_module else held_by(owner, torch.nn.Module))
        if not state:
            raise ModelError("the model holds no parameters: there is nothing to write to a file")
        write_state(state, path)

    # ------------------------------------------------------------ its tensors and layers

    def own_tensors(self, module: Any) -> Iterator[tuple[str, torch.Tensor]]:
        if isinstance(module, torch.nn.Module):
            yield from module.named_parameters(recurse=False)
            yield from module.named_buffers(recurse=False)

    def is_parameter(self, tensor: torch.Tensor) -> bool:
        return isinstance(tensor, torch.nn.Parameter)

    def values(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    def write(self, tensor: torch.Tensor, values: Any) -> None:
        with torch.no_grad():
            tensor.copy_(torch.as_tensor(values))

    def new_parameter(self, values: Any, like: torch.Tensor) -> torch.nn.Parameter:
        held = values.to(like.dtype).contiguous()
        return torch.nn.Parameter(held, requires_grad=like.requires_grad)

    def memory_of(self, tensor: torch.Tensor) -> Hashable:
        return id(tensor) if self.why_unreadable(tensor) else (tensor.device, tensor.data_ptr())

    def why_unreadable(self, tensor: torch.Tensor) -> str:
        if torch.nn.parameter.is_lazy(tensor):
            return "its weight has no shape yet; call the model once before"
        if tensor.is_meta:
            return "its weight is on the meta device, without numbers"
        if tensor.is_quantized or type(tensor.detach()) is not torch.Tensor:
            kind = type(tensor.detach()).__name__
            return f"its weight is held in another form ({kind})"
        if tensor.dtype not in FLOATS:
            return f"its weight holds {str(tensor.dtype).removeprefix('torch.')}, no floats"
        return "" if tensor.numel() else "its weight is empty"

    def packed_form(self, module: Any) -> str:
        for _, packed in packed_objects(module):
            return str(packed._type().name())  # type: ignore[attr-defined]
        return ""

    def why_no_module(self, model: Any) -> str:
        return why_no_module(model)

    def replace_layers(self, model: Any, layers: Mapping[int, Any]) -> Any:
        modules = self.modules(model).values()
        replaced = {each: layers[id(each)] for each in modules if id(each) in layers}
        return replace_modules(model, replaced)

    # ------------------------------------------------------------ running it

    @contextmanager
    def plain_calls(self, model: Any, *, fast_paths: bool = False) -> Iterator[None]:
        with torch.no_grad(), self.preserving(model), without_fast_paths(not fast_paths):
            yield

    def without_gradients(self) -> AbstractContextManager[Any]:
        return torch.no_grad()

    @contextmanager
    def preserving(self, model: Any, *, parameters: bool = False) -> Iterator[None]:
        leaves = [tensor for _, tensor, _ in self._tensors(model) if tensor.is_leaf]
        gradients = [tensor.grad for tensor in leaves]
        modules = self.modules(model)
        kept = [_Kept(*entry) for entry in _registered(modules, parameters=parameters)]
        generators = [(each, each.get_state()) for each in _generators(modules)]
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        for tensor in leaves:
            tensor.grad = None
        with torch.random.fork_rng(devices=list(range(torch.cuda.device_count())) if cuda else []):
            try:
                yield
            finally:
                for tensor, gradient in zip(leaves, gradients, strict=True):
                    tensor.grad = gradient
                for entry in kept:
                    entry.put_back()
                for generator, state in generators:
                    generator.set_state(state)

    def scalar_loss(self, output: Any) -> torch.Tensor:
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad:
            return loss
        tensors = [t for t in tensors_in(output) if t.is_floating_point() and t.requires_grad]
        if not tensors:
            raise GraphError(
                f"the output ({type(output).__name__}) holds no tensor with a graph, so there is "
                "nothing to run a backward pass from"
            )
        return torch.stack([tensor.float().sum() for tensor in tensors]).sum()

    def make_optimizer(self, model: Any, name: str) -> torch.optim.Optimizer:
        if name not in OPTIMIZERS:
            raise SettingError(f"unknown optimizer {name!r}; there are {', '.join(OPTIMIZERS)}")
        learned = [tensor for _, tensor, _ in self._tensors(model) if tensor.requires_grad]
        if not learned:
            raise SettingError("the model has no parameter with requires_grad: nothing to update")
        return OPTIMIZERS[name](learned)

    def example(self, shape: tuple[int, ...], model: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        modules = self.modules(model).values()
        sizes = [m.num_embeddings for m in modules if isinstance(m, torch.nn.Embedding)]
        home = next((tensor for _, tensor, _ in self._tensors(model)), torch.empty(0))
        if sizes and len(shape) <= 2:
            ids = torch.randint(0, min(sizes), shape, generator=generator)
            return ids.to(home.device)
        dtype = home.dtype if home.is_floating_point() else torch.float32
        return torch.randn(shape, generator=generator).to(home.device, dtype)

    def digest(self, output: Any) -> tuple[float, ...]:
        outputs = [tensor.detach() for tensor in tensors_in(output) if not tensor.is_meta]
        parts = [part for t in outputs for part in (t.unbind() if t.is_nested else [t])]
        dense = [part for part in parts if part.layout == torch.strided]
        return tuple(t.nansum(dtype=torch.float64).item() for t in dense if t.is_floating_point())

    def _leaf_arrays(self, leaf: Any) -> tuple[Array, ...]:
        return as_arrays(leaf) if isinstance(leaf, torch.Tensor) else super()._leaf_arrays(leaf)

    def _leaf_copy(self, leaf: Any) -> Any:
        return copied_tensor(leaf) if isinstance(leaf, torch.Tensor) else super()._leaf_copy(leaf)

    # ------------------------------------------------------------ watching it

    def run_clock(self, device: str) -> Clock:
        if device.startswith("cuda"):
            return DeviceClock()
        if device == "cpu":
            return WALL
        raise BackendError(f"no clock for device {device!r}; there are those of cpu and cuda")

    def event_clock(self, device: str) -> Clock | None:
        from tinytorch.measure.ceilings_torch import CudaEventClock

        return CudaEventClock(torch.device(device)) if device.startswith("cuda") else None

    def stamp(self, device: str) -> Callable[[], Any]:
        if not device.startswith("cuda"):
            return perf_counter
        stream = torch.cuda.current_stream(device)

        def mark() -> torch.cuda.Event:
            if self._used == len(self._events):
                self._events.append(torch.cuda.Event(enable_timing=True))
            event = self._events[self._used]  # making one costs more than recording it
            self._used += 1
            event.record(stream)
            return event

        return mark

    def forget_marks(self) -> None:
        self._used = 0

    def seconds(self, begin: Any, end: Any) -> float:
        if isinstance(begin, float):
            return float(end - begin)
        return float(begin.elapsed_time(end)) / 1e3

    def synchronize(self, device: str) -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)

    def hold_back(self, device: str, seconds: float) -> Callable[[], bool] | None:
        return hold_back(device, seconds) if device.startswith("cuda") else None

    def live_bytes_counter(
        self, model: Any, inputs: tuple[Any, ...]
    ) -> Callable[[Step], int | None] | None:
        return partial(peak_of_live_bytes, modules=self.modules(model), inputs=tensors_in(inputs))

    def kernel_trace(self, device: str) -> KernelTrace | None:
        return KernelTrace(device) if device.startswith("cuda") else None

    def record(
        self,
        model: Any,
        step: Step,
        *,
        device: str,
        inputs: tuple[Any, ...] = (),
        optimizer: Any = None,
        by_trace: bool = False,
    ) -> Recording:
        residents: list[Resident] = [
            (tensor, "buffers" if is_buffer else "parameters", name.rpartition(".")[0])
            for name, tensor, is_buffer in self._tensors(model)
        ]
        # Untouched memory costs nothing: it stands for the packed weights, which no tensor shows.
        residents += [
            (torch.empty(nbytes, dtype=torch.uint8), "parameters", path)
            for path, weights in self._packed(model)
            for _, _, nbytes in weights or ()
        ]
        residents += [(tensor, "inputs", None) for tensor in tensors_in(inputs)]
        residents += [(tensor, "optimizer state", None) for tensor in optimizer_state(optimizer)]
        learned = [tensor for _, tensor, is_buffer in self._tensors(model) if not is_buffer]
        residents += [(t.grad, "gradients", None) for t in learned if t.grad is not None]
        return record_step(
            step,
            modules=self.modules(model),
            residents=residents,
            learned=learned,
            device=device,
            optimizer=optimizer,
            outside=path_outside(model),
            trace=self.kernel_trace(device) if by_trace else None,
        )


def holds_torch_module(model: Any) -> bool:
    """Return whether a model is a PyTorch module, or an object or function that uses one."""
    owner = owner_of(model)
    return isinstance(owner, torch.nn.Module) or any(True for _ in held_by(owner, torch.nn.Module))


@contextmanager
def without_fast_paths(is_meant: bool = True) -> Iterator[None]:
    """Let encoder layers call their linear layers instead of one kernel for all of them."""
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(was_enabled and not is_meant)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Find the tensors in an output: in tuples, lists, mappings and dataclasses."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


class _Kept:
    """A parameter or buffer as it was, to be put back under its name."""

    def __init__(self, registry: dict[str, Any], name: str) -> None:
        self.registry = registry
        self.name = name
        self.tensor: torch.Tensor = registry[name]
        self.shape = self.tensor.shape
        self.values = single(self.tensor).clone()
        self.version = None if self.tensor.is_inference() else self.tensor._version

    def put_back(self) -> None:
        tensor = self.registry[self.name] = self.tensor
        # Through `.data`, so that a graph that the user still holds finds what it saved.
        if tensor.shape != self.shape:
            tensor.data = self.values
        else:
            single(tensor).data.copy_(self.values)
        set_version = getattr(torch._C._autograd, "_unsafe_set_version_counter", None)
        if self.version is not None and set_version is not None:
            set_version((tensor,), (self.version,))


def _registered(
    modules: Mapping[str, Any], *, parameters: bool
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield where buffers, and parameters on request, are registered, with their names."""
    for module in modules.values():
        registries = [getattr(module, "_buffers", {})]
        if parameters:
            registries.append(getattr(module, "_parameters", {}))
        for registry in registries:
            for name, tensor in registry.items():
                if isinstance(tensor, torch.Tensor):
                    yield registry, name


def _generators(modules: Mapping[str, Any]) -> list[torch.Generator]:
    """Find the random generators that layers draw from."""
    held = [
        value for module in modules.values() for value in getattr(module, "__dict__", {}).values()
    ]
    return [value for value in held if isinstance(value, torch.Generator)]


def _join_recurrent_weights(model: torch.nn.Module, twin: torch.nn.Module) -> None:
    """Put the weights of a copy's recurrent layers into one piece of memory where they were in one.

    Copying parts them, and on CUDA every call then joins them again: the copy would be slower.
    """
    for one, other in zip(model.modules(), twin.modules(), strict=False):
        if isinstance(one, torch.nn.RNNBase) and isinstance(other, torch.nn.RNNBase):
            pieces = {
                each.untyped_storage().data_ptr()
                for each in one.parameters(recurse=False)
                if each.is_cuda
            }
            if len(pieces) == 1:
                other.flatten_parameters()
