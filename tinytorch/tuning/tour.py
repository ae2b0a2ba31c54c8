"""The tour: the whole loop on the trained GPT and CNN of the zoo.

First both are tried out, so that one sees that they are real; then each is profiled and optimized
like any other model, within a time budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from tinytorch.codec import Coded
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import active_backend
from tinytorch.core.kernels import Array
from tinytorch.core.transformers import GPT
from tinytorch.errors import SettingError
from tinytorch.measure.ceilings import Progress
from tinytorch.models import zoo
from tinytorch.tuning.attempt import Attempt
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.optimize import optimize

SHOWN_DIGITS = 5
PROMPT = "It is a truth universally "
NEW_CHARACTERS = 160
MOST_S = 110.0
"""Time limit of the whole tour."""
LEAST_S = 15.0
"""Least time budget of a stop."""
COMPILED = "numba"


@dataclass(frozen=True)
class Stop:
    """One model of the tour: what it does, what it is optimized for, with what, and how long."""

    target: str
    about: str
    goal: str
    budget_s: float
    only: tuple[str, ...]


STOPS = (
    Stop(
        "gpt",
        "writes English, one character at a time; a call reads 64 of them",
        "latency",
        50.0,
        ("int8-dynamic", "fused-layers", "int8-weights", "low-rank"),
    ),
    Stop(
        "cnn",
        "reads digits of 28 x 28 pixels, one in a call",
        "size",
        30.0,
        ("int4-weights", "int8-dynamic", "low-rank", "fewer-channels"),
    ),
)
"""Some of the catalog, so that it is over soon. What comes of it is measured, not known before."""


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
    stops: Sequence[Stop] = STOPS,
    most_s: float = MOST_S,
    watch: Callable[[Stop], AbstractContextManager[Progress | None]] | None = None,
    on_introduction: Callable[[Introduction], None] | None = None,
    on_attempt: Callable[[Stop, Attempt], None] | None = None,
    on_visit: Callable[[Visit], None] | None = None,
) -> Tour:
    """Try the models out, then optimize each. Takes about two minutes on two cores.

    A stop ends after its budget, and sooner where those before it took so much that `most_s` would
    be exceeded. `watch` is entered for each stop and yields its progress; the other functions are
    called with what is finished, in the order of the tour. An interrupt ends the tour and keeps
    what is known.
    """
    if not stops:
        raise SettingError("a tour needs at least one stop")
    started = perf_counter()
    introduction = introduce(seed)
    if on_introduction:
        on_introduction(introduction)
    tour = Tour(active_backend().name, seed, introduction)
    try:
        for stop in stops:
            left = max(LEAST_S, most_s - (perf_counter() - started))
            visit = _visit(stop, min(stop.budget_s, left), seed, watch, on_attempt)
            tour = replace(tour, visits=(*tour.visits, visit))
            if on_visit:
                on_visit(visit)
            if visit.optimization.was_interrupted:
                tour = replace(tour, was_interrupted=True)
                break
    except KeyboardInterrupt:
        if not tour.visits:
            raise
        tour = replace(tour, was_interrupted=True)
    return replace(tour, seconds=perf_counter() - started)


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
    watch: Callable[[Stop], AbstractContextManager[Progress | None]] | None,
    on_attempt: Callable[[Stop, Attempt], None] | None,
) -> Visit:
    def hear(attempt: Attempt) -> None:
        if on_attempt:
            on_attempt(stop, attempt)

    with watch(stop) if watch else nullcontext() as progress:
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
