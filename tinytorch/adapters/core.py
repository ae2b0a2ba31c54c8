"""The adapter for TinyTorch's own framework, and for plain objects that use it."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from tinytorch.adapters.adapter import Adapter, ParameterSpec, Step
from tinytorch.adapters.costs import cost_of
from tinytorch.adapters.ledger import Ledger
from tinytorch.adapters.records import Call, OpRecord, Recording, TensorSpec
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import ArraySpec, KernelCall, recording, state
from tinytorch.core.embeddings import Embedding
from tinytorch.core.module import Module, naming
from tinytorch.core.optimizers import SGD, Adam, AdamW, Optimizer
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.errors import GraphError, SettingError

__all__ = ["CoreAdapter"]

OPTIMIZERS: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, lr=1e-3),
    "adam": lambda parameters: Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: AdamW(parameters, lr=1e-3),
}


class CoreAdapter(Adapter):
    """Modules of ``tinytorch.core``, and objects with a `forward` that have such modules inside."""

    name = "core"
    methods = ("forward", "forward_with_cache")

    # ------------------------------------------------------------ the model

    def modules(self, model: Any) -> dict[str, Any]:
        if isinstance(model, Module):
            return dict(model.named_modules())
        found: dict[str, Any] = {"": model}
        seen: set[int] = set()
        for name, value in getattr(model, "__dict__", {}).items():
            for path, root in _module_roots(name, value):
                for inner, module in root.named_modules(path):
                    if id(module) not in seen:
                        seen.add(id(module))
                        found[inner] = module
        return found

    def parameters(self, model: Any) -> tuple[ParameterSpec, ...]:
        return tuple(
            ParameterSpec(
                name=name,
                path=path,
                size=int(tensor.data.size),
                nbytes=int(tensor.data.nbytes),
                is_trainable=bool(tensor.requires_grad),
                is_buffer=is_buffer,
            )
            for name, path, tensor, is_buffer in self._tensors(model)
        )

    def _tensors(self, model: Any) -> Iterator[tuple[str, str, Tensor, bool]]:
        """Yield name, path of the layer, tensor and whether it is a buffer, each tensor once."""
        seen: set[int] = set()
        for path, module in self.modules(model).items():
            for name, tensor, is_buffer in _own_tensors(module):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield (f"{path}.{name}" if path else name), path, tensor, is_buffer

    def device(self, model: Any, inputs: tuple[Any, ...]) -> str:
        return "cpu"

    def clone(self, model: Any) -> Any:
        return copy.deepcopy(model)

    # ------------------------------------------------------------ running it

    def without_gradients(self) -> AbstractContextManager[Any]:
        return no_grad()

    @contextmanager
    def preserving(self, model: Any, *, parameters: bool = False) -> Iterator[None]:
        tensors = [
            (tensor, tensor.grad, tensor.data.copy() if parameters or is_buffer else None)
            for _, _, tensor, is_buffer in self._tensors(model)
        ]
        generators = [(g, g.bit_generator.state) for g in _generators(self.modules(model))]
        for tensor, _, _ in tensors:
            tensor.grad = None
        try:
            yield
        finally:
            for tensor, grad, values in tensors:
                tensor.grad = grad
                if values is not None:
                    tensor.data[...] = values
            for generator, before in generators:
                generator.bit_generator.state = before

    def scalar_loss(self, output: Any) -> Tensor:
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

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def make_optimizer(self, model: Any, name: str) -> Optimizer:
        if name not in OPTIMIZERS:
            raise SettingError(f"unknown optimizer {name!r}; there are {', '.join(OPTIMIZERS)}")
        learned = [tensor for _, _, tensor, _ in self._tensors(model) if tensor.requires_grad]
        return OPTIMIZERS[name](learned)

    def optimizer_step(self, optimizer: Optimizer) -> None:
        optimizer.step()

    def drop_gradients(self, model: Any) -> None:
        for _, _, tensor, _ in self._tensors(model):
            tensor.grad = None

    def example(self, shape: tuple[int, ...], model: Any) -> Tensor:
        rng = np.random.default_rng(0)
        modules = self.modules(model).values()
        vocabularies = [len(m.weight.data) for m in modules if isinstance(m, Embedding)]
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
    ) -> Recording:
        began = perf_counter()
        ledger = Ledger(lambda: perf_counter() - began)
        bonds: list[Any] = []  # weak references fire only while somebody holds them
        operations: list[OpRecord] = []

        def enter(array: Any, category: str | None, path: str | None) -> None:
            owner = _owner(array)
            if owner is None or ledger.holds(id(owner)):
                return
            if category:
                # an example input may be a slice of a whole data set; only the slice is used
                ledger.add_resident(id(owner), array.nbytes, category, path)
            else:
                ledger.add(id(owner), owner.nbytes, path, state.phase)
            key = id(owner)
            bonds.append(weakref.ref(owner, lambda _: ledger.remove(key)))

        def see_arrays(arrays_in: list[Any], arrays_out: list[Any]) -> None:
            for array in (*arrays_in, *arrays_out):
                enter(array, None, state.path)

        for _, path, tensor, is_buffer in self._tensors(model):
            enter(tensor.data, "buffers" if is_buffer else "parameters", path)
        for tensor in _tensors_in(inputs):
            enter(tensor.data, "inputs", None)
        for slots in getattr(optimizer, "slots", ()):
            for array in slots.values():
                enter(array, "optimizer state", None)
        names = {id(module): path for path, module in self.modules(model).items()}
        with recording(lambda call: operations.append(_as_record(call, began)), arrays=see_arrays):
            start = perf_counter()
            with naming(names):
                kept = step()  # what it returns is alive as long as a caller would hold it
            duration = perf_counter() - start
        for _, _, tensor, _ in self._tensors(model):
            if tensor.grad is not None and (owner := _owner(tensor.grad)) is not None:
                ledger.name(id(owner), "gradients")
        allocations = ledger.allocations()
        del kept
        return Recording(tuple(operations), allocations, duration)


def _as_record(call: KernelCall, began: float) -> OpRecord:
    inputs = tuple(_as_spec(spec) for spec in call.inputs)
    outputs = tuple(_as_spec(spec) for spec in call.outputs)
    return OpRecord(
        kind=call.kind,
        path=call.path,
        phase=call.phase,
        inputs=inputs,
        outputs=outputs,
        cost=cost_of(Call(call.kind, inputs, outputs, call.settings)),
        start=call.start - began,
        duration=call.duration,
    )


def _as_spec(spec: ArraySpec) -> TensorSpec:
    return TensorSpec(spec.shape, spec.dtype.name, spec.nbytes, spec.is_view)


def _owner(array: Any) -> Any:
    """Give the array that owns the memory of a view; None for numbers, which own nothing."""
    if not isinstance(array, np.ndarray):
        return None
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _own_tensors(module: Any) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield the tensors that a layer holds itself, with whether they are buffers."""
    for name, value in getattr(module, "__dict__", {}).items():
        values = value if isinstance(value, (list, tuple)) else (value,)
        for index, item in enumerate(values):
            if isinstance(item, Tensor) and item.creator is None:
                label = name if item is value else f"{name}.{index}"
                yield label, item, not (item.requires_grad or isinstance(item, Parameter))


def _module_roots(name: str, value: Any) -> Iterator[tuple[str, Module]]:
    if isinstance(value, Module):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _module_roots(f"{name}.{index}", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _module_roots(f"{name}.{key}", item)


def _generators(modules: Mapping[str, Any]) -> list[np.random.Generator]:
    """Find the random generators that layers draw from, each once."""
    found: dict[int, np.random.Generator] = {}
    for module in modules.values():
        for value in getattr(module, "__dict__", {}).values():
            if isinstance(value, np.random.Generator):
                found[id(value)] = value
    return list(found.values())


def _tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors_in(item)]
    return []
