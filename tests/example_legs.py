"""Legs of heats as a judge would see them, made up so that each shows one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinytorch.competition.entry import Entry, Technique
from tinytorch.competition.events import PROMPT, Event, Questions, find_event
from tinytorch.competition.heats import WRITTEN, Ask, Given, Leg, Written, plan_schedule
from tinytorch.competition.sandbox.bubblewrap import Protection
from tinytorch.competition.sandbox.contender import Answer, Loading, Usage

CLASSES, LETTERS = 10, 12
OUTSIDE_S = 30e-6

SPRINT = find_event("mlp_sprint")
DECATHLON = find_event("transformer_decathlon")


def an_entry(event: str = "mlp_sprint", **changes: Any) -> Entry:
    """Give an entry of the closed division with one technique."""
    fields: dict[str, Any] = {
        "team": "Ada",
        "event": event,
        "division": "closed",
        "tier": 0.99,
        "techniques": (Technique("fused-layers"),),
    }
    return Entry(**{**fields, **changes})


def some_questions(event: Event, count: int = 60, seed: int = 0) -> Questions:
    """Give random questions of the right kinds."""
    rng = np.random.default_rng(seed)
    if event.model == "gpt":
        inputs = rng.integers(0, LETTERS, (count, PROMPT + WRITTEN))
        prompts = rng.integers(0, LETTERS, (4, PROMPT))
        return Questions(inputs, np.roll(inputs, -1, axis=1), prompts)
    inputs = rng.standard_normal((count, 784)).astype(np.float32)
    return Questions(inputs, rng.integers(0, CLASSES, count), None)


def outputs_of(event: Event, question: np.ndarray) -> np.ndarray:
    """Give outputs that depend on the question alone."""
    if event.model == "gpt":
        # The next letter is the one after the last, in the order of the alphabet.
        following = (question + 1) % LETTERS
        return (5 * np.eye(LETTERS)[following]).astype(np.float32)
    weights = np.random.default_rng(1).standard_normal((question.shape[1], CLASSES))
    return (question @ weights).astype(np.float32)


def text_of(prompt: np.ndarray) -> np.ndarray:
    """Write on as `outputs_of` predicts."""
    return (prompt[-1] + 1 + np.arange(WRITTEN)) % LETTERS


def a_leg(
    event: Event = SPRINT,
    *,
    inner_s: float = 20e-6,
    outside_s: float = OUTSIDE_S,
    again_s: float | None = None,
    change: Callable[[np.ndarray], np.ndarray] = lambda outputs: outputs,
    write: Callable[[np.ndarray], np.ndarray] = text_of,
    is_intact: bool = True,
    usage: Usage | None = None,
    idle_cpu_s: float = 0.0,
    protection: dict[str, Protection] | None = None,
    seed: int = 0,
) -> Leg:
    """Give a leg in which every call took about `inner_s`, and the outputs were changed."""
    questions = some_questions(event, seed=seed)
    noise = np.random.default_rng(seed)
    given = [
        _given(event, ask, noise, inner_s, outside_s, again_s, change, write, is_intact)
        for ask in plan_schedule(event, questions, np.random.default_rng(seed))
    ]
    texts = []
    for each in [each for each in given if each.ask.purpose == "write"][:2]:
        text = np.concatenate([each.ask.question, each.answer.output])
        read = outputs_of(event, text[None])
        texts.append(Written(text, read, read))
    return Leg(
        loading=Loading(0.1, 400_000),
        cold=Answer(np.zeros(1), 5 * inner_s, 5 * inner_s),
        given=tuple(given),
        texts=tuple(texts),
        usage=usage or Usage(cpu_s=0.5, peak_bytes=2 << 20, processes=1),
        idle_cpu_s=idle_cpu_s,
        protection=protection or {"sandbox": Protection("bubblewrap")},
    )


def _given(
    event: Event,
    ask: Ask,
    noise: np.random.Generator,
    inner_s: float,
    outside_s: float,
    again_s: float | None,
    change: Callable[[np.ndarray], np.ndarray],
    write: Callable[[np.ndarray], np.ndarray],
    is_intact: bool,
) -> Given:
    output = (
        write(ask.question) if ask.kind == "generate" else change(outputs_of(event, ask.question))
    )
    usual_s = again_s if ask.purpose == "again" and again_s is not None else inner_s
    seconds = usual_s * float(np.exp(0.02 * noise.standard_normal()))
    round_trip_s = seconds + outside_s * float(np.exp(0.02 * noise.standard_normal()))
    return Given(ask, Answer(output, round_trip_s, seconds, is_intact))


def legs(event: Event = SPRINT, *, count: int = 10, **changes: Any) -> list[tuple[Leg, Leg]]:
    """Give so many heats of an unchanged reference and an entry with changes."""
    return [
        (a_leg(event, seed=number), a_leg(event, seed=number, **changes)) for number in range(count)
    ]
