"""What transforms of PyTorch models share: trying a change on a copy, the boundary of a model."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections import UserDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from time import perf_counter
from typing import Any

import torch
from torch import nn

from tinytorch.comparison.outputs import OutputDifference, attention_mask_of, compare_outputs
from tinytorch.errors import ModelError, first_line
from tinytorch.measure.timing import time_limit
from tinytorch.models.adapter import Array, entering_layers, leaves, rebuilt
from tinytorch.models.pytorch import TorchAdapter, tensors_in
from tinytorch.models.pytorch_tensors import digest_of, why_no_module
from tinytorch.models.workload import Workload, call_model, preparations_of

# ---------------------------------------------------------------- check, then time: a change is
# tried on a copy of a model before a plan names it

ROUNDING = 1e-4
"""Outputs of the same arithmetic in another order differ by less, relative to the largest one."""
CALLS = 3
"""The first call may prepare something; the later ones show that the state stays in order."""
LONG_CALL_S, CALLS_IF_LONG = 1.0, 2
"""Where a call takes longer, as those of long texts do, one later call has to show that."""
SEED = 0

Outputs = tuple[Array, ...]
Change = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Trial:
    """How a change went: why it cannot be, or how far outputs moved, its time and its memory.

    `seconds` is the time for changing and for the first call. `nbytes` is the memory of the device
    that stayed taken on top of the copy, None on a processor.
    """

    reason: str = ""
    difference: OutputDifference | None = None
    seconds: float = 0.0
    nbytes: int | None = None
    held_bytes: int = 0
    """What parameters and buffers of the changed copy hold."""

    @property
    def works(self) -> bool:
        return not self.reason

    @property
    def is_idle(self) -> bool:
        """Whether fractions stayed as they were, bit for bit: nothing was rounded."""
        seen = self.difference
        return seen is not None and seen.max_relative_error is not None and seen.is_identical


def try_change(
    workload: Workload, change: Change, *, tolerance: float = ROUNDING, limit_s: float | None = None
) -> Trial:
    """Carry out a change on a copy of the model, call it, and compare its outputs.

    Nothing is left behind: neither the workload nor random state change, memory is freed.
    """
    adapter = TorchAdapter()
    try:
        with adapter.preserving(workload.model), time_limit(limit_s, workload.name):
            expected = _run_often(adapter, workload)
            seconds, nbytes, held, outputs = _carry_out(adapter, workload, change, len(expected))
    except Exception as error:  # a compiler, a device or the model may raise anything
        return Trial(reason=first_line(error))
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    pairs = zip(expected, outputs, strict=True)
    mask = attention_mask_of(workload)
    differences = [compare_outputs(before, after, mask=mask) for before, after in pairs]
    worst = max(differences, key=lambda each: _rank(each, tolerance))
    return Trial(why_unlike(worst, tolerance), worst, seconds, nbytes, held)


def _rank(difference: OutputDifference, tolerance: float) -> tuple[bool, bool, float]:
    is_unlike = bool(why_unlike(difference, tolerance))
    return bool(difference.broken), is_unlike, difference.max_relative_error or 0.0


def _run_often(adapter: TorchAdapter, workload: Workload) -> list[Outputs]:
    """Call a copy of the unchanged model, fewer times where that takes long."""
    copy = adapter.clone(workload.model)
    started = perf_counter()
    outputs = _run(adapter, workload, copy, 1)
    calls = CALLS if perf_counter() - started <= LONG_CALL_S else CALLS_IF_LONG
    return outputs + _run(adapter, workload, copy, calls - 1)


def _carry_out(
    adapter: TorchAdapter, workload: Workload, change: Change, calls: int
) -> tuple[float, int | None, int, list[Outputs]]:
    place = torch.device(workload.device)
    copy = adapter.clone(workload.model)
    before = _allocated(place)
    started = perf_counter()
    changed = change(copy)
    outputs = _run(adapter, workload, changed, 1)
    seconds = perf_counter() - started
    outputs += _run(adapter, workload, changed, calls - 1)
    after = _allocated(place)
    nbytes = None if before is None or after is None else after - before
    return seconds, nbytes, adapter.held_bytes(changed), outputs


def _run(adapter: TorchAdapter, workload: Workload, model: Any, calls: int) -> list[Outputs]:
    return [run_once(adapter, workload, model) for _ in range(calls)]


def run_once(adapter: TorchAdapter, workload: Workload, model: Any) -> Outputs:
    """Call a model on fresh copies of the inputs, and with one seed; give its outputs."""
    inputs, keywords = copied_arguments(adapter, workload)
    torch.manual_seed(SEED)
    with adapter.without_gradients():
        return adapter.arrays(call_model(model, *inputs, **keywords))


def copied_arguments(
    adapter: TorchAdapter, workload: Workload
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return copies of what a model is called with, by place and by name."""
    inputs = adapter.copy_inputs(workload.inputs)
    values = adapter.copy_inputs(tuple(workload.keywords.values()))
    return inputs, dict(zip(workload.keywords, values, strict=True))


