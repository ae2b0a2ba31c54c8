import functools

import pytest

from tinytorch.benchmarking.checks import model_name, named_models
from tinytorch.core.layers import Linear, ReLU
from tinytorch.errors import SettingError
from tinytorch.models.workload import Workload


def named(name):
    model = ReLU()
    model.name = name
    return model


def square(x):
    return x * x


def test_models_without_a_name_are_called_by_their_class():
    models = [Linear(2, 3), ReLU(), Linear(3, 4), Linear(4, 5)]
    assert list(named_models(models)) == ["Linear", "ReLU", "Linear_2", "Linear_3"]
    assert list(named_models(models).values()) == models


def test_a_name_of_its_own_comes_first():
    assert list(named_models([ReLU(), named("ReLU")])) == ["ReLU_2", "ReLU"]
    assert list(named_models([named("fast"), Linear(2, 2)])) == ["fast", "Linear"]


def test_a_name_that_is_no_text_is_none():
    assert [model_name(named(each)) for each in (7, "", None, "x")] == [None, None, None, "x"]


def test_functions_methods_targets_and_workloads_have_names():
    work = Workload("mine", ReLU(), (1,))
    models = [square, ReLU().forward, functools.partial(square), "mlp", work]
    assert list(named_models(models)) == ["square", "ReLU", "square_2", "mlp", "mine"]


def test_two_models_of_one_name_are_refused():
    with pytest.raises(SettingError, match="2 models are called 'a'"):
        named_models([named("a"), named("b"), named("a")])


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([], "no models"),
        ({}, "no models"),
        (None, "give a list"),
        ("mlp", "give a list"),
        ({3: ReLU()}, "3 is no name"),
        ({"": ReLU()}, "'' is no name"),
    ],
)
def test_what_holds_no_models_is_refused(models, message):
    with pytest.raises(SettingError, match=message):
        named_models(models)


def test_a_dictionary_keeps_its_names_and_order():
    models = {"z": ReLU(), "a": ReLU()}
    assert named_models(models) == models
    assert list(named_models(models)) == ["z", "a"]
