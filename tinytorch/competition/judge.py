"""The judge: an entry against the reference, each in a separate confined process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from time import perf_counter

import numpy as np

from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.competition import events
from tinytorch.competition.entry import Entry
from tinytorch.competition.entry_checks import check_entry, contender_of
from tinytorch.competition.events import draw_questions, find_event
from tinytorch.competition.heats import Leg, LegError, Seen, Start, heat_of, run_heat, start_process
from tinytorch.competition.inspections import floor_s, inspect
from tinytorch.competition.judgement import FEWEST_HEATS, Ablation, Heat, Judgement
from tinytorch.competition.rounds import PRACTICE, Round
from tinytorch.competition.rules import Finding, finding
from tinytorch.competition.sandbox.bubblewrap import check_sandbox
from tinytorch.competition.sandbox.contender import USUAL_LIMITS, Contender, Limits
from tinytorch.errors import MeasurementError, SettingError
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.environment import describe_environment, observe
from tinytorch.models.workload import Scores
from tinytorch.records.record import utc_text

# ---------------------------------------------------------------- the judge's bench: all heats of
# an entry, with its techniques and without each of them

LEAST_SCORE = -700.0
"""In nats per character: the perplexity of less is beyond all numbers."""


@dataclass(frozen=True)
class Bench:
    """Who competes, how often and how. `contender_without(name)` builds the entry without one of
    its techniques, and with None as a whole; `start` gives a contender that can be asked."""

    event: events.Event
    entry: Entry
    heats: int
    contender_without: Callable[[str | None], Contender]
    start: Start
    rng: np.random.Generator
    limits: Limits = USUAL_LIMITS
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.heats < FEWEST_HEATS:
            raise SettingError(f"heats={self.heats}; an interval needs at least {FEWEST_HEATS}")

    def say(self, text: str) -> None:
        if self.progress:
            self.progress.describe(f"{self.event.title}: {text}")

    def run_heats(self, first: Contender, second: Contender, questions: events.Questions) -> _Taken:
        """Run all heats of two sides; what goes wrong with the second ends them as a finding."""
        legs: list[tuple[Leg, Leg]] = []
        scores: list[tuple[Scores, Scores]] = []
        for number in range(self.heats):
            self.say(f"heat {number + 1} of {self.heats}")
            part = questions.part(number, self.heats)
            try:
                pair = run_heat(
                    self.event,
                    (first, second),
                    part,
                    rng=self.rng,
                    limits=self.limits,
                    start=self.start,
                )
            except LegError as error:
                if error.side == 0:
                    raise MeasurementError(f"the reference did not answer: {error}") from error
                return _Taken(tuple(legs), tuple(scores), (finding(error.rule, str(error)),))
            legs.append(pair)
            ours, theirs = (_scores(self.event, leg, pair[0], part) for leg in pair)
            scores.append((ours, theirs))
            if self.progress:
                self.progress.advance()
        return _Taken(tuple(legs), tuple(scores))

    def heats_of(self, taken: _Taken) -> tuple[Heat, ...]:
        """Return the measures of each heat.

        Where an answer has no score, or a perplexity is no number any more, there is none:
        inspection has said why.
        """
        has_own_code = self.entry.code is not None
        return tuple(
            heat_of(
                self.event,
                legs,
                (float(ours.mean()), float(theirs.mean())),
                has_own_code=has_own_code,
            )
            for legs, (ours, theirs) in zip(taken.legs, taken.scores, strict=True)
            if np.isfinite(theirs).all() and theirs.mean() > LEAST_SCORE
        )


def compete(
    bench: Bench,
    round: Round,
    *,
    findings: tuple[Finding, ...] = (),
    ablations: bool = True,
    floor_s: float = 0.0,
    notes: tuple[str, ...] = (),
) -> Judgement:
    """Run all heats and give the judgement; after a fatal finding there are none."""
    started, before = perf_counter(), observe()
    taken, accuracy, data_sha256 = _Taken(), None, ""
    removed: tuple[Ablation, ...] = ()
    if not _has_fatal(findings):
        bench.say("drawing the questions of the round")
        questions = draw_questions(bench.event, round, heats=bench.heats)
        data_sha256 = questions.sha256
        whole = bench.contender_without(None)
        taken = bench.run_heats(Contender(bench.event.name), whole, questions)
        findings += taken.findings
        if not taken.findings:
            accuracy = _accuracy(bench, taken)
            seen = Seen(bench.event, bench.entry, taken.legs, accuracy, floor_s)
            findings += inspect(seen)
        if ablations and not _has_fatal(findings):
            removed = _ablations(bench, questions)
    doubts = observe().doubts_since(before, is_computing=False)
    return Judgement(
        entry=bench.entry,
        heats=bench.heats_of(taken),
        accuracy=accuracy,
        findings=(*findings, *(finding("W2", doubt) for doubt in doubts)),
        ablations=removed,
        round_name=round.name,
        commitment=round.commitment,
        data_sha256=data_sha256,
        protection=taken.protection,
        system=describe_environment().to_dict(),
        seconds_used=perf_counter() - started,
        created_at=utc_text(datetime.now(UTC)),
        notes=(*notes, *taken.notes),
    )


@dataclass(frozen=True)
class _Taken:
    """The legs of the heats so far, reference first, and their scores per example."""

    legs: tuple[tuple[Leg, Leg], ...] = ()
    scores: tuple[tuple[Scores, Scores], ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def protection(self) -> dict[str, str]:
        found = self.legs[0][1].protection if self.legs else {}
        return {name: str(each) for name, each in found.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        found = (note for _, entry in self.legs for note in entry.loading.notes)
        return tuple(dict.fromkeys(found))


def _has_fatal(findings: tuple[Finding, ...]) -> bool:
    return any(each.is_fatal for each in findings)


def _scores(event: events.Event, leg: Leg, reference: Leg, questions: events.Questions) -> Scores:
    """Score the timed answers; without the reference's shape, or no numbers, they have no score."""
    pairs = zip(reference.of("timed"), leg.of("timed"), strict=True)
    outputs = [(ours.answer.output, theirs.answer.output) for ours, theirs in pairs]
    if any(
        ours.shape != theirs.shape or theirs.dtype.kind not in "fiu" for ours, theirs in outputs
    ):
        return np.full(len(questions.targets), np.nan)
    return events.score_answers(event, leg.outputs, questions.targets)


