"""The judge: an entry against the reference, each in a confined process of its own."""

from __future__ import annotations

import hashlib

import numpy as np

from tinytorch.competition.cell.contender import USUAL_LIMITS, Limits
from tinytorch.competition.entries.entry import Entry
from tinytorch.competition.entries.entry_checks import check_entry
from tinytorch.competition.entries.entry_file import contender_of
from tinytorch.competition.events import find_event
from tinytorch.competition.judgement import Judgement
from tinytorch.competition.judging.bench import Bench, compete
from tinytorch.competition.judging.heats import start_process
from tinytorch.competition.judging.physical_floor import floor_s
from tinytorch.competition.rounds import PRACTICE, Round
from tinytorch.measure.ceilings import Progress

__all__ = ["HEATS", "judge", "steps_of"]

HEATS = 10


def judge(
    entry: Entry,
    *,
    round: Round = PRACTICE,
    heats: int = HEATS,
    ablations: bool = True,
    trust: bool = False,
    limits: Limits = USUAL_LIMITS,
    seed: int = 0,
    progress: Progress | None = None,
) -> Judgement:
    """Let an entry compete with the reference in fresh processes, and say what is found.

    The number of heats is fixed before the first one; nobody stops when it looks good. With
    `ablations`, each declared technique is switched off in turn, in as many heats. Code runs only
    with `trust`.
    """
    event = find_event(entry.event)
    bench = Bench(
        event,
        entry,
        heats,
        contender_without=lambda technique: contender_of(entry, without=technique),
        start=start_process,
        rng=_secret_order(round, seed),
        limits=limits,
        progress=progress,
    )
    return compete(
        bench,
        round,
        findings=check_entry(entry, trust=trust, run=False),
        ablations=ablations,
        floor_s=floor_s(event) if entry.division == "closed" else 0.0,
    )


def steps_of(entry: Entry, *, heats: int, ablations: bool) -> int:
    """Give how often a judge advances its progress."""
    return heats * (1 + (len(entry.techniques) if ablations else 0))


def _secret_order(round: Round, seed: int) -> np.random.Generator:
    """Give what decides the order of questions, which nobody may know before."""
    secret = int(hashlib.sha256(f"order of {round.seed}".encode()).hexdigest(), 16)
    return np.random.default_rng([seed, secret])
