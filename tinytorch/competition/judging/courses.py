"""The course of a heat: which questions are asked, in which order, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tinytorch.competition.cell.contender import Kind
from tinytorch.competition.events import Event
from tinytorch.competition.questions import PROMPT, Questions
from tinytorch.workloads.zoo import CONTEXT

__all__ = ["WRITTEN", "Ask", "Purpose", "blocks_of", "plan_course"]

Purpose = Literal["timed", "again", "short", "write", "probe"]
"""`timed`: scored and timed. `again`: a question that was asked before in this heat, which tells
whether answers are kept. `short`: a shorter text, for how time grows. `write`: continue a text.
`probe`: a text that is in no book, which tells whether texts are looked up."""

WRITTEN = CONTEXT - PROMPT
"""Characters that follow a prompt: together they are the context of the GPT."""
BLOCKS = 20
"""So many turns has each side in a heat."""
ASKED_AGAIN = 0.05


@dataclass(frozen=True)
class Ask:
    """One request. `index` is the first of the examples in it; of `again`, of the first time."""

    purpose: Purpose
    kind: Kind
    question: npt.NDArray[Any]
    index: int
    count: int = 0


def plan_course(
    event: Event,
    questions: Questions,
    rng: np.random.Generator,
    *,
    probes: Sequence[npt.NDArray[Any]] = (),
) -> list[Ask]:
    """Give all requests of a heat, in their order.

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
    """Cut a course into the turns in which the sides answer one after the other."""
    size = max(1, -(-len(asks) // BLOCKS))
    for start in range(0, len(asks), size):
        yield asks[start : start + size]
