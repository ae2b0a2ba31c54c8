"""What an adapter offers, and how the one for a model is found."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
from abc import ABC, abstractmethod
from collections import UserDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from threading import RLock
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.errors import ModelError, TinyTorchError
from tinytorch.measure.timing import WALL, Clock
from tinytorch.models.records import Recording

# ---------------------------------------------------------------- the tensors in what a model is
# given and in what it returns, however deep they lie

Array = npt.NDArray[Any]


def leaves(value: Any) -> Iterator[Any]:
    """Yield what lies in tuples, lists, mappings and dataclasses, in order."""
    if isinstance(value, Mapping):
        value = list(value.values())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return tuples, lists and dictionaries with everything in them changed.

    Containers in which nothing changes are returned unchanged, and so are objects of other kinds.
    """
    if isinstance(value, (dict, UserDict)):
        items = {key: rebuilt(item, change) for key, item in value.items()}
        changed = {key: item for key, item in items.items() if item is not value[key]}
        if not changed:
            return value
        twin = copy.copy(value)  # dictionaries of other classes know more than their items
        for key, item in changed.items():
            twin[key] = item
        return twin
    if isinstance(value, (list, tuple)):
        parts = [rebuilt(item, change) for item in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        if isinstance(value, list):
            rows = copy.copy(value)  # lists of other classes may be made in another way
            rows[:] = parts
            return rows
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return change(value)


def namespace_of(array: Any) -> Any:
    """Return the module whose functions take an array: `numpy`, or `torch` for its tensors.

    Both know `where`, `moveaxis`, `argsort(axis=, stable=)`, `asarray(dtype=, device=)` and alike.
    """
    return np if isinstance(array, (np.ndarray, np.generic)) else sys.modules["torch"]


def plain_arrays(leaf: Any) -> tuple[Array, ...]:
    """Return a copy of the array of a Tensor, an array or a number; () for anything else.

    Half precision becomes float32, so that differences can be computed.
    """
    if isinstance(leaf, Tensor):
        leaf = leaf.data
    if not isinstance(leaf, (np.ndarray, np.generic, bool, int, float, complex)):
        return ()
    array = np.array(leaf)
    if array.dtype.kind not in "biufc":
        return ()
    return (array.astype(np.float32) if array.dtype == np.float16 else array,)


def copied_plainly(leaf: Any) -> Any:
    """Return a copy of a Tensor or an array; anything else unchanged."""
    if isinstance(leaf, np.ndarray):
        return copied_array(leaf)
    if isinstance(leaf, Tensor):
        return type(leaf)(copied_array(leaf.data), requires_grad=leaf.requires_grad)
    return leaf


def copied_array(array: Array) -> Array:
    """Copy an array with its memory layout; axes along which memory repeats go on doing so."""
    repeats = [
        step == 0 and size > 1 for step, size in zip(array.strides, array.shape, strict=True)
    ]
    if not any(repeats):
        return array.copy(order="K")
    single = array[tuple(slice(1) if again else slice(None) for again in repeats)]
    return np.broadcast_to(single.copy(order="K"), array.shape)


# ---------------------------------------------------------------- watching layers by replacing
# `forward` on the instance: the lightest way that there is
#
# A hook costs several times as much, and makes some of PyTorch's layers leave their fast path.

Stamps = list[tuple[str, Any, Any]]
Methods = Sequence[str | tuple[str, ...]]
"""Names of methods; of several in a tuple it is the first that a layer has."""
_watching = RLock()
Wrapper = Callable[[str, Callable[..., Any]], Callable[..., Any]]


@contextmanager
def stamping_layers(
    modules: Mapping[str, Any], stamp: Callable[[], Any], *, methods: Methods = ("forward",)
) -> Iterator[Stamps]:
    """Stamp the begin and the end of every call of a layer inside the block.

    Yields the list that fills with (path, begin, end), in the order in which calls end.
    """
    stamps: Stamps = []
    append = stamps.append

    def wrapper(path: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def stamped(*inputs: Any, **settings: Any) -> Any:
            begin = stamp()
            try:
                return method(*inputs, **settings)
            finally:
                append((path, begin, stamp()))

        return stamped

    with wrapping_layers(modules, methods, wrapper):
        yield stamps


@contextmanager
def entering_layers(
    modules: Mapping[str, Any],
    enter: Callable[[str], None],
    leave: Callable[[str, BaseException | None, Any], None],
    *,
    methods: Methods = ("forward",),
) -> Iterator[None]:
    """Call `enter(path)` before and `leave(path, error, output)` after every call."""

    def wrapper(path: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*inputs: Any, **settings: Any) -> Any:
            enter(path)
            try:
                output = method(*inputs, **settings)
            except BaseException as error:
                leave(path, error, None)
                raise
            leave(path, None, output)
            return output

        return watched

    with wrapping_layers(modules, methods, wrapper):
        yield


@contextmanager
def wrapping_layers(
    modules: Mapping[str, Any], methods: Methods, wrapper: Wrapper
) -> Iterator[None]:
    """Wrap methods inside the block, and remove exactly these wrappers in the end.

    Blocks of one thread may be nested; another thread waits until they end, since what it finds
    and puts back would be ours.
    """
    absent = object()
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    _watching.acquire()
    try:
        for path, module in modules.items():
            for choice in methods:
                names = (choice,) if isinstance(choice, str) else choice
                found = ((each, getattr(module, each, None)) for each in names)
                name, method = next((pair for pair in found if pair[1] is not None), ("", None))
                attributes = getattr(module, "__dict__", None)  # objects with slots have none
                if method is None or attributes is None:
                    continue
                replaced.append((attributes, name, attributes.get(name, absent)))
                attributes[name] = wraps(method)(wrapper(path, method))
        yield
    finally:
        for attributes, name, before in reversed(replaced):
            if before is absent:
                attributes.pop(name, None)
            else:
                attributes[name] = before
        _watching.release()


# ---------------------------------------------------------------- what an adapter offers, and how
# the one for a model is found

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
        """Return how long the device computed what was launched between two marks."""


class GeneratingModel(ABC):
    """A model whose call repeats a step many times, as the generation of text does."""

    is_drawn = False
    """Whether the output is drawn, so that every call returns another one."""

    @abstractmethod
    def shortened_for_profile(self) -> tuple[Any, str]:
        """Return a model whose call runs the same layers in fewer steps, with a note about it.

        It is the model itself, and an empty note, where the call is short already.
        """

    def with_new_tokens(self, count: int) -> Any:
        """Return the model as one whose call writes so many tokens."""
        raise ModelError(f"a {type(self).__name__} cannot write another number of tokens")

    def rounding_explains(
        self,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        expected: Sequence[Array],
        found: Sequence[Array],
    ) -> tuple[str, ...]:
        """Return why outputs that differ do so by rounding, one text per sequence, or nothing."""
        return ()


class Adapter(ABC):
    """One framework, seen through what the performance tools need of it."""

    name: str
    methods: Methods = ("forward",)
    """The methods of a layer that count as calls of it."""

    # ------------------------------------------------------------ the model

    @abstractmethod
    def modules(self, model: Any) -> Mapping[str, Any]:
        """Return every layer once by its path; the model itself is ""."""

    def watchable_modules(self, model: Any) -> Mapping[str, Any]:
        """Return the layers whose calls can be observed without changing how they run."""
        return self.modules(model)

    @abstractmethod
    def parameters(self, model: Any) -> tuple[ParameterSpec, ...]:
        """Return parameters and buffers, with the bytes that they really hold; shared ones once."""

    def held_bytes(self, model: Any) -> int:
        """Return the bytes that parameters and buffers hold."""
        return sum(each.nbytes for each in self.parameters(model))

    def packed_layers(self, model: Any) -> tuple[str, ...]:
        """Return the paths of layers with packed parameters, which no tensor shows."""
        return ()

    @abstractmethod
    def device(self, model: Any, inputs: tuple[Any, ...], *, names: Collection[str] = ()) -> str:
        """Return the device of the model: `cpu`, `cuda:0`; raise if an input is elsewhere.

        `names` are those of the inputs that are given by name, if any are.
        """

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

    # ------------------------------------------------------------ its tensors and layers

    @abstractmethod
    def own_tensors(self, module: Any) -> Iterator[tuple[str, Any]]:
        """Yield the parameters and buffers that a layer holds itself, by name."""

    def named_tensors(self, model: Any) -> dict[str, Any]:
        """Return every parameter and buffer of a model, once, under its first name."""
        found: dict[int, tuple[str, Any]] = {}
        for path, module in self.modules(model).items():
            for name, tensor in self.own_tensors(module):
                found.setdefault(id(tensor), (f"{path}.{name}" if path else name, tensor))
        return dict(found.values())

    @abstractmethod
    def is_parameter(self, tensor: Any) -> bool:
        """Return whether a tensor is learned."""

    @abstractmethod
    def values(self, tensor: Any) -> Any:
        """Return the numbers of a tensor, in its memory: an array of its :func:`namespace_of`."""

    @abstractmethod
    def write(self, tensor: Any, values: Any) -> None:
        """Replace the numbers of a tensor, in its memory if that can be written."""

    @abstractmethod
    def new_parameter(self, values: Any, like: Any) -> Any:
        """Return a parameter with other numbers; its dtype and whether it learns are as before."""

    @abstractmethod
    def memory_of(self, tensor: Any) -> Hashable:
        """Return what tensors on the same memory have in common."""

    @abstractmethod
    def why_unreadable(self, tensor: Any) -> str:
        """Return why the numbers of a weight cannot be read as floats, or nothing."""

    @abstractmethod
    def packed_form(self, module: Any) -> str:
        """Return the form in which a layer holds weights that are no floats, or nothing."""

    def why_no_module(self, model: Any) -> str:
        """Return why the layers of a model cannot be replaced or removed, or nothing."""
        return ""

    @abstractmethod
    def replace_layers(self, model: Any, layers: Mapping[int, Any]) -> Any:
        """Replace layers in place, by the `id` of the old one, and return the model.

        A layer that is used in several places is replaced in each. The new one takes over the mode
        of the old one. If the model itself is replaced, the new one is returned.
        """

    # ------------------------------------------------------------ running it

    def switch_to_eval(self, model: Any) -> None:
        """Set all layers of a copy to evaluation mode."""
        for module in self.modules(model).values():
            if isinstance(getattr(module, "training", None), bool):
                module.training = False

    @abstractmethod
    def plain_calls(self, model: Any, *, fast_paths: bool = False) -> AbstractContextManager[None]:
        """Call a model so that nothing is remembered, and each layer is called by itself.

        With `fast_paths`, layers may compute in one kernel without calling their parts.
        """

    def in_evaluation_mode(self, model: Any) -> Any:
        """Return a model for inference: a copy that shares its arrays, or itself."""
        return model

    def generating(self, model: Any) -> GeneratingModel | None:
        """Return the model if its call generates, or what a wrapper holds that does, or None."""
        return model if isinstance(model, GeneratingModel) else None

    @abstractmethod
    def without_gradients(self) -> AbstractContextManager[Any]:
        """Run a block without building a graph."""

    @abstractmethod
    def preserving(self, model: Any, *, parameters: bool = False) -> AbstractContextManager[None]:
        """Restore gradients, buffers and random state after a block; parameters on request."""

    @abstractmethod
    def scalar_loss(self, output: Any) -> Any:
        """Return the loss in an output, or else the sum of its floating-point tensors."""

    def backward(self, loss: Any) -> None:
        """Run the backward pass of a scalar."""
        loss.backward()

    @abstractmethod
    def make_optimizer(self, model: Any, name: str) -> Any:
        """Make the optimizer `sgd`, `adam` or `adamw` for a model's parameters."""

    def optimizer_step(self, optimizer: Any) -> None:
        """Update the parameters."""
        optimizer.step()

    def drop_gradients(self, model: Any) -> None:
        """Free the gradients of the parameters, as a training step does before it begins."""
        for tensor in self.named_tensors(model).values():
            tensor.grad = None

    # ------------------------------------------------------------ what goes in and comes out

    def arrays(self, output: Any) -> tuple[Array, ...]:
        """Return every tensor, array and number in an output, in order, copied to the CPU.

        Tuples, lists, mappings and dataclasses are searched. Half precision becomes float32.
        """
        return tuple(array for leaf in leaves(output) for array in self._leaf_arrays(leaf))

    def copy_inputs(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of a call with every tensor and array copied.

        Memory layout and sharing (one tensor in two places) stay. Tuples, lists
        and dictionaries are searched; objects of other kinds are returned unchanged.
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
        """Return a function that marks a moment on the time line of a device."""

    def forget_marks(self) -> None:  # noqa: B027 - only devices with marks of their own need it
        """Allow that marks made so far are used again."""

    @abstractmethod
    def seconds(self, begin: Any, end: Any) -> float:
        """Return the time between two marks; on a GPU after :meth:`synchronize`."""

    @abstractmethod
    def synchronize(self, device: str) -> None:
        """Wait until the device has done what it was given."""

    def hold_back(self, device: str, seconds: float) -> Callable[[], bool] | None:
        """Make a device wait, so that its work queues up and then runs without gaps.

        The result tells whether the device still waits; None for a device that runs synchronously.
        """
        return None

    def kernel_trace(self, device: str) -> KernelTrace | None:
        """Return a context in which the device reports how long each kernel takes, if it can.

        For calls that cannot be queued up, since they wait for the device.
        """
        return None

    def live_bytes_counter(
        self, model: Any, inputs: tuple[Any, ...]
    ) -> Callable[[Step], int | None] | None:
        """Return a counter of the peak of live bytes in a step, where that beats recording it.

        It returns None where nothing was seen to run.
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
        """Return a few numbers that differ when outputs differ, to see whether two calls agree."""

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
    """Return the adapter of a model's framework, considering only frameworks that are imported.

    What is no PyTorch module, holds none and gets no tensor of PyTorch is watched as code of
    TinyTorch.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        from tinytorch.models.pytorch import TorchAdapter, holds_torch_module, tensors_in

        if holds_torch_module(model) or tensors_in(inputs):
            return TorchAdapter()
    from tinytorch.models.core import CoreAdapter

    return CoreAdapter()


# ---------------------------------------------------------------- models that are no modules


def owner_of(model: Any) -> Any:
    """Return the object behind a bound method or a partial call; anything else unchanged."""
    while inspect.ismethod(model) or isinstance(model, partial):
        model = model.__self__ if inspect.ismethod(model) else model.func
    return model


def path_outside(model: Any) -> str | None:
    """Return the path of what runs in no layer of a model.

    That is None, because a loss is no part of the model, unless it is unknown: a call of a
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


# ---------------------------------------------------------------- putting other layers into a
# model of TinyTorch, wherever the old ones are


def replace_layers(model: Any, layers: Mapping[int, Any]) -> Any:
    """Replace layers in place, by the `id` of the old one, and give the model.

    A layer that is used in several places is replaced in each. The new one takes over the mode and
    the backend of the old one. If the model itself is replaced, the new one is given.
    """
    if id(model) in layers:
        return _in_place_of(model, layers[id(model)])

    def change(leaf: Any) -> Any:
        new = layers.get(id(leaf))
        return leaf if new is None else _in_place_of(leaf, new)

    changed: dict[int, tuple[Any, Any]] = {}  # a list in two places stays one list
    for holder in list(_holders(owner_of(model), set())):
        for name, value in list(vars(holder).items()):
            _, new = changed.setdefault(id(value), (value, rebuilt(value, change)))
            if new is not value:
                setattr(holder, name, new)
    return model


def _in_place_of(old: Any, new: Any) -> Any:
    if isinstance(old, Module) and isinstance(new, Module):
        for module in new.modules():
            module.training = old.training
        new._execution = old._execution
    return new


def _holders(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the modules of a tree, and the plain objects with a `forward` that hold some."""
    is_holder = isinstance(value, Module) or (
        hasattr(value, "forward") and hasattr(value, "__dict__") and not isinstance(value, type)
    )
    if not is_holder or id(value) in seen:
        return
    seen.add(id(value))
    yield value
    for item in list(vars(value).values()):
        for leaf in _leaves(item):
            yield from _holders(leaf, seen)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield what lies in lists, tuples and dictionaries, where a module keeps its layers."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
