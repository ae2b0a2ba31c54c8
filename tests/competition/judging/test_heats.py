"""A heat: both sides answer the same questions, in turns."""

from itertools import pairwise

import numpy as np
import pytest
from example_legs import DECATHLON, LETTERS, SPRINT, outputs_of, some_questions, text_of

from tinytorch.competition.heats import LegError, is_written_text, run_heat
from tinytorch.competition.sandbox.bubblewrap import Protection
from tinytorch.competition.sandbox.contender import (
    Answer,
    Contender,
    ContenderError,
    Limits,
    Loading,
    Usage,
)

USUAL = Limits()
SIDES = (Contender("mlp_sprint"), Contender("mlp_sprint", code="/entry/model.py:make"))


class ScriptedProcess:
    """A contender in this process that answers at once, and tells a diary what happened."""

    def __init__(self, name, diary, *, event=SPRINT, fails_at=None):
        self.name, self.diary, self.event, self.fails_at = name, diary, event, fails_at
        self.asked = 0
        self.protection = {"files": Protection("scripted", is_in_force=False)}

    def __enter__(self):
        self.diary.append((self.name, "start"))
        return self

    def __exit__(self, *_):
        self.diary.append((self.name, "end"))

    def load(self):
        return Loading(0.1, 100)

    def ask(self, kind, question, *, count=0):
        self.asked += 1
        if self.asked == self.fails_at:
            raise ContenderError("T6", "it took too long")
        self.diary.append((self.name, kind, question.tobytes()))
        output = text_of(question) if count else outputs_of(self.event, question)
        return Answer(output, 2e-5, 1e-5)

    def usage(self):
        return Usage(cpu_s=0.1, peak_bytes=1, processes=1)

    def pause(self, seconds):
        return 0.0

    def hold(self):
        self.diary.append((self.name, "hold"))

    def release(self):
        self.diary.append((self.name, "release"))


@pytest.fixture(autouse=True)
def small_alphabet(monkeypatch):
    """Let the scripted contenders read public questions in their own alphabet."""
    monkeypatch.setattr(
        "tinytorch.competition.heats.warm_up_questions",
        lambda event: some_questions(event, 500),
    )


def run(event=SPRINT, *, diary=None, fails=None, limits=USUAL):
    diary = [] if diary is None else diary
    names = {SIDES[0]: "reference", SIDES[1]: "entry"}

    def start(contender, limits):
        name = names[contender]
        fails_at = fails[1] if fails and fails[0] == name else None
        return ScriptedProcess(name, diary, event=event, fails_at=fails_at)

    rng = np.random.default_rng(0)
    questions = some_questions(event)
    return run_heat(event, SIDES, questions, rng=rng, limits=limits, start=start)


def test_both_sides_answer_the_same_questions_in_the_same_order():
    reference, entry = run()
    assert [each.ask for each in reference.given] == [each.ask for each in entry.given]
    assert len(reference.outputs) == len(some_questions(SPRINT).inputs)


def test_outputs_stand_in_the_order_of_the_questions():
    reference, _ = run()
    expected = np.concatenate(
        [outputs_of(SPRINT, row[None]) for row in some_questions(SPRINT).inputs]
    )
    assert np.array_equal(reference.outputs, expected)


def test_sides_take_turns():
    diary = []
    run(diary=diary)
    names = [line[0] for line in diary if line[1] == "forward"][2 * 300 :]
    changes = sum(one != two for one, two in pairwise(names))
    assert changes >= 10


def test_only_one_side_runs_at_a_time():
    diary = []
    run(diary=diary)
    running = set()
    for name, what, *_ in diary:
        if what in ("start", "release"):
            running.add(name)
        elif what in ("hold", "end"):
            running.discard(name)
        assert len(running) <= 1


def test_texts_are_read_by_those_who_wrote_them_and_by_the_first_side():
    leg, _ = run(DECATHLON)
    assert leg.texts[0].text.shape == (64,)
    assert leg.texts[0].by_writer.shape == leg.texts[0].by_first.shape == (1, 64, LETTERS)


def test_a_side_that_cannot_go_on_is_named():
    with pytest.raises(LegError, match="took too long") as caught:
        run(fails=("entry", 5))
    assert (caught.value.side, caught.value.rule) == (1, "T6")


def test_processes_end_whatever_happens():
    diary = []
    with pytest.raises(LegError):
        run(diary=diary, fails=("reference", 320))
    started, ended = ({line[0] for line in diary if line[1] == what} for what in ("start", "end"))
    assert ended == started == {"reference", "entry"}


@pytest.mark.parametrize(
    "output",
    [np.zeros(47, np.int64), np.zeros(48), np.full(48, -1), np.full(48, 10_000)],
    ids=["too short", "no whole numbers", "negative", "beyond the alphabet"],
)
def test_what_is_no_text(output):
    assert not is_written_text(Answer(output, 1.0, 1.0))


def test_what_is_a_text():
    assert is_written_text(Answer(np.zeros(48, np.int64), 1.0, 1.0))


def test_a_heat_has_an_end():
    with pytest.raises(LegError, match=r"more than 0 s for the questions of a heat") as caught:
        run(limits=Limits(heat_s=0.0))
    assert caught.value.rule == "T6"
