"""The tour: what can be gained on the trained models of the zoo, and what cannot.

First they are tried out, so that one sees that they are real. Then the GPT writes the same text in
three ways, and the others are profiled and optimized like any other model, within a time budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from tinytorch.codec import Coded
from tinytorch.comparison.compare import compare
from tinytorch.comparison.comparison import Comparison
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import active_backend
from tinytorch.core.kernels import Array
from tinytorch.core.transformers import GPT
from tinytorch.measure.ceilings import Progress
from tinytorch.models import zoo
from tinytorch.transforms.quantize import Quantize
from tinytorch.tuning.attempt import Attempt
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.optimize import optimize

SHOWN_DIGITS = 5
PROMPT = "It is a truth universally "
NEW_CHARACTERS = 160
MOST_S = 90.0
"""Time limit of the whole tour."""
LEAST_S = 15.0
"""Least time budget of a stop."""
WRITING_S = 4.0
"""Time budget of each comparison of the GPT's ways to write."""
COMPILED = "numba"
Watch = Callable[[str], AbstractContextManager[Progress | None]]


@dataclass(frozen=True)
class Stop:
    """One model of the tour: what it does, what it is optimized for, with what, and how long."""

    target: str
    about: str
    goal: str
    budget_s: float
    only: tuple[str, ...]


_MLP = Stop("mlp", "reads the same digits as 784 numbers", "latency", 15.0, ("low-rank",))
"""What computes less and is slower all the same: nothing is promised before it is measured."""
STOPS = (
    Stop(
        "cnn",
        "reads digits of 28 x 28 pixels, one in a call",
        "latency",
        40.0,
        ("int8-dynamic", "int8-weights", "fewer-channels"),
    ),
    _MLP,
)
"""Some of the catalog, so that it is over soon. What comes of it is measured, not known before."""
PLAIN_STOPS = (replace(STOPS[0], goal="size", only=("int4-weights", "low-rank")), _MLP)
"""The same without compiled kernels, where products of 8-bit integers are slow."""


@dataclass(frozen=True)
class SampleDigit(Coded):
    """A held-out image (28, 28), its label, and what the CNN sees in it."""

    image: Array
    label: int
    predicted: int
    probability: float

    renames: ClassVar = {"image": None}


@dataclass(frozen=True)
class Introduction(Coded):
    """What the models do: digits that the CNN reads, and what the GPT writes after a prompt."""

    digits: tuple[SampleDigit, ...]
    prompt: str
    text: str


@dataclass(frozen=True)
class Writing(Coded):
    """How fast the GPT writes `text`: plain, with a key-value cache, and in INT8 as well.

    Both comparisons are with the plain way; `count` tokens are written in a call.
    """

    prompt: str
    text: str
    count: int
    cached: Comparison
    int8: Comparison


@dataclass(frozen=True)
class Visit(Coded):
    """What was found at a stop."""

    stop: Stop
    optimization: Optimization

    also_written = ("stop.target", "stop.about", "stop.goal")
    renames: ClassVar = {"stop": None}


