"""OptimizedBackend: for each operation and size, the implementation that was measured to win."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tinytorch.core.autograd import no_grad
from tinytorch.core.backends import BACKENDS, REFERENCE, Backend, Kernel
from tinytorch.core.dispatch import active_backend, use_backend
from tinytorch.core.progress import ProgressLine
from tinytorch.core.tensor import Tensor
from tinytorch.errors import BackendError, SettingError
from tinytorch.measure.environment import describe_environment
from tinytorch.perf.acceleration.choices_store import (
    Key,
    choices_file,
    forget_choices,
    load_choices,
    save_choices,
)
from tinytorch.perf.acceleration.choosing import Race, choose, implementations
from tinytorch.perf.acceleration.kernel_choice import Choice, KernelReport
from tinytorch.perf.acceleration.operation_methods import with_a_method_for_each_operation
from tinytorch.perf.acceleration.size_classes import (
    Signature,
    arrays_in,
    deciding_settings,
    signature,
    size_class,
)
from tinytorch.perf.acceleration.tensor_operations import TENSOR_OPERATIONS
from tinytorch.perf.acceleration.tuning_run import operations_of, prepared

__all__ = ["OptimizedBackend"]

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
        race: Race | None = None,
        keep: bool = True,
    ) -> None:
        self.race = race or Race()
        self.keep = keep
        self._notes: list[str] = []
        self._backends = self._loaded(list(BACKENDS) if backends is None else backends)
        self._choices: dict[Key, Choice] = {}
        self._known: dict[str, dict[Signature, Kernel]] = {}
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
        """Give the backend that computes unless another one is shown to be faster."""
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
        """Give a backend whose kernels choose in this way."""
        return self._backend

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...

    # ------------------------------------------------------------ choosing

    def _kernel(self, kind: str) -> Kernel:
        """Give the function that looks up the choice for its arguments and calls it."""
        functions = implementations(kind, self._backends)
        if len(functions) == 1:
            return next(iter(functions.values()))
        names, known = deciding_settings(kind), self._known.setdefault(kind, {})

        def kernel(*arguments: Any, **settings: Any) -> Any:
            key = signature(arguments, settings, names)
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
        arrays = arrays_in(arguments)
        shapes, dtypes = [each.shape for each in arrays], [str(each.dtype) for each in arrays]
        key = (kind, size_class(kind, shapes, dtypes, settings))
        with self._lock:
            choice = self._known_choice(key, functions)
            if choice is None:
                of_default = self._default.kernels[kind]
                with np.errstate(all="ignore"):
                    choice = choose(
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

    def _known_choice(self, key: Key, functions: dict[str, Kernel]) -> Choice | None:
        """Give a choice made before among the same implementations."""
        if not self._is_loaded:
            self._is_loaded = True
            if self.keep:
                self._choices = load_choices(self._file) | self._choices
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
        return choices_file(self._fingerprint)

    def _save(self) -> None:
        if not self.keep or self._is_batch:
            return
        problem = save_choices(self._choices, self._file)
        if problem and problem not in self._notes:
            self._notes.append(problem)

    # ------------------------------------------------------------ measuring ahead, reporting

    def tune(self, model: Any, inputs: Any = None) -> KernelReport:
        """Measure all operations that a forward pass of a model runs, and report on these.

        `model` is a Workload, the name of one, or a model with its `inputs`. It is called twice
        and stays as it was.
        """
        with prepared(model, inputs) as workload:
            counted = operations_of(workload)
            ahead = [key for key in counted if self._needs_measuring(key)]
            with self._measuring(len(ahead)), use_backend(self._backend):
                workload.run()
        rows = [self._choices[key] for key in counted if key in self._choices]
        return KernelReport(tuple(rows), self._fingerprint, tuple(self._notes))

    def _needs_measuring(self, key: Key) -> bool:
        functions = implementations(key[0], self._backends)
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

    def report(self) -> KernelReport:
        """Give every choice that is known on this machine."""
        with self._lock:
            known = [
                self._known_choice(key, implementations(key[0], self._backends))
                for key in sorted(
                    {*self._choices, *(load_choices(self._file) if self.keep else ())}
                )
            ]
        rows = tuple(choice for choice in known if choice is not None)
        return KernelReport(rows, self._fingerprint, tuple(self._notes))

    def forget(self) -> None:
        """Drop every choice, also those on disk: they are measured again when needed."""
        with self._lock:
            self._choices.clear()
            for known in self._known.values():
                known.clear()
            if self.keep:
                forget_choices(self._file)


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
