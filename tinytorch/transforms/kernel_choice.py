"""Choosing an implementation of an operation by measurement, and what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tinytorch import __version__
from tinytorch.codec import Coded
from tinytorch.comparison import sequential
from tinytorch.comparison.sequential import Raced
from tinytorch.core.dispatch import KernelCall, recording, use_backend
from tinytorch.core.files import cache_folder, read_kept, write_kept
from tinytorch.core.kernels import Array, Backend, Kernel
from tinytorch.core.module import Execution, Module
from tinytorch.errors import BackendError, SettingError
from tinytorch.measure.estimate import Estimate
from tinytorch.models.adapter import adapter_for
from tinytorch.models.targets import load_workload
from tinytorch.models.workload import Workload
from tinytorch.showing import Shown

# ---------------------------------------------------------------- what was measured about the
# implementations of an operation, and which one was chosen

FASTER = "faster"
DEFAULT_WINS = "the default is the fastest"
NO_DIFFERENCE = "inconclusive"
ONLY_ONE = "the only one that is right"
DEFAULT_WRONG = "the default cannot be used"


@dataclass(frozen=True)
class Rival:
    """An implementation that was not chosen.

    `ratio` is its time over that of the chosen one, above 1: the chosen one is faster. It is None,
    with the reason in `note`, where it was not timed: it raised or gave something else.
    """

    name: str
    ratio: Estimate | None
    note: str = ""


@dataclass(frozen=True)
class Choice(Coded):
    """The implementation of an operation for calls of one size class.

    `n` is the number of rounds in which all took turns, `seconds` the median time of one call. The
    verdict is `faster` (than the default), `the default is the fastest`, `inconclusive` (so
    the default stays), `the only one that is right`, or `the default cannot be used` (and this is
    the fastest of the others).
    """

    op: str
    size_class: str
    chosen: str
    default: str
    rivals: tuple[Rival, ...]
    n: int
    verdict: str
    seconds: float | None = None

    def against(self, name: str) -> Estimate | None:
        """Return the time of another implementation over that of the chosen one, if measured."""
        return next((each.ratio for each in self.rivals if each.name == name), None)


@dataclass(frozen=True)
class KernelReport(Coded, Shown):
    """Which implementation won where, on this machine.

    `fingerprint` stands for the machine, the versions of its libraries and the number of threads.
    """

    rows: tuple[Choice, ...]
    fingerprint: str
    notes: tuple[str, ...] = ()


# ---------------------------------------------------------------- keeping choices on disk: one
# file for each machine, its libraries and number of threads

SCHEMA = 2
"""Raise it when the meaning of a field changes; files of another version are measured again."""

Key = tuple[str, str]
"""An operation and a size class."""


def choices_file(fingerprint: str) -> Path:
    """Return the file that holds, or will hold, the choices of a machine."""
    return cache_folder() / f"kernels-{fingerprint}.json"


def load_choices(path: Path) -> dict[Key, Choice]:
    """Read choices; none where there are none, or none that this version understands."""
    try:
        kept = read_kept(path, schema=SCHEMA, version=__version__)
        choices = [Choice.from_dict(each) for each in kept["choices"]]
        return {(each.op, each.size_class): each for each in choices}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def save_choices(choices: Mapping[Key, Choice], path: Path) -> str | None:
    """Add choices to a file; when it cannot be written, give a sentence that says so.

    What another process has added in the meantime stays.
    """
    together = load_choices(path) | dict(choices)
    rows = [each.to_dict() for each in together.values()]
    return write_kept(path, schema=SCHEMA, version=__version__, choices=rows)


def forget_choices(path: Path) -> None:
    """Remove a file of choices, if it is there and can be removed."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # a folder that cannot be written; in memory they are forgotten


# ---------------------------------------------------------------- size classes: which calls of an
# operation are alike enough to share a choice
#
# Calls are alike when their arrays have the same dtypes and numbers of axes, the same powers of two
# of their elements and of the *row length*, and equal settings where these change what is computed.
# The row length is the last axis of the first array, along which kernels vectorise.

Shape = tuple[int, ...]
Signature = tuple[Any, ...]

