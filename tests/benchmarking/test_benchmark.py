import numpy as np
import pytest
from classic_models import leaving_no_trace, make_model
from parts import require_part

from tinytorch.benchmarking import benchmark as module
from tinytorch.benchmarking.benchmark import Benchmark
from tinytorch.core.dataloader import TensorDataset
from tinytorch.core.layers import Linear
from tinytorch.errors import SettingError


class Plain:
    """The least that a model can be."""

    name = "plain"

    def forward(self, x):
        return x


def test_models_of_every_kind_are_timed_beside_each_other(broken):
    torch = require_part("torch")
    models = [Linear(28, 4), torch.nn.Linear(28, 4), Plain(), broken(), lambda x: x]
    results = Benchmark(models, [], warmup_runs=1, measurement_runs=7).run_latency_benchmark()
    assert list(results) == ["Linear", "Linear_2", "plain", "Broken", "<lambda>"]
    good = [result for result in results.values() if not result.is_failed]
    assert [(result.count, result.unit) for result in good] == [(7, "ms")] * 4
    assert all(result.mean > 0 for result in good)
    assert "the wires are crossed" in results["Broken"].error
    assert results["Linear"].metadata["input_shapes"] == [[1, 28, 28]]


def test_latency_is_measured_in_turns(monkeypatch):
    calls = []

    class Told:
        def __init__(self, name):
            self.name = name

        def forward(self, x):
            calls.append(self.name)

    Benchmark([Told("a"), Told("b")], (), 0, 50).run_latency_benchmark((1, 2))
    timed = calls[2::2]  # after the first call of each, every second one is the timed one
    rounds = {tuple(timed[start : start + 2]) for start in range(0, 100, 2)}
    assert rounds == {("a", "b"), ("b", "a")}


def test_milliseconds_are_milliseconds(monkeypatch):
    original = module.time_in_turns

    def slowly(functions, **settings):
        times = original(functions, **settings)
        fixed = {
            name: type(each)(each.name, (0.002, 0.003)) for name, each in times.samples.items()
        }
        return type(times)(fixed, {})

    monkeypatch.setattr(module, "time_in_turns", slowly)
    (result,) = Benchmark([Plain()], ()).run_latency_benchmark().values()
    assert result.values == (2.0, 3.0)


def test_memory_is_in_mebibytes():
    results = Benchmark([Linear(256, 1024, bias=False)], ()).run_memory_benchmark((1, 256))
    (value,) = results["Linear"].values
    assert results["Linear"].metadata["parameter_mb"] == 1.0
    assert value == 1.0 + (256 * 4 + 1024 * 4) / 2**20
    assert results["Linear"].unit == "MB"


def test_accuracy_is_scored_example_by_example(trained, constant, broken, digits):
    (train, held_out), models = digits, [trained, constant(4), broken()]
    results = Benchmark(models, [held_out]).run_accuracy_benchmark()
    assert results["Sequential"].mean > 0.9
    assert results["Sequential"].count == len(held_out[1])
    assert results["Constant"].mean == pytest.approx(np.mean(held_out[1] == 4), abs=1e-12)
    assert (results["Broken"].mean, results["Broken"].values) == (None, ())
    both = Benchmark([trained], {"train": train, "held out": held_out}).run_accuracy_benchmark()
    assert both["Sequential"].count == len(train[1]) + len(held_out[1])
    assert set(both["Sequential"].metadata["datasets"]) == {"train", "held out"}


def test_one_data_set_need_not_be_in_a_list(trained, digits):
    wanted = Benchmark([trained], [digits[1]]).run_accuracy_benchmark()["Sequential"].values
    for form in (
        digits[1],
        TensorDataset(*digits[1]),
        {"inputs": digits[1][0], "targets": digits[1][1]},
    ):
        assert Benchmark([trained], form).run_accuracy_benchmark()["Sequential"].values == wanted


def test_values_are_reported_under_a_name_of_their_own():
    data = (np.ones((6, 4), np.float32), np.linspace(0, 1, 6))
    (result,) = Benchmark([Linear(4, 1)], [data]).run_accuracy_benchmark().values()
    assert result.metric_name == "negative mean squared error"
    assert result.mean < 0


def test_workloads_bring_their_own_score():
    assert Benchmark(["mlp"]).run_accuracy_benchmark()["mlp"].mean == 0.9758


