"""Gradient checkpointing: keep the input of a part of a model, and compute it again when needed.

A training step keeps what every operation saves for its derivative until the backward pass has used
it. :func:`checkpoint` keeps only what goes into a function: the graph inside is dropped after the
forward pass and built again during the backward pass, for one part at a time. That costs about one
more forward pass and saves most of the memory of a deep model (Chen et al., 2016).
"""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tinytorch.core.autograd import backward, is_grad_enabled
from tinytorch.core.dispatch import state
from tinytorch.core.kernels import Array
from tinytorch.core.layers import Sequential
from tinytorch.core.module import Execution, Module
from tinytorch.core.operations import Gradients, Operation
from tinytorch.core.tensor import Tensor, apply
from tinytorch.errors import GraphError, SettingError

__all__ = ["checkpoint", "checkpoint_layers", "remove_checkpoints"]

Function = Callable[..., Any]


def checkpoint(function: Function, *inputs: Any, **settings: Any) -> Tensor:
    """Return ``function(*inputs, **settings)``, and compute it again during the backward pass.

    The gradients of the inputs, of parameters and of other tensors that the function uses are the
    same, bit for bit, as without (only a tensor that is used several times inside and also outside
    gets its terms in another order). The second time the function finds the backend, the mode and
    buffers of its layers and the random numbers of the first, so dropout drops the same elements
    and running statistics change once. These are found in the modules and generators that the
    function is, is bound to, was given, or names. Hooks of layers inside run each time; what else
    the function does besides computing, it does twice. It must return one tensor.
    """
    if not is_grad_enabled():
        return _one_tensor(function(*inputs, **settings))
    operation = _Recomputed(function, inputs, settings)
    given = tuple(value for value in inputs if isinstance(value, Tensor))
    result, outside = operation.run_first(given)
    return apply(operation, *given, *outside) if result.requires_grad else result.detach()


