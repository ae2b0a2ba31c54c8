"""OptimizedBackend: for each operation and size, the implementation that was measured to win."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tinytorch.core import operations
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import active_backend, run, use_backend
from tinytorch.core.files import ProgressLine
from tinytorch.core.kernels import BACKENDS, REFERENCE, Array, Backend, Kernel
from tinytorch.core.tensor import Tensor, apply
from tinytorch.errors import BackendError, SettingError, ShapeError
from tinytorch.measure.environment import describe_environment
from tinytorch.transforms import kernel_choice

# ---------------------------------------------------------------- operations on tensors by their
# kind: what :class:`OptimizedBackend` calls, with gradients
#
# Each function takes what the kernel of its kind takes, with the usual defaults, and gives one
# tensor. Kinds that are missing here (derivatives, comparisons, optimizer steps) run as plain
# kernels, without a graph.

Pair = int | tuple[int, int]
Axes = int | tuple[int, ...] | None


def where(condition: Any, a: Tensor, b: Tensor) -> Tensor:
    return apply(operations.Where(_array(condition).astype(bool)), a, b)


def power_scalar(x: Tensor, *, exponent: float) -> Tensor:
    return apply(operations.ScalarPower(exponent), x)


def gelu(x: Tensor, *, approximate: str = "tanh") -> Tensor:
    return apply(operations.GELU(approximate), x)


def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return apply(operations.Softmax(axis), x)


def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return apply(operations.LogSoftmax(axis), x)


def sum(x: Tensor, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return apply(operations.Sum(axis, keepdims), x)


def mean(x: Tensor, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return apply(operations.Mean(axis, keepdims), x)


def max(x: Tensor, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return apply(operations.Max(axis, keepdims), x)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None
) -> Tensor:
    if not (activation is None or activation in operations.ACTIVATION_KINDS):
        known = ", ".join(operations.ACTIVATION_KINDS)
        raise SettingError(f"activation must be one of {known}, got {activation!r}")
    return apply(operations.Linear(activation), *_present(x, weight, bias))


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Any = None,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    usual = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    mask = None if bias is None else _array(bias)
    return apply(operations.Attention(mask, usual, causal), query, key, value)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float = 1e-5) -> Tensor:
    return apply(operations.LayerNorm(eps), x, weight, bias)


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float = 1e-5) -> Tensor:
    return apply(operations.BatchNorm(eps), x, weight, bias)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    settings = (_pair(stride), _pair(padding), _pair(dilation), groups)
    return apply(operations.Conv2d(*settings), *_present(x, weight, bias))


def max_pool2d(x: Tensor, *, kernel: Pair, stride: Pair | None = None, padding: Pair = 0) -> Tensor:
    step = kernel if stride is None else stride
    return apply(operations.MaxPool2d(_pair(kernel), _pair(step), _pair(padding)), x)


def avg_pool2d(x: Tensor, *, kernel: Pair, stride: Pair | None = None, padding: Pair = 0) -> Tensor:
    step = kernel if stride is None else stride
    return apply(operations.AvgPool2d(_pair(kernel), _pair(step), _pair(padding)), x)


def reshape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return apply(operations.Reshape(shape), x)


def transpose(x: Tensor, *, axes: tuple[int, ...] | None = None) -> Tensor:
    return apply(operations.Transpose(tuple(range(x.ndim))[::-1] if axes is None else axes), x)


def broadcast_to(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return apply(operations.BroadcastTo(shape), x)


def getitem(x: Tensor, *, index: Any) -> Tensor:
    return apply(operations.GetItem(index), x)


def concatenate(tensors: Sequence[Tensor], *, axis: int = 0) -> Tensor:
    return apply(operations.Concatenate(axis), *tensors)


def embedding(weight: Tensor, ids: Any) -> Tensor:
    return apply(operations.Embedding(_array(ids)), weight)


def cross_entropy(logits: Tensor, targets: Any) -> Tensor:
    return apply(operations.CrossEntropy(_array(targets)), logits)


def binary_cross_entropy(probabilities: Tensor, targets: Any) -> Tensor:
    return apply(operations.BinaryCrossEntropy(_array(targets)), probabilities)


def binary_cross_entropy_with_logits(logits: Tensor, targets: Any) -> Tensor:
    return apply(operations.BinaryCrossEntropyWithLogits(_array(targets)), logits)


def _of_one(operation: type[Any]) -> Callable[[Tensor], Tensor]:
    def compute(x: Tensor) -> Tensor:
        return apply(operation(), x)

    return compute


def _of_two(operation: type[Any]) -> Callable[[Tensor, Tensor], Tensor]:
    def compute(a: Tensor, b: Tensor) -> Tensor:
        return apply(operation(), a, b)

    return compute


TENSOR_OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "add": _of_two(operations.Add),
    "subtract": _of_two(operations.Subtract),
    "multiply": _of_two(operations.Multiply),
    "divide": _of_two(operations.Divide),
    "power": _of_two(operations.Power),
    "power_scalar": power_scalar,
    "negative": _of_one(operations.Negative),
    "absolute": _of_one(operations.Absolute),
    "exp": _of_one(operations.Exp),
    "log": _of_one(operations.Log),
    "sqrt": _of_one(operations.Sqrt),
    "where": where,
    "relu": _of_one(operations.ReLU),
    "sigmoid": _of_one(operations.Sigmoid),
    "tanh": _of_one(operations.Tanh),
    "gelu": gelu,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "sum": sum,
    "mean": mean,
    "max": max,
    "matmul": _of_two(operations.Matmul),
    "linear": linear,
    "attention": attention,
    "layer_norm": layer_norm,
    "batch_norm": batch_norm,
    "conv2d": conv2d,
    "max_pool2d": max_pool2d,
    "avg_pool2d": avg_pool2d,
    "reshape": reshape,
    "transpose": transpose,
    "broadcast_to": broadcast_to,
    "getitem": getitem,
    "concatenate": concatenate,
    "embedding": embedding,
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
}


def _array(value: Any) -> Any:
    return value.data if isinstance(value, Tensor) else np.asarray(value)


def _present(*tensors: Tensor | None) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def _pair(value: Pair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


# ---------------------------------------------------------------- a method for each operation,
# made from the table of kernels

Class = TypeVar("Class", bound=type)


def with_a_method_for_each_operation(cls: Class) -> Class:
    """Return a class with `dispatch` as a method for each operation, so that help() finds it."""
    for kind in REFERENCE.kernels:
        assert not hasattr(cls, kind), f"the operation {kind} hides a method of {cls.__name__}"
        setattr(cls, kind, _method(kind, cls.__name__))
    return cls


def _method(kind: str, owner: str) -> Callable[..., Any]:
    """Return the method of an operation, with a signature and a docstring."""

    def method(self: Any, *arguments: Any, **settings: Any) -> Any:
        return self.dispatch(kind, *arguments, **settings)

    has_gradients = kind in TENSOR_OPERATIONS
    method.__name__ = kind
    method.__qualname__ = f"{owner}.{kind}"
    method.__doc__ = (
        f"Compute `{kind}` with the fastest implementation for its size, "
        f"{'with' if has_gradients else 'without'} gradients."
    )
    own = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    found = _parameters(TENSOR_OPERATIONS.get(kind, REFERENCE.kernels[kind]))
    method.__signature__ = inspect.Signature([*own, *found])  # type: ignore[attr-defined]
    return method


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    if isinstance(function, np.ufunc):
        names = ("a", "b")[: function.nin] if function.nin > 1 else ("x",)
        return [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    found = inspect.signature(function).parameters.values()
    return [each.replace(annotation=inspect.Parameter.empty) for each in found]


# ---------------------------------------------------------------- OptimizedBackend: for each
# operation and size, the implementation that was measured to win

MOST_SIGNATURES = 4096
"""So many different shapes of an operation are remembered exactly; then it starts anew."""


@with_a_method_for_each_operation
class OptimizedBackend:
    """Compute every operation with the implementation that is fastest for its size here.

    There is a method for each operation: ``backend.softmax(x)`` is
    ``backend.dispatch("softmax", x)``. Tensors give tensors, with gradients for the operations in
    `differentiable`; arrays give arrays. The first call of a size class measures: each
    implementation of `backends` is checked against the reference, those that are right take turns,
    and one that is shown to be faster replaces the default, which is the backend of the process if
    that is among them. Choices are kept in memory and, with `keep`, on disk for this machine, its
    libraries and number of threads.

    `as_backend` gives what ``use_backend``, ``set_backend`` and ``set_model_backend`` take.
    """

    differentiable = frozenset(TENSOR_OPERATIONS)

    def __init__(
        self,
        backends: Sequence[str | Backend] | None = None,
        *,
        race: kernel_choice.Race | None = None,
        keep: bool = True,
    ) -> None:
        self.race = race or kernel_choice.Race()
        self.keep = keep
        self._notes: list[str] = []
        self._backends = self._loaded(list(BACKENDS) if backends is None else backends)
        self._choices: dict[kernel_choice.Key, kernel_choice.Choice] = {}
        self._known: dict[str, dict[kernel_choice.Signature, Kernel]] = {}
        self._lock = RLock()
        self._is_loaded = self._is_batch = False
        self._progress: ProgressLine | None = None
        self._default = self._usual()
        table = {kind: self._kernel(kind) for kind in REFERENCE.kernels}
        self._backend = Backend("optimized", MappingProxyType(table))

    def _loaded(self, wanted: Sequence[str | Backend]) -> list[Backend]:
        """Load backends; one that is installed but broken is a note, an unknown one an error."""
        found: dict[str, Backend] = {}
        for each in wanted:
            try:
                with use_backend(each) as backend:
                    found[backend.name] = backend
            except BackendError as error:
                if each not in BACKENDS:
                    raise
                self._notes.append(str(error))
        if not found:
            raise SettingError("backends is empty; name some, such as ['reference', 'numpy']")
        return list(found.values())

    def _usual(self) -> Backend:
        """Return the backend that computes unless another one is shown to be faster."""
        by_name = {backend.name: backend for backend in self._backends}
        names = (active_backend().name, "numba", "numpy")
        return next((by_name[name] for name in names if name in by_name), self._backends[-1])

    # ------------------------------------------------------------ computing

    def dispatch(self, op: str, *arguments: Any, **settings: Any) -> Any:
        """Compute an operation by its name, on tensors or arrays."""
        if op not in self._backend.kernels:
            raise BackendError(
                f"unknown operation {op!r}; known are {', '.join(sorted(self._backend.kernels))}"
            )
        has_tensors = _has_tensors(arguments)
        compute = TENSOR_OPERATIONS.get(op)
        if compute is None:
            result = self._backend.kernels[op](*map(_unwrapped, arguments), **settings)
            return _wrapped(result) if has_tensors else result
        with use_backend(self._backend):
            if has_tensors:
                return compute(*map(_wrapped, arguments), **settings)
            with no_grad():
                return compute(*map(_wrapped, arguments), **settings).data

    def as_backend(self) -> Backend:
        """Return a backend whose kernels choose in this way."""
        return self._backend

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...

    # ------------------------------------------------------------ choosing

    def _kernel(self, kind: str) -> Kernel:
        """Return the function that looks up the choice for its arguments and calls it."""
        functions = kernel_choice.implementations(kind, self._backends)
        if len(functions) == 1:
            return next(iter(functions.values()))
        names, known = kernel_choice.deciding_settings(kind), self._known.setdefault(kind, {})

        def kernel(*arguments: Any, **settings: Any) -> Any:
            key = kernel_choice.signature(arguments, settings, names)
            chosen = known.get(key)
            if chosen is None:
                chosen = self._choose(kind, functions, arguments, settings)
                if len(known) >= MOST_SIGNATURES:
                    known.clear()
                known[key] = chosen
            return chosen(*arguments, **settings)

        return kernel

    def _choose(
        self,
        kind: str,
        functions: dict[str, Kernel],
        arguments: tuple[Any, ...],
        settings: dict[str, Any],
    ) -> Kernel:
        arrays = kernel_choice.arrays_in(arguments)
        shapes, dtypes = [each.shape for each in arrays], [str(each.dtype) for each in arrays]
        key = (kind, kernel_choice.size_class(kind, shapes, dtypes, settings))
        with self._lock:
            choice = self._known_choice(key, functions)
            if choice is None:
                of_default = self._default.kernels[kind]
                with np.errstate(all="ignore"):
                    choice = kernel_choice.choose(
                        *key,
                        functions,
                        arguments,
                        settings,
                        reference=REFERENCE.kernels[kind],
                        default=next(n for n, each in functions.items() if each is of_default),
                        race=self.race,
                    )
                self._choices[key] = choice
                if self._progress:
                    self._progress.advance(f"measuring {kind}")
                self._save()
            return functions[choice.chosen]

    def _known_choice(
        self, key: kernel_choice.Key, functions: dict[str, Kernel]
    ) -> kernel_choice.Choice | None:
        """Return a choice made before among the same implementations."""
        if not self._is_loaded:
            self._is_loaded = True
            if self.keep:
                self._choices = kernel_choice.load_choices(self._file) | self._choices
        choice = self._choices.get(key)
        if choice is None:
            return None
        compared = {choice.chosen, *(rival.name for rival in choice.rivals)}
        return choice if compared == set(functions) else None

    @cached_property
    def _fingerprint(self) -> str:
        return describe_environment().fingerprint

    @property
    def _file(self) -> Any:
        return kernel_choice.choices_file(self._fingerprint)

    def _save(self) -> None:
        if not self.keep or self._is_batch:
            return
        problem = kernel_choice.save_choices(self._choices, self._file)
        if problem and problem not in self._notes:
            self._notes.append(problem)

    # ------------------------------------------------------------ measuring ahead, reporting

    def tune(self, model: Any, inputs: Any = None) -> kernel_choice.KernelReport:
        """Measure all operations that a forward pass of a model runs, and report on these.

        `model` is a Workload, the name of one, or a model with its `inputs`. It is called twice
        and restored.
        """
        with kernel_choice.prepared(model, inputs) as workload:
            counted = kernel_choice.operations_of(workload)
            ahead = [key for key in counted if self._needs_measuring(key)]
            with self._measuring(len(ahead)), use_backend(self._backend):
                workload.run()
        rows = [self._choices[key] for key in counted if key in self._choices]
        return kernel_choice.KernelReport(tuple(rows), self._fingerprint, tuple(self._notes))

    def _needs_measuring(self, key: kernel_choice.Key) -> bool:
        functions = kernel_choice.implementations(key[0], self._backends)
        return len(functions) > 1 and self._known_choice(key, functions) is None

    @contextmanager
    def _measuring(self, total: int) -> Iterator[None]:
        """Show progress, and write to disk once, also what was finished before an interrupt."""
        self._progress, self._is_batch = ProgressLine(total), True
        try:
            yield
        finally:
            self._progress.close()
            self._progress, self._is_batch = None, False
            if total:
                self._save()

    def report(self) -> kernel_choice.KernelReport:
        """Return every choice that is known on this machine."""
        with self._lock:
            known = [
                self._known_choice(key, kernel_choice.implementations(key[0], self._backends))
                for key in sorted(
                    {*self._choices, *(kernel_choice.load_choices(self._file) if self.keep else ())}
                )
            ]
        rows = tuple(choice for choice in known if choice is not None)
        return kernel_choice.KernelReport(rows, self._fingerprint, tuple(self._notes))

    def forget(self) -> None:
        """Drop every choice, also those on disk: they are measured again when needed."""
        with self._lock:
            self._choices.clear()
            for known in self._known.values():
                known.clear()
            if self.keep:
                kernel_choice.forget_choices(self._file)


def _has_tensors(values: Sequence[Any]) -> bool:
    return any(
        _has_tensors(value) if isinstance(value, (tuple, list)) else isinstance(value, Tensor)
        for value in values
    )


def _unwrapped(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(map(_unwrapped, value))
    return value.data if isinstance(value, Tensor) else value


def _wrapped(value: Any) -> Any:
    """Make tensors of arrays and numbers, also of those in a tuple."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_wrapped, value))
    return value if value is None or isinstance(value, Tensor) else Tensor(value)


