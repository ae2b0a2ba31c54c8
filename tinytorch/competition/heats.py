"""A heat: both sides start as fresh processes and answer the same new questions in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from time import perf_counter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.competition.entry import Entry
from tinytorch.competition.events import PROMPT, Event, Questions, is_text, warm_up_questions
from tinytorch.competition.judgement import Heat
from tinytorch.competition.sandbox.bubblewrap import Protection
from tinytorch.competition.sandbox.contender import (
    BACKEND,
    Answer,
    AskedContender,
    Contender,
    ContenderError,
    Kind,
    Limits,
    Loading,
    Usage,
)
from tinytorch.competition.sandbox.contender_process import ContenderProcess
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import use_backend
from tinytorch.errors import TinyTorchError
from tinytorch.measure.interleaving import balanced_pairs
from tinytorch.models.zoo import CONTEXT, load_zoo, tokenizer

# ---------------------------------------------------------------- the schedule of a heat: which
# questions are asked, in which order, and why

Purpose = Literal["timed", "again", "short", "write", "probe"]
"""`timed`: scored and timed. `again`: a question that was asked before in this heat, which tells
whether answers are kept. `short`: a shorter text, for how time grows. `write`: continue a text.
`probe`: a text that is in no book, which tells whether texts are looked up."""

WRITTEN = CONTEXT - PROMPT
"""Characters that follow a prompt: together they are the context of the GPT."""
BLOCKS = 20
"""Number of turns of each side in a heat."""
ASKED_AGAIN = 0.05


@dataclass(frozen=True)
class Ask:
    """One request. `index` is the first of the examples in it; of `again`, of the first time."""

    purpose: Purpose
    kind: Kind
    question: npt.NDArray[Any]
    index: int
    count: int = 0


def plan_schedule(
    event: Event,
    questions: Questions,
    rng: np.random.Generator,
    *,
    probes: Sequence[npt.NDArray[Any]] = (),
) -> list[Ask]:
    """Return the schedule of a heat: all requests in order.

    A question is asked again some requests later, at places that only the judge knows.
    """
    asks = [
        Ask("timed", "forward", questions.inputs[start : start + event.batch], start)
        for start in range(0, len(questions.inputs), event.batch)
    ]
    if questions.prompts is not None:
        asks += [
            # The end of a text: what was read of its beginning is of no use for it.
            Ask("short", "forward", questions.inputs[start : start + 1, -PROMPT:], start)
            for start in range(0, len(questions.inputs), 2)
        ]
        asks += [
            Ask("write", "generate", prompt, number, WRITTEN)
            for number, prompt in enumerate(questions.prompts)
        ]
    asks += [Ask("probe", "forward", text[None], number) for number, text in enumerate(probes)]
    order = [asks[place] for place in rng.permutation(len(asks))]
    return _with_repeats(order, rng)


def _with_repeats(asks: Sequence[Ask], rng: np.random.Generator) -> list[Ask]:
    timed = [place for place, ask in enumerate(asks) if ask.purpose == "timed"]
    chosen = rng.choice(timed, max(1, round(ASKED_AGAIN * len(timed))), replace=False)
    after: dict[int, list[Ask]] = {}
    for place in chosen:
        later = min(len(asks) - 1, int(place) + int(rng.integers(1, 20)))
        first = asks[int(place)]
        again = Ask("again", first.kind, first.question, first.index)
        after.setdefault(later, []).append(again)
    return [each for place, ask in enumerate(asks) for each in (ask, *after.get(place, ()))]


def blocks_of(asks: Sequence[Ask]) -> Iterator[Sequence[Ask]]:
    """Split a schedule into blocks, which the sides answer in turn."""
    size = max(1, -(-len(asks) // BLOCKS))
    for start in range(0, len(asks), size):
        yield asks[start : start + size]


# ---------------------------------------------------------------- new texts, which
# tell a model from a memory of the book

PROBES = 6
"""Number of probes in a heat."""
BEGUN = 8


def draw_probes(event: Event, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Sample new texts (PROBES, 64) from the reference; none for events without text.

    They are like the book to a model, and in no book but for the few letters that they begin with.
    """
    if not is_text(event):
        return np.empty((0, CONTEXT), np.int64)
    prompts = warm_up_questions(event).prompts
    assert prompts is not None
    begun = prompts[rng.integers(len(prompts), size=PROBES), :BEGUN]
    with no_grad(), use_backend(BACKEND):
        model = _reference(event.model)
        written = model.generate(begun, CONTEXT - BEGUN, temperature=1.0, seed=rng)
    texts: npt.NDArray[Any] = written.data.astype(begun.dtype)
    return texts


