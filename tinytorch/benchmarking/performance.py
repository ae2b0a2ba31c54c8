"""Performance: time, memory and accuracy of a model, and how they are measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tinytorch.benchmarking import checks
from tinytorch.benchmarking.examples import ACCURACY, read_examples
from tinytorch.benchmarking.subject import Subject, make_subject, ready_together
from tinytorch.codec import Coded
from tinytorch.core.files import ProgressLine
from tinytorch.errors import ModelError, SettingError, check_number, short_text
from tinytorch.measure.environment import observe
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.interleaving import interleave
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import WALL, Clock, calibrate_loops, fitting_clock, gc_paused, warm_up
from tinytorch.profiling.timer import check_count
from tinytorch.showing import Shown, benchmarking_reports

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# ---------------------------------------------------------------- timing several functions so that
# their ratios mean something: they take turns

TURN_S = 1e-3
"""A turn lasts about this long, where its length is not given: many calls of a fast function."""
FEWEST_ROUNDS, MOST_ROUNDS = 6, 1000
"""From six values on an interval of the median covers more than 95%."""
WARMUP_SHARE = 0.1
"""The part of the budget that warming up one function may use."""

Function = Callable[[], object]


@dataclass(frozen=True)
class TurnTimes:
    """Seconds per call of each function; the i-th value of each is from the same round.

    `failures` says what the others raised. They have no values, not even those from before.
    """

    samples: Mapping[str, Samples]
    failures: Mapping[str, str]


def time_in_turns(
    functions: Mapping[str, Function],
    *,
    rounds: int | None = None,
    warmup: int | None = None,
    budget_s: float = 1.0,
    clock: Clock = WALL,
    rng: np.random.Generator | None = None,
) -> TurnTimes:
    """Call functions in rounds, each function once a round, in a new random order every time.

    So whatever slows the machine down for a while meets all of them alike. With `rounds` a turn is
    one call. Without, a turn is as many calls as take about a millisecond, and there are as many
    rounds as `budget_s` seconds for each function allow. Where several functions take turns, each
    turn begins with a call that is not timed: it finds the caches full of other data. A
    function that raises is left out from there on.
    """
    if not functions:
        return TurnTimes({}, {})
    tally = _Tally(dict(functions), clock)
    rng = np.random.default_rng(0) if rng is None else rng
    with gc_paused():
        tally.for_each(lambda name: tally.warm_up(name, warmup, budget_s), functions)
        if rounds is None:
            tally.for_each(tally.find_loops, list(tally.running))
            rounds = tally.affordable_rounds(budget_s)
        before = observe()
        tally.take_rounds(rounds, rng)
        doubts = observe().doubts_since(before) if clock.is_disturbed_by_host else ()
    return tally.finished(doubts)


class _Tally:
    """The functions that still take part, how many calls a turn has, and what was seen."""

    def __init__(self, functions: dict[str, Function], clock: Clock) -> None:
        self.running = functions
        self.clock = clock
        self.loops = dict.fromkeys(functions, 1)
        self.turn_s = dict.fromkeys(functions, 0.0)
        self.values: dict[str, list[float]] = {name: [] for name in functions}
        self.failures: dict[str, str] = {}

    def for_each(self, action: Callable[[str], None], turns: Iterable[str]) -> None:
        """Do something with one function after the other; leave out one that raises."""
        for name in turns:
            try:
                action(name)
            except Exception as error:
                self.failures[name] = short_text(error)
                del self.running[name]

    def warm_up(self, name: str, calls: int | None, budget_s: float) -> None:
        """Call a function `calls` times, or until its time is stable."""
        if calls is None:
            warm_up(self.running[name], self.clock, budget_s * WARMUP_SHARE)
        for _ in range(calls or 0):
            self.running[name]()

    def find_loops(self, name: str) -> None:
        """Choose loops so that a turn lasts about a millisecond, and hides the clock."""
        call = self.running[name]
        loops = calibrate_loops(call, self.clock)
        seconds = max(self.clock.time(call, loops), 1e-9) / loops
        self.loops[name] = max(loops, math.ceil(TURN_S / seconds))
        self.turn_s[name] = self.loops[name] * seconds

    def affordable_rounds(self, budget_s: float) -> int:
        """Return how many rounds fit into the budget of all functions together."""
        spare = [self.turn_s[name] / self.loops[name] for name in self.running]  # the untimed call
        round_s = sum(self.turn_s[name] for name in self.running) + sum(spare)
        wanted = int(budget_s * len(self.running) / round_s) if round_s else FEWEST_ROUNDS
        return max(FEWEST_ROUNDS, min(MOST_ROUNDS, wanted))

    def take_rounds(self, rounds: int, rng: np.random.Generator) -> None:
        progress = ProgressLine(rounds * len(self.running))

        def turns() -> Iterator[str]:
            for _, name in interleave(self.running, rng=rng, at_least=rounds):
                yield name
                progress.advance("timing in turns")

        try:
            self.for_each(self.take_turn, turns())
        finally:
            progress.close()

    def take_turn(self, name: str) -> None:
        call, loops = self.running[name], self.loops[name]
        if len(self.running) > 1:
            call()
        self.values[name].append(self.clock.time(call, loops) / loops)

    def finished(self, doubts: tuple[str, ...]) -> TurnTimes:
        samples = {}
        for name in self.running:
            found = Samples(name, tuple(self.values[name]), loops=self.loops[name], notes=doubts)
            is_stable = found.stability.is_stable
            samples[name] = found if is_stable else found.with_notes(found.stability.note)
        return TurnTimes(samples, self.failures)


# ---------------------------------------------------------------- performance: time, memory and
# accuracy of a model, and how they are measured

MS = 1e3
MB = 2**20


@dataclass(frozen=True)
class Performance(Coded):
    """What a call of a model takes, and how good its outputs are.

    `samples` are the raw seconds per call, `scores` those of each example in the order of the
    data, `metric` the name of their mean. `examples` is the number of examples in a call, None
    where it cannot be told. A model that failed has an `error` and nothing else.
    """

    name: str
    samples: Samples | None = field(default=None, repr=False)
    peak_bytes: int | None = None
    size_bytes: int | None = None
    metric: str | None = None
    scores: tuple[float, ...] = field(default=(), repr=False)
    examples: int | None = None
    framework: str | None = None
    device: str | None = None
    notes: tuple[str, ...] = ()
    error: str | None = None

    also_written = (
        *("name", "time", "time_interval.low", "time_interval.high", "time_interval.coverage"),
        *("memory", "size", "accuracy", "metric", "score", "examples", "throughput"),
    )
    renames: ClassVar = {
        "time": "time_ms",
        "time_interval.low": "time_low_ms",
        "time_interval.high": "time_high_ms",
        "time_interval.coverage": "time_confidence",
        "memory": "memory_mb",
        "size": "size_mb",
        "peak_bytes": None,
        "size_bytes": None,
    }

    @property
    def is_failed(self) -> bool:
        return self.error is not None

    @property
    def time(self) -> float | None:
        """Median milliseconds of a call."""
        return self.samples.median * MS if self.samples else None

    @property
    def time_interval(self) -> Estimate | None:
        """The interval of the median in milliseconds, from order statistics."""
        return self.samples.scaled(MS, "ms").median_interval() if self.samples else None

    @property
    def memory(self) -> float | None:
        """Most MB (2**20 bytes) that a call holds at once, parameters and inputs included."""
        return None if self.peak_bytes is None else self.peak_bytes / MB

    @property
    def size(self) -> float | None:
        """MB that parameters and buffers hold."""
        return None if self.size_bytes is None else self.size_bytes / MB

    @property
    def score(self) -> float | None:
        """The mean score by `metric`; None without anything to evaluate on."""
        return float(np.mean(self.scores)) if self.scores else None

    @property
    def accuracy(self) -> float | None:
        """The fraction of right answers; None without labels, or where scores mean something else.

        See :func:`tinytorch.benchmarking.examples.score_outputs` for what counts as right.
        """
        return self.score if self.metric == ACCURACY else None

    @property
    def score_interval(self) -> Estimate | None:
        """The interval of the mean score; Wilson's where every answer is right or wrong."""
        return checks.mean_interval(self.scores) if self.scores else None

    @property
    def throughput(self) -> float | None:
        """Examples per second, at the median time."""
        if self.samples is None or self.examples is None or not self.samples.median:
            return None
        return self.examples / self.samples.median

    def speedup_over(self, baseline: Performance) -> float | None:
        """Return the baseline's time over this one's: more than 1 means faster than the baseline.

        Two models that were measured one after the other met different moments of the machine;
        :func:`benchmark_suite` measures in turns and gives an interval.
        """
        if not self.time or baseline.time is None:
            return None
        return baseline.time / self.time

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.name}: failed, {self.error}"
        scored = f", {self.metric} {self.score:.4g}" if self.metric else ""
        return f"{self.name}: {self.time:.4g} ms per call, {self.memory:.4g} MB{scored}"