# ---------------------------------------------------------------- the classic demonstrations on
# tensors, with gradients: vectorised, tiled, fused, not fused

GELU_SCALE = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715


def vectorized_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b in one call of the active backend's matrix product.

    >>> vectorized_matmul(Tensor([[1.0, 2.0]]), Tensor([[3.0], [4.0]]))
    Tensor([[11.]])
    """
    return apply(operations.Matmul(), _tensor(a), _tensor(b))


def tiled_matmul(a: Tensor, b: Tensor, tile_size: int = 64) -> Tensor:
    """Return a @ b as a sum of products of tiles, `tile_size` rows and columns each.

    Three loops over rows, columns and the axis that is summed; tiles at the edges are smaller.
    Vectors, matrices and stacks of matrices that broadcast are all fine. A tile is meant to fit
    into a cache. NumPy's own product is tiled already, and better, so this shows how it is done
    rather than being faster.
    """
    try:
        size = operator.index(tile_size)
    except TypeError:
        size = 0
    if size < 1 or isinstance(tile_size, bool):
        raise SettingError(f"tile_size must be a whole number of at least 1, got {tile_size!r}")
    return apply(_TiledMatmul(size), _tensor(a), _tensor(b))


def fused_gelu(x: Tensor) -> Tensor:
    """Return GELU (tanh form) in one kernel: x is read once and the result written once."""
    return apply(operations.GELU("tanh"), _tensor(x))


def unfused_gelu(x: Tensor) -> Tensor:
    """Return the same as a chain of eight elementwise operations.

    Each of them reads and writes a whole array, which is what fusing saves.
    """
    x = _tensor(x)
    inner = (x + x**3 * GELU_CUBIC) * GELU_SCALE
    return x * 0.5 * (apply(operations.Tanh(), inner) + 1)


class _TiledMatmul(operations.Matmul):
    """A matrix product by tiles; its derivative is that of every matrix product."""

    def __init__(self, tile_size: int) -> None:
        self.tile_size = tile_size

    def forward(self, a: Array, b: Array) -> Array:
        self.saved = a, b
        rows = a[None, :] if a.ndim == 1 else a
        columns = b[:, None] if b.ndim == 1 else b
        stack = _common_stack(a, b)
        result = self._product(rows, columns, stack)
        if a.ndim == 1:
            result = result[..., 0, :]
        return result[..., 0] if b.ndim == 1 else result

    def _product(self, a: Array, b: Array, stack: tuple[int, ...]) -> Array:
        """(..., rows, inner) times (..., inner, columns)"""
        shape = (*stack, a.shape[-2], b.shape[-1])
        result = np.zeros(shape, np.result_type(a.dtype, b.dtype))
        for row in self._tiles(shape[-2]):
            for column in self._tiles(shape[-1]):
                total = result[..., row, column]
                for inner in self._tiles(a.shape[-1]):
                    total += run("matmul", a[..., row, inner], b[..., inner, column])
        return result

    def _tiles(self, length: int) -> Iterator[slice]:
        for start in range(0, length, self.tile_size):
            yield slice(start, min(start + self.tile_size, length))


def _common_stack(a: Array, b: Array) -> tuple[int, ...]:
    """Check the shapes as a matrix product does, and give the axes before the last two."""
    problem = None
    inner = b.shape[0 if b.ndim == 1 else -2] if b.ndim else None
    if not a.ndim or not b.ndim:
        problem = "numbers have no matrix product; use *"
    elif a.shape[-1] != inner:
        problem = "the last axis of the first must be as long as the last but one of the second"
    else:
        try:
            return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            problem = "the axes before the last two must broadcast"
    raise ShapeError(f"tiled_matmul cannot use shapes {a.shape} and {b.shape}: {problem}")


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else Tensor(value)
