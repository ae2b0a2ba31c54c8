"""Module: a tree of layers with named parameters.

Attributes are the tree: a :class:`Parameter` (or a tensor with ``requires_grad``) is learned, any
other tensor is a buffer that belongs to the state, a module is a child, and lists, tuples and
dictionaries of these are looked into. A tensor that was computed, with a graph behind it, is none
of these.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from itertools import count
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np

from tinytorch.core.dispatch import state
from tinytorch.core.kernels import Array, Backend
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.errors import CheckpointError, DTypeError, TinyTorchError

if TYPE_CHECKING:
    from tinytorch.core.dataloader import DataLoader
    from tinytorch.core.training import History

__all__ = [
    "Execution",
    "HookHandle",
    "Module",
    "check_floating_point",
    "entry_point",
    "keeping_modes",
    "naming",
]

PreHook = Callable[["Module", tuple[Any, ...]], Any]
Hook = Callable[["Module", tuple[Any, ...], Any], Any]
Method = TypeVar("Method", bound=Callable[..., Any])


class HookHandle:
    """What registering a hook gives back: `remove()` takes the hook away again."""

    _keys = count()  # never reused, so that a second remove() cannot remove another hook

    def __init__(self, hooks: dict[int, Any], hook: Any) -> None:
        self._hooks = hooks
        self._key = next(self._keys)
        hooks[self._key] = hook

    def remove(self) -> None:
        self._hooks.pop(self._key, None)


@dataclass(frozen=True)
class Execution:
    """How a module is run, where that is not plainly.

    `backend` computes it and what is below it. `around_forward(module, forward, *inputs)` runs its
    forward pass; other entry points have effects, such as a cache, that it could not know.
    """

    backend: Backend | None = None
    around_forward: Callable[..., Any] | None = None

    def wrapped(
        self, module: Module, method: Callable[..., Any], *, is_forward: bool
    ) -> Callable[..., Any]:
        """Return the method as it is to be called."""
        if is_forward and self.around_forward is not None:
            method = partial(self.around_forward, module, method)
        return method if self.backend is None else partial(self._on_backend, method)

    def _on_backend(self, method: Callable[..., Any], *inputs: Any, **settings: Any) -> Any:
        previous, state.backend = state.backend, self.backend
        try:
            return method(*inputs, **settings)
        finally:
            state.backend = previous

    def __deepcopy__(self, memo: dict[int, Any]) -> Execution:
        return self  # a backend is a table of functions


class Module:
    """Base class of layers and models; a subclass defines `forward`."""

    training: bool = True
    _execution: Execution | None = None
    _pre_hooks: Mapping[int, PreHook] = {}
    _hooks: Mapping[int, Hook] = {}

    def forward(self, *inputs: Any, **settings: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define forward()")

    def __call__(self, *inputs: Any, **settings: Any) -> Any:
        try:
            forward, execution = self.forward, self._execution
            if execution is not None:
                forward = execution.wrapped(self, forward, is_forward=True)
            if state.recorders or self._pre_hooks or self._hooks:
                return self._watched(forward, inputs, settings)
            return forward(*inputs, **settings)
        except TinyTorchError as error:
            self._locate(error)
            raise

    @property
    def is_watched(self) -> bool:
        """Whether this module has hooks, or an instance attribute replaces how it is called."""
        return bool(self._pre_hooks or self._hooks or self._execution or "forward" in self.__dict__)

    # ------------------------------------------------------------ the tree

    def named_children(self) -> Iterator[tuple[str, Module]]:
        for name, value in vars(self).items():
            for path, leaf in _leaves(name, value):
                if isinstance(leaf, Module):
                    yield path, leaf

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield each module of the tree once, itself first with the name `prefix`."""
        yield from self._walk(prefix, set())

    def _walk(self, prefix: str, seen: set[int]) -> Iterator[tuple[str, Module]]:
        if id(self) in seen:
            return
        seen.add(id(self))
        yield prefix, self
        for name, child in self.named_children():
            yield from child._walk(f"{prefix}.{name}" if prefix else name, seen)

    def modules(self) -> Iterator[Module]:
        return (module for _, module in self.named_modules())

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor of the tree once, under its first name."""
        seen: set[int] = set()
        for prefix, module in self.named_modules():
            for name, value in vars(module).items():
                for path, leaf in _leaves(name, value):
                    if isinstance(leaf, Tensor) and leaf.creator is None and id(leaf) not in seen:
                        seen.add(id(leaf))
                        yield (f"{prefix}.{path}" if prefix else path), leaf

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what is learned; a parameter that is used in several places comes once."""
        return (pair for pair in self._named_tensors() if _is_parameter(pair[1]))

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        return (pair for pair in self._named_tensors() if not _is_parameter(pair[1]))

    def parameters(self) -> list[Tensor]:
        return [parameter for _, parameter in self.named_parameters()]

    def num_parameters(self) -> int:
        return sum(parameter.size for parameter in self.parameters())

    # ------------------------------------------------------------ state

    def train(self, mode: bool | DataLoader = True) -> Any:
        """Switch to training mode; with a data loader, train on it as `fit` does."""
        if not isinstance(mode, (bool, int)):
            return self.fit(mode)
        for module in self.modules():
            module.training = bool(mode)
        return self

    def eval(self) -> Self:
        """Switch to evaluation mode: no dropout, fixed statistics."""
        self.train(False)
        return self

    def fit(
        self,
        loader: Any,
        loss: Any = None,
        optimizer: Any = None,
        epochs: int = 1,
        *,
        validation: Any = None,
        **settings: Any,
    ) -> History:
        """Train on the batches of `loader`: cross entropy and Adam, unless given otherwise.

        `settings` are those of :class:`~tinytorch.core.training.Trainer`.
        """
        from tinytorch.core.training import Trainer

        trainer = Trainer(self, loss=loss, optimizer=optimizer, **settings)
        return trainer.fit(loader, epochs=epochs, validation=validation)

    def zero_grad(self) -> None:
        for parameter in self.parameters():
            parameter.grad = None

    def astype(self, dtype: Any) -> Self:
        """Convert floating-point parameters and buffers in place."""
        for _, tensor in self._named_tensors():
            if tensor.data.dtype.kind == "f":
                tensor.data = tensor.data.astype(dtype)
                tensor.grad = None
        return self

    def state_dict(self) -> dict[str, Array]:
        """Return the arrays of all parameters and buffers by name, not copied."""
        return {name: tensor.data for name, tensor in self._named_tensors()}

    def load_state_dict(self, arrays: Mapping[str, Any]) -> None:
        """Copy arrays into the parameters and buffers; nothing changes unless everything fits."""
        own = dict(self._named_tensors())
        given = {name: np.asarray(array) for name, array in arrays.items()}
        problems = [f"unknown key {name!r}" for name in given if name not in own]
        for name, tensor in own.items():
            array = given.get(name)
            if array is None:
                problems.append(f"missing key {name!r}")
            elif array.shape != tensor.shape:
                problems.append(f"{name!r} has shape {array.shape}, the model needs {tensor.shape}")
            elif array.dtype.kind not in "biuf" or not np.can_cast(
                array.dtype, tensor.dtype, "same_kind"
            ):
                problems.append(f"{name!r} holds {array.dtype}, the model needs {tensor.dtype}")
        if problems:
            shown = "; ".join(problems[:5])
            more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
            raise CheckpointError(f"state does not fit {type(self).__name__}: {shown}{more}")
        for name, tensor in own.items():
            tensor.data = given[name].astype(tensor.dtype)

    # ------------------------------------------------------------ watching

    def register_forward_pre_hook(self, hook: PreHook) -> HookHandle:
        """Call ``hook(module, inputs)`` before each forward pass; a result replaces the inputs."""
        if "_pre_hooks" not in vars(self):
            self._pre_hooks = {}
        return HookHandle(vars(self)["_pre_hooks"], hook)

    def register_forward_hook(self, hook: Hook) -> HookHandle:
        """Call ``hook(module, inputs, output)`` after each forward pass; a result replaces it."""
        if "_hooks" not in vars(self):
            self._hooks = {}
        return HookHandle(vars(self)["_hooks"], hook)

    def _watched(
        self, method: Callable[..., Any], inputs: tuple[Any, ...], settings: dict[str, Any]
    ) -> Any:
        """Run a method with hooks, and tell recorders that what it runs belongs to this module."""
        path, names = state.path, state.module_names
        if state.recorders:
            if names is None:  # the outermost module names everything below it
                state.module_names = {id(m): name for name, m in self.named_modules()}
            state.path = (state.module_names or {}).get(id(self), path)
        try:
            for pre_hook in tuple(self._pre_hooks.values()):
                changed = pre_hook(self, inputs)
                if changed is not None:
                    inputs = changed if isinstance(changed, tuple) else (changed,)
            output = method(*inputs, **settings)
            for hook in tuple(self._hooks.values()):
                replaced = hook(self, inputs, output)
                output = output if replaced is None else replaced
            return output
        finally:
            state.path, state.module_names = path, names

    def _locate(self, error: TinyTorchError) -> None:
        """Extend the path of a failing layer by the name that this module has for it."""
        failed = getattr(error, "_module", None)
        if failed is not None and failed is not self:
            for name, module in self.named_modules():
                if module is failed:
                    error.where = f"{name}.{error.where}" if error.where else name
                    break
        error._module = self  # type: ignore[attr-defined]

    # ------------------------------------------------------------ copies and display

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the tree with its sharing. Hooks watch the original and are not copied."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        for name, value in vars(self).items():
            if name not in ("_hooks", "_pre_hooks"):
                setattr(twin, name, copy.deepcopy(value, memo))
        return twin

    def __copy__(self) -> Self:
        twin = type(self).__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without the settings that belong to this machine."""
        return {name: value for name, value in vars(self).items() if name != "_execution"}

    def extra_repr(self) -> str:
        """Return the settings to show between the brackets of `repr`."""
        return ""

    @recursive_repr()
    def __repr__(self) -> str:
        children = list(self.named_children())
        head = f"{type(self).__name__}({self.extra_repr()}"
        if not children:
            return f"{head})"
        lines = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in children]
        return "\n  ".join([head, *lines]) + "\n)"


def entry_point(method: Method) -> Method:
    """Let a method of a module count as a call of it: for hooks, recorders and paths in errors."""

    @wraps(method)
    def call(module: Module, *inputs: Any, **settings: Any) -> Any:
        try:
            run: Callable[..., Any] = partial(method, module)
            if module._execution is not None:
                run = module._execution.wrapped(module, run, is_forward=False)
            if state.recorders or module._pre_hooks or module._hooks:
                return module._watched(run, inputs, settings)
            return run(*inputs, **settings)
        except TinyTorchError as error:
            module._locate(error)
            raise

    return cast("Method", call)


@contextmanager
def naming(names: Mapping[int, str]) -> Iterator[None]:
    """Tell recorders what modules are called, by `id`; what runs in none of them belongs to ""."""
    path, previous = state.path, state.module_names
    state.path, state.module_names = "", names
    try:
        yield
    finally:
        state.path, state.module_names = path, previous


@contextmanager
def keeping_modes(model: Any) -> Iterator[None]:
    """Put every layer of a model back into its own mode when the block ends."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def check_floating_point(layer: Module, x: Any) -> None:
    """Raise unless the input of a layer is a tensor of floating-point numbers."""
    if not isinstance(x, Tensor):
        kind = type(x).__name__
        raise DTypeError(f"{layer!r} works on tensors, got {kind}; wrap it in Tensor(...)")
    if x.data.dtype.kind != "f":
        raise DTypeError(f"{layer!r} needs floating-point input, got {x.dtype}")


def _is_parameter(tensor: Tensor) -> bool:
    return tensor.requires_grad or isinstance(tensor, Parameter)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Look through lists, tuples and dictionaries for the tensors and modules inside."""
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(f"{name}.{index}", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}", item)
    elif isinstance(value, (Tensor, Module)):
        yield name, value
