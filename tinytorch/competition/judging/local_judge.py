"""The local judge: a Python object against the reference, in this process; never verified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tinytorch.competition.cell.contender import Contender, ContenderError, Limits
from tinytorch.competition.entries.entry import Entry
from tinytorch.competition.events import Event
from tinytorch.competition.judgement import Judgement
from tinytorch.competition.judging.bench import Bench, compete
from tinytorch.competition.judging.local_contender import LocalContender, LocalModel, prepare_model
from tinytorch.competition.rounds import Round
from tinytorch.competition.rules import finding
from tinytorch.errors import ModelError
from tinytorch.measure.ceilings import Progress
from tinytorch.workloads.zoo import load_zoo

__all__ = ["judge_model"]

IN_PROCESS = (
    "a Python object that ran in the judge's own process: nobody else can run it again, and "
    "nothing was kept apart"
)
HERE = "a Python object"
"""What the contenders of an entry have as their code; the reference has none."""


def judge_model(
    entry: Entry,
    model: Any,
    *,
    event: Event,
    questions_of: Round,
    heats: int,
    without: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Judgement:
    """Let a model of this process compete with the reference, and say what is found.

    Both are copied for each heat and answer the same new questions in turns. `without` has, for
    each technique of the entry, the model without it.
    """
    models = _Models(event, entry, model, without or {})
    bench = Bench(
        event,
        entry,
        heats,
        contender_without=models.contender_without,
        start=models.start,
        rng=np.random.default_rng(seed),
        progress=progress,
    )
    try:
        prepare_model("the model", model, event)
    except ModelError as error:
        refused = finding("E8", str(error), "mend the model, and enter it again")
        return compete(bench, questions_of, findings=(refused,), notes=(IN_PROCESS,))
    return compete(bench, questions_of, ablations=bool(without), notes=(IN_PROCESS,))


class _Models:
    """The models of both sides, found by the techniques that are switched on."""

    def __init__(self, event: Event, entry: Entry, model: Any, without: Mapping[str, Any]) -> None:
        self._event, self._entry = event, entry
        self._prepared: dict[Contender, LocalModel] = {}
        self._models = {Contender(event.name): ("the reference", load_zoo(event.model).model)}
        self._models[self.contender_without(None)] = ("the model", model)
        for name, rest in without.items():
            self._models[self.contender_without(name)] = (f"the model without {name}", rest)

    def contender_without(self, technique: str | None) -> Contender:
        left = tuple(each for each in self._entry.techniques if each.name != technique)
        return Contender(self._event.name, left, code=HERE)

    def start(self, contender: Contender, limits: Limits) -> LocalContender:
        """Give a contender with a copy of its model, which is looked at once before."""
        if contender not in self._prepared:
            name, model = self._models[contender]
            try:
                self._prepared[contender] = prepare_model(name, model, self._event)
            except ModelError as error:
                raise ContenderError("E8", str(error)) from error
        return LocalContender(self._prepared[contender])
