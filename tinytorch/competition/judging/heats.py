"""A heat: both sides start as fresh processes and answer the same new questions in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.competition.cell.contender import (
    Answer,
    AskedContender,
    Contender,
    ContenderError,
    Limits,
    Loading,
    Usage,
)
from tinytorch.competition.cell.contender_process import ContenderProcess
from tinytorch.competition.events import Event
from tinytorch.competition.judging.courses import WRITTEN, Ask, Purpose, blocks_of, plan_course
from tinytorch.competition.judging.probes import draw_probes
from tinytorch.competition.questions import PROMPT, Questions, warm_up_questions
from tinytorch.errors import TinyTorchError
from tinytorch.workloads.zoo import tokenizer

__all__ = [
    "PAUSE_S",
    "Given",
    "Leg",
    "LegError",
    "Start",
    "Written",
    "is_written_text",
    "run_heat",
    "start_process",
]

WARM_UP_EXAMPLES = {"mlp_sprint": 300, "cnn_marathon": 500, "transformer_decathlon": 8}
PAUSE_S = 0.05
TEXTS_READ_AGAIN = 3


Start = Callable[[Contender, Limits], AskedContender]


def start_process(contender: Contender, limits: Limits) -> ContenderProcess:
    """Give a contender in a confined process of its own."""
    return ContenderProcess(contender, limits=limits)


class LegError(TinyTorchError, RuntimeError):
    """A side (0 or 1) that could not go on, and the rule that it breaks."""

    def __init__(self, side: int, error: ContenderError) -> None:
        super().__init__(str(error))
        self.side = side
        self.rule = error.rule


@dataclass(frozen=True)
class Given:
    """A request and what came back."""

    ask: Ask
    answer: Answer


@dataclass(frozen=True)
class Written:
    """A text with its prompt, and what its writer and the first side say when they read it."""

    text: npt.NDArray[Any]
    by_writer: npt.NDArray[Any]
    by_first: npt.NDArray[Any]


@dataclass(frozen=True)
class Leg:
    """What one side did in one heat.

    `cold` is the first answer. `texts` are some of the texts that it wrote. `idle_cpu_s` is the
    processor time that it took while nothing was asked for `PAUSE_S`.
    """

    loading: Loading
    cold: Answer
    given: tuple[Given, ...]
    texts: tuple[Written, ...]
    usage: Usage
    idle_cpu_s: float
    protection: dict[str, str]

    def of(self, purpose: Purpose) -> list[Given]:
        """Give what was asked for one purpose, in the order of its examples."""
        chosen = (each for each in self.given if each.ask.purpose == purpose)
        return sorted(chosen, key=lambda each: each.ask.index)

    @cached_property
    def outputs(self) -> npt.NDArray[Any]:
        """All timed answers, one row per example."""
        return np.concatenate([each.answer.output for each in self.of("timed")])

    def inner_s(self, purpose: Purpose) -> npt.NDArray[np.float64]:
        """Give the seconds of each call, by the contender's own clock."""
        return np.array([each.answer.inner_s for each in self.of(purpose)])

    def gaps_s(self, purpose: Purpose) -> npt.NDArray[np.float64]:
        """Give what the judge's clock shows of each call beyond the contender's."""
        given = self.of(purpose)
        return np.array([each.answer.round_trip_s - each.answer.inner_s for each in given])


def run_heat(
    event: Event,
    sides: tuple[Contender, Contender],
    questions: Questions,
    *,
    rng: np.random.Generator,
    limits: Limits,
    start: Start,
) -> tuple[Leg, Leg]:
    """Start both sides, warm them up on public questions, and ask them in turns.

    Who begins a turn is drawn, A B B A, so that a drift of the machine meets both alike.
    """
    course = plan_course(event, questions, rng, probes=list(draw_probes(event, rng)))
    public = warm_up_questions(event)
    with ExitStack() as stack:
        started: dict[int, _Runner] = {}
        for side in map(int, rng.permutation(2)):
            with _blaming(side):
                process = stack.enter_context(start(sides[side], limits))
                started[side] = _Runner(event, process, public, limits)
        runners = [started[0], started[1]]
        first = 0
        for number, block in enumerate(blocks_of(course)):
            first = int(rng.integers(2)) if number % 2 == 0 else 1 - first
            for side in (first, 1 - first):
                with _blaming(side):
                    runners[side].answer(block)
        legs = []
        for side, runner in enumerate(runners):
            with _blaming(side):
                leg = runner.finish(rng)
            with _blaming(0):
                legs.append(replace(leg, texts=runners[0].read_again(leg.texts)))
    return legs[0], legs[1]


