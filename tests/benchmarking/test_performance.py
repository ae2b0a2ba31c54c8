import json
import sys

import numpy as np
import pytest
from classic_models import leaving_no_trace
from parts import require_part

from tinytorch import Tensor, load_workload
from tinytorch.benchmarking import performance as module
from tinytorch.benchmarking.performance import Performance, measure_performance
from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.layers import Linear
from tinytorch.errors import ModelError, SettingError
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import DeviceClock

QUICK = 0.02


def test_the_numbers_have_their_units():
    samples = Samples("it", (0.001, 0.002, 0.004))
    seen = Performance(
        "it", samples, 3 * 2**20, 2**19, "accuracy", (1.0, 0.0, 1.0, 1.0), examples=8
    )
    assert (seen.time, seen.memory, seen.size) == (2.0, 3.0, 0.5)
    assert (seen.accuracy, seen.score, seen.throughput) == (0.75, 0.75, 4000.0)
    assert (seen.time_interval.low, seen.time_interval.high) == (1.0, 4.0)
    assert seen.score_interval.low < 0.75 < seen.score_interval.high
    assert str(seen) == "it: 2 ms per call, 3 MB, accuracy 0.75"
    assert json.loads(json.dumps(seen.to_dict()))["samples"]["values"] == [0.001, 0.002, 0.004]


def test_speedup_is_the_baselines_time_over_this_one():
    slow = Performance("slow", Samples("", (0.004,)))
    fast = Performance("fast", Samples("", (0.002,)))
    assert (fast.speedup_over(slow), slow.speedup_over(fast)) == (2.0, 0.5)
    assert fast.speedup_over(Performance("bad", error="no")) is None


def test_what_was_not_measured_is_none():
    bad = Performance("bad", error="ValueError: no")
    facts = bad.to_dict()
    assert bad.is_failed
    assert {key for key, value in facts.items() if value not in (None, [])} == {"name", "error"}
    assert str(bad) == "bad: failed, ValueError: no"


def test_real_digits_are_recognised(trained, digits):
    _, (images, labels) = digits
    with leaving_no_trace(trained):
        seen = measure_performance(trained, (images, labels), budget_s=QUICK)
    wanted = trained(Tensor(images)).data.argmax(axis=1) == labels
    assert seen.scores == tuple(wanted.astype(float))
    assert seen.accuracy == pytest.approx(wanted.mean(), abs=1e-12)
    assert seen.accuracy > 0.9, "it has learned something"
    assert (seen.time > 0, seen.examples, seen.framework) == (True, 32, "core")


def test_every_form_of_data_gives_the_same_accuracy(trained, digits):
    _, (images, labels) = digits
    dataset = TensorDataset(images, labels)
    forms = [{"inputs": images, "targets": labels}, dataset, DataLoader(dataset, 100)]
    wanted = measure_performance(trained, (images, labels), budget_s=QUICK).scores
    found = [measure_performance(trained, form, budget_s=QUICK) for form in forms]
    assert [each.scores for each in found] == [wanted] * 3
    assert [each.examples for each in found] == [32, 32, 100]


def test_a_constant_scores_what_a_constant_scores(constant, digits):
    _, data = digits
    seen = measure_performance(constant(3), data, budget_s=QUICK)
    assert seen.accuracy == pytest.approx(np.mean(data[1] == 3), abs=1e-12)


def test_the_zoo_brings_its_own_data():
    by_name = measure_performance("mlp", budget_s=QUICK)
    work = load_workload("mlp")
    assert by_name.accuracy == work.evaluate(work.model).mean()
    assert measure_performance(work, budget_s=QUICK).scores == by_name.scores
    parameters = 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10
    assert by_name.size_bytes == 4 * parameters
    assert by_name.peak_bytes > 4 * (parameters + 784)


def test_inputs_alone_measure_no_accuracy():
    seen = measure_performance(Linear(8, 2), np.ones((5, 8)), budget_s=QUICK)
    assert (seen.accuracy, seen.metric, seen.scores, seen.examples) == (None, None, (), 5)


def test_without_data_the_first_layer_tells():
    assert measure_performance(Linear(8, 2), budget_s=QUICK).examples == 1
    with pytest.raises(SettingError, match="give it inputs"):
        measure_performance(lambda x: x, budget_s=QUICK)


def test_values_are_no_accuracy(rng):
    model = Linear(4, 1)
    inputs = rng.standard_normal((20, 4)).astype(np.float32)
    seen = measure_performance(model, (inputs, np.zeros(20) + 0.5), budget_s=QUICK)
    wanted = -np.mean((model(Tensor(inputs)).data - 0.5) ** 2)
    assert (seen.accuracy, seen.metric) == (None, "negative mean squared error")
    assert seen.score == pytest.approx(wanted, rel=1e-5)  # float32 against float64
    assert "no accuracy" in " ".join(seen.notes)


def test_a_workload_with_another_score_has_no_accuracy():
    work = load_workload("mlp")
    other = type(work)("mlp", work.model, work.inputs, evaluate=lambda m: [0.5], metric="luck")
    seen = measure_performance(other, budget_s=QUICK)
    assert (seen.accuracy, seen.score, seen.metric) == (None, 0.5, "luck")


def test_a_model_of_pytorch_is_measured_like_its_twin(trained, digits):
    torch = require_part("torch")
    first, _, last = trained.layers
    twin = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    for ours, theirs in ((first, twin[0]), (last, twin[2])):
        theirs.weight.data = torch.tensor(ours.weight.data.T.copy())
        theirs.bias.data = torch.tensor(ours.bias.data)
    ours, theirs = (measure_performance(m, digits[1], budget_s=QUICK) for m in (trained, twin))
    assert ours.scores == theirs.scores
    assert ours.size_bytes == theirs.size_bytes
    assert theirs.framework == "pytorch"


def test_a_model_that_raises_raises(broken):
    with pytest.raises(ModelError, match="the wires are crossed"):
        measure_performance(broken(), np.ones((2, 2)), budget_s=QUICK)
    with pytest.raises(ModelError, match="worked at first, and later failed"):
        measure_performance(broken(good_calls=5), np.ones((2, 2)), budget_s=QUICK)


def test_broken_scores_are_no_number():
    work = load_workload("mlp")
    other = type(work)("mlp", work.model, work.inputs, evaluate=lambda m: [np.nan])
    with pytest.raises(ModelError, match="not finite"):
        measure_performance(other, budget_s=QUICK)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget_s": 0}, "budget_s=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 9}, "the first batch has 5"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        measure_performance(Linear(8, 2), np.ones((5, 8)), **settings)


def test_a_program_that_uses_a_gpu_is_waited_for(monkeypatch):
    require_part("torch")
    clocks = []

    def spied(functions, *, clock, **settings):
        clocks.append(clock)
        return spied.original(functions, clock=clock, **settings)

    spied.original = module.time_in_turns
    monkeypatch.setattr(module, "time_in_turns", spied)
    assert "torch" in sys.modules
    measure_performance(Linear(8, 2), budget_s=QUICK)
    assert isinstance(clocks[0], DeviceClock)


def test_a_name_may_be_given():
    assert measure_performance(Linear(8, 2), budget_s=QUICK).name == "Linear"
    assert measure_performance(Linear(8, 2), budget_s=QUICK, name="mine").name == "mine"
