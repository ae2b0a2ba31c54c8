"""Scores are those of a model as it will be used."""

from dataclasses import replace

import numpy as np
import pytest
from parts import require_part
from small_models import workload

from tinytorch.core.layers import Dropout, Linear, Sequential
from tinytorch.errors import SettingError
from tinytorch.models.workload import Workload
from tinytorch.transforms.support.weights import scores_of


def modes_seen(model):
    seen = []

    def evaluate(candidate):
        seen.append(candidate)
        return np.array([1.0, 0.0])

    scores = scores_of(Workload("seen", model, (), evaluate=evaluate), model)
    np.testing.assert_array_equal(scores, [1, 0])
    return seen[0]


def test_a_model_in_training_is_evaluated_as_it_will_be_used():
    model = Sequential(Linear(4, 4, rng=0), Sequential(Dropout(0.9))).train()
    seen = modes_seen(model)
    assert not any(each.training for each in (seen, *seen.layers, seen.layers[1].layers[0]))
    assert all(each.training for each in (model, *model.layers, model.layers[1].layers[0]))
    np.testing.assert_array_equal(seen.layers[0].weight.data, model.layers[0].weight.data)


def test_models_of_pytorch_are_evaluated_so_too():
    torch = require_part("torch")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5)).train()
    assert not modes_seen(model)[1].training
    assert model[1].training


def test_without_an_evaluation_there_are_no_scores():
    case = replace(workload("mlp"), evaluate=None)
    with pytest.raises(SettingError, match=r"has no evaluate\(\)"):
        scores_of(case, case.model)
