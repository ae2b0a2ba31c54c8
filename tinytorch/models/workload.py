"""Workload: the common currency of every command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.codec import Coded
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.adapter import GeneratingModel, adapter_for, leaves, owner_of, rebuilt
from tinytorch.models.inputs import Batches, ModelCall, read_calibration, read_inputs

__all__ = [
    "AXES",
    "FIRST_CALL",
    "Batches",
    "Preparation",
    "Scores",
    "Workload",
    "as_batches",
    "axis_length",
    "axis_number",
    "batch_size",
    "call_model",
    "is_compiled",
    "preparations_of",
    "prepares_itself",
    "resize_inputs",
    "resize_workload",
    "while_planning",
]


Scores = npt.NDArray[np.float64]
"""One score per example, higher is better."""


@dataclass(frozen=True)
class Workload:
    """A model, its example inputs, and how to evaluate it.

    `inputs` are what one call of the model gets: a tuple of arguments, a dictionary of those given
    by name, a list or a tensor (one argument), or many batches (`Batches(...)` or a data loader),
    of which the first is the example. They are held as the tuple `inputs` and the dictionary
    `keywords`, which names what is given by name beside a tuple. `calibration` is an iterable of
    such, from training data, held as tuples and dictionaries. `evaluate` returns a score per
    held-out example, higher is better, always of the same examples in the same order; `metric` is
    the name of its mean. `notes` say what was left out of many batches.
    """

    name: str
    model: Any = field(repr=False)
    inputs: Any = field(repr=False)
    calibration: Any = field(default=(), repr=False)
    evaluate: Callable[[Any], Scores] | None = None
    metric: str = "accuracy"
    keywords: Mapping[str, Any] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not callable(self.model) and not hasattr(self.model, "forward"):
            raise SettingError(
                f"the model of workload {self.name!r} is a {type(self.model).__name__}, "
                "which cannot be called and has no forward()"
            )
        if not (self.evaluate is None or callable(self.evaluate)):
            raise SettingError(
                f"evaluate of workload {self.name!r} must be a function of the model, "
                f"got {type(self.evaluate).__name__}"
            )
        of = f"workload {self.name!r}"
        inputs, named, notes = read_inputs(self.inputs, self.model, of=of)
        if named and self.keywords:
            raise SettingError(
                f"{of} has a dictionary as inputs, which are all the arguments, and keywords= "
                f"beside it; put {', '.join(map(repr, self.keywords))} into the dictionary"
            )
        calibration, left_out = read_calibration(self.calibration, self.model, of=of)
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "keywords", named or self.keywords)
        object.__setattr__(self, "calibration", calibration)
        object.__setattr__(self, "notes", tuple(dict.fromkeys((*self.notes, *notes, *left_out))))

    def run(self) -> Any:
        """Call the model once on the example inputs."""
        return call_model(self.model, *self.inputs, **self.keywords)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Everything that a call of the model gets."""
        return self.call.values

    @property
    def call(self) -> ModelCall:
        """The call on the inputs."""
        return ModelCall(self.inputs, self.keywords)

    @property
    def calibration_calls(self) -> tuple[ModelCall, ...]:
        """The calls on the calibration data."""
        return tuple(
            self._calibration_call(batch, f"calibration batch {number}")
            for number, batch in enumerate(self.calibration)
        )

    def _calibration_call(self, batch: Any, name: str) -> ModelCall:
        if isinstance(batch, Mapping):
            return ModelCall((), batch, name)
        # what inputs are given by name may also come first in a batch
        return ModelCall(batch, self.keywords if len(batch) <= len(self.inputs) else {}, name)

    @property
    def device(self) -> str:
        """The device of the model; raises where an input is elsewhere, with what moves it."""
        adapter = adapter_for(self.model, self.arguments)
        return adapter.device(self.model, self.arguments, names=tuple(self.keywords))

    @property
    def generating(self) -> GeneratingModel | None:
        """The model as one whose call generates, or None where it does not."""
        return adapter_for(self.model, self.arguments).generating(self.model)


