"""What a model is called with: the forms in which people hold inputs, as the arguments of calls."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.errors import SettingError

__all__ = ["Batches", "ModelCall", "read_calibration", "read_inputs"]

Form = tuple[Any, ...] | dict[str, Any]
"""The arguments of one call: by position, or all of them by name."""

FORMS = (
    "a tuple is the arguments of a call, a dictionary those given by name, a list or a tensor one "
    "argument; wrap several batches in Batches(...)"
)
MOST_BATCHES, ENOUGH_EXAMPLES = 32, 512
"""Of a loader, calibration takes this many batches at most, and none after so many examples."""


@dataclass(frozen=True)
class ModelCall:
    """The arguments of one call of a model, and what they are."""

    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    name: str = "the inputs"

    @property
    def values(self) -> tuple[Any, ...]:
        """Return all arguments, those given by name last."""
        return (*self.arguments, *self.keywords.values())


class Batches:
    """Several batches, each in a form of its own: a tuple of arguments, a dictionary, a tensor.

    >>> len(Batches([(1, 2), {"x": 3}]))
    2
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        if hasattr(batches, "shape") or isinstance(batches, str | bytes | Mapping):
            raise SettingError(
                f"Batches takes an iterable of batches, got a {type(batches).__name__}"
            )
        self._batches = tuple(batches)
        if not self._batches:
            raise SettingError("Batches without a batch; give one at least")

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def read_inputs(
    inputs: Any, model: Any, *, of: str
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]:
    """Return the arguments of a call, those given by name, and notes on what was left out.

    Of many batches the first is the example. `of` names the workload.
    """
    notes: list[str] = []
    if isinstance(inputs, Batches):
        form = _one_call(next(iter(inputs)), f"the inputs of {of}")
        if len(inputs) > 1:
            notes.append(f"the first of {len(inputs)} batches is the example input")
    elif is_loader(inputs):
        with _reproducibly(inputs):
            batch = next(iter(inputs), None)
        if batch is None:
            raise SettingError(f"the data loader in the inputs of {of} gives no batch")
        form, left_out = _of_loader(batch, model, of)
        notes.append(f"the first batch of the data loader is the example input{left_out}")
    else:
        form = _one_call(inputs, f"the inputs of {of}")
    return (form, {}, tuple(notes)) if isinstance(form, tuple) else ((), form, tuple(notes))


def read_calibration(
    calibration: Any, model: Any, *, of: str
) -> tuple[tuple[Form, ...], tuple[str, ...]]:
    """Return the arguments of each call, and notes on what was left out."""
    what = f"the calibration of {of}"
    if is_loader(calibration):
        return _first_of_loader(calibration, model, of)
    if calibration is None or isinstance(calibration, str | bytes):
        raise SettingError(f"{what} is {calibration!r}; pass batches: {FORMS}")
    if hasattr(calibration, "shape") or isinstance(calibration, Mapping):
        calibration = (calibration,)  # one batch
    try:
        batches = list(calibration)
    except TypeError:
        kind = type(calibration).__name__
        raise SettingError(f"{what} is a {kind}; pass batches: {FORMS}") from None
    return tuple(_one_call(each, f"batch {n} of {what}") for n, each in enumerate(batches)), ()


def is_loader(value: Any) -> bool:
    """Return whether this is a data loader of TinyTorch or PyTorch."""
    data = sys.modules.get("torch.utils.data")
    return isinstance(value, DataLoader if data is None else (DataLoader, data.DataLoader))


# ---------------------------------------------------------------- one call