def measure_performance(
    model: Any,
    data: Any = None,
    *,
    budget_s: float = 0.5,
    batch_size: int | None = None,
    name: str | None = None,
) -> Performance:
    """Measure time, memory and, where there are targets, accuracy of a model.

    `model` is a layer of TinyTorch, a module of PyTorch, anything with `forward` or that can be
    called, a Workload, or a target such as ``"mlp"``. `data` are inputs, or inputs with targets in
    any form that :func:`~tinytorch.benchmarking.examples.read_examples` knows; without them
    the example inputs of the model are used: those of a Workload, or of the size of its first
    layer. A timed call has the first batch of a loader, or the first 32 examples of arrays, or
    `batch_size` of them. Accuracy is over all examples.

    The model is measured in evaluation mode and without gradients, and restored. Timing
    takes about `budget_s` seconds; on a GPU every value runs until the device is done.

    >>> from tinytorch.core.layers import Linear
    >>> performance = measure_performance(Linear(8, 2), budget_s=0.01)
    >>> performance.time > 0, performance.size * 2**20, performance.accuracy
    (True, 72.0, None)
    """
    check_number("budget_s", budget_s, above=0)
    if batch_size is not None:
        check_count("batch_size", batch_size, at_least=1)
    (own_name,) = checks.named_models([model])
    examples = None if data is None else read_examples(data)
    subject = make_subject(name or own_name, model, examples=examples, batch_size=batch_size)
    with subject.ready():
        subject.check()
    (found,) = measure_subjects({subject.name: lambda: subject}, budget_s=budget_s).values()
    if found.error is not None:
        raise ModelError(f"{subject.name} worked at first, and later failed: {found.error}")
    return found


