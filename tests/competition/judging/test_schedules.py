"""The course of a heat."""

from collections import Counter

import numpy as np
import pytest
from example_legs import DECATHLON, SPRINT, some_questions

from tinytorch.competition.events import PROMPT
from tinytorch.competition.heats import BLOCKS, WRITTEN, blocks_of, plan_schedule

EVENTS = pytest.mark.parametrize("event", [SPRINT, DECATHLON], ids=lambda each: each.name)


@EVENTS
def test_every_example_is_timed_once(event, rng):
    questions = some_questions(event)
    asks = plan_schedule(event, questions, rng)
    timed = Counter(each.index for each in asks if each.purpose == "timed")
    assert timed == dict.fromkeys(range(len(questions.inputs)), 1)


@EVENTS
def test_what_is_asked_again_was_asked_before(event, rng):
    asks = plan_schedule(event, some_questions(event), rng)
    again = [place for place, each in enumerate(asks) if each.purpose == "again"]
    assert again
    for place in again:
        before = [each for each in asks[:place] if each.purpose == "timed"]
        assert any(np.array_equal(each.question, asks[place].question) for each in before)


@EVENTS
def test_the_order_comes_from_the_generator(event):
    questions = some_questions(event)
    one, same, other = (
        [each.index for each in plan_schedule(event, questions, np.random.default_rng(seed))]
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_texts_are_written_and_read_in_two_lengths(rng):
    asks = plan_schedule(DECATHLON, some_questions(DECATHLON), rng)
    lengths = {each.purpose: each.question.shape for each in asks}
    assert lengths["timed"] == (1, PROMPT + WRITTEN)
    assert lengths["short"] == (1, PROMPT)
    assert lengths["write"] == (PROMPT,)


@EVENTS
def test_blocks_hold_the_course(event, rng):
    asks = plan_schedule(event, some_questions(event), rng)
    blocks = list(blocks_of(asks))
    assert [ask for block in blocks for ask in block] == asks
    assert len(blocks) <= BLOCKS
