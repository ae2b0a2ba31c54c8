"""The local judge: a Python object against the reference, in this process; never verified."""

from __future__ import annotations

import gc
import math
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tinytorch.benchmarking.checks import held_ready
from tinytorch.benchmarking.examples import main_output, read_examples, torch_input
from tinytorch.benchmarking.subject import make_subject
from tinytorch.competition.entry import Entry
from tinytorch.competition.events import Event, is_text, warm_up_questions
from tinytorch.competition.judge import Bench, compete
from tinytorch.competition.judgement import Judgement
from tinytorch.competition.rounds import Round
from tinytorch.competition.rules import finding
from tinytorch.competition.sandbox.bubblewrap import Protection
from tinytorch.competition.sandbox.contender import (
    BACKEND,
    Answer,
    Contender,
    ContenderError,
    Kind,
    Limits,
    Loading,
    Usage,
)
from tinytorch.core.dispatch import use_backend
from tinytorch.core.generation import without_attached_cache
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT
from tinytorch.errors import ModelError, first_line
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.timing import gc_paused
from tinytorch.models.adapter import Adapter, adapter_for
from tinytorch.models.workload import call_model
from tinytorch.models.zoo import load_zoo

# ---------------------------------------------------------------- a model of this process that is
# asked as a contender in a separate process would be
#
# It is for trusted local runs of Python objects. Nothing is kept apart, and four measures mean a
# little less than before a judge: see :class:`LocalContender`.

PROTECTION = dict.fromkeys(
    ("files", "memory", "network", "process"),
    Protection("the model runs in the judge's own process", is_in_force=False),
)

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LocalModel:
    """A model with what is known of it before it is asked.

    `pickled` is the model as a file, only where load time and size count.
    """

    name: str
    model: Any = field(repr=False)
    peak_bytes: int
    pickled: bytes = field(default=b"", repr=False)


def prepare_model(name: str, model: Any, event: Event) -> LocalModel:
    """Call a model once for its memory, and write it to a file where that is measured.

    Raises ModelError for a model that cannot do what the event asks for.
    """
    request = warm_up_questions(event).inputs[: event.batch].copy()
    examples = read_examples({"inputs": Tensor(request)})
    subject = make_subject(name, model, examples=examples, batch_size=event.batch)
    with _in_words(name, "cannot answer"), subject.ready(), computing(model):
        subject.check()
        peak_bytes = subject.memory().peak_bytes
    pickled = b""
    if is_text(event):
        with _in_words(name, "cannot be written to a file, whose size and load time count"):
            pickled = pickle.dumps(model, protocol=pickle.HIGHEST_PROTOCOL)
    return LocalModel(name, model, peak_bytes, pickled)


class LocalContender:
    """A copy of a model, asked in this process; it has the methods of a ContenderProcess.

    A request is timed from the call of the model until its answer is an array. Where the measures
    of a process cannot be separated: peak memory is that of live buffers in one call, size and
    load time are those of a pickle, and CPU time is this process's while the model was asked.
    Work that goes on after an answer is not seen.
    """

    def __init__(self, prepared: LocalModel) -> None:
        self.prepared = prepared
        self.protection = dict(PROTECTION)
        self._open, self._turn = ExitStack(), ExitStack()
        self._cpu_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._turn.close()
        self._open.close()

    def load(self) -> Loading:
        """Copy the model, so that every heat begins with a new one, and hold the copy ready."""
        given = self.prepared.model
        self.adapter: Adapter = adapter_for(given)
        notes: tuple[str, ...] = ()
        try:
            self.model = self.adapter.clone(given)
        except Exception as error:  # whatever an object may raise when it is copied
            self.model = given
            notes = (f"it cannot be copied ({first_line(error)}): all heats use the same object",)
        self._open.enter_context(held_ready(self.adapter, self.model))
        self._as_inputs = _converter(self.adapter, self.model)
        pickled = self.prepared.pickled
        seconds = _reading_s(pickled) if pickled else math.nan
        return Loading(seconds, len(pickled), notes=notes)

    def ask(self, kind: Kind, question: Array, *, count: int = 0) -> Answer:
        """Ask the model, and time its answer."""
        before = process_time()
        try:
            with computing(self.model):
                forward = kind == "forward"
                answer = self._forward(question) if forward else self._write(question, count)
        except Exception as error:
            seen = f"{self.prepared.name} cannot answer: {first_line(error)}"
            raise ContenderError("E8", seen) from error
        self._cpu_s += process_time() - before
        return answer

    def usage(self) -> Usage:
        """Return the CPU time of all requests so far, and the peak memory of one."""
        peak = self.prepared.peak_bytes
        return Usage(self._cpu_s, peak, processes=1)

    def hold(self) -> None:
        """Enable garbage collection between turns; threads of a model cannot be suspended."""
        self._turn.close()

    def release(self) -> None:
        """Collect no garbage during a turn."""
        self._turn.enter_context(gc_paused())

    def pause(self, seconds: float) -> float:
        """Return 0: within one process, background work cannot be attributed to the model."""
        return 0.0

    # ------------------------------------------------------------ asking

    def _forward(self, question: Array) -> Answer:
        inputs = self._as_inputs(question.copy())
        before = self.adapter.arrays(inputs)[0].copy()
        started = perf_counter()
        output = main_output(self.adapter, call_model(self.model, *inputs))
        seconds = perf_counter() - started
        is_intact = np.array_equal(self.adapter.arrays(inputs)[0], before)
        # A model may use the array of its answer again.
        return Answer(output.copy(), seconds, seconds, is_intact)

    def _write(self, question: Array, count: int) -> Answer:
        write = self._writer()
        prompt = question.copy()
        started = perf_counter()
        output = write(prompt, count)
        seconds = perf_counter() - started
        return Answer(output.copy(), seconds, seconds, np.array_equal(prompt, question))

    def _writer(self) -> Callable[[Array, int], Array]:
        """Return the generation function, which uses the KV cache if one is attached."""
        model = self.model
        if not isinstance(model, GPT):
            return self._write_greedily
        has_cache = "attached_cache" in vars(model)
        return lambda ids, count: model.generate(ids, count, use_cache=has_cache).data[len(ids) :]

    def _write_greedily(self, ids: Array, count: int) -> Array:
        text = list(ids)
        for _ in range(count):
            inputs = self._as_inputs(np.array(text)[None])
            logits = main_output(self.adapter, call_model(self.model, *inputs))
            text.append(int(logits[0, -1].argmax()))
        return np.array(text[len(ids) :], dtype=np.int64)


