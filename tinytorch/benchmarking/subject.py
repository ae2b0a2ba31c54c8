"""Subject: a model with what it is called with, ready to be measured."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from tinytorch.benchmarking.checks import held_ready
from tinytorch.benchmarking.examples import (
    Examples,
    Scored,
    fitted_inputs,
    own_example,
    score_examples,
)
from tinytorch.errors import BackendError, ModelError, short_text
from tinytorch.measure.memory import traced_memory
from tinytorch.models.adapter import Adapter, adapter_for
from tinytorch.models.targets import load_workload
from tinytorch.models.workload import Workload, call_model
from tinytorch.profiling.flops import check_model, inputs_of_shapes
from tinytorch.profiling.profile import MemoryTimeline


@dataclass(frozen=True)
class CallMemory:
    """The most bytes that a call held at once, and what the model holds without being called.

    `peak_bytes` are of live buffers: parameters, buffers, inputs and what the call made. Scratch
    memory inside of an operator is not seen. `held_bytes` are parameters and buffers.
    """

    peak_bytes: int
    held_bytes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """A model, the arguments of the call that is measured, and how it is scored, if at all.

    It is measured as it would be used: in evaluation mode and without gradients. Afterwards it has
    the mode, gradients, buffers and random state that it had before.
    """

    name: str
    model: Any = field(repr=False)
    inputs: tuple[Any, ...] = field(repr=False)
    keywords: Mapping[str, Any] = field(default_factory=dict, repr=False)
    evaluate: Callable[[], Scored] | None = field(default=None, repr=False)

    @cached_property
    def adapter(self) -> Adapter:
        return adapter_for(self.model, self.arguments)

    @cached_property
    def device(self) -> str:
        found = self.adapter.device(self.model, self.arguments, names=tuple(self.keywords))
        if found == "meta":
            raise BackendError(
                f"{self.name} is on the meta device, which computes nothing; move it to one that "
                "runs it"
            )
        return found

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (*self.inputs, *self.keywords.values())

    @property
    def examples(self) -> int | None:
        """Number of examples in a call: the first axis that all of its inputs have in common."""
        shapes = [tuple(value.shape) for value in self.arguments if hasattr(value, "shape")]
        first = {shape[0] if len(shape) > 1 else None for shape in shapes}
        return first.pop() if len(first) == 1 else None

    def __call__(self) -> Any:
        return call_model(self.model, *self.inputs, **self.keywords)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Put the model into evaluation mode, and restore it at the end."""
        with held_ready(self.adapter, self.model):
            yield

    def check(self) -> None:
        """Call the model once; what it raises becomes an error that names the layer."""
        assert self.device
        with self.adapter.naming_failures(self.model):
            output = self()
        if isinstance(output, (Generator, Coroutine, AsyncGenerator)):
            raise ModelError(
                f"{self.name} returned a {type(output).__name__}, which has computed nothing yet; "
                "give a function that runs it to its end"
            )

    def memory(self) -> CallMemory:
        """Call the model once under a recorder and give its memory; to be used when ready."""
        recording = self.adapter.record(self.model, self, device=self.device, inputs=self.arguments)
        peak = MemoryTimeline(recording.allocations).peak_bytes
        held = sum(spec.nbytes for spec in self.adapter.parameters(self.model))
        if recording.operations:
            return CallMemory(peak, held)
        # Nothing of a framework ran, so that only what Python allocates can be seen.
        with traced_memory() as traced:
            kept = self()
        del kept
        note = (
            "no operation of TinyTorch or PyTorch ran, so memory is what Python and NumPy allocated"
        )
        return CallMemory(peak + traced.peak_above_baseline_bytes, held, (note,))


def make_subject(
    name: str,
    model: Any,
    *,
    examples: Examples | None = None,
    shapes: tuple[tuple[int, ...], ...] | None = None,
    batch_size: int | None = None,
) -> Subject:
    """Combine a model with its inputs and its score.

    A Workload, or a target that names one, brings both along, which `examples` replace. `shapes`
    are those of the arguments of the timed call, where it is not made of the examples.
    """
    workload = load_workload(model) if isinstance(model, str) else model
    is_workload = isinstance(workload, Workload)
    model = workload.model if is_workload else workload
    check_model(model)
    evaluate: Callable[[], Scored] | None = None
    if examples is not None and examples.has_targets:
        evaluate = partial(score_examples, model, examples)
    elif examples is None and is_workload and workload.evaluate is not None:
        evaluate = _evaluated_by(workload)
    if shapes is None and examples is None and is_workload:
        return Subject(name, model, workload.inputs, workload.keywords, evaluate)
    if shapes is not None:
        inputs = inputs_of_shapes(model, shapes)
    else:
        inputs = own_example(model) if examples is None else examples.timed_inputs(batch_size)
    return Subject(name, model, fitted_inputs(model, inputs), evaluate=evaluate)


def several_inputs(
    subject: Subject, examples: Examples, *, batch_size: int, most: int
) -> list[tuple[Any, ...]]:
    """Return up to `most` different arguments of a call, of `batch_size` examples each."""
    first = examples.batches[0]
    count = max(1, min(most, (first.size or 1) // batch_size))
    return [
        fitted_inputs(subject.model, first.part(start, start + batch_size).inputs)
        for start in range(0, batch_size * count, batch_size)
    ]


def _evaluated_by(workload: Workload) -> Callable[[], Scored]:
    def evaluate() -> Scored:
        assert workload.evaluate is not None
        scores = workload.evaluate(workload.model)
        return Scored(workload.metric, tuple(float(score) for score in scores))

    return evaluate


def ready_together(
    makers: Mapping[str, Callable[[], Subject]], stack: ExitStack
) -> tuple[dict[str, Subject], dict[str, str]]:
    """Prepare subjects until the stack is closed, calling each once; return the failures too."""
    subjects: dict[str, Subject] = {}
    failures: dict[str, str] = {}
    for name, make in makers.items():
        try:
            subject = make()
            stack.enter_context(subject.ready())
            subject.check()
            subjects[name] = subject
        except Exception as error:
            failures[name] = short_text(error)
    return subjects, failures