def measure_subjects(
    makers: Mapping[str, Callable[[], Subject]], *, budget_s: float, seed: int = 0
) -> dict[str, Performance]:
    """Measure several models, timed in turns; one that fails is marked and the others go on.

    `budget_s` is for timing each of them.
    """
    with ExitStack() as stack:
        subjects, failures = ready_together(makers, stack)
        rng = np.random.default_rng(seed)
        times = time_in_turns(subjects, budget_s=budget_s, clock=fitting_clock(), rng=rng)
        failures |= times.failures
        found = {}
        for name, samples in times.samples.items():
            try:
                found[name] = _performance(subjects[name], samples)
            except Exception as error:
                failures[name] = short_text(error)
    failed = {name: Performance(name, error=error) for name, error in failures.items()}
    return {name: (found | failed)[name] for name in makers}


def _performance(subject: Subject, samples: Samples) -> Performance:
    """Add memory and scores to the times of a model that is ready."""
    memory = subject.memory()
    scored = subject.evaluate() if subject.evaluate else None
    notes = [*memory.notes, *samples.notes, *(scored.notes if scored else ())]
    if scored is not None and not np.isfinite(scored.scores).all():
        raise ModelError(f"some scores ({scored.metric}) are not finite: the outputs are broken")
    if scored is not None and scored.metric != ACCURACY:
        notes.append(f"no accuracy: the data is scored by {scored.metric}")
    return Performance(
        name=subject.name,
        samples=samples,
        peak_bytes=memory.peak_bytes,
        size_bytes=memory.held_bytes,
        metric=scored.metric if scored else None,
        scores=scored.scores if scored else (),
        examples=subject.examples,
        framework=subject.adapter.name,
        device=subject.device,
        notes=tuple(notes),
    )


# ---------------------------------------------------------------- several models measured in
# turns, side by side