def why_unlike(difference: OutputDifference, tolerance: float) -> str:
    """Return why outputs are not the same within a tolerance, or ""."""
    if difference.broken:
        return f"its outputs would be wrong: {difference.broken}"
    error = difference.max_relative_error
    if error is not None and error > tolerance:
        return (
            f"its outputs would change by {error:.2g} of the largest one, "
            f"more than the {tolerance:.2g} that are allowed"
        )
    if difference.equal_share is not None and difference.equal_share < 1:
        share = f"{difference.equal_share:.1%}"
        return f"only {share} of the whole numbers in its outputs would be the same"
    return ""


def _allocated(place: torch.device) -> int | None:
    return torch.cuda.memory_allocated(place) if place.type == "cuda" else None


# ---------------------------------------------------------------- the boundary of a PyTorch model:
# what goes in, what comes out, what else a call changes
#
# Transforms that convert inputs or wrap the call look here before they promise anything.

IN_TRAINING = "it is in training mode; call eval() on it first"
ROUNDINGS = 16
"""So many units of the last place may outputs move when the same is computed in another order."""
TF32 = 2.0**-10
"""The last place of what CUDA devices may multiply float32 in."""


def why_unchangeable(model: Any) -> str:
    """Return why a model cannot be changed or called in another way, or ""."""
    prepared = preparations_of(model)
    if prepared:
        return f"it was prepared already ({prepared[0].what}); change the model before that"
    return why_no_module(model)


def rounding_of(model: nn.Module) -> float:
    """Return how far outputs may move, relative to the largest, where only rounding changes."""
    units = [
        TF32 if each.is_cuda and each.dtype == torch.float32 else torch.finfo(each.dtype).eps
        for each in model.parameters()
        if each.is_floating_point()
    ]
    return max([ROUNDING, *(ROUNDINGS * unit for unit in units)])


def refusal(model: nn.Module, trial: Trial) -> str:
    """Return why a trial failed, and what may help."""
    is_training = any(module.training for module in model.modules())
    if is_training and trial.difference is not None:  # it ran, but gave something else
        return f"{trial.reason}; {IN_TRAINING}"
    return trial.reason


def trial_note(trial: Trial) -> str:
    """Return a note on how far the outputs moved in a trial that worked."""
    error = trial.difference.max_relative_error if trial.difference is not None else None
    if error is None or trial.difference is None:
        return "the outputs hold no fractions to compare"
    if trial.difference.is_identical:
        return "on the inputs of the workload, the outputs stay the same, bit for bit"
    return f"on the inputs of the workload, outputs change by {error:.1e} of the largest one"


@dataclass(frozen=True)
class ObservedCall:
    """What one call of a copy of the model on the workload's inputs did.

    `called` are the paths of the layers that ran, `output_dtypes` those of the floats in the
    outputs, `writes_inputs` tells whether a tensor, list, dictionary or dataclass among the inputs
    was written to, and `written_buffers` are the names of buffers with fractions that changed.
    """

    called: frozenset[str] = frozenset()
    output_dtypes: tuple[torch.dtype, ...] = ()
    writes_inputs: bool = False
    written_buffers: tuple[str, ...] = ()
    error: str = ""