@contextmanager
def computing(model: Any) -> Iterator[None]:
    """Compute as the competition does: with its backend, and reading whole texts.

    A cache that was attached to a model would go on where the last text ended; it is for writing.
    """
    with ExitStack() as stack:
        stack.enter_context(use_backend(BACKEND))
        if isinstance(model, GPT):
            stack.enter_context(without_attached_cache(model))
        yield


def _converter(adapter: Adapter, model: Any) -> Callable[[Array], tuple[Any, ...]]:
    """Return the function that converts an array to a tensor of the model's framework."""
    if adapter.name != "pytorch":
        return lambda array: (Tensor(array),)
    layers = tuple(adapter.modules(model).values())
    return lambda array: (torch_input(array, layers),)


def _reading_s(pickled: bytes) -> float:
    """Return the seconds that unpickling the model from a file takes."""
    with tempfile.TemporaryDirectory(prefix="tinytorch-") as folder:
        path = Path(folder) / "model"
        path.write_bytes(pickled)
        started = perf_counter()
        with path.open("rb") as file:
            read = pickle.load(file)  # what this process wrote a moment ago
        seconds = perf_counter() - started
    del read
    gc.collect()
    return seconds


@contextmanager
def _in_words(name: str, what: str) -> Iterator[None]:
    """Turn any exception of a model into a ModelError."""
    try:
        yield
    except Exception as error:
        raise ModelError(f"{name} {what}: {first_line(error)}") from error


# ---------------------------------------------------------------- the local judge: a Python object
# against the reference, in this process; never verified

IN_PROCESS = (
    "a Python object in the judge's own process: not reproducible by others, and not sandboxed"
)
HERE = "a Python object"
"""What the contenders of an entry have as their code; the reference has none."""


def judge_model(
    entry: Entry,
    model: Any,
    *,
    event: Event,
    questions_of: Round,
    heats: int,
    without: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Judgement:
    """Judge a model in this process against the reference.

    Both are copied for each heat and answer the same new questions in turns. `without` has, for
    each technique of the entry, the model without it.
    """
    models = _Models(event, entry, model, without or {})
    bench = Bench(
        event,
        entry,
        heats,
        contender_without=models.contender_without,
        start=models.start,
        rng=np.random.default_rng(seed),
        progress=progress,
    )
    try:
        prepare_model("the model", model, event)
    except ModelError as error:
        refused = finding("E8", str(error), "fix the model, and enter it again")
        return compete(bench, questions_of, findings=(refused,), notes=(IN_PROCESS,))
    return compete(bench, questions_of, ablations=bool(without), notes=(IN_PROCESS,))


class _Models:
    """The models of both sides, found by the techniques that are switched on."""

    def __init__(self, event: Event, entry: Entry, model: Any, without: Mapping[str, Any]) -> None:
        self._event, self._entry = event, entry
        self._prepared: dict[Contender, LocalModel] = {}
        self._models = {Contender(event.name): ("the reference", load_zoo(event.model).model)}
        self._models[self.contender_without(None)] = ("the model", model)
        for name, rest in without.items():
            self._models[self.contender_without(name)] = (f"the model without {name}", rest)

    def contender_without(self, technique: str | None) -> Contender:
        left = tuple(each for each in self._entry.techniques if each.name != technique)
        return Contender(self._event.name, left, code=HERE)

    def start(self, contender: Contender, limits: Limits) -> LocalContender:
        """Return a contender with a copy of its model, which is prepared on first use."""
        if contender not in self._prepared:
            name, model = self._models[contender]
            try:
                self._prepared[contender] = prepare_model(name, model, self._event)
            except ModelError as error:
                raise ContenderError("E8", str(error)) from error
        return LocalContender(self._prepared[contender])
