"""What an adapter offers, and how the one for a model is found."""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from tinytorch.adapters.layer_watch import Methods, entering_layers
from tinytorch.adapters.records import Recording
from tinytorch.adapters.values import Array, copied_plainly, leaves, plain_arrays, rebuilt
from tinytorch.errors import ModelError, TinyTorchError
from tinytorch.measure.clocks import WALL, Clock

__all__ = [
    "Adapter",
    "KernelTrace",
    "Layout",
    "ParameterSpec",
    "adapter_for",
    "held_by",
    "owner_of",
    "path_outside",
]

Step = Callable[[], object]
Layout = Mapping[tuple[str, str], object]
"""The name of a tensor or layer and an aspect of it -> what can be compared with that of a copy."""


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A parameter or buffer of a model, once, under its first name; `path` is its layer."""

    name: str
    path: str
    size: int
    nbytes: int
    is_trainable: bool
    is_buffer: bool = False


class KernelTrace(Protocol):
    """A block that is traced; afterwards the time between marks is that of kernels alone."""

    @property
    def has_kernels(self) -> bool:
        """Whether anything was seen: some machines do not allow it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def mark(self) -> Any:
        """Mark a moment of the program."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Give how long the device computed what was launched between two marks."""


class Adapter(ABC):
    """One framework, seen through what the performance tools need of it."""

    name: str
    methods: Methods = ("forward",)
    """The methods of a layer that count as calls of it."""

    # ------------------------------------------------------------ the model

    @abstractmethod
    def modules(self, model: Any) -> Mapping[str, Any]:
        """Give every layer once by its path; the model itself is ""."""

    def watchable_modules(self, model: Any) -> Mapping[str, Any]:
        """Give the layers whose calls can be watched without changing how they run."""
        return self.modules(model)

    @abstractmethod
    def parameters(self, model: Any) -> tuple[ParameterSpec, ...]:
        """Give parameters and buffers, with the bytes that they really hold; shared ones once."""

    def packed_layers(self, model: Any) -> tuple[str, ...]:
        """Give the paths of layers that hold parameters which no tensor shows, so nobody counts."""
        return ()

    @abstractmethod
    def device(self, model: Any, inputs: tuple[Any, ...]) -> str:
        """Give the device of the model: `cpu`, `cuda:0`; raise if an input is elsewhere."""

    @abstractmethod
    def clone(self, model: Any) -> Any:
        """Copy a model, with its sharing and without its hooks."""

    def layout(self, model: Any) -> Layout:
        """Return how tensors lie in memory and how layers are packed and called.

        The keys are names of tensors or layers, each with an aspect such as "strides".
        """
        return {}

    def copy_difference(self, model: Any, copy: Any) -> str:
        """Return in what a copy differs from its model, such as "strides of 'conv.weight'".

        Nothing where it has the same layout. A copy that differs runs other kernels: its time is
        not that of the model.
        """
        before, after = self.layout(model), self.layout(copy)
        unlike = (key for key in {**before, **after} if before.get(key) != after.get(key))
        name, aspect = next(unlike, ("", ""))
        return f"{aspect} of {name!r}" if name else aspect

    @abstractmethod
    def save(self, model: Any, path: Path) -> None:
        """Write the parameters and buffers of a model to one file, each once."""

    # ------------------------------------------------------------ running it

    def in_evaluation_mode(self, model: Any) -> Any:
        """Return a model for inference: a copy that shares its arrays, or itself."""
        return model

    @abstractmethod
    def without_gradients(self) -> AbstractContextManager[Any]:
        """Run a block without building a graph."""

    @abstractmethod
    def preserving(self, model: Any, *, parameters: bool = False) -> AbstractContextManager[None]:
        """Put gradients, buffers and random state back after a block; parameters on request."""

    @abstractmethod
    def scalar_loss(self, output: Any) -> Any:
        """Give the loss in an output, or else the sum of its floating-point tensors."""

    @abstractmethod
    def backward(self, loss: Any) -> None:
        """Run the backward pass of a scalar."""

    @abstractmethod
    def make_optimizer(self, model: Any, name: str) -> Any:
        """Make the optimizer `sgd`, `adam` or `adamw` for a model's parameters."""

    @abstractmethod
    def optimizer_step(self, optimizer: Any) -> None:
        """Update the parameters."""

    @abstractmethod
    def drop_gradients(self, model: Any) -> None:
        """Free the gradients of the parameters, as a training step does before it begins."""

    # ------------------------------------------------------------ what goes in and comes out

    def arrays(self, output: Any) -> tuple[Array, ...]:
        """Give every tensor, array and number in an output, in order, copied to the CPU.

        Looked into are tuples, lists, mappings and dataclasses. Half precision becomes float32.
        """
        return tuple(array for leaf in leaves(output) for array in self._leaf_arrays(leaf))

    def copy_inputs(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Give the arguments of a call again, every tensor and array in a buffer of its own.

        Memory layout and sharing (one tensor in two places) stay. Looked into are tuples, lists
        and dictionaries; objects of other kinds are given as they are.
        """
        twins: dict[int, Any] = {}

        def twin(leaf: Any) -> Any:
            if id(leaf) not in twins:
                twins[id(leaf)] = self._leaf_copy(leaf)
            return twins[id(leaf)]

        copied: tuple[Any, ...] = rebuilt(arguments, twin)
        return copied

    def _leaf_arrays(self, leaf: Any) -> tuple[Array, ...]:
        return plain_arrays(leaf)

    def _leaf_copy(self, leaf: Any) -> Any:
        return copied_plainly(leaf)

    # ------------------------------------------------------------ watching it

    def run_clock(self, device: str) -> Clock:
        """Return the wall clock for calls on a device, one that waits where calls do not."""
        return WALL

    def event_clock(self, device: str) -> Clock | None:
        """Return the clock of the device itself, by events; None where a call is done at its end.

        It does not see what the program does before the first event and after the last one.
        """
        return None

    @abstractmethod
    def stamp(self, device: str) -> Callable[[], Any]:
        """Give a function that marks a moment on the time line of a device."""

    def forget_marks(self) -> None:  # noqa: B027 - only devices with marks of their own need it
        """Allow that marks made so far are used again."""

    @abstractmethod
    def seconds(self, begin: Any, end: Any) -> float:
        """Give the time between two marks; on a GPU after :meth:`synchronize`."""

    @abstractmethod
    def synchronize(self, device: str) -> None:
        """Wait until the device has done what it was given."""

    def hold_back(self, device: str, seconds: float) -> Callable[[], bool] | None:
        """Let a device wait, so that what it is given queues up and then runs without gaps.

        Gives a function that tells whether the device still waits; None for a device that does not
        run behind the program.
        """
        return None

    def kernel_trace(self, device: str) -> KernelTrace | None:
        """Give a block in which the device tells how long each kernel takes, if it can.

        For calls that cannot be queued up, since they wait for the device.
        """
        return None

    def live_bytes_counter(
        self, model: Any, inputs: tuple[Any, ...]
    ) -> Callable[[Step], int | None] | None:
        """Give what counts the most bytes alive at once in a step, where that beats recording it.

        It gives None where nothing was seen to run.
        """
        return None

    @abstractmethod
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
        """Run `step` once and record its operations and memory. This is slow.

        With `by_trace` the times of operations are those of their kernels in a trace.
        """

    @abstractmethod
    def example(self, shape: tuple[int, ...], model: Any) -> Any:
        """Make an input of a shape: normal numbers, or token ids where the model wants these."""

    @abstractmethod
    def digest(self, output: Any) -> Any:
        """Give a few numbers that differ when outputs differ, to see whether two calls agree."""

    @contextmanager
    def naming_failures(self, model: Any) -> Iterator[None]:
        """Turn an exception inside of a layer into a ModelError that names the layer."""
        failed: list[tuple[BaseException, str]] = []  # the latest exception, and where it began

        def leave(path: str, error: BaseException | None, output: Any) -> None:
            if error is not None and not (failed and failed[0][0] is error):
                failed[:] = [(error, path)]

        modules = self.watchable_modules(model)
        try:
            with entering_layers(modules, lambda path: None, leave, methods=self.methods):
                yield
        except TinyTorchError:
            raise
        except Exception as error:
            path = next((path for known, path in failed if known is error), "")
            where = f"layer {path!r} ({type(modules[path]).__name__})" if path else "the model"
            raise ModelError(f"{where} raised {type(error).__name__}: {error}") from error
        finally:
            failed.clear()


def adapter_for(model: Any, inputs: tuple[Any, ...] = ()) -> Adapter:
    """Give the adapter of a model's framework, looking only at frameworks that are imported.

    What is no PyTorch module, holds none and gets no tensor of PyTorch is watched as code of
    TinyTorch.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        from tinytorch.adapters.pytorch import TorchAdapter, holds_torch_module, tensors_in

        if holds_torch_module(model) or tensors_in(inputs):
            return TorchAdapter()
    from tinytorch.adapters.core import CoreAdapter

    return CoreAdapter()


# ---------------------------------------------------------------- models that are no modules


def owner_of(model: Any) -> Any:
    """Give the object behind a bound method or a partial call; anything else as it is."""
    while inspect.ismethod(model) or isinstance(model, partial):
        model = model.__self__ if inspect.ismethod(model) else model.func
    return model


def path_outside(model: Any) -> str | None:
    """Give the path of what runs in no layer of a model.

    That is None, because a loss is no part of the model, unless nobody can tell: a call of a
    function, of a bound method or of an object with slots cannot be watched. Then it is "".
    """
    return None if hasattr(model, "forward") and hasattr(model, "__dict__") else ""


def held_by(model: Any, kinds: type | tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the objects of some classes that a plain object or a function uses, with their paths.

    Looked into are the attributes of an object, the names that a function uses, and there lists,
    tuples, dictionaries and objects with a `forward`.
    """
    seen = {id(model)}
    named = _used_names(model) if inspect.isfunction(model) else _attributes(model)
    for name, value in named:
        yield from _search(name, value, kinds, seen)


def _search(
    path: str, value: Any, kinds: type | tuple[type, ...], seen: set[int]
) -> Iterator[tuple[str, Any]]:
    if isinstance(value, kinds):
        yield path, value
    elif id(value) not in seen:
        seen.add(id(value))
        for name, inner in _contents(value):
            yield from _search(f"{path}.{name}", inner, kinds, seen)


def _contents(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        return ((str(key), item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ((str(index), item) for index, item in enumerate(value))
    if hasattr(value, "forward") and not isinstance(value, type):
        return _attributes(value)
    return ()


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name != "__dict__" and hasattr(value, name):
                yield name, getattr(value, name)


def _used_names(function: Any) -> Iterator[tuple[str, Any]]:
    variables = inspect.getclosurevars(function)
    yield from variables.nonlocals.items()
    yield from variables.globals.items()