class _Recomputed(Operation):
    """A function of tensors whose graph is dropped, and built again to be differentiated."""

    def __init__(
        self, function: Function, inputs: tuple[Any, ...], settings: dict[str, Any]
    ) -> None:
        self.function = partial(function, **settings) if settings else function
        self.constants = tuple(None if isinstance(each, Tensor) else each for each in inputs)
        self.is_tensor = tuple(isinstance(each, Tensor) for each in inputs)
        self.surroundings = _Surroundings((function, inputs, settings))
        self.module_names = state.module_names
        self.output: Array | None = None

    def run_first(self, given: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run the function, drop its graph, and return its result and what else it depends on.

        What is alive after the graph is gone belongs to others: parameters, and tensors that were
        computed before. With a graph, because a kernel may compute otherwise without one.
        """
        stand_ins = [Tensor(tensor.data, tensor.requires_grad) for tensor in given]
        output = self._call(stand_ins)
        own = {id(tensor) for tensor in stand_ins}
        behind = [weakref.ref(each) for each in _behind(output) if id(each) not in own]
        result = output.detach()
        result.requires_grad = output.requires_grad
        self.output = output.data
        del output
        return result, tuple(tensor for ref in behind if (tensor := ref()) is not None)

    def forward(self, *arrays: Array) -> Array:
        assert self.output is not None
        output, self.output = self.output, None
        self.saved = arrays[: sum(self.is_tensor)]
        self.form = output.shape, output.dtype
        return output

    def backward(self, grad: Array) -> Gradients:
        given, outside = self.inputs[: len(self.saved)], self.inputs[len(self.saved) :]
        stand_ins = [
            Tensor(array, tensor.requires_grad)
            for array, tensor in zip(self.saved, given, strict=True)
        ]
        with self._as_the_first_time(), _cut_off(outside):
            output = self._call(stand_ins)
            if (output.shape, output.dtype) != self.form or not output.requires_grad:
                raise GraphError(
                    f"the checkpointed function returned {self.form[0]} of {self.form[1]} at first "
                    f"and {output.shape} of {output.dtype} when it was recomputed; it must be "
                    "deterministic"
                )
            backward(output, grad)
            return tuple(tensor.grad for tensor in (*stand_ins, *outside))

    def _call(self, stand_ins: Sequence[Tensor]) -> Tensor:
        tensors = iter(stand_ins)
        pairs = zip(self.is_tensor, self.constants, strict=True)
        return _one_tensor(self.function(*(next(tensors) if is_t else c for is_t, c in pairs)))

    @contextmanager
    def _as_the_first_time(self) -> Iterator[None]:
        names, grad_enabled = state.module_names, state.grad_enabled
        state.module_names, state.grad_enabled = self.module_names, True
        try:
            with self.surroundings.restored():
                yield
        finally:
            state.module_names, state.grad_enabled = names, grad_enabled


def _one_tensor(output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise GraphError(
            f"a checkpointed function must return one tensor, got {type(output).__name__}; "
            "checkpoint a part that ends in one tensor, or join several with concatenate"
        )
    return output


def _behind(output: Tensor) -> Iterator[Tensor]:
    """Yield the tensors with a gradient that one depends on, each once, itself first."""
    pending, seen = [output], {id(output)}
    while pending:
        tensor = pending.pop()
        yield tensor
        for source in tensor.creator.inputs if tensor.creator else ():
            if source.requires_grad and id(source) not in seen:
                seen.add(id(source))
                pending.append(source)


@contextmanager
def _cut_off(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Let a backward pass end at tensors, and leave their gradients to be taken there."""
    kept = [(tensor, tensor.creator, tensor.grad) for tensor in tensors]
    for tensor in tensors:
        tensor.creator = tensor.grad = None
    try:
        yield
    finally:
        for tensor, creator, grad in kept:
            tensor.creator, tensor.grad = creator, grad


class _Surroundings:
    """What a function finds besides its inputs: modes, buffers and random numbers."""

    def __init__(self, holders: Any) -> None:
        modules, generators = _found_in(holders)
        self.modes = [(module, module.training) for module in modules]
        self.buffers = [
            (tensor, tensor.data.copy())  # a layer may change its buffers in place
            for tensor in {id(t): t for m in modules for _, t in m.named_buffers()}.values()
        ]
        self.generators = [(each, each.bit_generator.state) for each in generators]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Put everything back to how it was, and in the end to how it is now."""
        modes = [(module, module.training) for module, _ in self.modes]
        buffers = [(tensor, tensor.data, tensor.data.copy()) for tensor, _ in self.buffers]
        generators = [(each, each.bit_generator.state) for each, _ in self.generators]
        for module, mode in self.modes:
            module.training = mode
        for tensor, array in self.buffers:
            tensor.data = array.copy()  # there may be a third time
        for generator, numbers in self.generators:
            generator.bit_generator.state = numbers
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            for tensor, array, values in buffers:
                tensor.data = array
                if array.flags.writeable:  # a layer may hold the array itself and change it
                    array[...] = values
            for generator, numbers in generators:
                generator.bit_generator.state = numbers


def _found_in(holders: Any) -> tuple[list[Module], list[np.random.Generator]]:
    """Find the modules and random generators that a function and its arguments use."""
    modules: dict[int, Module] = {}
    generators: dict[int, np.random.Generator] = {}
    pending, seen = [holders], set[int]()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, np.random.Generator):
            generators[id(value)] = value
        elif isinstance(value, Module):
            modules[id(value)] = value
            pending += vars(value).values()
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, (list, tuple)):
            pending += value
        elif isinstance(value, partial):
            pending += [value.func, value.args, value.keywords]
        elif inspect.ismethod(value):
            pending += [value.__self__]
        elif inspect.isfunction(value):
            pending += _used_by(value)
    return list(modules.values()), list(generators.values())


def _used_by(function: Any) -> list[Any]:
    """Return what the closure of a function holds, its defaults, and the globals that it names."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    of_interest = (Module, np.random.Generator, list, tuple, dict)
    defaults = function.__defaults__ or ()
    return [*cells, *defaults, *(each for each in named if isinstance(each, of_interest))]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------- layers of a model


def checkpoint_layers(model: Module, layers: Iterable[str] | None = None) -> tuple[str, ...]:
    """Let layers of a model compute again in the backward pass, and return their names.

    Without `layers` these are its repeated blocks: modules of one class in a list, such as the
    blocks of a GPT. A Sequential of simple layers is checkpointed in about sqrt(n) pieces instead,
    since one layer alone has little to drop. Names, state and hooks stay as they are; without
    gradients nothing changes. Copies of the model do the same.
    """
    if not isinstance(model, Module):
        raise SettingError(f"checkpoint_layers works on modules, got {type(model).__name__}")
    found = dict(model.named_modules())
    names = _repeated_blocks(model) if layers is None else _checked(layers, found)
    for name in names:
        pieces = layers is None and _is_plain_sequence(found[name])
        _set_around(found[name], _in_pieces if pieces else _recomputed)
    return names


def remove_checkpoints(model: Module) -> None:
    """Undo :func:`checkpoint_layers`, in the model and everything below it."""
    for module in model.modules():
        _set_around(module, None)


def _set_around(module: Module, around: Callable[..., Any] | None) -> None:
    execution = replace(module._execution or Execution(), around_forward=around)
    if execution != Execution():
        module._execution = execution
    else:
        vars(module).pop("_execution", None)


def _recomputed(module: Module, forward: Function, *inputs: Any, **settings: Any) -> Any:
    return checkpoint(forward, *inputs, **settings)


def _in_pieces(module: Sequential, forward: Function, x: Any) -> Any:
    """Run layers one after the other, piece by piece; what the last one keeps is needed at once."""
    if not is_grad_enabled():
        return forward(x)
    length = math.ceil(math.sqrt(len(module.layers)))
    for start in range(0, len(module.layers), length):
        piece = partial(_run_in_turn, module.layers[start : start + length])
        is_last = start + length >= len(module.layers)
        x = piece(x) if is_last else checkpoint(piece, x)
    return x


def _run_in_turn(layers: Sequence[Any], x: Any) -> Any:
    for layer in layers:
        x = layer(x)
    return x


def _is_plain_sequence(module: Module) -> bool:
    return type(module).forward is Sequential.forward and not _blocks_in(module)


def _repeated_blocks(model: Module) -> tuple[str, ...]:
    """Name the outermost repeated blocks; in a Sequential without any, the Sequential itself."""
    names: list[str] = []
    pending = [("", model)]
    while pending:
        prefix, module = pending.pop(0)
        dot = f"{prefix}." if prefix else ""
        blocks = _blocks_in(module)
        names += [dot + name for name, child in module.named_children() if id(child) in blocks]
        if not blocks and _is_plain_sequence(module) and len(list(module.named_children())) > 3:
            names.append(prefix)
            continue
        pending += [
            (dot + n, child) for n, child in module.named_children() if id(child) not in blocks
        ]
    if not names:
        raise SettingError(
            f"{type(model).__name__} has no repeated blocks and no long Sequential; name the "
            "layers to checkpoint: checkpoint_layers(model, ['encoder', ...])"
        )
    return tuple(dict.fromkeys(names))


def _blocks_in(module: Module) -> set[int]:
    """Find the modules in lists of a module that have children and, two or more, one class."""
    found: set[int] = set()
    for value in vars(module).values():
        items = value if isinstance(value, (list, tuple)) else ()
        composed = [m for m in items if isinstance(m, Module) and any(m.named_children())]
        kinds = [type(each) for each in composed]
        found |= {id(each) for each in composed if kinds.count(type(each)) > 1}
    return found


def _checked(layers: Iterable[str], found: dict[str, Module]) -> tuple[str, ...]:
    names = (layers,) if isinstance(layers, str) else tuple(layers)
    unknown = [name for name in names if name not in found]
    if unknown:
        raise SettingError(
            f"the model has no layer {unknown[0]!r}; it has {', '.join(filter(None, found))}"
        )
    return names