# Operation -> its settings that decide about speed. Rates, steps and the like do not.
DECIDING_SETTINGS: dict[str, tuple[str, ...]] = {
    "gelu": ("approximate",),
    "gelu_backward": ("approximate",),
    "softmax": ("axis",),
    "softmax_backward": ("axis",),
    "log_softmax": ("axis",),
    "log_softmax_backward": ("axis",),
    "sum": ("axis",),
    "mean": ("axis",),
    "max": ("axis",),
    "power_scalar": ("exponent",),
    "linear": ("activation",),
    "int8_linear_weight_only": ("activation",),
    "int8_linear_dynamic": ("activation",),
    "int8_linear_static": ("activation",),
    "int4_linear_weight_only": ("group_size", "activation"),
    "sparse_linear": ("activation",),
    "attention": ("causal", "keep_weights"),
    "attention_backward": ("causal",),
    "conv2d": ("stride", "padding", "dilation", "groups"),
    "conv2d_backward_input": ("stride", "padding", "dilation", "groups"),
    "conv2d_backward_weight": ("stride", "padding", "dilation", "groups"),
    **dict.fromkeys(
        ("int8_conv2d_weight_only", "int8_conv2d_dynamic", "int8_conv2d_static"),
        ("kernel_size", "stride", "padding", "dilation", "groups"),
    ),
    "max_pool2d": ("kernel", "stride", "padding"),
    "max_pool2d_backward": ("kernel", "stride", "padding"),
    "avg_pool2d": ("kernel", "stride", "padding"),
    "avg_pool2d_backward": ("kernel", "stride", "padding"),
    "adam_step": ("decoupled",),
    "sgd_step": (),
}


def deciding_settings(kind: str) -> tuple[str, ...]:
    """Return the names of the settings of an operation that decide about speed."""
    return DECIDING_SETTINGS.get(kind, ())


def signature(
    arguments: Sequence[Any], settings: Mapping[str, Any], names: Sequence[str]
) -> Signature:
    """Return a key for exactly these shapes, dtypes and settings, in about a microsecond."""
    key: list[Any] = []
    for value in arguments:
        if isinstance(value, (np.ndarray, np.generic)):
            key.append(value.shape)
            key.append(value.dtype)
        elif isinstance(value, (tuple, list)):
            key.append(tuple((getattr(x, "shape", None), getattr(x, "dtype", None)) for x in value))
        else:
            key.append(type(value))  # None, or a number
    for name in names:
        key.append(settings.get(name))
    return tuple(key)


def size_class(
    kind: str, shapes: Sequence[Shape], dtypes: Sequence[str], settings: Mapping[str, Any]
) -> str:
    """Name the class of a call by the shapes and dtypes of its arrays, those absent left out.

    >>> size_class("matmul", [(128, 768), (768, 768)], ["float32", "float32"], {})
    'float32 2d,2d of 2^16,2^19 in rows of 2^9'
    """
    weight = settings.get("weight_shape")  # of a weight that is no argument
    shapes = [*shapes, *([] if weight is None else [weight])]
    sizes = ",".join(_power(math.prod(shape)) for shape in shapes)
    row = shapes[0][-1] if shapes and shapes[0] else 1
    words = [
        "/".join(dict.fromkeys(dtypes)) or "no arrays",
        ",".join(f"{len(shape)}d" for shape in shapes),
        f"of {sizes} in rows of {_power(row)}" if shapes else "",
        *(
            f"{name}={settings[name]}"
            for name in deciding_settings(kind)
            if settings.get(name) is not None
        ),
    ]
    return " ".join(filter(None, words))


def _power(number: int) -> str:
    return f"2^{number.bit_length() - 1}" if number else "0"


def arrays_in(arguments: Sequence[Any]) -> list[Any]:
    """Return the arrays among arguments, also those in a tuple: as a recorder sees them."""
    items = (
        item
        for value in arguments
        for item in (value if isinstance(value, (tuple, list)) else (value,))
    )
    return [item for item in items if isinstance(item, (np.ndarray, np.generic))]


# ---------------------------------------------------------------- check, then time: does an
# implementation compute what the reference computes?

IN_PLACE: dict[str, tuple[int, ...]] = {"sgd_step": (0, 2), "adam_step": (0, 2, 3)}
"""Operations that change some of their arguments, and which."""
ROUNDINGS = 200
"""So many roundings of the largest element may lie between two results: different orders of adding
up, and different exponentials. Sums of very many terms may differ by more; then the exact result
decides."""
AS_GOOD_AS = 4.0
"""How many times further from the exact result than the reference's a result may be."""