@dataclass(frozen=True)
class Speedup:
    """The baseline's time over a model's: more than 1 is faster.

    The median over the rounds, with its interval; where models did not take turns, the ratio of
    their medians without one.
    """

    value: float
    interval: Estimate | None


@dataclass(frozen=True)
class PerformanceTable(Mapping[str, Performance], Shown):
    """Performances by name, in order. The first is the baseline of every speedup."""

    performances: Mapping[str, Performance]
    is_interleaved: bool = False

    def __getitem__(self, name: str) -> Performance:
        return self.performances[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.performances)

    def __len__(self) -> int:
        return len(self.performances)

    @property
    def baseline(self) -> Performance:
        return next(iter(self.performances.values()))

    @property
    def failed(self) -> dict[str, str]:
        """What the models that could not be measured raised, by name."""
        return {name: each.error for name, each in self.items() if each.error is not None}

    def speedup(self, name: str) -> Speedup | None:
        """Return the speedup of a model over the baseline; None where one of them failed.

        Only models that took turns have an interval. It is of these objects in this run: built
        again, a model lies elsewhere in memory, which alone moves its time by one or two percent.
        """
        first, second = self.baseline.samples, self[name].samples
        if first is None or second is None:
            return None
        if not self.is_interleaved:
            return Speedup(first.median / second.median, None)
        found = checks.ratio_interval(first.values, second.values)
        return Speedup(found.value, found)

    def rows(self) -> list[dict[str, Any]]:
        """Return a dictionary per model: its numbers, and its speedup over the first."""
        return [self._row(name, each) for name, each in self.items()]

    def _row(self, name: str, performance: Performance) -> dict[str, Any]:
        speedup = self.speedup(name)
        interval = speedup.interval if speedup else None
        return performance.to_dict() | {
            "speedup": speedup.value if speedup else None,
            "speedup_low": interval.low if interval else None,
            "speedup_high": interval.high if interval else None,
        }


def benchmark_suite(
    models: Any,
    data: Any = None,
    *,
    budget_s: float = 0.5,
    batch_size: int | None = None,
    seed: int = 0,
) -> PerformanceTable:
    """Measure several models on the same data, timed in turns in random order.

    `models` is a dictionary of names, or a list; the first is the baseline. Models and `data` are
    those of :func:`measure_performance`, and `budget_s` is for timing each model. A model that
    raises is marked as failed, with what it raised, and the others go on.

    >>> from tinytorch.core.layers import Linear
    >>> results = benchmark_suite(
    ...     {"small": Linear(8, 2), "wrong": Linear(9, 2)}, [[1.0] * 8] * 4, budget_s=0.01
    ... )
    >>> list(results.failed), results["small"].is_failed
    (['wrong'], False)
    """
    check_number("budget_s", budget_s, above=0)
    if batch_size is not None:
        check_count("batch_size", batch_size, at_least=1)
    named = checks.named_models(models)
    examples = None if data is None else read_examples(data)
    if examples is not None:
        examples.timed_inputs(batch_size)  # refuses a batch that is larger than the data
    makers = {
        name: partial(make_subject, name, model, examples=examples, batch_size=batch_size)
        for name, model in named.items()
    }
    return PerformanceTable(
        measure_subjects(makers, budget_s=budget_s, seed=seed), is_interleaved=True
    )


def plot_performance_comparison(results: Mapping[str, Performance]) -> Figure:
    """Print a table of models (time, memory, accuracy) and give a figure of the same.

    `results` come from :func:`benchmark_suite`, or are a dictionary of what
    :func:`measure_performance` gave. The figure needs matplotlib; save it with
    ``figure.savefig("comparison.png")``.
    """
    table = as_table(results)
    reports = benchmarking_reports()
    reports.show_performances(table)
    figure: Figure = reports.draw_performances(table)
    return figure


def as_table(results: Mapping[str, Performance]) -> PerformanceTable:
    """Return results as a table; raise unless they hold performances."""
    if isinstance(results, PerformanceTable):
        return results
    given: Any = results
    held = list(given.values()) if isinstance(given, Mapping) else []
    if not held or not all(isinstance(each, Performance) for each in held):
        raise SettingError(
            "give what benchmark_suite returned, or a dictionary of what measure_performance "
            f"returned by name; got {results!r:.60}"
        )
    return PerformanceTable(dict(results))