def check_workload(workload: Any, what: str = "a plan") -> None:
    """Raise unless this is what plans and reports are made for."""
    if not isinstance(workload, Workload):
        raise SettingError(
            f"{what} is made for a Workload, got {type(workload).__name__}; "
            "load_workload('mlp') or Workload(name, model, inputs) makes one"
        )


def call_model(model: Any, *inputs: Any, **settings: Any) -> Any:
    """Call a model, which may have nothing but `forward`."""
    call = model if callable(model) else model.forward
    return call(*inputs, **settings)


# ---------------------------------------------------------------- how many examples one call works
# on, from the shapes of what goes in and comes out


def batch_size(inputs: tuple[Any, ...], output: Any) -> int | None:
    """Return the number of examples, if every input and the first output have as many on axis 0."""
    first = [*_first_axes(inputs), *list(_first_axes(output))[:1]]
    return first[0] if first and len(set(first)) == 1 else None


def _first_axes(value: Any) -> Iterator[int | None]:
    """Yield the length of the first axis of every tensor, None for one that has no second axis."""
    for leaf in leaves(value):
        if hasattr(leaf, "shape"):
            shape = tuple(leaf.shape)
            yield int(shape[0]) if len(shape) > 1 else None


# ---------------------------------------------------------------- example inputs of another size,
# made of the real values that are there

AXES = {"batch": 0, "sequence": 1}


def axis_number(axis: str | int) -> int:
    """Return the number of an axis that has a name."""
    if isinstance(axis, str) and axis not in AXES:
        raise SettingError(f"axis {axis!r}; it is {', '.join(AXES)} or a number from 0 on")
    number = AXES[axis] if isinstance(axis, str) else axis
    if number < 0:
        raise SettingError(f"axis {number}; it must be a number from 0 on")
    return number


def axis_length(inputs: tuple[Any, ...], axis: int) -> int:
    """Return the length of the first input that has such an axis."""
    shapes = [tuple(tensor.shape) for tensor in leaves(inputs) if _is_tensor(tensor)]
    for shape in shapes:
        if len(shape) > axis and shape[axis]:
            return int(shape[axis])
    seen = ", ".join(map(str, shapes)) or "no tensor at all"
    raise SettingError(f"no input has an axis {axis} to change; the inputs are {seen}")


def resize_inputs(inputs: tuple[Any, ...], axis: int, size: int) -> tuple[Any, ...]:
    """Return inputs of `size` along an axis, by repeating and cutting the values that are there.

    Every input that is as long there as the first one is resized; the others stay as they are.
    """
    length = axis_length(inputs, axis)
    resized: tuple[Any, ...] = rebuilt(inputs, lambda leaf: _resized(leaf, axis, length, size))
    return resized


def resize_workload(workload: Workload, axis: int, size: int) -> Workload:
    """Return the workload with example inputs of another size, those given by name included."""
    given = (workload.inputs, dict(workload.keywords))
    inputs, keywords = resize_inputs(given, axis, size)
    return replace(workload, inputs=inputs, keywords=keywords)


