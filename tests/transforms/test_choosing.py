import gc
import time

import numpy as np
import pytest

from tinytorch.comparison import sequential
from tinytorch.comparison.sequential import FEWEST_ROUNDS, FIRST_READINGS, Raced
from tinytorch.core.kernels import NUMPY, REFERENCE, Backend
from tinytorch.errors import BackendError, SettingError
from tinytorch.transforms import kernel_choice as choosing
from tinytorch.transforms.kernel_choice import (
    DEFAULT_WINS,
    DEFAULT_WRONG,
    FASTER,
    NO_DIFFERENCE,
    ONLY_ONE,
    Race,
    choose,
    implementations,
)

X = np.linspace(-3, 3, 30, dtype=np.float32)


def plain(x):
    return np.exp(x)


def twin(x):
    return np.exp(x)


def wrong(x):
    return np.exp(x) + 1


def chosen_from(kernels, *, default="plain", arguments=(X,), op="exp", **race):
    reference = REFERENCE.kernels[op]
    return choose(
        op, "some", kernels, arguments, {}, reference=reference, default=default, race=Race(**race)
    )


def as_scripted(times):
    """Give a race that ends with these times."""
    return lambda op, kernels, arguments, settings, default, race: Raced(default, times)


@pytest.fixture
def scripted(monkeypatch):
    """Let implementations take the times that a test says, with a little noise."""

    def script(**medians):
        noise = np.random.default_rng(0).uniform(0.999, 1.001, (len(medians), 20))
        times = {
            name: list(median * noise[row]) for row, (name, median) in enumerate(medians.items())
        }
        monkeypatch.setattr(choosing, "_race", as_scripted(times))

    return script


def test_one_function_in_several_backends_is_one_implementation():
    other = NUMPY.extended("other", {"exp": plain})
    assert list(implementations("exp", (REFERENCE, NUMPY, other))) == ["reference", "other"]
    assert list(implementations("gelu", (REFERENCE, NUMPY, other))) == ["reference", "numpy"]
    assert implementations("exp", (Backend("bare", {}), NUMPY)) == {"numpy": np.exp}


def test_what_is_shown_to_be_faster_replaces_the_default(scripted):
    scripted(plain=2e-6, twin=1e-6)
    choice = chosen_from({"plain": plain, "twin": twin})
    assert (choice.chosen, choice.verdict, choice.n) == ("twin", FASTER, 20)
    ratio = choice.against("plain")
    assert 1.99 < ratio.low < ratio.value < ratio.high < 2.01
    assert choice.seconds == pytest.approx(1e-6, rel=1e-3)


def test_the_fastest_of_several_wins(scripted):
    scripted(plain=2e-6, twin=1.5e-6, third=1e-6)
    choice = chosen_from({"plain": plain, "twin": twin, "third": lambda x: np.exp(x)})
    assert (choice.chosen, choice.verdict) == ("third", FASTER)


def test_less_than_the_floor_is_no_difference(scripted):
    scripted(plain=1.01e-6, twin=1e-6)
    choice = chosen_from({"plain": plain, "twin": twin})
    assert (choice.chosen, choice.verdict) == ("plain", NO_DIFFERENCE)


def test_a_default_that_is_faster_than_all_others_has_won(scripted):
    scripted(plain=1e-6, twin=2e-6)
    choice = chosen_from({"plain": plain, "twin": twin})
    assert (choice.chosen, choice.verdict) == ("plain", DEFAULT_WINS)


def test_noise_wider_than_the_gain_is_no_difference(monkeypatch):
    noise = np.random.default_rng(0).lognormal(0, 0.5, (2, 20)) * 1e-6
    times = {"plain": list(1.05 * noise[0]), "twin": list(noise[1])}
    monkeypatch.setattr(choosing, "_race", as_scripted(times))
    assert chosen_from({"plain": plain, "twin": twin}).verdict == NO_DIFFERENCE