def _accuracy(bench: Bench, taken: _Taken) -> AccuracyComparison:
    ours, theirs = (np.concatenate(each) for each in zip(*taken.scores, strict=True))
    return events.compare_in_tier(bench.event, bench.entry.tier, ours, theirs)


def _ablations(bench: Bench, questions: events.Questions) -> tuple[Ablation, ...]:
    return tuple(_ablation(bench, each.name, questions) for each in bench.entry.techniques)


def _ablation(bench: Bench, technique: str, questions: events.Questions) -> Ablation:
    """Compare the entry with itself without one technique."""
    bench.say(f"without {technique}")
    without, whole = bench.contender_without(technique), bench.contender_without(None)
    try:
        taken = bench.run_heats(without, whole, questions)
    except MeasurementError as error:
        return Ablation(technique, reason=f"without it the entry does not work: {error}")
    if taken.findings:
        return Ablation(technique, reason=taken.findings[0].seen)
    return Ablation(technique, bench.heats_of(taken))


# ---------------------------------------------------------------- the judge: an entry against the
# reference, each in a separate confined process

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
    """Judge an entry against the reference in fresh processes.

    The number of heats is fixed beforehand, so there is no optional stopping. With
    `ablations`, each declared technique is switched off in turn, in as many heats. Code runs only
    with `trust`, and without a sandbox only if the limits say so.
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
    findings = check_entry(entry, trust=trust, run=False)
    if not _has_fatal(findings):
        findings += check_confined(entry, limits)
    return compete(
        bench,
        round,
        findings=findings,
        ablations=ablations,
        floor_s=floor_s(event) if entry.division == "closed" else 0.0,
    )


def check_confined(entry: Entry, limits: Limits) -> tuple[Finding, ...]:
    """Return W1 for code that is to run unconfined; raise MissingPartError if it may not."""
    if check_sandbox(entry.code, unconfined=limits.unconfined) or entry.code is None:
        return ()
    return (finding("W1", "its code ran without a sandbox: --unconfined was given"),)


def steps_of(entry: Entry, *, heats: int, ablations: bool) -> int:
    """Return the number of progress steps of a judgement."""
    return heats * (1 + (len(entry.techniques) if ablations else 0))


def _secret_order(round: Round, seed: int) -> np.random.Generator:
    """Return the generator of the question order, which depends on the secret seed."""
    secret = int(hashlib.sha256(f"order of {round.seed}".encode()).hexdigest(), 16)
    return np.random.default_rng([seed, secret])
