import inspect

import numpy as np
import pytest
from parts import require_part

from tinytorch import load_workload
from tinytorch.benchmarking import mlperf as module
from tinytorch.benchmarking.mlperf import MLPerf
from tinytorch.core.layers import Linear
from tinytorch.errors import SettingError, TargetError
from tinytorch.measure.samples import Samples
from tinytorch.models.zoo import digit_data, text_data, tokenizer

KEYS = {
    "accuracy",
    "mean_latency_ms",
    "p50_latency_ms",
    "p90_latency_ms",
    "p99_latency_ms",
    "throughput_fps",
    "target_accuracy",
    "target_latency_ms",
    "accuracy_met",
    "latency_met",
    "compliant",
}


@pytest.fixture
def latencies(monkeypatch):
    """Let every call take so many seconds as the list says."""
    given = []

    def measured(function, **settings):
        for _ in range(settings["runs"]):
            function()
        return Samples("latency", tuple(given))

    monkeypatch.setattr(module, "measure_time", measured)
    return given


def test_the_reference_meets_its_accuracy():
    judge = MLPerf()
    found = judge.run_standard_benchmark(load_workload("mlp").model, "digits_mlp", num_runs=20)
    assert found.keys() == KEYS
    assert (found["accuracy"], found["accuracy_met"]) == (0.9758, True)
    assert found["compliant"] is found["latency_met"]
    assert judge.latency.count == 20


def test_latencies_are_percentiles_of_single_calls(latencies):
    latencies += [0.001 * each for each in range(1, 11)]
    found = MLPerf().run_standard_benchmark("mlp", "digits_mlp", num_runs=10)
    assert found["mean_latency_ms"] == pytest.approx(5.5)
    assert found["p50_latency_ms"] == pytest.approx(5.5)
    assert found["p90_latency_ms"] == pytest.approx(9.1)
    assert found["p99_latency_ms"] == pytest.approx(np.percentile(range(1, 11), 99))
    assert found["throughput_fps"] == pytest.approx(1 / 0.0055)
    assert (found["latency_met"], found["compliant"]) == (True, True)


def test_nine_of_ten_calls_must_be_in_time(latencies):
    latencies += [0.001] * 8 + [0.5] * 2
    found = MLPerf().run_standard_benchmark("mlp", "digits_mlp", num_runs=10)
    assert (found["accuracy_met"], found["latency_met"], found["compliant"]) == (True, False, False)


def test_a_constant_scores_what_a_constant_scores(constant):
    found = MLPerf().run_standard_benchmark(constant(1), "digits_mlp", num_runs=3)
    labels = digit_data(held_out=True, flat=True).tensors[1].data
    assert found["accuracy"] == pytest.approx(np.mean(labels == 1), abs=1e-12)
    assert (found["accuracy_met"], found["compliant"]) == (False, False)


def test_text_is_judged_by_its_next_characters():
    space = tokenizer().encode(" ")[0]
    answer = np.eye(tokenizer().vocab_size)[space]

    def always_a_space(ids):
        return np.broadcast_to(answer, (*ids.shape, len(answer)))

    found = MLPerf().run_standard_benchmark(always_a_space, "text_gpt", num_runs=3)
    wanted = np.mean(text_data(held_out=True).tensors[1].data == space)
    assert found["accuracy"] == pytest.approx(wanted, abs=1e-12)
    assert found["accuracy_met"] is False


@pytest.mark.slow
@pytest.mark.parametrize(("model", "name"), [("cnn", "digits_cnn"), ("gpt", "text_gpt")])
def test_the_other_references_meet_their_accuracy(model, name):
    found = MLPerf().run_standard_benchmark(model, name, num_runs=5)
    reference = MLPerf.benchmarks[name].reference_accuracy
    assert found["accuracy"] == pytest.approx(reference, abs=5e-5)
    assert found["accuracy_met"] is True


def test_a_model_of_pytorch_is_judged_too():
    torch = require_part("torch")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    found = MLPerf().run_standard_benchmark(model, "digits_cnn", num_runs=3)
    assert 0 <= found["accuracy"] < 0.5, "it has learned nothing"
    assert found.keys() == KEYS


@pytest.mark.parametrize("model", ["broken", "wrong size", "one output"])
def test_a_model_that_raises_has_no_score(model, broken):
    models = {"broken": broken(), "wrong size": Linear(9, 10), "one output": Linear(784, 1)}
    judge = MLPerf()
    found = judge.run_standard_benchmark(models[model], "digits_mlp", num_runs=3)
    assert found.keys() == KEYS | {"error"}
    assert (found["accuracy"], found["p50_latency_ms"], found["compliant"]) == (None, None, False)
    assert found["error"]
    assert judge.latency is None


def test_timed_calls_see_different_examples(latencies):
    latencies.append(0.001)
    seen = []

    def model(x):
        seen.append(x.data.tobytes())
        return np.zeros((len(x.data), 10))

    MLPerf().run_standard_benchmark(model, "digits_mlp", num_runs=40)
    assert len(set(seen[-40:])) == 32


def test_names_and_settings_are_checked():
    judge = MLPerf()
    assert judge.list_benchmarks() == ["digits_mlp", "digits_cnn", "text_gpt"]
    with pytest.raises(SettingError, match="did you mean 'digits_cnn'"):
        judge.run_standard_benchmark(Linear(2, 2), "digit_cnn")
    with pytest.raises(SettingError, match="there are digits_mlp"):
        judge.run_standard_benchmark(Linear(2, 2), "zzz")
    with pytest.raises(SettingError, match="num_runs=0"):
        judge.run_standard_benchmark(Linear(2, 2), "digits_mlp", num_runs=0)
    with pytest.raises(SettingError, match="no model"):
        judge.run_standard_benchmark(7, "digits_mlp")
    with pytest.raises(TargetError, match="nothing"):
        judge.run_standard_benchmark("nothing", "digits_mlp")


def test_it_does_not_pretend_to_be_somebody_else():
    assert "affiliated with MLCommons" in inspect.getdoc(MLPerf)
