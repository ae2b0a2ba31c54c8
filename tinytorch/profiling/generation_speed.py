"""How fast a model generates: the first token, each one after it, and tokens per second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from tinytorch.codec import Coded
from tinytorch.errors import ModelError, SettingError
from tinytorch.measure.interleaving import interleave
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import fitting_clock
from tinytorch.models.adapter import adapter_for, leaves
from tinytorch.models.workload import Workload, axis_length, call_model, resize_workload

BATCHES = (1, 4, 16)
FEWEST, MOST = 5, 50
"""Rounds, in each of which a text of one token and a whole one are generated."""
FIRST, WHOLE = "first token", "whole text"


@dataclass(frozen=True)
class GenerationSpeed(Coded):
    """Calls that generate one token, and `new_tokens`, for a batch of prompts, taken in turns."""

    batch: int
    prompt_tokens: int
    new_tokens: int
    first: Samples
    whole: Samples

    also_written = ("first_token_s", "per_token_s", "tokens_per_s")

    @property
    def first_token_s(self) -> float:
        """The median time to the first token: the prompt is read, and one token chosen."""
        return self.first.median

    @property
    def per_token(self) -> Samples:
        """The time of each token after the first, of each pair of calls next to each other."""
        pairs = zip(self.first.values, self.whole.values, strict=True)
        rest = self.new_tokens - 1
        return Samples("time per token", tuple((whole - first) / rest for first, whole in pairs))

    @property
    def per_token_s(self) -> float:
        return self.per_token.median

    @property
    def tokens_per_s(self) -> float:
        """The new tokens of all texts by the time of a whole call."""
        return self.batch * self.new_tokens / self.whole.median


def measure_generation(
    workload: Workload,
    *,
    batches: Sequence[int] = BATCHES,
    budget_s: float = 10.0,
    seed: int = 0,
) -> tuple[GenerationSpeed, ...]:
    """Measure a workload whose call generates, with its prompts repeated to several batch sizes.

    Each size has an equal part of the budget, and a few rounds in any case.
    """
    model = workload.generating
    if model is None:
        raise SettingError(
            f"a call of {workload.name} generates nothing; generation_call(model, "
            "max_new_tokens=N) makes one that does"
        )
    if not batches or min(batches) < 1:
        raise SettingError(f"batches={tuple(batches)}; sizes of 1 or more are needed")
    share = budget_s / len(batches)
    return tuple(_at_size(workload, model, each, share, seed) for each in batches)


def _at_size(
    workload: Workload, model: Any, batch: int, budget_s: float, seed: int
) -> GenerationSpeed:
    adapter = adapter_for(workload.model, workload.arguments)
    given = resize_workload(workload, 0, batch)
    prompt = axis_length(given.arguments, 1)
    sides = {
        FIRST: replace(given, model=model.with_new_tokens(1)),
        WHOLE: given,
    }
    with adapter.preserving(workload.model), adapter.without_gradients():
        calls = {
            name: partial(call_model, side.model, *side.inputs, **side.keywords)
            for name, side in sides.items()
        }
        # Against the text of one token: an encoder's prompt is no part of what is written.
        new_tokens = 1 + _length(calls[WHOLE]()) - _length(calls[FIRST]())
        if new_tokens < 2:
            raise ModelError(
                f"{workload.name} writes {new_tokens} tokens; the time of a token takes two or more"
            )
        clock, taken = fitting_clock(), {name: list[float]() for name in sides}
        rng, rounds = np.random.default_rng(seed), {"at_least": FEWEST, "at_most": MOST}
        for _, name in interleave(list(sides), rng=rng, budget_s=budget_s, **rounds):
            taken[name].append(clock.time(calls[name], 1))
    first, whole = (Samples(name, tuple(values)) for name, values in taken.items())
    return GenerationSpeed(batch, prompt, new_tokens, first, whole)


def _length(output: Any) -> int:
    return max(each.shape[-1] for each in leaves(output))
