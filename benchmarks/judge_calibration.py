"""How often the judge of the competition errs, and whether three times as fast scores 3.

    python benchmarks/judge_calibration.py [--event mlp_sprint] [--runs 10] [--heats 10] [--out F]

First the reference competes with itself: its score is 1, so `faster` and `slower` are errors, and
the interval should hold 1 in 95 of 100 runs. Then a model that takes K times as long for each call,
because it waits by its own clock, competes as the reference with the same model that does not wait:
the score should be K, or a little more, since a call after a pause finds colder caches and takes
longer itself. How much longer where nothing else pauses it is measured without a judge; what is
expected lies between K and K times that. (Computing everything K times is no such test for a small
model: the second time finds warmer caches.)
The score of the decathlon is of ten things, of which most have nothing to do with calls: there, the
reference competes only with itself. Questions are those of the practice round; every run has its
own order.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from tinytorch.competition.events import (
    EVENTS,
    Event,
    Questions,
    draw_questions,
    find_event,
    score_answers,
)
from tinytorch.competition.heats import heat_of, run_heat, start_process
from tinytorch.competition.judgement import Score, score_of
from tinytorch.competition.rounds import PRACTICE
from tinytorch.competition.sandbox.contender import BACKEND, Contender, Limits
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import use_backend
from tinytorch.core.tensor import Tensor
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.estimate import FASTER, SLOWER
from tinytorch.models.zoo import load_zoo

WAITING = """
from time import perf_counter

def make(reference):
    model = reference.model

    class Waiting(type(model)):
        def forward(self, *inputs):
            started = perf_counter()
            output = super().forward(*inputs)
            until = started + {times} * (perf_counter() - started)
            while perf_counter() < until:
                pass
            return output

    model.__class__ = Waiting
    return model
"""
FACTORS = (2, 3)
ROUNDS, CALLS_S = 30, 0.25
"""Calls with and without a pause take turns for so many rounds, of at least so long each."""


def main() -> None:
    options = _options()
    event = find_event(options.event)
    questions = draw_questions(event, PRACTICE, heats=options.heats)
    results = [_against_itself(event, questions, options)]
    if len(event.scored) == 1:
        results += _factors(event, questions, options)
    if options.out:
        setting = {"environment": describe_environment().to_dict(), "event": event.name}
        options.out.write_text(json.dumps({**setting, "results": results}, indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--event", choices=EVENTS, default="mlp_sprint")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--heats", type=int, default=10)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def _against_itself(
    event: Event, questions: Questions, options: argparse.Namespace
) -> dict[str, Any]:
    both = (Contender(event.name), Contender(event.name))
    scores = []
    for number in range(options.runs):
        scores.append(_score(event, both, questions, heats=options.heats, seed=number))
        print(f"{event.title}, against itself: {_text(scores[-1])}", flush=True)
    holds = sum(score.low <= 1 <= score.high for score in scores)
    wrong = sum(score.verdict in (FASTER, SLOWER) for score in scores)
    print(f"the interval holds 1 in {holds} of {len(scores)} runs; {wrong} wrong verdicts\n")
    return {"factor": 1, "scores": [asdict(score) for score in scores]}


def _factors(
    event: Event, questions: Questions, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    slowdown = _after_waiting(event, questions)
    with tempfile.TemporaryDirectory() as folder:
        for factor in FACTORS:
            file = Path(folder) / f"waiting_{factor}.py"
            file.write_text(WAITING.format(times=factor))
            once = file.with_name("once.py")
            once.write_text(WAITING.format(times=1))
            sides = tuple(Contender(event.name, code=f"{each}:make") for each in (file, once))
            score = _score(event, (sides[0], sides[1]), questions, heats=options.heats, seed=0)
            at_most = factor * slowdown[factor]
            what = f"{event.title}, {factor} times as fast, expected {factor} to {at_most:.2f}"
            print(f"{what}: {_text(score)}", flush=True)
            yield {"factor": factor, "at_most": at_most, "scores": [asdict(score)]}


def _after_waiting(event: Event, questions: Questions) -> dict[int, float]:
    """Give how many times as long a call takes where each is followed by a pause, by factor."""
    model = load_zoo(event.model).model.eval()
    request = Tensor(questions.inputs[: event.batch])
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})  # that of the judge's contenders

    def seconds(factor: int) -> float:
        taken = []
        begun = perf_counter()
        while perf_counter() < begun + CALLS_S:
            started = perf_counter()
            model(request)
            taken.append(perf_counter() - started)
            while perf_counter() < started + factor * taken[-1]:
                pass
        return statistics.median(taken)

    with no_grad(), use_backend(BACKEND):
        seconds(1)
        rounds = [[seconds(factor) for factor in (1, *FACTORS)] for _ in range(ROUNDS)]
    os.sched_setaffinity(0, cores)
    ratios = [statistics.median(row[place] / row[0] for row in rounds) for place in range(1, 3)]
    return dict(zip(FACTORS, ratios, strict=True))


def _score(
    event: Event, sides: tuple[Contender, Contender], questions: Questions, *, heats: int, seed: int
) -> Score:
    rng = np.random.default_rng(seed)
    taken = []
    for number in range(heats):
        part = questions.part(number, heats)
        legs = run_heat(event, sides, part, rng=rng, limits=Limits(), start=start_process)
        ours, theirs = (score_answers(event, leg.outputs, part.targets).mean() for leg in legs)
        assert np.array_equal(legs[0].outputs, legs[1].outputs), "both compute the same"
        taken.append(heat_of(event, legs, (float(ours), float(theirs)), has_own_code=False))
    return score_of(taken, [each.name for each in event.scored])


def _text(score: Score) -> str:
    return f"{score.value:.3f} ({score.low:.3f} to {score.high:.3f}), {score.verdict}"


if __name__ == "__main__":
    main()