def test_data_sets_that_are_scored_differently_are_not_mixed():
    inputs = np.ones((6, 4), np.float32)
    sets = [(inputs, np.zeros(6, int)), (inputs, np.full((6, 2), 0.5))]
    (result,) = Benchmark([Linear(4, 2)], sets).run_accuracy_benchmark().values()
    assert "one by one" in result.error


def test_models_are_left_as_they_were():
    model = make_model("core")
    data = (np.ones((6, 8), np.float32), np.zeros(6, int))
    bench = Benchmark([model], [data], 1, 2)
    with leaving_no_trace(model):
        bench.run_latency_benchmark((6, 8))
        bench.run_memory_benchmark((6, 8))
        bench.run_accuracy_benchmark()
    assert set(bench.results) == {"latency", "memory", "accuracy"}


def test_a_shape_that_does_not_fit_is_told_with_the_models_words():
    (result,) = Benchmark([Linear(7, 2)], ()).run_latency_benchmark().values()
    assert "7" in result.error
    assert result.median is None


def test_comparing_runs_what_is_missing_and_pairs_rounds(broken):
    bench = Benchmark({"first": Linear(6, 2), "same": Linear(6, 2), "bad": broken()}, (), 1, 9)
    rows = bench.compare_models("latency")
    first, same, bad = rows
    assert [row["model"] for row in rows] == ["first", "same", "bad"]
    values = bench.results["latency"]
    ratios = np.array(values["first"].values) / np.array(values["same"].values)
    assert same["speedup"] == pytest.approx(np.median(ratios), rel=1e-12)
    assert same["speedup_low"] <= same["speedup"] <= same["speedup_high"]
    assert (first["speedup"], first["ratio_to_first"]) == (1.0, 1.0)
    assert (bad["speedup"], bad["mean"]) == (None, None)
    assert first.keys() == bad.keys()
    assert bench.compare_models("latency") == rows, "the last run is used again"


def test_other_metrics_have_no_speedup():
    bench = Benchmark({"small": Linear(6, 2), "large": Linear(6, 20)}, ())
    small, large = bench.compare_models("memory")
    assert (small["speedup"], large["speedup"]) == (None, None)
    assert large["ratio_to_first"] == large["mean"] / small["mean"] > 1


def test_a_failed_baseline_leaves_nothing_to_compare_with(broken):
    rows = Benchmark([broken(), Linear(28, 2)], (), 0, 2).compare_models()
    assert [row["speedup"] for row in rows] == [None, None]
    assert rows[1]["mean"] > 0


def test_inputs_come_from_the_data_or_from_the_model():
    data = (np.ones((6, 5), np.float32), np.zeros(6, int))
    for bench, wanted in [
        (Benchmark([Linear(5, 2)], [data], 0, 1), [1, 5]),
        (Benchmark([Linear(5, 2)], (), 0, 1), [1, 5]),
        (Benchmark([Plain()], (), 0, 1), [1, 28, 28]),
        (Benchmark([Plain()], [{"data": "unreadable"}], 0, 1), [1, 28, 28]),
    ]:
        (result,) = bench.run("latency").values()
        assert result.metadata["input_shapes"] == [wanted]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"models": []}, "no models"),
        ({"models": [Plain(), Plain()]}, "2 models are called 'plain'"),
        ({"warmup_runs": -1}, "warmup_runs=-1"),
        ({"measurement_runs": 0}, "measurement_runs=0"),
        ({"measurement_runs": 2.5}, "measurement_runs=2.5"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        Benchmark(**({"models": [Plain()], "datasets": ()} | settings))


def test_bad_questions_are_refused():
    bench = Benchmark([Plain()], ())
    with pytest.raises(SettingError, match="no data to measure accuracy on"):
        bench.run_accuracy_benchmark()
    with pytest.raises(SettingError, match="no metric 'energy'; there are latency"):
        bench.compare_models("energy")
    with pytest.raises(SettingError, match="input_shape"):
        bench.run_latency_benchmark((0, 3))
    with pytest.raises(SettingError, match="input_shape"):
        bench.run_memory_benchmark("28")
    with pytest.raises(SettingError, match="data set 1 has no targets"):
        Benchmark([Plain()], [np.ones((2, 2))]).run_accuracy_benchmark()
    with pytest.raises(SettingError, match='needs "inputs"'):
        Benchmark([Plain()], [{"data": "unreadable"}]).run_accuracy_benchmark()
