"""Texts that nobody has written before: they tell a model from a memory of the book."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.competition.cell.contender import BACKEND
from tinytorch.competition.events import Event
from tinytorch.competition.questions import is_text, warm_up_questions
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import use_backend
from tinytorch.workloads.zoo import CONTEXT, load_zoo

__all__ = ["PROBES", "draw_probes"]

PROBES = 6
"""So many are asked in a heat, among the others."""
BEGUN = 8


def draw_probes(event: Event, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Let the reference draw new texts (PROBES, 64), letter by letter; none where there is no text.

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
