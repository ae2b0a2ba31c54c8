import weakref

import numpy as np
import pytest

from tinytorch.comparison.sides import LocalSide
from tinytorch.core.tensor import Tensor
from tinytorch.errors import ModelError
from tinytorch.models.adapter import GeneratingModel
from tinytorch.models.workload import FIRST_CALL, Preparation, Workload
from tinytorch.tuning import trying as baseline
from tinytorch.tuning.trying import Baseline

X = Tensor(np.ones((2, 3), np.float32))


class Writer(GeneratingModel):
    """Counts its calls by their length, of copies too; a short call is known where `short` is."""

    def __init__(self, length=200, calls=None, short=8, draws=False):
        self.length, self.short, self.draws = length, short, draws
        self.calls = [] if calls is None else calls

    def __deepcopy__(self, memo):
        return self

    def forward(self, x):
        self.calls.append(self.length)
        return Tensor(x.data + len(self.calls)) if self.draws else x

    def shortened_for_profile(self):
        if self.length <= self.short:
            return self, ""
        return Writer(self.short, self.calls, draws=self.draws), "it is shorter"


def workload(model, **changes):
    return Workload("text", model, (X,), **changes)


@pytest.mark.parametrize(("short", "expected"), [(8, [200, 8, 8]), (200, [200, 200])])
def test_a_long_call_is_made_once_where_the_model_knows_a_shorter_one(short, expected):
    model = Writer(short=short)
    found = Baseline(workload(model))
    assert model.calls == expected
    assert np.array_equal(found.outputs[0], X.data)
    assert found.call_s > 0
    assert (found.scores, found.notes) == (None, [])


@pytest.mark.parametrize("short", [8, 200])
def test_a_model_that_draws_its_results_needs_somebody_who_evaluates(short):
    with pytest.raises(ModelError, match="not deterministic"):
        Baseline(workload(Writer(short=short, draws=True)))
    judged = workload(Writer(short=short, draws=True), evaluate=lambda model: np.ones(20))
    assert "scores decide" in Baseline(judged).notes[0]


def test_a_short_text_that_is_drawn_twice_alike_proves_nothing():
    class Drawing(Writer):
        is_drawn = True

        def forward(self, x):
            self.calls.append(self.length)
            return Tensor(x.data + len(self.calls)) if self.length > self.short else x

    with pytest.raises(ModelError, match="not deterministic"):
        Baseline(workload(Drawing()))


def test_no_two_copies_are_there_at_once():
    """A device may have no room for them."""
    alive, most = weakref.WeakSet(), []

    class Large(Writer):
        def __deepcopy__(self, memo):
            copy = Large(self.length, self.calls, self.short)
            alive.add(copy)
            most.append(len(alive))
            return copy

        def shortened_for_profile(self):
            return Large(self.short, self.calls, self.short), "it is shorter"

    Baseline(workload(Large()))
    assert most == [1, 1, 1]


def test_a_slow_first_call_does_not_make_a_model_slow(monkeypatch):
    seconds, measure = iter([5.0, 0.1]), LocalSide.outputs_and_seconds
    monkeypatch.setattr(
        LocalSide, "outputs_and_seconds", lambda side: (measure(side)[0], next(seconds))
    )
    assert Baseline(workload(Writer(short=200))).call_s == 0.1


def test_what_its_first_calls_take_for_good_is_part_of_what_it_needs(monkeypatch):
    given = []
    monkeypatch.setattr(
        baseline, "measure_resources", lambda workload, **settings: given.append(settings)
    )
    found = Baseline(workload(Writer()))
    side = found.side(np.random.default_rng(0))
    side.preparations = (Preparation(FIRST_CALL, 1.0, 300),)
    found.resources(side, call_s=3.0)
    assert given[0]["preparations"] == side.preparations


def test_a_side_tells_what_is_known():
    found = Baseline(workload(Writer(), evaluate=lambda model: np.ones(20)))
    side = found.side(np.random.default_rng(0))
    assert side.known.outputs is found.outputs
    assert side.known.call_s == found.call_s
    assert side.workload.evaluate is None


@pytest.mark.parametrize(("is_copied", "expected"), [(True, 2), (False, 1)])
def test_what_it_needs_is_measured_once(is_copied, expected):
    found = Baseline(workload(Writer()))
    side = found.side(np.random.default_rng(0))
    if not is_copied:
        side.stay_as_it_is("it is slow")
    calls = side.workload.model.calls
    calls.clear()
    first = found.resources(side, call_s=3.0)
    assert found.resources(side, call_s=3.0) is first
    assert found.side(np.random.default_rng(0)).known.resources is first
    assert len(calls) == expected
