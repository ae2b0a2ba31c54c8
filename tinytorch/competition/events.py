"""The three events: what is asked of a model, and what of its answers is measured."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from tinytorch.errors import SettingError

__all__ = [
    "DIVISIONS",
    "EVENTS",
    "TIERS",
    "Division",
    "Event",
    "Measure",
    "find_event",
]

Division = Literal["closed", "open", "learner"]
DIVISIONS: tuple[Division, ...] = ("closed", "open", "learner")
TIERS: tuple[float, ...] = (0.99, 0.999)
"""The shares of the reference's accuracy that an entry may be asked to keep."""


@dataclass(frozen=True)
class Measure:
    """One thing that is measured of both sides in each heat; less is better.

    The score of a measure is the reference's value over the entry's.
    """

    name: str
    unit: Literal["s", "byte", "ratio"]
    about: str
    is_scored: bool = True


@dataclass(frozen=True)
class Event:
    """One event. `model` is the reference's name in the zoo.

    A request holds `batch` examples. In every heat both sides answer the same `examples` questions
    that neither has seen before.
    """

    name: str
    title: str
    model: str
    about: str
    batch: int
    examples: int
    metric: str
    measures: tuple[Measure, ...]

    @property
    def scored(self) -> tuple[Measure, ...]:
        """The measures whose geometric mean is the score."""
        return tuple(each for each in self.measures if each.is_scored)


PEAK_MEMORY = "what the process grows by, at most, after it has started"

EVENTS: dict[str, Event] = {
    event.name: event
    for event in (
        Event(
            "mlp_sprint",
            "MLP Sprint",
            "mlp",
            "read one drawn digit after the other: the time that nine of ten answers keep to",
            batch=1,
            examples=2_000,
            metric="accuracy",
            measures=(
                Measure("p90 latency", "s", "90th percentile of the time to answer one image"),
                Measure("peak memory", "byte", PEAK_MEMORY, is_scored=False),
            ),
        ),
        Event(
            "cnn_marathon",
            "CNN Marathon",
            "cnn",
            "read drawn digits, 50 at a time, without a pause: the time for each of them",
            batch=50,
            examples=5_000,
            metric="accuracy",
            measures=(
                Measure("time per image", "s", "mean over all images of a heat"),
                Measure("peak memory", "byte", PEAK_MEMORY, is_scored=False),
            ),
        ),
        Event(
            "transformer_decathlon",
            "Transformer Decathlon",
            "gpt",
            "read and write English, one character at a time: ten disciplines",
            batch=1,
            examples=100,
            metric="log-likelihood per character",
            measures=(
                Measure("prefill", "s", "median time to read 16 characters"),
                Measure("decode", "s", "median time per written character, 48 after 16"),
                Measure("p99", "s", "99th percentile of the time to read 64 characters"),
                Measure("peak memory", "byte", PEAK_MEMORY),
                Measure("size", "byte", "what the model takes on disk"),
                Measure("load time", "s", "from the file to a model that can be called"),
                Measure("cold start", "s", "the first answer after loading"),
                Measure("perplexity", "ratio", "of the next character, on held-out text"),
                Measure("scaling", "ratio", "median time for 64 characters over that for 16"),
                Measure("CPU time", "s", "processor time of the whole heat"),
            ),
        ),
    )
}


def find_event(name: str) -> Event:
    """Give the event of a name."""
    if name in EVENTS:
        return EVENTS[name]
    near = get_close_matches(str(name), EVENTS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(EVENTS)}"
    raise SettingError(f"no event {name!r}; {hint}")