@lru_cache(maxsize=1)
def _reference(name: str) -> Any:
    model = load_zoo(name).model
    model.eval()
    return model


# ---------------------------------------------------------------- a heat: both sides start as
# fresh processes and answer the same new questions in turns

WARM_UP_EXAMPLES = {"mlp_sprint": 300, "cnn_marathon": 500, "transformer_decathlon": 8}
PAUSE_S = 0.05
TEXTS_READ_AGAIN = 3


Start = Callable[[Contender, Limits], AskedContender]


def start_process(contender: Contender, limits: Limits) -> ContenderProcess:
    """Start a contender in a sandboxed process."""
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
    protection: dict[str, Protection]

    def of(self, purpose: Purpose) -> list[Given]:
        """Return the requests of one purpose with their answers, in the order of examples."""
        chosen = (each for each in self.given if each.ask.purpose == purpose)
        return sorted(chosen, key=lambda each: each.ask.index)

    @cached_property
    def outputs(self) -> npt.NDArray[Any]:
        """All timed answers, one row per example."""
        return np.concatenate([each.answer.output for each in self.of("timed")])

    def inner_s(self, purpose: Purpose) -> npt.NDArray[np.float64]:
        """Return the seconds of each call by the contender's own clock."""
        return np.array([each.answer.inner_s for each in self.of(purpose)])

    def gaps_s(self, purpose: Purpose) -> npt.NDArray[np.float64]:
        """Return the judge's time minus the contender's own time for each call."""
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
    schedule = plan_schedule(event, questions, rng, probes=list(draw_probes(event, rng)))
    public = warm_up_questions(event)
    with ExitStack() as stack:
        started: dict[int, _Runner] = {}
        for side in map(int, rng.permutation(2)):
            with _blaming(side):
                process = stack.enter_context(start(sides[side], limits))
                started[side] = _Runner(event, process, public, limits)
        runners = [started[0], started[1]]
        blocks = list(blocks_of(schedule))
        for block, order in zip(blocks, balanced_pairs(len(blocks), rng), strict=True):
            for side in order:
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
    """Turn a ContenderError into a LegError of this side."""
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
        """Read the resource usage, and let the contender read some of the texts that it wrote."""
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
    """Warm a contender up on public questions, and return its first answer."""
    batches = range(0, WARM_UP_EXAMPLES[event.name], event.batch)
    answers = [
        process.ask("forward", public.inputs[start : start + event.batch]) for start in batches
    ]
    if public.prompts is not None:
        process.ask("forward", public.inputs[:1, :PROMPT])
        process.ask("generate", public.prompts[0], count=WRITTEN)
    return answers[0]


def _some_texts(given: Sequence[Given], rng: np.random.Generator) -> list[npt.NDArray[Any]]:
    """Choose some of the texts that a contender wrote, at random."""
    written = [
        each for each in given if each.ask.purpose == "write" and is_written_text(each.answer)
    ]
    chosen = rng.permutation(len(written))[:TEXTS_READ_AGAIN]
    pairs = [(written[place].ask.question, written[place].answer.output) for place in chosen]
    return [np.concatenate(pair).astype(pair[0].dtype) for pair in pairs]


def is_written_text(answer: Answer) -> bool:
    """Return whether an answer is a valid text of the requested length."""
    ids = answer.output
    if ids.shape != (WRITTEN,) or not np.issubdtype(ids.dtype, np.integer):
        return False
    return bool((ids >= 0).all() and (ids < tokenizer().vocab_size).all())


# ---------------------------------------------------------------- from the answers of both sides
# to the values of the measures of an event; less is better

UNNOTICED_S = 3e-6
"""The gap between two clocks differs by this much between honest processes."""
PAGE_BYTES = 4096
LEAST_CALL_S, LEAST_CPU_S = 1e-9, 1e-6
"""What a clock can tell: nothing takes no time, and a ratio needs a number above zero."""

Times = Mapping[Purpose, npt.NDArray[np.float64]]
"""Seconds of each call, by what it was made for."""


def charge_s(leg: Leg, other: Leg, purpose: Purpose) -> npt.NDArray[np.float64]:
    """Return the seconds of each call that the judge's clock shows beyond the contender's.

    Sending a question and its answer takes what it takes the `other`, whose clock is ours: the
    longest gap is held against its longest, and so on. Messages that had to wait, as on a busy
    machine, are thus no hidden time; against the typical gap, measured, honest code that was 1.87
    times as fast came to 1.5 to 2.3. It is charged call by call, so that hiding some of them is of
    no use either.
    """
    gaps_s = leg.gaps_s(purpose)
    usual_s = np.empty_like(gaps_s)
    usual_s[np.argsort(gaps_s)] = np.sort(other.gaps_s(purpose))
    return np.maximum(0.0, gaps_s - usual_s - UNNOTICED_S)