def _resized(value: Any, axis: int, length: int, size: int) -> Any:
    if not _is_tensor(value) or len(value.shape) <= axis or value.shape[axis] != length:
        return value
    positions = np.arange(size) % length
    if isinstance(value, Tensor):
        return Tensor(np.take(value.data, positions, axis=axis))
    if isinstance(value, np.ndarray):
        return np.take(value, positions, axis=axis)
    repeats = [-(-size // length) if each == axis else 1 for each in range(len(value.shape))]
    return value.detach().repeat(repeats).narrow(axis, 0, size).contiguous()


def _is_tensor(value: Any) -> bool:
    """Tell tensors of both frameworks and arrays from everything else, without importing torch."""
    return isinstance(value, Tensor | np.ndarray) or (
        hasattr(value, "shape") and hasattr(value, "detach") and hasattr(value, "contiguous")
    )


# ---------------------------------------------------------------- calibration data, in the many
# forms in which people hold it

WRONG = "calibration data is a tensor or batches of them, got {}"


def as_batches(samples: Any) -> tuple[tuple[Any, ...], ...]:
    """Return calibration data as the arguments of several calls.

    Taken are one tensor or array (a batch), or batches in a list, a tuple or a data loader: each a
    tensor, or a tuple of which the first item is the input, as with labels beside it.
    """
    if samples is None:
        return ()
    if isinstance(samples, (str, bytes, dict)):
        raise SettingError(WRONG.format(type(samples).__name__))
    if isinstance(samples, (Tensor, np.ndarray)) or hasattr(samples, "detach"):
        samples = [samples]
    tensors = getattr(samples, "tensors", None)  # a data set, whose first one holds the inputs
    if isinstance(tensors, (tuple, list)) and tensors:
        samples = [tensors[0]]
    try:
        batches = list(samples)
    except TypeError:
        raise SettingError(WRONG.format(type(samples).__name__)) from None
    return tuple((_input_of(batch),) for batch in batches)


def _input_of(batch: Any) -> Any:
    """Return the tensor in a batch, which may stand first in a tuple, with labels behind it."""
    first = batch[0] if isinstance(batch, (tuple, list)) and len(batch) else batch
    if isinstance(first, np.ndarray):
        first = Tensor(first)
    if not hasattr(first, "shape"):
        raise SettingError(WRONG.format(f"a batch with {type(first).__name__} in it"))
    return first


# ---------------------------------------------------------------- what a model needs once before
# it runs at speed: compiling, capturing, tuning

FIRST_CALL = "first call"
"""Setup that is not declared, but was measured: the first call is slower than later ones."""
COMPILED_BY_DYNAMO = "_torchdynamo_orig_callable"


@dataclass(frozen=True)
class Preparation(Coded):
    """Something that was done once, and is no part of the time of a call.

    `what` is a word such as "compiled" or "captured". `nbytes` is the memory that stays taken for
    it, on the device of the model, as measured; None where unknown.
    """

    what: str
    seconds: float
    nbytes: int | None = None

    @property
    def is_estimate(self) -> bool:
        """Return whether the time is the difference of two calls, not that of the thing itself."""
        return self.what == FIRST_CALL


def while_planning(preparations: Sequence[Preparation]) -> Preparation:
    """Return what a plan's trial has spent: what is made later may find its results kept by torch.

    Its memory was given back.
    """
    names = " and ".join(dict.fromkeys(each.what for each in preparations)) or "tried"
    return Preparation(f"{names} while planning", sum(each.seconds for each in preparations))


def preparations_of(model: Any) -> tuple[Preparation, ...]:
    """Return the setup that a model or its layers need; nothing for a model called as it is.

    A model that has some belongs to its memory: a copy of it would have to be prepared again.
    """
    # A wrapper gives those of what is inside, too.
    found = {id(each): each for part in _parts(model) for each in _declared(part) or ()}
    return tuple(found.values())


def prepares_itself(model: Any) -> bool:
    """Return whether a model, or a layer in it, is prepared when it is first called, if not before.

    That is what compiled models do, and those that keep `preparations`, be it none so far.
    """
    return any(_compiles(part) or _declared(part) is not None for part in _parts(model))


def is_compiled(model: Any) -> bool:
    """Return whether `torch.compile` has a part in a model: it compiles when it is first called."""
    return any(_compiles(part) for part in _parts(model))


def _parts(model: Any) -> Iterator[Any]:
    owner = owner_of(model)
    yield owner
    for part in adapter_for(model).modules(model).values():
        if part is not owner:
            yield part


def _declared(part: Any) -> Sequence[Preparation] | None:
    own: Any = getattr(part, "preparations", None)
    is_list = isinstance(own, tuple | list)
    return own if is_list and all(isinstance(each, Preparation) for each in own) else None


def _compiles(part: Any) -> bool:
    """Look for `torch.compile(module)`, `module.compile()`, and compiled methods and functions."""
    attributes = getattr(part, "__dict__", {})
    if "dynamo_ctx" in attributes or attributes.get("_compiled_call_impl") is not None:
        return True
    functions = [part, *attributes.values(), getattr(type(part), "forward", None)]
    return any(callable(each) and hasattr(each, COMPILED_BY_DYNAMO) for each in functions)