def observe_call(workload: Workload) -> ObservedCall:
    """Call a copy of the model once; an error of the model is part of the answer."""
    adapter = TorchAdapter()
    called: set[str] = set()
    try:
        model: nn.Module = adapter.clone(workload.model)
        inputs, keywords = copied_arguments(adapter, workload)
        parts = list(leaves((inputs, keywords)))
        given = tensors_in(parts)
        versions = [each._version for each in given]
        watch = entering_layers(
            adapter.watchable_modules(model),
            called.add,
            lambda path, error, output: None,
            methods=adapter.methods,
        )
        with adapter.preserving(workload.model), adapter.without_gradients(), watch:
            torch.manual_seed(SEED)
            output = call_model(model, *inputs, **keywords)
    except Exception as error:  # a model may raise anything
        return ObservedCall(error=f"it cannot be called: {first_line(error)}")
    floats = [each.dtype for each in tensors_in(output) if each.is_floating_point()]
    # the workload's own tensors are what there was before; versions see writes of equal numbers
    before = tensors_in((workload.inputs, workload.keywords))
    is_written = (
        [*map(id, leaves((inputs, keywords)))] != [*map(id, parts)]
        or [each._version for each in given] != versions
        or not all(_is_same(old, new) for old, new in zip(before, given, strict=True))
    )
    return ObservedCall(
        frozenset(called),
        tuple(dict.fromkeys(floats)),
        is_written,
        tuple(_written_buffers(workload.model, model)),
    )


def _written_buffers(before: nn.Module, after: nn.Module) -> Iterator[str]:
    """Yield the names of buffers with fractions that hold something else than before."""
    old = dict(before.named_buffers(remove_duplicate=False))
    for name, each in after.named_buffers(remove_duplicate=False):
        if each.is_floating_point() and not (name in old and _is_same(old[name], each)):
            yield name


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.layout != torch.strided or one.is_nested:
        return one.shape == other.shape
    one, other = one.detach(), other.detach()
    return bool(((one == other) | ((one != one) & (other != other))).all())  # NaN is NaN


