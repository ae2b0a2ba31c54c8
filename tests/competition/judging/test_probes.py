"""Texts that are new every time."""

import numpy as np
from example_legs import DECATHLON, SPRINT

from tinytorch.competition.heats import PROBES, draw_probes
from tinytorch.models.zoo import load_corpus, tokenizer


def test_probes_are_texts_that_no_book_holds():
    probes = draw_probes(DECATHLON, np.random.default_rng(3))
    assert probes.shape == (PROBES, 64)
    book = load_corpus()
    assert not any(tokenizer().decode(list(map(int, each))) in book for each in probes)


def test_probes_are_new_in_every_heat():
    rng = np.random.default_rng(3)
    first, second = draw_probes(DECATHLON, rng), draw_probes(DECATHLON, rng)
    assert not np.array_equal(first, second)


def test_images_have_no_probes():
    assert len(draw_probes(SPRINT, np.random.default_rng(0))) == 0
