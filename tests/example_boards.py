"""Imaginary runs of the competition, with seeded random heats, for tests."""

import hashlib
from dataclasses import replace

import numpy as np

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.competition.board import make_board
from tinytorch.competition.entry import Entry, Technique
from tinytorch.competition.events import EVENTS
from tinytorch.competition.judgement import Ablation, Heat, Judgement
from tinytorch.competition.rounds import PRACTICE, Round, commitment_of
from tinytorch.competition.rules import finding
from tinytorch.competition.run_files import DamagedFile, KeptRun

USUAL = {"s": 1e-3, "byte": 4 << 20, "ratio": 4.0}
SECRET = "ab" * 32
ROUNDS = (
    PRACTICE,
    Round("spring", commitment_of("spring", SECRET), SECRET, "2027-03-01T08:00:00Z"),
    Round("summer", commitment_of("summer", SECRET), None, "2027-06-01T08:00:00Z"),
)


def heats(speedup=2.0, *, event="mlp_sprint", n=10, spread=0.02, seed=0, peak=0.0):
    """Give heats in which every measure that counts is so many times better, with noise."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        reference, entry = {}, {}
        for measure in EVENTS[event].measures:
            usual = USUAL[measure.unit]
            noise = np.exp(rng.normal(0, spread, 2))
            factor = speedup if measure.is_scored else 1.0
            reference[measure.name] = float(usual * noise[0])
            entry[measure.name] = float(usual * noise[1] / factor)
            if peak and measure.name == "peak memory":
                entry[measure.name] = peak
        made.append(Heat(reference, entry))
    return tuple(made)


def accuracy(n=400, lost=0, **settings):
    """Give a comparison in which a candidate loses some right answers."""
    right = [1.0] * (n - 20) + [0.0] * 20
    return compare_accuracy(right, [0.0] * lost + right[lost:], **settings)


def entry(team="Ada", event="mlp_sprint", *, techniques=("int8-dynamic",), **changes):
    """Give an entry; its hash follows from its fields."""
    fields = {"division": "closed", "tier": 0.99, **changes}
    declared = tuple(Technique(each) if isinstance(each, str) else each for each in techniques)
    made = Entry(team, event, techniques=declared, **fields)
    return replace(made, sha256=fields.get("sha256") or _hash(repr(made)))


def judgement(
    speedup=2.0, *, contributions=None, n=10, seed=0, day=1, spread=0.02, peak=0.0, **changes
):
    """Give what a judge saw; `contributions` maps techniques to how many times they help."""
    kept = {"findings", "accuracy", "notes", "protection", "round_name", "heats", "ablations"}
    others = {name: changes.pop(name) for name in kept & changes.keys()}
    made = entry(**changes)
    whole = heats(speedup, event=made.event, n=n, seed=seed, spread=spread, peak=peak)
    ablations = tuple(
        Ablation(name, heats(factor, event=made.event, n=n, seed=seed + 100, spread=spread))
        for name, factor in (contributions or {}).items()
    )
    fields = {
        "accuracy": accuracy(),
        "findings": (),
        "ablations": ablations,
        "heats": whole,
        "protection": {"sandbox": "bubblewrap", "system calls": "a filter (libseccomp)"},
        "data_sha256": _hash("questions"),
        "commitment": PRACTICE.commitment,
    }
    return Judgement(
        entry=made,
        seconds_used=12.5,
        created_at=f"2027-03-{day:02d}T10:00:00Z",
        **(fields | others),
    )


def run(speedup=2.0, *, status="verified", path="", **changes):
    """Give a kept run; its hash follows from what is in it."""
    found = judgement(speedup, **changes)
    sha256 = _hash(repr((found.entry, found.heats, found.created_at, status)))
    return KeptRun(found, sha256, status, path=path or f"{found.entry.event}/{sha256[:12]}.json")


def refused(speedup=9.0, **changes):
    """Give a run that was found out."""
    found = finding("T3", "a question that came again took 0.1 of its time")
    return run(speedup, findings=(found,), **changes)


def some_runs():
    """Give runs of several teams in all events: bands, records, ablations, refused, unverified."""
    int8, both = {"int8-dynamic": 1.9}, {"int8-dynamic": 1.5, "fused-layers": 1.6}
    return (
        run(1.5, team="Ada", day=1, seed=1, contributions=int8),
        run(2.02, team="Ada", day=5, seed=2, contributions=int8, description="second"),
        run(2.0, team="Ada", day=6, seed=3, contributions=int8, description="second"),
        run(2.0, team="Grace", day=3, seed=4, contributions=int8),
        run(
            2.6,
            team="Katherine",
            day=8,
            seed=5,
            contributions=both,
            techniques=("int8-dynamic", "fused-layers"),
        ),
        run(1.0, team="Reference", day=2, seed=6, techniques=()),
        refused(team="Mallory", day=4),
        run(3.0, team="Alan", day=4, seed=7, status="unverified"),
        run(1.4, team="Katherine", event="cnn_marathon", seed=8, contributions=int8),
        run(1.2, team="Ada", event="transformer_decathlon", techniques=("kv-cache",), seed=9),
        run(1.3, team="Grace", tier=0.999, seed=10, status="verified, seed not revealed"),
    )


def some_board():
    """Give the board of these runs, with rounds and a damaged file."""
    damaged = (DamagedFile("mlp_sprint/eve/x.json", "its hash is not that of its contents"),)
    return make_board(some_runs(), rounds=ROUNDS, damaged=damaged)


def _hash(text):
    return hashlib.sha256(text.encode()).hexdigest()
