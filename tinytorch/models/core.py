"""The adapter for TinyTorch's own framework, and for plain objects that use it."""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from types import CellType, FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tinytorch.core.autograd import no_grad
from tinytorch.core.checkpoints import save_checkpoint, write_arrays
from tinytorch.core.dispatch import KernelCall, recording, state
from tinytorch.core.generation import without_attached_cache
from tinytorch.core.module import Module, naming
from tinytorch.core.optimizers import SGD, Adam, AdamW, Optimizer
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.errors import GraphError, ModelError, SettingError
from tinytorch.models.adapter import (
    Adapter,
    Layout,
    ParameterSpec,
    Step,
    entering_layers,
    held_by,
    leaves,
    owner_of,
    path_outside,
    replace_layers,
)
from tinytorch.models.costs import cost_of
from tinytorch.models.records import Call, Ledger, OpRecord, Recording, TensorSpec

if TYPE_CHECKING:
    from tinytorch.core.transformers import GPT

# ---------------------------------------------------------------- the tensors that models of
# TinyTorch hold, and their names


def own_tensors(module: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a layer holds itself, not those of the layers in it.

    What was computed and kept is none of them.
    """
    for name, each in held_by(module, (Tensor, Module)):
        if isinstance(each, Tensor) and each.creator is None:
            yield name, each


def named_tensors(model: Any) -> dict[str, Tensor]:
    """Return every tensor that a model holds, once, under its first name."""
    return CoreAdapter().named_tensors(model)


# ---------------------------------------------------------------- the adapter for TinyTorch's own
# framework, and for plain objects that use it

OPTIMIZERS: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, lr=1e-3),
    "adam": lambda parameters: Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: AdamW(parameters, lr=1e-3),
}


INTEGER_PRODUCTS = frozenset(
    f"int8_{operation}_{mode}"
    for operation in ("linear", "conv2d")
    for mode in ("dynamic", "static")
) | {"int8_matmul"}
"""Kernels that take floats and multiply integers: judged by the rate of these."""


class CoreAdapter(Adapter):
    """Modules of ``tinytorch.core``, and objects with a `forward` that have such modules inside."""

    name = "core"
    methods = ("forward", "forward_with_cache")

    # ------------------------------------------------------------ the model

    def modules(self, model: Any) -> dict[str, Any]:
        owner = owner_of(model)
        if isinstance(owner, Module):
            return dict(owner.named_modules())
        found: dict[str, Any] = {"": owner}
        seen: set[int] = set()
        for path, root in held_by(owner, Module):
            for inner, module in root.named_modules(path):
                if id(module) not in seen:
                    seen.add(id(module))
                    found[inner] = module
        return found

    def parameters(self, model: Any) -> tuple[ParameterSpec, ...]:
        modules = self.modules(model)
        return tuple(
            ParameterSpec(
                name=name,
                path=path,
                size=_weights_in(modules[path], tensor),
                nbytes=_held_bytes(tensor.data),
                is_trainable=bool(tensor.requires_grad),
                is_buffer=is_buffer,
            )
            for name, path, tensor, is_buffer in self._tensors(model)
        )

    def _tensors(self, model: Any) -> Iterator[tuple[str, str, Tensor, bool]]:
        """Yield name, path of the layer, tensor and whether it is a buffer, each tensor once."""
        seen: set[int] = set()
        for path, module in self.modules(model).items():
            for name, tensor, is_buffer in _kinds_of_tensors(module):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield (f"{path}.{name}" if path else name), path, tensor, is_buffer

    def device(self, model: Any, inputs: tuple[Any, ...], *, names: Collection[str] = ()) -> str:
        return "cpu"

    def clone(self, model: Any) -> Any:
        return _copied_function(model) if inspect.isfunction(model) else copy.deepcopy(model)

    def layout(self, model: Any) -> Layout:
        return {
            (name, aspect): getattr(tensor.data, aspect)
            for name, _, tensor, _ in self._tensors(model)
            for aspect in ("dtype", "shape", "strides")
        }

    def save(self, model: Any, path: Path) -> None:
        state = {name: tensor.data for name, _, tensor, _ in self._tensors(model)}
        if not state:
            raise ModelError("the model holds no parameters: there is nothing to write to a file")
        owner = owner_of(model)
        if isinstance(owner, Module):
            save_checkpoint(path, owner)
        else:
            write_arrays(path, state)

    # ------------------------------------------------------------ its tensors and layers

    def own_tensors(self, module: Any) -> Iterator[tuple[str, Tensor]]:
        return own_tensors(module)

    def is_parameter(self, tensor: Tensor) -> bool:
        return isinstance(tensor, Parameter) or tensor.requires_grad

    def values(self, tensor: Any) -> Any:
        return tensor.data if isinstance(tensor, Tensor) else np.asarray(tensor)

    def write(self, tensor: Tensor, values: Any) -> None:
        if tensor.data.flags.writeable:
            tensor.data[...] = values
        else:
            tensor.data = np.array(values, tensor.data.dtype)

    def new_parameter(self, values: Any, like: Tensor) -> Parameter:
        array = np.ascontiguousarray(values, like.data.dtype)
        return Parameter(array, requires_grad=like.requires_grad)

    def memory_of(self, tensor: Tensor) -> int:
        return id(tensor.data)

    def why_unreadable(self, tensor: Tensor) -> str:
        if tensor.data.dtype.kind != "f":
            return f"its weight holds {tensor.data.dtype}, no floats"
        return "" if tensor.data.size else "its weight is empty"

    def packed_form(self, module: Any) -> str:
        own = (each.data for _, each in own_tensors(module))
        return next((str(each.dtype) for each in own if each.dtype.kind != "f" and each.ndim), "")

    def replace_layers(self, model: Any, layers: Mapping[int, Any]) -> Any:
        return replace_layers(model, layers)

    # ------------------------------------------------------------ running it

    @contextmanager
    def plain_calls(self, model: Any, *, fast_paths: bool = False) -> Iterator[None]:
        with no_grad(), ExitStack() as stack:
            for module in model.modules() if isinstance(model, Module) else ():
                if "attached_cache" in vars(module):
                    stack.enter_context(without_attached_cache(cast("GPT", module)))
            yield

    def without_gradients(self) -> AbstractContextManager[Any]:
        return no_grad()

    @contextmanager
    def preserving(self, model: Any, *, parameters: bool = False) -> Iterator[None]:
        tensors = [(tensor, tensor.grad) for _, _, tensor, _ in self._tensors(model)]
        arrays = [
            (tensor, tensor.data, tensor.data.copy())
            for _, _, tensor, is_buffer in self._tensors(model)
            if parameters or is_buffer
        ]
        generators = [(g, g.bit_generator.state) for g in _generators(self.modules(model))]
        for tensor, _ in tensors:
            tensor.grad = None
        try:
            yield
        finally:
            for tensor, grad in tensors:
                tensor.grad = grad
            for tensor, array, values in arrays:
                tensor.data = array
                if array.flags.writeable:
                    array[...] = values
            for generator, before in generators:
                generator.bit_generator.state = before

    def scalar_loss(self, output: Any) -> Tensor:
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.size == 1 and loss.requires_grad:
            return loss
        tensors = [t for t in _tensors_in(output) if t.data.dtype.kind == "f" and t.requires_grad]
        if not tensors:
            raise GraphError(
                f"the output ({type(output).__name__}) holds no tensor with a graph, so there is "
                "nothing to run a backward pass from"
            )
        total = tensors[0].sum()
        for tensor in tensors[1:]:
            total = total + tensor.sum()
        return total

    def make_optimizer(self, model: Any, name: str) -> Optimizer:
        if name not in OPTIMIZERS:
            raise SettingError(f"unknown optimizer {name!r}; there are {', '.join(OPTIMIZERS)}")
        learned = [tensor for _, _, tensor, _ in self._tensors(model) if tensor.requires_grad]
        return OPTIMIZERS[name](learned)

    def example(self, shape: tuple[int, ...], model: Any) -> Tensor:
        rng = np.random.default_rng(0)
        modules = self.modules(model).values()
        vocabularies = [m.num_embeddings for m in modules if hasattr(m, "num_embeddings")]
        if vocabularies and len(shape) <= 2:
            return Tensor(rng.integers(0, min(vocabularies), shape))
        return Tensor(rng.standard_normal(shape).astype(np.float32))

    def digest(self, output: Any) -> tuple[float, ...]:
        return tuple(float(np.nansum(tensor.data)) for tensor in _tensors_in(output))

    # ------------------------------------------------------------ watching it

    def stamp(self, device: str) -> Callable[[], float]:
        return perf_counter

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def synchronize(self, device: str) -> None:
        """Nothing is ever pending: NumPy returns when it is done."""

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
        modules = self.modules(model)
        learned = [(tensor, path) for _, path, tensor, _ in self._tensors(model)]
        recorder = _Recorder([*learned, *((tensor, None) for tensor in _tensors_in(inputs))])
        for _, path, tensor, is_buffer in self._tensors(model):
            recorder.enter(tensor.data, "buffers" if is_buffer else "parameters", path)
            recorder.enter(tensor.grad, "gradients", path)
        for path, module in modules.items():
            for _, array in held_by(module, (np.ndarray, Tensor, Module)):
                recorder.enter(array, "buffers", path)
        for array in _arrays_in(inputs):
            recorder.enter(array, "inputs", None)
        for array in _slots(optimizer):
            recorder.enter(array, "optimizer state", None)
        names = {id(module): path for path, module in modules.items()}
        with recording(recorder.see_call, arrays=recorder.see_arrays), naming(names):
            state.path = path_outside(model)
            with _in_plain_objects(modules):
                start = recorder.begin()
                kept = step()  # what it returns is alive as long as a caller would hold it
                duration = perf_counter() - start
        recorder.see_gradients()
        for tensor, _ in learned:
            recorder.name(tensor.grad, "gradients")
        for array in _slots(optimizer):
            recorder.name(array, "optimizer state")
        allocations = recorder.ledger.allocations()
        del kept
        return Recording(tuple(recorder.operations), allocations, duration)


class _Recorder:
    """Records every kernel of this thread, with its input and output arrays."""

    def __init__(self, differentiated: list[tuple[Tensor, str | None]]) -> None:
        self._began = 0.0
        self.ledger = Ledger(lambda: perf_counter() - self._began)
        self.operations: list[OpRecord] = []
        self._differentiated = differentiated
        self._bonds: list[Any] = []  # weak references only fire while they are alive
        self._held_bytes: list[int] = []
        self._reads: tuple[int, ...] = ()

    def begin(self) -> float:
        """Start the clock that the times of kernels and buffers count from."""
        self._began = perf_counter()
        return self._began

    def enter(
        self, array: Any, category: str | None, path: str | None, phase: str = "forward"
    ) -> None:
        owner = _owner(array)
        if owner is None or self.ledger.holds(id(owner)):
            return
        if category is None:
            self.ledger.add(id(owner), owner.nbytes, path, phase)
        else:
            # an example input may be a slice of a whole data set; only the slice is used
            nbytes = _held_bytes(array) if category == "inputs" else owner.nbytes
            self.ledger.add_resident(id(owner), nbytes, category, path)
        key = id(owner)
        self._bonds.append(weakref.ref(owner, lambda _: self.ledger.remove(key)))

    def name(self, array: Any, category: str) -> None:
        owner = _owner(array)
        if owner is not None:
            self.ledger.name(id(owner), category)

    def see_arrays(self, arrays_in: list[Any], arrays_out: list[Any]) -> None:
        self.see_gradients()
        for array in (*arrays_in, *arrays_out):
            self.enter(array, None, state.path, state.phase)
        self._held_bytes = [_held_bytes(array) for array in (*arrays_in, *arrays_out)]
        self._reads = tuple(map(self._value_number, arrays_in))

    def _value_number(self, array: Any) -> int:
        """Number what an array holds: the same for the same part of the same buffer."""
        if not isinstance(array, np.ndarray):
            return self.ledger.value_number(None, ())
        part = (array.ctypes.data, array.shape, array.strides, array.dtype.str)
        return self.ledger.value_number(id(_owner(array)), part)

    def see_gradients(self) -> None:
        """Enter gradients that were copied for their tensor, which no kernel does."""
        for tensor, path in self._differentiated:
            if tensor.grad is not None:
                self.enter(tensor.grad, None, path, "backward")

    def see_call(self, call: KernelCall) -> None:
        specs = [
            TensorSpec(spec.shape, spec.dtype.name, nbytes, spec.is_view)
            for spec, nbytes in zip((*call.inputs, *call.outputs), self._held_bytes, strict=True)
        ]
        inputs, outputs = tuple(specs[: len(call.inputs)]), tuple(specs[len(call.inputs) :])
        self.operations.append(
            OpRecord(
                kind=call.kind,
                path=call.path,
                phase=call.phase,
                inputs=inputs,
                outputs=outputs,
                cost=cost_of(Call(call.kind, inputs, outputs, call.settings)),
                start=call.start - self._began,
                duration=call.duration,
                arithmetic="int8" if call.kind in INTEGER_PRODUCTS else "",
                reads=self._reads,
            )
        )


@contextmanager
def _in_plain_objects(modules: Mapping[str, Any]) -> Iterator[None]:
    """Attribute kernels to models that are plain objects, which do not set the layer path."""
    paths: list[str | None] = []

    def enter(path: str) -> None:
        paths.append(state.path)
        state.path = path

    def leave(path: str, error: BaseException | None, output: Any) -> None:
        state.path = paths.pop()

    plain = {path: each for path, each in modules.items() if not isinstance(each, Module)}
    with entering_layers(plain, enter, leave):
        yield


def _owner(array: Any) -> Any:
    """Return the array that owns the memory of a view; None for numbers, which own nothing."""
    if not isinstance(array, np.ndarray):
        return None
    base: Any = array.base
    while base is not None:  # NumPy's strided views have something in between that is no array
        array = base if isinstance(base, np.ndarray) else array
        base = getattr(base, "base", None)
    return array


def _held_bytes(array: Any) -> int:
    """Return the bytes that an array holds: fewer than its elements' where it is broadcast."""
    owner = _owner(array)
    return int(array.nbytes if owner is None else min(array.nbytes, owner.nbytes))


def _copied_function(function: Any) -> Any:
    """Copy a function together with the layers that it uses, which Python's own copy shares."""
    memo: dict[int, Any] = {}

    def copied(value: Any) -> Any:
        is_holder = isinstance(value, (dict, list, tuple)) or hasattr(value, "forward")
        if isinstance(value, type) or not (is_holder or isinstance(value, (Module, Tensor))):
            return value
        found = held_by(SimpleNamespace(value=value), (Module, Tensor))
        return copy.deepcopy(value, memo) if any(found) else value

    def copied_cell(cell: CellType) -> CellType:
        try:
            return CellType(copied(cell.cell_contents))
        except ValueError:  # a name that nothing was given to so far
            return cell

    names = inspect.getclosurevars(function).globals
    twin = FunctionType(
        function.__code__,
        {**function.__globals__, **{name: copied(value) for name, value in names.items()}},
        function.__name__,
        function.__defaults__,
        tuple(map(copied_cell, function.__closure__ or ())),
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    vars(twin).update(vars(function))
    return twin


def _kinds_of_tensors(module: Any) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield the tensors that a layer holds itself, with whether they are buffers."""
    for name, item in own_tensors(module):
        learned = item.requires_grad or isinstance(item, Parameter)
        # a layer that says how many weights it has holds them in another form
        learned = learned or (hasattr(module, "weight_size") and name in ("values", "bias"))
        yield name, item, not learned


def _weights_in(module: Any, tensor: Tensor) -> int:
    """Return the number of weights that a tensor represents."""
    if tensor is getattr(module, "values", None) and hasattr(module, "weight_size"):
        return int(module.weight_size)
    return int(tensor.data.size)


def _slots(optimizer: Any) -> list[Any]:
    return [array for slots in getattr(optimizer, "slots", ()) for array in slots.values()]


def _generators(modules: Mapping[str, Any]) -> list[np.random.Generator]:
    """Find the random generators that layers draw from, each once."""
    found: dict[int, np.random.Generator] = {}
    for module in modules.values():
        for value in getattr(module, "__dict__", {}).values():
            if isinstance(value, np.random.Generator):
                found[id(value)] = value
    return list(found.values())


def _tensors_in(value: Any) -> list[Tensor]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, Tensor)]


def _arrays_in(value: Any) -> list[Any]:
    """Find the arrays in what a model is given: also those of an object such as a cache."""
    found: list[Any] = []
    for leaf in leaves(value):
        own = leaf.data if isinstance(leaf, Tensor) else leaf
        is_array = isinstance(own, np.ndarray)
        held = [own] if is_array else list(getattr(leaf, "__dict__", {}).values())
        found += [each for each in held if isinstance(each, np.ndarray)]
    return found