def changed_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return tuples, lists, dictionaries and dataclasses with the tensors in them changed.

    Objects of other kinds, such as a cache, are returned unchanged.
    """

    if isinstance(value, torch.Tensor):
        return change(value)
    # Plain containers are always made anew: torch.compile follows that, but no comparison of them.
    if type(value) in (tuple, list):
        return type(value)(changed_tensors(part, change) for part in value)
    if type(value) is dict:
        return {key: changed_tensors(part, change) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, dict)):
        return _changed_fields(value, change)
    if not isinstance(value, (dict, UserDict, list, tuple)):
        return value
    return rebuilt(value, lambda part: changed_tensors(part, change))


def _changed_fields(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    twin = copy.copy(value)
    for each in dataclasses.fields(value):
        part = changed_tensors(getattr(value, each.name), change)
        object.__setattr__(twin, each.name, part)  # which frozen ones allow, too
    return twin


# ---------------------------------------------------------------- whether a model still has the
# tensors that something was made from. Imported after torch

Mark = tuple[int, int]
REGISTRIES = ("_parameters", "_buffers", "_modules")


class SameWeights:
    """The layers and tensors of a model, and on request how often the tensors were written.

    A graph on a device reads tensors where they were: it sees numbers that are written there, and
    nothing of a tensor that took their place. Packed weights are copies, which see neither.
    Checked are parameters, buffers, and tensors that are attributes of a layer or lie in a list
    or dictionary that is one. What is written through `.data`, or to tensors that were made in
    inference mode, is not counted.
    """

    def __init__(self, model: nn.Module, *, also_numbers: bool) -> None:
        self._model, self._also_numbers = model, also_numbers
        self._layers = list(_layers(model))
        modules = list(model.modules())
        self._registered = [
            (registry, name)
            for module in modules
            for registry in (module._parameters, module._buffers)
            for name, tensor in registry.items()
            if tensor is not None
        ]
        self._attributes = [place for module in modules for place in _attributes(module)]
        # Held, so that nothing else gets their memory while a graph may read it.
        self._held = [_at(*place) for place in self._attributes]
        self._seen = self._marks()

    def still_hold(self) -> bool:
        """Return whether everything is the same, as far as it can be seen from outside."""
        for registry, layers in self._layers:
            if tuple(registry.values()) != layers:
                return False
        return self._marks() == self._seen

    def ignore_what_changed(self) -> None:
        """Accept what has changed by now as the state of the model, which calls of it write."""
        marks = self._marks()
        same = [now == before for now, before in zip(marks, self._seen, strict=True)]
        self._layers = list(_layers(self._model))
        self._seen = _only(marks, same)
        registered, attributes = same[: len(self._registered)], same[len(self._registered) :]
        self._registered = _only(self._registered, registered)
        self._attributes = _only(self._attributes, attributes)
        self._held = _only(self._held, attributes)

    def _marks(self) -> list[Any]:
        tensors = [names.get(name) for names, name in self._registered]
        if self._attributes:
            tensors += [_at(*place) for place in self._attributes]
        if self._also_numbers:
            return [_written(tensor) for tensor in tensors]
        try:  # before every call, so in the shortest way
            return list(map(torch.Tensor.data_ptr, tensors))  # type: ignore[arg-type]
        except (RuntimeError, TypeError):
            return [_lies(tensor) for tensor in tensors]


def contents_of(model: nn.Module) -> list[Any]:
    """Return what a model computes with, to compare later: its layers, and a hash of each tensor.

    It keeps nothing alive and sees what is written through `.data`, too, but reads every number,
    which takes about a second per gigabyte. SameWeights is for what is asked before every call.
    """
    found: list[Any] = []
    for path, module in model.named_modules():
        found.append((path, weakref.ref(module)))
        places = [(module._parameters, name) for name in module._parameters]
        places += [(module._buffers, name) for name in module._buffers]
        for place in (*places, *_attributes(module)):
            tensor = _at(*place)
            found.append((place[1], None if tensor is None else digest_of(tensor)))
    return found


def _layers(model: nn.Module) -> Iterator[tuple[dict[str, Any], tuple[Any, ...]]]:
    """Yield where layers are registered, and which."""
    for module in model.modules():
        if module._modules:
            yield module._modules, tuple(module._modules.values())


def _attributes(module: nn.Module) -> Iterator[tuple[Any, Any]]:
    """Yield where a layer keeps tensors that are not registered: the holder, and its key."""
    for name, value in vars(module).items():
        if isinstance(value, torch.Tensor):
            yield vars(module), name
        elif name in REGISTRIES or not isinstance(value, (dict, list, tuple)):
            continue
        else:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            yield from ((value, key) for key, each in items if isinstance(each, torch.Tensor))


def _at(holder: Any, key: Any) -> torch.Tensor | None:
    try:
        found = holder[key]
    except (KeyError, IndexError):
        return None
    return found if isinstance(found, torch.Tensor) else None


def _only(values: list[Any], wanted: list[bool]) -> list[Any]:
    return [value for value, is_wanted in zip(values, wanted, strict=True) if is_wanted]


def _lies(tensor: torch.Tensor | None) -> int:
    try:
        return id(tensor) if tensor is None else tensor.data_ptr()
    except RuntimeError:  # of tensors that are made of others
        return id(tensor)


def _written(tensor: torch.Tensor | None) -> Mark:
    if tensor is None or tensor.is_inference():  # these have no version counter
        return (_lies(tensor), 0)
    return (_lies(tensor), tensor._version)


# ---------------------------------------------------------------- what calls must have in common
# to be replayed as one. Imported after torch

TENSORS = (torch.Tensor, nn.Parameter)
FRACTIONS = (float, complex)
PLAIN = (bool, int, str, bytes, type(None), Enum)
CONSTANTS = (torch.dtype, torch.device, torch.Size, torch.memory_format, torch.layout)


class UnknownArgumentError(ModelError):
    """An argument that cannot be compared with that of another call."""


def kind_of_arguments(value: Any, tensors: list[torch.Tensor]) -> Hashable:
    """Return what calls must have in common to be the same graph, and collect the tensors.

    Tensors count by shape, strides, dtype and device, everything else by its value.
    """
    if isinstance(value, torch.Tensor):
        if type(value) not in TENSORS:
            raise UnknownArgumentError(
                f"an argument is a {type(value).__name__}, a tensor of its own class"
            )
        if value.layout != torch.strided or value.is_nested or value.is_quantized:
            raise UnknownArgumentError("an argument is a sparse, ragged or quantized tensor")
        tensors.append(value)
        return (value.shape, value.stride(), value.dtype, value.device)
    if isinstance(value, FRACTIONS):
        return (type(value), repr(value))  # which tells -0.0 from 0.0
    if isinstance(value, PLAIN + CONSTANTS):
        return (type(value), value)
    if type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return (type(value), *[kind_of_arguments(each, tensors) for each in value])
    if isinstance(value, dict):
        items = value.items()
        return (type(value), *[(name, kind_of_arguments(each, tensors)) for name, each in items])
    raise UnknownArgumentError(
        f"an argument is a {type(value).__name__}, which cannot be compared between calls"
    )


# ---------------------------------------------------------------- copies of outputs whose memory
# is about to be used again. Imported after torch

FEW = 4
"""So many tensors are copied one by one; more are copied by a single kernel."""
ATOMS = (str, bytes, bool, int, float, complex, type(None), type, torch.dtype, torch.device)


class OutputTemplate:
    """An output whose tensors are overwritten by every call, ready to be copied.

    Objects of any kind are copied as far as they lead to tensors, such as a cache of keys and
    values; what holds none is shared.
    """

    def __init__(self, output: Any) -> None:
        self.output = output
        self.tensors: list[torch.Tensor] = []
        self._shared: dict[int, Any] = {}
        self._look_into(output, set())

    def copied(self) -> Any:
        """Return a copy of the output."""
        copies = self._copies()
        if isinstance(self.output, torch.Tensor):
            return copies[0]
        twins = dict(zip(map(id, self.tensors), copies, strict=True))
        return _twin(self.output, twins | self._shared)

    def _copies(self) -> list[torch.Tensor]:
        if len(self.tensors) <= FEW or torch.is_grad_enabled():
            return [tensor.clone() for tensor in self.tensors]
        copies = [torch.empty_like(tensor) for tensor in self.tensors]
        torch._foreach_copy_(copies, self.tensors)
        return copies

    def _look_into(self, value: Any, seen: set[int]) -> bool:
        """Find the tensors of a value, and share whatever has none; tell whether it has any."""
        if isinstance(value, ATOMS):
            return False
        if id(value) in seen:
            return True  # it is being looked into, or was: whatever leads here is copied
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return True
        parts = () if isinstance(value, nn.Module) else _parts(value)
        found = [self._look_into(part, seen) for part in parts]  # all of them, also after the first
        if any(found):
            return True
        if not isinstance(value, (tuple, list, dict)):
            self._shared[id(value)] = value
        return False


def owned(output: Any) -> Any:
    """Return a copy of an output."""
    return OutputTemplate(output).copied()


def _twin(value: Any, twins: dict[int, Any]) -> Any:
    """Copy a value with the tensors, and whatever else, that stand in for its parts.

    `copy.deepcopy` would do the same, in twenty times the time.
    """
    if isinstance(value, ATOMS):
        return value
    if id(value) in twins:
        return twins[id(value)]
    kind: Any = type(value)
    if kind is tuple:
        return tuple(_twin(item, twins) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(_twin(item, twins) for item in value))
    if kind is list:
        rows = twins[id(value)] = []
        rows.extend(_twin(item, twins) for item in value)
        return rows
    if isinstance(value, dict):
        twin = twins[id(value)] = {} if kind is dict else copy.copy(value)
        for key, item in value.items():
            twin[key] = _twin(item, twins)
        for key, item in getattr(value, "__dict__", {}).items():
            twin.__dict__[key] = _twin(item, twins)
        return twin
    if hasattr(value, "__dict__") and kind.__new__ is object.__new__ and not _slots(kind):
        twin = twins[id(value)] = object.__new__(kind)
        twin.__dict__.update({key: _twin(item, twins) for key, item in vars(value).items()})
        return twin
    return copy.deepcopy(value, twins)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (tuple, list, set, frozenset, deque)):
        yield from value
    yield from getattr(value, "__dict__", {}).values()
    kind: Any = type(value)
    yield from (getattr(value, name) for name in _slots(kind) if hasattr(value, name))


@cache
def _slots(kind: type) -> tuple[str, ...]:
    found = (each.__dict__.get("__slots__", ()) for each in kind.__mro__)
    names = (name for each in found for name in ((each,) if isinstance(each, str) else each))
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
