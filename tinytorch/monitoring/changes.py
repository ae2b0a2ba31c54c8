"""Changes with a promise: at most one false alarm in 30 days, by an e-detector over slow minutes.

For each series (a layer, the model, the machine, the mix of inputs, memory) a minute is slow or
not, against a frozen reference. The promise assumes one thing: while nothing changed, and whatever
happened before, the chance of a slow minute is at most `SLOW_RATE`. Nothing is assumed about how
calls or minutes depend on each other beyond that. Then `1 + BET * (slow - SLOW_RATE)` has a mean
of at most 1, given the past; the Shiryaev-Roberts recursion of such factors, averaged over the
series, minus the number of minutes is a supermartingale, and so the mean time until the average
reaches 43,200 is at least 43,200 minutes (Shin, Ramdas and Rinaldo, "E-detectors", 2023).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tinytorch.codec import Coded
from tinytorch.monitoring.reference import (
    LEAST_CALLS,
    MACHINE,
    MODEL,
    Array,
    Calls,
    Reference,
    learn,
    size_shares,
)

FALSE_ALARM_MINUTES = 30 * 24 * 60
SLOW_RATE = 0.1
BET = 0.8 / SLOW_RATE
FACTORS = (1 - BET * SLOW_RATE, 1 + BET * (1 - SLOW_RATE))
"""What a minute that was not slow, and one that was, multiplies the evidence by."""
INPUTS, MEMORY = "<inputs>", "<memory>"
SHARED = {"layers": 0.5, MODEL: 0.15, MACHINE: 0.15, INPUTS: 0.1, MEMORY: 0.1}
"""How the average over series is weighted; layers by their part of a call."""
LEAST_MIX_CALLS = 30
REMEMBERED_MINUTES = 240
MOST_OF_A_MODEL = 0.6
"""Where several layers with more than this part of a call are slow, it is the model."""
CALM_MINUTES = 10
"""A change ends after so many minutes that were not slow."""
MOST_CHANGES = 100
LEARNING_CALLS = 300
MOST_LEARNED = 4000


@dataclass(frozen=True)
class Change(Coded):
    """Something that is not as in the reference.

    `kind` is layer, model, machine, inputs or memory; `subject` names the layer or the size.
    `since` and `noticed` are seconds since 1970, as is `ended`, which is None as long as it lasts.
    `factor` is how much slower (or larger) it became, None where that has no meaning.
    """

    kind: str
    subject: str
    since: float
    noticed: float
    factor: float | None = None
    ended: float | None = None

    @property
    def words(self) -> str:
        """One sentence: what it is, and what it is not."""
        by = "" if self.factor is None else f" by {self.factor - 1:.0%}"
        return {
            "layer": f"layer {self.subject} is slower{by}",
            "model": f"all of the model is slower{by}, no single layer and not the machine",
            "machine": f"the machine, not the model: fixed work takes longer{by}",
            "inputs": f"the inputs, not the model: more calls of {self.subject}",
            "memory": f"the memory of the process grew{by}",
        }[self.kind]


@dataclass(frozen=True)
class Minute:
    """What is judged at once: when it ended, calls by size class, resident bytes, sampled calls."""

    ended: float
    size_counts: Mapping[int, int]
    memory_bytes: float
    calls: Calls


class Evidence:
    """The e-detector: evidence per series in its last axis; earlier axes are streams."""

    def __init__(self, weights: Array, streams: tuple[int, ...] = ()) -> None:
        self.weights = weights
        self.values = np.zeros((*streams, len(weights)))
        self._runs = np.ones_like(self.values)
        self.began = np.zeros((*streams, len(weights)), np.int64)
        """The minute with which the evidence of today began, for each series."""

    def add(self, slow: Array, minute: int) -> npt.NDArray[np.bool_]:
        """Add a minute (1 slow, 0 not, nan not known); return where the promise allows an alarm."""
        known = ~np.isnan(slow)
        factor = np.where(known, np.where(slow > 0, FACTORS[1], FACTORS[0]), 1.0)
        self.values = factor * (self.values + known)
        self._runs *= factor
        renewed = self._runs <= 1
        self._runs[renewed] = 1.0
        self.began[renewed] = minute + 1
        found: npt.NDArray[np.bool_] = self.values @ self.weights >= FALSE_ALARM_MINUTES
        return found

    def forget(self, series: npt.NDArray[np.bool_] | slice = slice(None)) -> None:
        """Begin anew."""
        self.values[..., series] = 0.0
        self._runs[..., series] = 1.0


@dataclass
class ChangeDetector:
    """Learns a reference from its first minutes, and then judges each minute against it."""

    layers: Sequence[str]
    learning_minutes: int = 60
    reference: Reference | None = None
    changes: list[Change] = field(default_factory=list)
    size_names: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._learned: list[Minute] = []
        self._waiting: list[Calls] = []
        self._past: deque[tuple[float, Array, Array]] = deque(maxlen=REMEMBERED_MINUTES)
        self._count = 0
        if self.reference is not None:
            self._start(self.reference)

    @property
    def learned_minutes(self) -> int:
        return len(self._learned) if self.reference is None else self.reference.minutes

    def add(self, minute: Minute) -> tuple[Change, ...]:
        """Learn from a minute, or judge it; return changes that it reveals."""
        if self.reference is None:
            self._learn(minute)
            return ()
        slow, shift = self._judged(minute)
        self._past.append((minute.ended, slow, shift))
        self._end_calm()
        slow = np.where(self._active, np.nan, slow)
        self._count += 1
        if not self._evidence.add(slow, self._count):
            return ()
        return self._named()

    # ------------------------------------------------------------ learning

    def _learn(self, minute: Minute) -> None:
        most = max(LEAST_CALLS, MOST_LEARNED // self.learning_minutes)
        if len(minute.calls) > most:  # memory has a bound, however many calls are sampled
            kept = np.zeros(len(minute.calls), bool)
            kept[np.linspace(0, len(kept) - 1, most).astype(int)] = True
            minute = replace(minute, calls=minute.calls.of(kept))
        self._learned.append(minute)
        del self._learned[: -MOST_LEARNED // LEAST_CALLS]
        calls = sum(len(each.calls) for each in self._learned)
        if len(self._learned) < self.learning_minutes or calls < LEARNING_CALLS:
            return
        self.reference = learn(
            _joined([each.calls for each in self._learned]),
            self.layers,
            [dict(each.size_counts) for each in self._learned],
            np.array([each.memory_bytes for each in self._learned]),
        )
        self._learned = []
        self._start(self.reference)

    def _start(self, reference: Reference) -> None:
        self._columns = [self.layers.index(path) for path in reference.layers]
        self.series = (*reference.series, *(INPUTS for _ in reference.size_limits), MEMORY)
        self._evidence = Evidence(weights_of(reference))
        self._active = np.zeros(len(self.series), bool)
        self._kind_of: dict[int, str] = {}

    # ------------------------------------------------------------ judging

    def _judged(self, minute: Minute) -> tuple[Array, Array]:
        """Return for each series whether the minute was slow (nan: not known), and by how much."""
        reference = self.reference
        assert reference is not None
        slow = np.full(len(self.series), np.nan)
        shift = np.zeros(len(self.series))
        self._waiting.append(minute.calls.of(np.ones(len(minute.calls), bool), self._columns))
        calls = _joined(self._waiting)
        calls = calls.of(reference.knows(calls))
        count = len(reference.series)
        if len(calls) >= LEAST_CALLS:
            residuals = reference.residuals(calls)
            slow[:count] = (residuals > reference.levels).mean(0) > reference.limits
            shift[:count] = np.median(residuals, axis=0)
            self._waiting = []
        elif len(self._waiting) > LEAST_CALLS:
            self._waiting = []
        if sum(minute.size_counts.values()) >= LEAST_MIX_CALLS:
            shares = size_shares(dict(minute.size_counts), reference.sizes)
            slow[count:-1] = shares > reference.size_limits
        slow[-1] = minute.memory_bytes > reference.memory_limit
        shift[-1] = np.log(max(1.0, minute.memory_bytes) * 1.05 / reference.memory_limit)
        return slow, shift

    def _end_calm(self) -> None:
        """End the changes of series that were not slow for a while."""
        recent = [slow for _, slow, _ in list(self._past)[-CALM_MINUTES:]]
        if len(recent) < CALM_MINUTES:
            return
        calm = self._active & ~(np.array(recent) == 1).any(0)
        self._active &= ~calm
        ended = {self._kind_of.pop(int(at), "") for at in np.flatnonzero(calm)}
        going_on = set(self._kind_of.values())
        for at, change in enumerate(self.changes):
            key = f"{change.kind} {change.subject}"
            if change.ended is None and key in ended and key not in going_on:
                self.changes[at] = replace(change, ended=self._past[-1][0])

    def _named(self) -> tuple[Change, ...]:
        """Say what the evidence is about, and begin anew for everything else."""
        at = int(np.argmax(self._evidence.values * self._evidence.weights))
        length = min(len(self._past), max(1, self._count - int(self._evidence.began[at]) + 1))
        past = list(self._past)[-length:]
        flags = np.array([slow for _, slow, _ in past])
        rates = (flags == 1).sum(0) / np.maximum(1, (~np.isnan(flags)).sum(0))
        change, cause = self._explained(at, rates, past)
        self._active[at] = True
        self._kind_of[at] = f"{change.kind} {change.subject}"
        if cause != at:
            self._active[cause] = True
            self._kind_of[cause] = f"{change.kind} {change.subject}"
        self._evidence.forget()
        is_known = any(
            each.ended is None and (each.kind, each.subject) == (change.kind, change.subject)
            for each in self.changes
        )
        if is_known:
            return ()
        self.changes = [*self.changes[-MOST_CHANGES + 1 :], change]
        return (change,)

    def _explained(
        self, at: int, rates: Array, past: Sequence[tuple[float, Array, Array]]
    ) -> tuple[Change, int]:
        """Return the change behind a series with evidence, and the series of its cause."""
        name, machine = self.series[at], self.series.index(MACHINE)
        is_about_time = name not in (INPUTS, MEMORY)
        if is_about_time and rates[machine] >= 0.5:
            at, kind, subject = machine, "machine", ""
        elif name == INPUTS:
            kind, subject = "inputs", self._size_name(at)
        elif name == MEMORY:
            kind, subject = "memory", ""
        else:
            at = self._slow_part(at, rates)
            name = self.series[at]
            kind, subject = ("model", "") if name == MODEL else ("layer", name)
        shifts = [shift[at] for _, slow, shift in past if slow[at] == 1]
        factor = float(np.exp(np.median(shifts))) if shifts and kind != "inputs" else None
        began = past[0][0] - 60.0
        return Change(kind, subject, began, past[-1][0], factor), at

    def _slow_part(self, at: int, rates: Array) -> int:
        """Return the series of the slowest layer, or of the model where most of it is slow."""
        assert self.reference is not None
        model = self.series.index(MODEL)
        slow = [each for each in range(model) if rates[each] >= 0.5]
        shares = [self.reference.layer_shares[each] for each in slow]
        if len(slow) > 1 and sum(shares) > MOST_OF_A_MODEL * sum(self.reference.layer_shares):
            return model
        return max(slow, key=lambda each: rates[each]) if slow and at == model else at

    def _size_name(self, at: int) -> str:
        assert self.reference is not None
        place = at - len(self.reference.series)
        if place == len(self.reference.sizes):
            return "sizes that the reference has not seen"
        size = self.reference.sizes[place]
        return f"size {self.size_names.get(size, str(size))}"


def weights_of(reference: Reference) -> Array:
    """Return how much of the average each series has; they add up to 1."""
    shares = np.array(reference.layer_shares) + 0.02
    layers = SHARED["layers"] * shares / shares.sum()
    sizes = len(reference.size_limits)
    found = np.array(
        [*layers, SHARED[MODEL], SHARED[MACHINE], *[SHARED[INPUTS] / sizes] * sizes, SHARED[MEMORY]]
    )
    return found / found.sum()


def _joined(parts: Sequence[Calls]) -> Calls:
    names = ("minutes", "sizes", "in_flight", "probes", "total", "layers")
    return Calls(*(np.concatenate([getattr(each, name) for each in parts]) for name in names))