def copied(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Copy the arrays among arguments, also those in a tuple, with the same strides."""
    return tuple(
        _copy(value)
        if isinstance(value, np.ndarray)
        else copied(value)
        if isinstance(value, (tuple, list))
        else value
        for value in arguments
    )


def _copy(array: Array) -> Array:
    """Copy an array with its gaps and repeated elements: a kernel may mind them."""
    dense = array.copy(order="K")
    if dense.strides == array.strides or array.size == 0 or array.dtype.hasobject:
        return dense
    reaches = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    before = -sum(min(reach, 0) for reach in reaches)
    size = before + sum(max(reach, 0) for reach in reaches) + array.itemsize
    result: Array = np.ndarray(
        array.shape, array.dtype, np.zeros(size, np.uint8), before, array.strides
    )
    result[...] = dense
    return result


class Check:
    """What the reference computes from some arguments, and whether others do so too.

    All results count, also those that only the backward pass reads. Everything runs on copies.
    Arguments that the reference cannot use raise what it raises.
    """

    def __init__(
        self, kind: str, reference: Kernel, arguments: Sequence[Any], settings: Mapping[str, Any]
    ) -> None:
        self.kind = kind
        self.reference = reference
        self.arguments = tuple(arguments)
        self.settings = settings
        self.expected = self._results(reference, copied(arguments))

    def why_wrong(self, kernel: Kernel) -> str | None:
        """Return the reason why an implementation cannot be used on these arguments, or None."""
        if kernel is self.reference:
            return None
        own = copied(self.arguments)
        try:
            found = self._results(kernel, own)
        except Exception as error:  # whatever a kernel raises, there are others
            return f"raised {type(error).__name__}: {error}"
        if self._changed(own):
            return "changes its inputs"
        if len(found) != len(self.expected):
            return f"gives {len(found)} results, the reference {len(self.expected)}"
        for position, (one, other) in enumerate(zip(found, self.expected, strict=True)):
            if _form(one) != _form(other):
                return f"result {position} is {_form(one)}, the reference's {_form(other)}"
        if all(map(_are_close, found, self.expected)):
            return None
        return self._why_further_from_exact(found)

    def _results(self, kernel: Kernel, arguments: tuple[Any, ...]) -> list[Any]:
        """Run a kernel and give everything that it computed: what it gives, or what it changed."""
        result = kernel(*arguments, **self.settings)
        if self.kind in IN_PLACE:
            return [arguments[position] for position in IN_PLACE[self.kind]]
        return list(result) if isinstance(result, tuple) else [result]

    def _changed(self, after: Sequence[Any]) -> bool:
        return any(
            isinstance(before, np.ndarray) and not _equal(before, now)
            for position, (before, now) in enumerate(zip(self.arguments, after, strict=True))
            if position not in IN_PLACE.get(self.kind, ())
        )

    def _why_further_from_exact(self, found: list[Any]) -> str | None:
        """Compare both with the result in float64, which is as good as exact for the others."""
        precise = self._results(self.reference, _in_float64(self.arguments))
        triples = zip(found, self.expected, precise, strict=True)
        for position, (own, theirs, exact) in enumerate(triples):
            if theirs is None or np.asarray(theirs).dtype.kind != "f":
                if not _are_close(own, theirs):
                    return f"result {position} differs from the reference"
                continue
            own, theirs = np.asarray(own), np.asarray(theirs)
            exact = np.where(np.isfinite(theirs), exact, theirs)  # float64 overflows later
            error, usual = _distance(own, exact), _distance(theirs, exact)
            rounding = float(np.finfo(theirs.dtype).eps)
            if not error <= max(AS_GOOD_AS * usual, ROUNDINGS * rounding):
                return (
                    f"result {position} is off by {error:.1e} of the largest element, the "
                    f"reference by {usual:.1e}"
                )
        return None


def _equal(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _form(value: Any) -> str:
    if value is None:
        return "nothing"
    array = np.asarray(value)
    return f"{array.dtype} {array.shape}"


def _are_close(found: Any, expected: Any) -> bool:
    if expected is None:
        return True
    found, expected = np.asarray(found), np.asarray(expected)
    if expected.dtype.kind != "f":
        return np.array_equal(found, expected)
    return _distance(found, expected) <= ROUNDINGS * np.finfo(expected.dtype).eps


def _distance(found: Array, expected: Array) -> float:
    """Return the largest difference as a share of the largest element; infinite for a lost NaN."""
    is_finite = np.isfinite(expected)
    if not np.array_equal(found[~is_finite], expected[~is_finite], equal_nan=True):
        return math.inf
    exact = expected[is_finite].astype(np.float64)
    gap = float(np.abs(found[is_finite] - exact).max(initial=0.0))
    largest = float(np.abs(exact).max(initial=0.0))
    if math.isnan(gap):
        return math.inf
    return gap / largest if largest > 0 else gap


def _in_float64(arguments: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        value.astype(np.float64)
        if isinstance(value, np.ndarray) and value.dtype.kind == "f"
        else _in_float64(value)
        if isinstance(value, (tuple, list))
        else value
        for value in arguments
    )


# ---------------------------------------------------------------- choosing among implementations
# of an operation by measuring them in turns

HOPELESS = 10.0
"""Who takes so many times as long as the fastest, at best of the first readings, is not timed
further."""
LONGER = 6.0
"""Where it is close, so many times as much time is spent."""


@dataclass(frozen=True)
class Race:
    """How implementations are compared.

    A difference counts when its interval lies beyond `floor`. Timing ends when that is decided, or
    after six times `budget_s`, but not before nine turns of each. All intervals of a choice hold
    together with `confidence`.
    """

    floor: float = 0.02
    budget_s: float = 0.01
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.floor < 1:
            raise SettingError(f"floor={self.floor}; it must be a share such as 0.02")
        if not 0 < self.budget_s < math.inf:
            raise SettingError(f"budget_s={self.budget_s}; measuring needs some seconds")
        if not 0.5 <= self.confidence < 1:
            raise SettingError(f"confidence={self.confidence}; it must be a share such as 0.95")


def implementations(kind: str, backends: Sequence[Backend]) -> dict[str, Kernel]:
    """Return the different functions for an operation, by the first backend that has each."""
    found: dict[str, Kernel] = {}
    for backend in backends:
        kernel = backend.kernels.get(kind)
        if kernel is not None and not any(kernel is known for known in found.values()):
            found[backend.name] = kernel
    return found


def choose(
    op: str,
    size_class: str,
    kernels: Mapping[str, Kernel],
    arguments: Sequence[Any],
    settings: Mapping[str, Any],
    *,
    reference: Kernel,
    default: str,
    race: Race,
) -> Choice:
    """Check every implementation against the reference, then time those that are right."""
    check = Check(op, reference, arguments, settings)
    problems = {name: check.why_wrong(kernel) for name, kernel in kernels.items()}
    right = {name: kernel for name, kernel in kernels.items() if problems[name] is None}
    excluded = [Rival(name, None, why) for name, why in problems.items() if why is not None]
    if not right:
        raise BackendError(f"no implementation of {op} can be used: {excluded[0].note}")
    if len(right) == 1:
        return Choice(op, size_class, next(iter(right)), default, tuple(excluded), 0, ONLY_ONE)
    found = _race(op, right, arguments, settings, default, race)
    chosen = found.fastest
    rivals = [Rival(name, found.ratio(name, chosen)) for name in found.times if name != chosen]
    if default not in right:
        verdict = DEFAULT_WRONG
    elif chosen != default:
        verdict = FASTER
    else:
        are_slower = all(each.ratio and each.ratio.low > 1 + race.floor for each in rivals)
        verdict = DEFAULT_WINS if are_slower else NO_DIFFERENCE
    hopeless = (Rival(name, None, why) for name, why in found.left_out.items())
    return Choice(
        op,
        size_class,
        chosen,
        default,
        (*rivals, *hopeless, *excluded),
        len(found.times[chosen]),
        verdict,
        float(np.median(found.times[chosen])),
    )


def _race(
    op: str,
    kernels: Mapping[str, Kernel],
    arguments: Sequence[Any],
    settings: Mapping[str, Any],
    default: str,
    race: Race,
) -> Raced[str]:
    calls = {name: _call(op, kernel, arguments, settings) for name, kernel in kernels.items()}
    return sequential.race(
        calls,
        default=default,
        rng=np.random.default_rng(race.seed),
        budget_s=LONGER * race.budget_s,
        hopeless=HOPELESS,
        floor=race.floor,
        confidence=race.confidence,
    )


def _call(
    op: str, kernel: Kernel, arguments: Sequence[Any], settings: Mapping[str, Any]
) -> Callable[[], object]:
    """Return the call to time; what changes its arguments works on copies."""
    own = copied(arguments) if op in IN_PLACE else tuple(arguments)
    return lambda: kernel(*own, **settings)


# ---------------------------------------------------------------- a backend for a model: it
# computes the model wherever that is called


class GivesBackend(Protocol):
    """What can be used as a backend, such as an OptimizedBackend."""

    def as_backend(self) -> Backend: ...


def set_model_backend(model: Module, backend: str | Backend | GivesBackend | None) -> None:
    """Set the backend of a model, or of a layer with everything below it; None removes it.

    It decides against the backend of the process and of a `use_backend` block around the call; a
    layer below that has its own keeps that. The backward pass runs on it too; losses and optimizer
    steps, which are outside of the model, do not. Copies of the model keep it, files do not.
    """
    if not isinstance(model, Module):
        raise SettingError(
            f"a {type(model).__name__} cannot have its own backend; call it in a block: "
            "`with use_backend(...)`"
        )
    _set(model, None if backend is None else _found(backend))


def model_backend(model: Module) -> Backend | None:
    """Return the backend that a model was given, or None."""
    return None if model._execution is None else model._execution.backend


@contextmanager
def without_model_backends(model: Module) -> Iterator[None]:
    """Remove the backends of a model and its layers inside the block."""
    own = [(module, module._execution) for module in model.modules() if module._execution]
    for module, _ in own:
        _set(module, None)
    try:
        yield
    finally:
        for module, execution in own:
            module._execution = execution


def _found(backend: Any) -> Backend:
    if hasattr(backend, "as_backend"):
        backend = backend.as_backend()
    with use_backend(backend) as found:
        return found


def _set(module: Module, backend: Backend | None) -> None:
    execution = replace(module._execution or Execution(), backend=backend)
    if execution != Execution():
        module._execution = execution
    else:
        vars(module).pop("_execution", None)


# ---------------------------------------------------------------- running a model to see which
# operations it consists of


@contextmanager
def prepared(model: Any, inputs: Any = None) -> Iterator[Workload]:
    """Yield the workload to run, without gradients; the model is restored.

    Its own backends are removed: inside the block the model runs on that of the caller.
    """
    workload = _as_workload(model, inputs)
    adapter = adapter_for(workload.model, workload.arguments)
    if adapter.name != "core":
        raise SettingError(
            f"{workload.name} is a model of {adapter.name}; the kernels here compute models of "
            "TinyTorch"
        )
    with ExitStack() as stack:
        stack.enter_context(adapter.preserving(workload.model))
        stack.enter_context(adapter.without_gradients())
        if isinstance(workload.model, Module):
            stack.enter_context(without_model_backends(workload.model))
        yield workload


def recorded_calls(workload: Workload) -> list[KernelCall]:
    """Run a workload once and give the kernels that it ran."""
    calls: list[KernelCall] = []
    with recording(calls.append):
        workload.run()
    return calls


def operations_of(workload: Workload) -> list[tuple[str, str]]:
    """Run a workload once and give its operations and their size classes, each once."""
    return list(dict.fromkeys(class_of(call) for call in recorded_calls(workload)))


def class_of(call: KernelCall) -> tuple[str, str]:
    """Return the operation of a recorded call and its size class."""
    shapes = [spec.shape for spec in call.inputs]
    dtypes = [str(spec.dtype) for spec in call.inputs]
    return call.kind, size_class(call.kind, shapes, dtypes, call.settings)


def _as_workload(model: Any, inputs: Any) -> Workload:
    if isinstance(model, str):
        model = load_workload(model)
    if isinstance(model, Workload):
        if inputs is not None:
            raise SettingError("inputs= is for models; a workload has its own inputs")
        return model
    if inputs is None:
        raise SettingError(
            f"what is {type(model).__name__} to be called with? Give inputs=x, or a Workload"
        )
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    return Workload(type(model).__name__, model, arguments)
