"""Judgements of imaginary runs that can be kept as records, and folders of entries, for tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.competition.entry import Entry, Technique, read_entry, write_entry
from tinytorch.competition.events import EVENTS, tier_margin
from tinytorch.competition.judgement import Ablation, Heat, Judgement
from tinytorch.competition.rounds import PRACTICE, Round, commitment_of
from tinytorch.competition.rules import finding

USUAL = {"s": 1e-3, "byte": float(4 << 20), "ratio": 4.0}
SYSTEM = {"fingerprint": "c0ffee5eed15600d", "cpu_model": "AMD EPYC", "python": "3.11.4"}
SEED = "5e" * 32
SPRING = Round("spring", commitment_of("spring", SEED), SEED, "2026-03-01T08:00:00Z")


def kept_entry(**changes):
    """Give an entry of nobody's, in no folder."""
    fields = {"team": "Ada", "event": "mlp_sprint", "division": "closed", "tier": 0.99}
    techniques = (Technique("fused-layers"), Technique("own", (("Quantize", {"max_error": 0.01}),)))
    return Entry(**{**fields, "techniques": techniques, "sha256": "ab" * 32, **changes})


def some_heats(speedup=2.0, *, event="mlp_sprint", count=10, seed=0):
    """Give heats in which the entry is so many times better in everything, with noise."""
    rng = np.random.default_rng(seed)
    return tuple(
        Heat(
            {each.name: USUAL[each.unit] * float(rng.uniform(0.98, 1.02)) for each in measures},
            {each.name: USUAL[each.unit] / speedup for each in measures},
        )
        for measures in [EVENTS[event].measures] * count
    )


def some_accuracy(event="mlp_sprint", tier=0.99, *, count=1000, lost=0):
    """Give scores of both sides, as the judge compares them."""
    scores = np.ones(count) if EVENTS[event].metric == "accuracy" else -np.linspace(1, 2, count)
    theirs = scores.copy()
    theirs[:lost] -= 1
    margin = tier_margin(EVENTS[event], tier, float(scores.mean()))
    return compare_accuracy(scores, theirs, margin=margin, metric=EVENTS[event].metric)


def kept_judgement(speedup=2.0, *, entry=None, count=10, seed=0, lost=0, **changes):
    """Give a judgement that `as_record` and `judgement_in` give back as it is."""
    entry = kept_entry() if entry is None else entry
    ablations = tuple(
        Ablation(each.name, some_heats(1.3, event=entry.event, count=count, seed=seed + 1))
        for each in entry.techniques[:1]
    )
    fields = {
        "heats": some_heats(speedup, event=entry.event, count=count, seed=seed),
        "accuracy": some_accuracy(entry.event, entry.tier, lost=lost),
        "findings": (finding("W2", "another process took 20% of a core"),),
        "ablations": ablations,
        "commitment": PRACTICE.commitment,
        "data_sha256": "cd" * 32,
        "protection": {"sandbox": "bubblewrap", "system calls": "a filter (libseccomp)"},
        "system": SYSTEM,
        "seconds_used": 12.5,
        "created_at": "2026-03-05T10:00:00.000000+00:00",
        "notes": ("fused-layers found nothing to do",),
    }
    return Judgement(entry=entry, **(fields | changes))


def entry_folder(folder, **changes):
    """Write an entry and read it back, with its hash."""
    folder.mkdir(parents=True, exist_ok=True)
    write_entry(kept_entry(**changes), folder)
    return read_entry(folder)


def at(judgement, moment):
    """Give the judgement of another moment."""
    return replace(judgement, created_at=moment)