def _one_call(value: Any, what: str) -> Form:
    """Return the arguments that one value stands for."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise SettingError(f"{what}: the names in a dictionary of arguments must be strings")
        return dict(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):  # a named tuple is one argument
        return tuple(value)
    data = sys.modules.get("torch.utils.data")
    if isinstance(value, TensorDataset if data is None else (TensorDataset, data.Dataset)):
        kind = type(value).__name__
        raise SettingError(f"{what}: a {kind} holds examples; pass a DataLoader that batches them")
    if value is None or isinstance(value, Iterator | Batches) or is_loader(value):
        kind = "None" if value is None else f"a {type(value).__name__}"
        raise SettingError(f"{what}: {kind} is not what one call gets: {FORMS}")
    return (value,)


# ---------------------------------------------------------------- batches of a data loader, which
# may hold more than the model is called with


def _first_of_loader(loader: Any, model: Any, of: str) -> tuple[tuple[Form, ...], tuple[str, ...]]:
    taken: list[Form] = []
    examples, left_out = 0, ""
    with _reproducibly(loader):
        for batch in islice(loader, MOST_BATCHES):
            form, left_out = _of_loader(batch, model, of)
            taken.append(form)
            examples += _examples_in(form)
            if examples >= ENOUGH_EXAMPLES:
                break
    try:
        total = f" of {len(loader)}"
    except TypeError:  # a stream of unknown length
        total = ""
    if total == f" of {len(taken)}" and not left_out:
        return tuple(taken), ()
    note = f"calibration uses the first {len(taken)}{total} batches of the data loader{left_out}"
    return tuple(taken), (note,)


def _examples_in(form: Form) -> int:
    values = form if isinstance(form, tuple) else tuple(form.values())
    shapes = (tuple(value.shape) for value in values if hasattr(value, "shape"))
    return next((int(shape[0]) for shape in shapes if shape), 1)


def _of_loader(batch: Any, model: Any, of: str) -> tuple[Form, str]:
    """Return what the model is called with, and in words what of the batch it is not.

    Of (inputs, labels) that is as many items as the model needs; of a dictionary what it accepts.
    """
    takes = _signature(model)
    if isinstance(batch, list | tuple) and len(batch) and not hasattr(batch, "_fields"):
        first = batch[0]
        if isinstance(first, Mapping | list | tuple):
            form = tuple(first) if isinstance(first, list) else _one_call(first, f"a batch of {of}")
            return form, ", without what follows in it" if len(batch) > 1 else ""
        form = tuple(batch[: takes.needed])
        extra = len(batch) - len(form)
        # such as labels; Batches(...) says exactly what a call gets
        return form, f", its first {len(form)} of {len(batch)} items" if extra else ""
    form = _one_call(batch, f"a batch of {of}")
    if isinstance(form, tuple) or takes.names is None:
        return form, ""
    unknown = [name for name in form if name not in takes.names]
    if len(unknown) == len(form):
        raise SettingError(
            f"the data loader of {of} gives {', '.join(map(repr, form))}, and the model takes "
            f"{', '.join(map(repr, sorted(takes.names))) or 'nothing'} by name"
        )
    kept = {name: value for name, value in form.items() if name in takes.names}
    return kept, f", without {', '.join(map(repr, unknown))}" if unknown else ""


def arguments_needed(model: Any) -> int:
    """Return how many arguments a model needs by position, one at least."""
    return _signature(model).needed


@dataclass(frozen=True)
class _Signature:
    """How many arguments a model needs by position, and the names that it takes; None for any."""

    needed: int = 1
    names: frozenset[str] | None = None


def _signature(model: Any) -> _Signature:
    call: Callable[..., Any] = getattr(model, "forward", model)
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # what is written in C may have none
        return _Signature()
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = sum(each.kind in by_place and each.default is each.empty for each in parameters)
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return _Signature(max(1, needed))
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = frozenset(each.name for each in parameters if each.kind in named)
    return _Signature(max(1, needed), names)


@contextmanager
def _reproducibly(loader: Any) -> Iterator[None]:
    """Draw the same batches each time from a loader that shuffles, and leave no trace of it."""
    torch = sys.modules.get("torch")
    epoch = getattr(loader, "epoch", None)
    try:
        if torch is None or isinstance(loader, DataLoader):
            yield
            return
        generator = loader.generator
        state = None if generator is None else generator.get_state()
        with torch.random.fork_rng(devices=[]):
            torch.random.default_generator.manual_seed(0)
            yield
        if state is not None:
            generator.set_state(state)
    finally:
        if epoch is not None:
            loader.epoch = epoch


# ---------------------------------------------------------------- inputs that are elsewhere


def moving_inputs(values: Collection[Any], names: Collection[str], device: str) -> str:
    """Return the line of Python that moves inputs to a device, in the form that they have.

    `names` are those of the last values, which are given by name.
    """
    moved = f'x.to("{device}")'
    if not all(hasattr(value, "to") for value in values):
        moved += ' if hasattr(x, "to") else x'
    elif len(values) == 1 and not names:
        return f"x = {moved}"
    if len(names) == len(values):
        return f"inputs = {{name: {moved} for name, x in inputs.items()}}"
    by_place = f"inputs = tuple({moved} for x in inputs)"
    by_name = f"keywords = {{name: {moved} for name, x in keywords.items()}}"
    return f"{by_place}; {by_name}" if names else by_place
