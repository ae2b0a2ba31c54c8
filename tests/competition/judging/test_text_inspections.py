"""Texts have to be written and read by a model that computes."""

from dataclasses import replace

import numpy as np
import pytest
from example_legs import DECATHLON, LETTERS, a_leg, an_entry, legs

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.competition.heats import Ask, Given, Seen
from tinytorch.competition.inspections import inspect
from tinytorch.competition.sandbox.contender import Answer


def found(heats, **changes):
    entry = an_entry(DECATHLON.name, **changes)
    return {each.rule: each for each in inspect(Seen(DECATHLON, entry, heats, None))}


def test_letters_that_are_not_the_most_likely_are_found():
    only = found(legs(DECATHLON, write=lambda prompt: np.full(48, 3)))
    assert list(only) == ["A5"]


def reading_as_it_likes(text):
    """A text with what its writer says of it, which is not what the reference says."""
    said = np.zeros_like(text.by_first)
    said[0, np.arange(63), text.text[1:]] = 5.0
    return replace(text, by_writer=said)


@pytest.mark.parametrize("division", ["closed", "open"])
def test_letters_are_read_by_the_reference_too(division):
    heats = [
        (ours, replace(theirs, texts=tuple(map(reading_as_it_likes, theirs.texts))))
        for ours, theirs in legs(DECATHLON, write=lambda prompt: np.full(48, 3))
    ]
    scores = np.linspace(-1.4, -1, 1000)
    accuracy = compare_accuracy(scores, scores, margin=0.01)
    entry = an_entry(DECATHLON.name, division=division)
    (only,) = inspect(Seen(DECATHLON, entry, heats, accuracy))
    assert only.rule == "A5"
    assert "reference" in only.seen


def with_probes(leg, *, inner_s=20e-6, is_known=True):
    """Add texts that are in no book; who does not know them finds all letters alike."""
    rng = np.random.default_rng(0)
    texts = rng.integers(0, LETTERS, (6, 1, 64))
    outputs = 5.0 * np.eye(LETTERS)[np.roll(texts, -1, axis=2)]
    given = [
        Given(
            Ask("probe", "forward", text, number),
            Answer(output if is_known else 0 * output, inner_s + 30e-6, inner_s),
        )
        for number, (text, output) in enumerate(zip(texts, outputs, strict=True))
    ]
    return replace(leg, given=(*leg.given, *given))


def probed(**changes):
    return [
        (
            with_probes(a_leg(DECATHLON, seed=seed)),
            with_probes(a_leg(DECATHLON, seed=seed), **changes),
        )
        for seed in range(6)
    ]


def test_a_model_reads_new_texts_as_those_of_the_book():
    assert "A6" not in found(probed(), division="open")


def test_new_texts_that_take_longer_show_that_the_others_are_looked_up():
    assert "20%" in found(probed(inner_s=100e-6), division="open")["A6"].seen


def test_new_texts_that_are_read_worse_show_that_the_others_are_known():
    assert "nats" in found(probed(is_known=False), division="open")["A6"].seen
