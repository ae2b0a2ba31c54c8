import json
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from example_tours import WRITING, faster, smaller, tour_of

from tinytorch.measure.estimate import FASTER
from tinytorch.models import zoo
from tinytorch.tuning import tour as module
from tinytorch.tuning.attempt import BETTER
from tinytorch.tuning.catalog import find_entries
from tinytorch.tuning.tour import PLAIN_STOPS, STOPS, Stop, introduce, take_tour


@pytest.fixture(autouse=True)
def few_words(monkeypatch):
    monkeypatch.setattr(module, "NEW_CHARACTERS", 12)


@pytest.fixture
def asked(monkeypatch):
    """Find at once what a tour would find, and keep what was asked for."""
    calls = []
    found = {"cnn": faster(), "mlp": smaller()}

    def optimize(target, *, on_attempt, **settings):
        calls.append({"target": target, **settings})
        result = found[target]
        if isinstance(result, BaseException):
            raise result
        for each in result.attempts:
            on_attempt(each)
        return result

    monkeypatch.setattr(module, "optimize", optimize)
    monkeypatch.setattr(module, "time_writing", lambda seed, *, progress: WRITING)
    monkeypatch.setattr(module, "active_backend", lambda: SimpleNamespace(name="numba"))
    calls_and_found = (calls, found)
    return calls_and_found


@pytest.mark.parametrize("stop", [*STOPS, *PLAIN_STOPS], ids=lambda stop: stop.target)
def test_what_is_tried_fits_the_model_and_the_goal(stop):
    entries = find_entries(stop.only)
    assert len(set(stop.only)) == len(stop.only)
    assert all(stop.goal in each.serves and "core" in each.frameworks for each in entries)
    assert stop.target in zoo.ZOO


def test_the_budgets_leave_the_tour_below_three_minutes():
    assert sum(stop.budget_s for stop in STOPS) <= module.MOST_S < 180


def test_each_stop_is_optimized_for_its_goal_within_its_budget(asked):
    result = take_tour(seed=3)
    calls, found = asked
    assert [call["target"] for call in calls] == [stop.target for stop in STOPS]
    assert [call["goal"] for call in calls] == [stop.goal for stop in STOPS]
    assert [call["budget_s"] for call in calls] == [stop.budget_s for stop in STOPS]
    assert {call["seed"] for call in calls} == {3}
    assert [visit.optimization for visit in result.visits] == list(found.values())
    assert len(result.attempts) == 5
    assert not result.was_interrupted


def test_a_stop_has_less_time_when_those_before_it_took_longer(asked):
    take_tour(most_s=20.0)
    assert all(call["budget_s"] <= 20.0 for call in asked[0])
    asked[0].clear()
    take_tour(most_s=0.0)
    assert [call["budget_s"] for call in asked[0]] == [module.LEAST_S] * 2


def test_everybody_hears_of_what_is_finished_in_its_order(asked):
    heard = []

    @contextmanager
    def watch(stop):
        heard.append(f"begin {stop}")
        yield None
        heard.append(f"end {stop}")

    take_tour(
        watch=watch,
        on_introduction=lambda found: heard.append(f"prompt {found.prompt[:2]}"),
        on_writing=lambda found: heard.append("written"),
        on_attempt=lambda stop, attempt: heard.append(f"{stop.target} {attempt.name}"),
        on_visit=lambda visit: heard.append(f"told {visit.stop.target}"),
    )
    assert heard[:5] == ["prompt It", "begin gpt", "end gpt", "written", "begin cnn"]
    assert heard[-4:] == ["begin mlp", "mlp int4", "end mlp", "told mlp"]


def test_an_interrupted_search_ends_the_tour_and_is_kept(asked):
    calls, found = asked
    found["cnn"] = replace(found["cnn"], was_interrupted=True)
    result = take_tour()
    assert result.was_interrupted
    assert [visit.stop.target for visit in result.visits] == ["cnn"]
    assert len(calls) == 1


def test_an_interrupt_keeps_the_stops_before_it(asked):
    asked[1]["mlp"] = KeyboardInterrupt()
    result = take_tour()
    assert result.was_interrupted
    assert [visit.stop.target for visit in result.visits] == ["cnn"]


def test_an_interrupt_before_anything_is_known_goes_on(monkeypatch):
    def interrupted(seed, *, progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "time_writing", interrupted)
    with pytest.raises(KeyboardInterrupt):
        take_tour()


@pytest.mark.parametrize(("backend", "stops"), [("numba", STOPS), ("numpy", PLAIN_STOPS)])
def test_without_compiled_kernels_the_tour_is_about_size(asked, monkeypatch, backend, stops):
    monkeypatch.setattr(module, "active_backend", lambda: SimpleNamespace(name=backend))
    take_tour()
    assert [call["goal"] for call in asked[0]] == [stop.goal for stop in stops]
    assert [call["only"] for call in asked[0]] == [stop.only for stop in stops]


@pytest.mark.slow
def test_the_gpt_writes_the_same_text_with_a_cache(monkeypatch):
    monkeypatch.setattr(module, "WRITING_S", 0.5)
    found = module.time_writing()
    assert found.cached.outputs.is_identical
    assert found.cached.verdict == FASTER
    assert found.count + len(found.prompt) == 64


def test_the_shown_digits_are_held_out_ones():
    digits = introduce(1).digits
    known = {image.tobytes() for image in zoo.digit_data(held_out=True, flat=False).tensors[0].data}
    assert len(digits) == module.SHOWN_DIGITS
    assert all(digit.image[None].tobytes() in known for digit in digits)
    assert all(0.1 <= digit.probability <= 1 for digit in digits)


def test_the_introduction_is_the_same_for_a_seed():
    first, second, other = introduce(1), introduce(1), introduce(2)
    assert first.text == second.text
    assert len(first.text) == 12
    assert [x.label for x in first.digits] == [x.label for x in second.digits]
    assert (first.text, [x.label for x in first.digits]) != (
        other.text,
        [x.label for x in other.digits],
    )


def test_a_tour_has_a_form_in_json_without_pictures():
    found = tour_of(faster(), smaller()).to_dict()
    text = json.dumps(found)
    assert json.loads(text)["visits"][0]["optimization"]["recommended"] == "int8 + fused"
    assert set(found["introduction"]["digits"][0]) == {"label", "predicted", "probability"}


def test_compiled_kernels_are_those_of_the_extra():
    assert tour_of(backend="numba").has_compiled_kernels
    assert not tour_of(backend="numpy").has_compiled_kernels


@pytest.mark.slow
def test_a_real_tour_finds_something_smaller_and_something_inaccurate():
    stop = Stop("cnn", "reads digits", "size", 1.0, ("int4-weights", "fewer-channels"))
    result = take_tour(stops=(replace(stop, budget_s=20.0),))
    (visit,) = result.visits
    assert visit.optimization.attempt("int4-weights").outcome == BETTER
    assert not visit.optimization.attempt("fewer-channels").is_acceptable
    assert visit.optimization.recommended is not None