@contextmanager
def _blaming(side: int) -> Iterator[None]:
    """Say which side it was that could not go on."""
    try:
        yield
    except ContenderError as error:
        raise LegError(side, error) from error


class _Runner:
    """One side on its way through a heat."""

    def __init__(
        self, event: Event, process: AskedContender, public: Questions, limits: Limits
    ) -> None:
        self._process, self._limits, self._asked_s = process, limits, 0.0
        self._loading = process.load()
        self._cold = _warm_up(event, process, public)
        self._given: list[Given] = []
        process.hold()

    def answer(self, block: Sequence[Ask]) -> None:
        """Answer while the other side is held.

        The first request after the other's turn finds cold caches, for both sides alike.
        """
        ask = self._process.ask
        self._process.release()
        started = perf_counter()
        self._given += [
            Given(each, ask(each.kind, each.question, count=each.count)) for each in block
        ]
        self._asked_s += perf_counter() - started
        self._process.hold()
        if self._asked_s > self._limits.heat_s:
            seen = f"it took more than {self._limits.heat_s:g} s for the questions of a heat"
            raise ContenderError("T6", seen)

    def finish(self, rng: np.random.Generator) -> Leg:
        """Look at what it used, and let it read some of the texts that it wrote."""
        self._process.release()
        usage = self._process.usage()
        texts = _some_texts(self._given, rng)
        leg = Leg(
            loading=self._loading,
            cold=self._cold,
            given=tuple(self._given),
            texts=tuple(Written(text, self._read(text), np.empty(0)) for text in texts),
            usage=usage,
            idle_cpu_s=self._process.pause(PAUSE_S),
            protection=dict(self._process.protection),
        )
        self._process.hold()
        return leg

    def read_again(self, texts: Sequence[Written]) -> tuple[Written, ...]:
        """Read what was written, as the first side."""
        self._process.release()
        read = tuple(replace(each, by_first=self._read(each.text)) for each in texts)
        self._process.hold()
        return read

    def _read(self, text: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self._process.ask("forward", text[None]).output


def _warm_up(event: Event, process: AskedContender, public: Questions) -> Answer:
    """Let a contender get ready on questions that do not count; give its first answer."""
    batches = range(0, WARM_UP_EXAMPLES[event.name], event.batch)
    answers = [
        process.ask("forward", public.inputs[start : start + event.batch]) for start in batches
    ]
    if public.prompts is not None:
        process.ask("forward", public.inputs[:1, :PROMPT])
        process.ask("generate", public.prompts[0], count=WRITTEN)
    return answers[0]


def _some_texts(given: Sequence[Given], rng: np.random.Generator) -> list[npt.NDArray[Any]]:
    """Choose texts that a contender wrote; nobody knows before which they are."""
    written = [
        each for each in given if each.ask.purpose == "write" and is_written_text(each.answer)
    ]
    chosen = rng.permutation(len(written))[:TEXTS_READ_AGAIN]
    pairs = [(written[place].ask.question, written[place].answer.output) for place in chosen]
    return [np.concatenate(pair).astype(pair[0].dtype) for pair in pairs]


def is_written_text(answer: Answer) -> bool:
    """Say whether an answer is as many characters as were asked for."""
    ids = answer.output
    if ids.shape != (WRITTEN,) or not np.issubdtype(ids.dtype, np.integer):
        return False
    return bool((ids >= 0).all() and (ids < tokenizer().vocab_size).all())