def times_of(leg: Leg, *, charged_against: Leg | None = None) -> Times:
    """Return the seconds of all calls of a leg, by purpose.

    A contender with its own code may have changed its clock, or go on working after it was
    stopped: what the judge's clock shows beyond is added.
    """
    purposes = dict.fromkeys(each.ask.purpose for each in leg.given)
    found = {}
    for purpose in purposes:
        found[purpose] = leg.inner_s(purpose)
        if charged_against is not None:
            found[purpose] = found[purpose] + charge_s(leg, charged_against, purpose)
        found[purpose] = np.maximum(LEAST_CALL_S, found[purpose])
    return found


def without_postponed(leg: Leg, other: Leg) -> Leg:
    """Charge a leg of custom code for deferred loading and for hidden memory.

    Code may say that it is loaded and load later: what the first answer, or telling its size, takes
    longer than the `other` is loading. It may also give back memory that it found, and grow by
    nothing; a model takes what it takes on disk.
    """
    late_s = leg.loading.describing_s - other.loading.describing_s
    later_s = leg.cold.round_trip_s - other.cold.round_trip_s
    seconds = leg.loading.seconds + max(0.0, late_s) + max(0.0, later_s)
    peak_bytes = max(leg.usage.peak_bytes, leg.loading.file_bytes)
    return replace(
        leg,
        loading=replace(leg.loading, seconds=seconds),
        usage=replace(leg.usage, peak_bytes=peak_bytes),
    )


def heat_of(
    event: Event, legs: tuple[Leg, Leg], scores: tuple[float, float], *, has_own_code: bool
) -> Heat:
    """Return the measures of one heat; `scores` are the mean scores of both sides."""
    reference, entry = legs
    charged_against = reference if has_own_code else None
    times = times_of(reference), times_of(entry, charged_against=charged_against)
    if has_own_code:
        entry = without_postponed(entry, reference)
    sides = zip((reference, entry), times, scores, strict=True)
    values = [
        {each.name: MEASURES[each.name](leg, taken, score) for each in event.measures}
        for leg, taken, score in sides
    ]
    return Heat(reference=values[0], entry=values[1])


Value = Callable[[Leg, Times, float], float]

MEASURES: dict[str, Value] = {
    "p90 latency": lambda leg, times, score: _percentile(times["timed"], 90),
    "time per image": lambda leg, times, score: float(times["timed"].sum()) / len(leg.outputs),
    # With scaling it makes the time for the long text: to be slow with short ones gains nothing.
    "prefill": lambda leg, times, score: _percentile(times["short"], 50),
    "decode": lambda leg, times, score: _percentile(times["write"], 50) / WRITTEN,
    "p99": lambda leg, times, score: _percentile(times["timed"], 99),
    "peak memory": lambda leg, times, score: float(max(PAGE_BYTES, leg.usage.peak_bytes)),
    "size": lambda leg, times, score: float(max(1, leg.loading.file_bytes)),
    "load time": lambda leg, times, score: leg.loading.seconds,
    "cold start": lambda leg, times, score: leg.cold.round_trip_s,
    "perplexity": lambda leg, times, score: float(np.exp(-score)),
    "scaling": lambda leg, times, score: (
        _percentile(times["timed"], 50) / _percentile(times["short"], 50)
    ),
    "CPU time": lambda leg, times, score: max(LEAST_CPU_S, leg.usage.cpu_s),
}
"""The measures of all events, by name."""


def _percentile(values: npt.NDArray[np.float64], share: float) -> float:
    return float(np.percentile(values, share))


# ---------------------------------------------------------------- what a judge has seen of an
# entry, for those who inspect it

KEPT_GAIN = 0.8
"""Questions that were asked before and take less than this share of the time: answers are kept."""
TICK_S = 1e-9


@dataclass(frozen=True)
class Seen:
    """Everything that the judge has seen of an entry: pairs of legs, reference first.

    `floor_s` is the time below which no request can be answered on this machine, or 0 if there is
    no such bound in this division.
    """

    event: Event
    entry: Entry
    legs: Sequence[tuple[Leg, Leg]]
    accuracy: AccuracyComparison | None
    floor_s: float = 0.0

    @property
    def entries(self) -> list[Leg]:
        return [entry for _, entry in self.legs]
