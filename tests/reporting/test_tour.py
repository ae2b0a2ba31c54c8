import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

from tinytorch.reporting.tour import render_tour
from tinytorch.workloads.tour import SampleDigit, Tour, TrainedModel

MODEL = TrainedModel(
    name="mlp",
    parameters=109386,
    steps=600,
    training_s=2.5,
    losses=(2.3, 1.0, 0.2),
    metric="accuracy",
    examples=5000,
    without_learning=0.1,
    fresh_score=0.953,
    shipped_score=0.976,
)
TEXT_MODEL = dataclasses.replace(
    MODEL,
    name="gpt",
    metric="log-likelihood per character",
    without_learning=-3.05,
    fresh_score=-2.1,
    shipped_score=-1.4,
)
TOUR = Tour(
    backend="numpy",
    seed=0,
    models=(MODEL, TEXT_MODEL),
    digits=(
        SampleDigit(np.ones((28, 28)), 3, 3, 0.99),
        SampleDigit(np.ones((28, 28)), 4, 9, 0.61),
    ),
    prompt="It is a ",
    fresh_text="the the [bold]the",
    shipped_text="truth",
)


@pytest.fixture
def show():
    def text_of(tour):
        console = Console(file=io.StringIO(), width=110, markup=False)
        console.print(render_tour(tour))
        return console.file.getvalue()

    return text_of


def test_scores_stand_beside_what_needs_no_learning(show):
    (line,) = [line for line in show(TOUR).splitlines() if line.startswith("mlp")]
    assert line.split()[-3:] == ["10.0%", "95.3%", "97.6%"]
    assert "109,386" in line


def test_log_likelihoods_are_no_percentages(show):
    (line,) = [line for line in show(TOUR).splitlines() if line.startswith("gpt  ")]
    assert line.split()[-3:] == ["-3.050", "-2.100", "-1.400"]


def test_a_mistake_shows_what_it_really_is(show):
    assert "a 3 (99%)" in show(TOUR)
    assert "a 9 (61%), is a 4" in show(TOUR)


def test_generated_text_is_shown_as_it_is(show):
    assert "the the [bold]the" in show(TOUR)


def test_the_verdict_names_who_failed(show):
    failed = dataclasses.replace(TEXT_MODEL, fresh_score=-4.0)
    assert "Everything works" in show(TOUR)
    shown = show(dataclasses.replace(TOUR, models=(MODEL, failed)))
    assert "no better than without learning: gpt" in shown