@dataclass(frozen=True)
class Tour(Coded):
    """Everything that the tour shows. `backend` is that of the baselines."""

    backend: str
    seed: int
    introduction: Introduction
    writing: Writing | None = None
    visits: tuple[Visit, ...] = ()
    seconds: float = 0.0
    was_interrupted: bool = False

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Everything that was tried, at all stops."""
        return tuple(each for visit in self.visits for each in visit.optimization.attempts)

    @property
    def has_compiled_kernels(self) -> bool:
        """Whether the models ran on compiled kernels, which the extra `fast` installs."""
        return self.backend == COMPILED


def take_tour(
    seed: int = 0,
    *,
    stops: Sequence[Stop] = (),
    most_s: float = MOST_S,
    watch: Watch | None = None,
    on_introduction: Callable[[Introduction], None] | None = None,
    on_writing: Callable[[Writing], None] | None = None,
    on_attempt: Callable[[Stop, Attempt], None] | None = None,
    on_visit: Callable[[Visit], None] | None = None,
) -> Tour:
    """Try the models out, time how the GPT writes, then optimize the others: below two minutes.

    A stop ends after its budget, and sooner where those before it took so much that `most_s` would
    be exceeded. `watch` is entered for each part and yields its progress; the other functions are
    called with what is finished, in the order of the tour. An interrupt ends the tour and keeps
    what is known.
    """
    started, watch = perf_counter(), watch or (lambda _: nullcontext())
    introduction = introduce(seed)
    if on_introduction:
        on_introduction(introduction)
    tour = Tour(active_backend().name, seed, introduction)
    try:
        with watch("gpt") as progress:
            tour = replace(tour, writing=time_writing(seed, progress=progress))
        if on_writing and tour.writing:
            on_writing(tour.writing)
        for stop in stops or (STOPS if tour.has_compiled_kernels else PLAIN_STOPS):
            left = max(LEAST_S, most_s - (perf_counter() - started))
            visit = _visit(stop, min(stop.budget_s, left), seed, watch, on_attempt)
            tour = replace(tour, visits=(*tour.visits, visit))
            if on_visit:
                on_visit(visit)
            if visit.optimization.was_interrupted:
                tour = replace(tour, was_interrupted=True)
                break
    except KeyboardInterrupt:
        if tour.writing is None:
            raise
        tour = replace(tour, was_interrupted=True)
    return replace(tour, seconds=perf_counter() - started)


def time_writing(seed: int = 0, *, progress: Progress | None = None) -> Writing:
    """Compare how the GPT continues a prompt greedily, up to the length that it can see."""
    workload, tokens = zoo.load_zoo("gpt"), zoo.tokenizer()
    prompt = tokens.encode(PROMPT)
    count = workload.model.max_seq_len - len(prompt)
    quantize = Quantize(mode="dynamic")
    int8 = quantize.apply(workload, quantize.plan(workload))

    def writer(model: GPT, *, use_cache: bool) -> Callable[[], Array]:
        return lambda: model.generate(prompt, count, use_cache=use_cache).data

    plain = writer(workload.model, use_cache=False)
    sides = {"cached": workload.model, "cached, INT8": int8}
    found = [
        compare(
            plain,
            writer(model, use_cache=True),
            names=("plain", name),
            budget_s=WRITING_S,
            seed=seed,
            progress=progress,
        )
        for name, model in sides.items()
    ]
    return Writing(PROMPT, tokens.decode(plain())[len(PROMPT) :], count, *found)


def introduce(seed: int = 0) -> Introduction:
    """Classify held-out digits with the CNN, and generate some text with the GPT."""
    return Introduction(
        _read_digits(zoo.load_zoo("cnn").model, seed),
        PROMPT,
        _write(zoo.load_zoo("gpt").model, seed),
    )


def _visit(
    stop: Stop,
    budget_s: float,
    seed: int,
    watch: Watch,
    on_attempt: Callable[[Stop, Attempt], None] | None,
) -> Visit:
    def hear(attempt: Attempt) -> None:
        if on_attempt:
            on_attempt(stop, attempt)

    with watch(stop.target) as progress:
        found = optimize(
            stop.target,
            goal=stop.goal,
            budget_s=budget_s,
            only=stop.only,
            seed=seed,
            progress=progress,
            on_attempt=hear,
        )
    return Visit(stop, found)


def _read_digits(cnn: Any, seed: int) -> tuple[SampleDigit, ...]:
    data = zoo.digit_data(held_out=True, flat=False)
    chosen = np.random.default_rng(seed).choice(len(data), SHOWN_DIGITS, replace=False)
    images, labels = data[chosen]
    with no_grad():
        logits = cnn(images).data.astype(np.float64)
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return tuple(
        SampleDigit(image[0], int(label), int(row.argmax()), float(row.max()))
        for image, label, row in zip(images.data, labels.data, probabilities, strict=True)
    )


def _write(gpt: GPT, seed: int) -> str:
    tokens = zoo.tokenizer()
    ids = gpt.generate(
        tokens.encode(PROMPT), NEW_CHARACTERS, temperature=0.7, top_p=0.95, seed=seed
    )
    return tokens.decode(ids.data)[len(PROMPT) :]