def test_what_is_wrong_is_never_chosen_however_fast():
    choice = chosen_from({"plain": plain, "wrong": wrong})
    assert (choice.chosen, choice.verdict, choice.n) == ("plain", ONLY_ONE, 0)
    assert choice.against("wrong") is None
    assert "is off by" in choice.rivals[0].note


def test_a_default_that_is_wrong_is_replaced(scripted):
    scripted(plain=1e-6, twin=2e-6)
    choice = chosen_from({"wrong": wrong, "plain": plain, "twin": twin}, default="wrong")
    assert (choice.chosen, choice.verdict) == ("plain", DEFAULT_WRONG)


def test_nothing_that_is_right_is_an_error():
    with pytest.raises(BackendError, match="no implementation of exp can be used: result 0"):
        chosen_from({"wrong": wrong})


def test_arguments_that_do_not_fit_raise_as_the_reference_does():
    with pytest.raises(TypeError):
        chosen_from({"plain": plain, "twin": twin}, arguments=("text",))


def test_all_take_turns_in_every_round_and_the_collector_is_back_afterwards():
    calls = []
    kernels = {
        "plain": lambda x: calls.append("plain") or np.exp(x),
        "twin": lambda x: calls.append("twin") or np.exp(x),
    }
    choice = chosen_from(kernels, budget_s=1e-9)
    assert choice.n == FEWEST_ROUNDS
    assert set(calls) == {"plain", "twin"}
    assert choice.against("twin" if choice.chosen == "plain" else "plain") is not None
    assert gc.isenabled()


def test_what_the_first_analysis_does_not_decide_has_more_rounds(monkeypatch):
    taken = []

    def seconds(call, loops):
        name = call()
        taken.append(name)
        if name == "twin" and taken.count("twin") <= 2 * FEWEST_ROUNDS:
            return (0.5, 2.0)[len(taken) % 2]
        return {"plain": 1.0, "twin": 0.5}[name]

    monkeypatch.setattr(sequential, "_seconds", seconds)
    calls = {"plain": lambda: "plain", "twin": lambda: "twin"}
    rng = np.random.default_rng(0)
    found = sequential.race(calls, default="plain", rng=rng, budget_s=9.0, hopeless=10.0)
    assert found.fastest == "twin"
    assert FEWEST_ROUNDS < len(found.times["twin"]) < sequential.MOST_ROUNDS


def test_a_race_that_is_decided_ends(monkeypatch):
    monkeypatch.setattr(sequential, "_seconds", lambda call, loops: call())
    calls = {"plain": lambda: 1.0, "twin": lambda: 0.5}
    rng = np.random.default_rng(0)
    found = sequential.race(calls, default="plain", rng=rng, budget_s=9.0, hopeless=10.0)
    assert len(found.times["plain"]) == FEWEST_ROUNDS


def test_what_takes_many_times_as_long_is_not_timed_to_the_end():
    calls = []

    def sleepy(x):
        calls.append(1)
        time.sleep(0.02)
        return np.exp(x)

    choice = chosen_from({"plain": plain, "sleepy": sleepy}, default="sleepy")
    assert (choice.chosen, choice.verdict) == ("plain", FASTER)
    assert "times as long at first" in choice.rivals[0].note
    assert len(calls) <= 1 + FIRST_READINGS


def test_steps_in_place_are_measured_on_copies():
    parameter, grad = np.ones(3, np.float32), np.ones(3, np.float32)
    settings = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    kernels = implementations("sgd_step", (REFERENCE, NUMPY))
    choose(
        "sgd_step",
        "some",
        kernels,
        (parameter, grad, None),
        settings,
        reference=REFERENCE.kernels["sgd_step"],
        default="numpy",
        race=Race(),
    )
    assert parameter.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"floor": 1}, "floor=1"),
        ({"budget_s": 0}, "measuring needs some seconds"),
        ({"confidence": 95}, "confidence=95; it must be a share"),
    ],
)
def test_settings_of_a_race_are_checked(settings, message):
    with pytest.raises(SettingError, match=message):
        Race(**settings)
