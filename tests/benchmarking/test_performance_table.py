import builtins
import sys

import numpy as np
import pytest
from parts import require_part
from terminal import shown

from tinytorch.benchmarking import performance as measuring
from tinytorch.benchmarking.performance import (
    Performance,
    PerformanceTable,
    benchmark_suite,
    measure_performance,
    plot_performance_comparison,
)
from tinytorch.core.layers import Linear
from tinytorch.errors import MissingPartError, SettingError
from tinytorch.measure.samples import Samples

QUICK = 0.02


def example_table(*, is_interleaved=True):
    slow = Performance("slow", Samples("", (0.002, 0.020, 0.004, 0.002, 0.006, 0.002)), 2**20)
    fast = Performance("fast", Samples("", (0.001, 0.010, 0.002, 0.001, 0.003, 0.001)), 2**19)
    failed = Performance("bad", error="ValueError: no")
    table = {"slow": slow, "fast": fast, "bad": failed}
    return PerformanceTable(table, is_interleaved=is_interleaved)


def test_speedup_is_the_baselines_time_over_the_models_round_by_round():
    speedup = example_table().speedup("fast")
    assert (speedup.value, speedup.interval.low, speedup.interval.high) == (2.0, 2.0, 2.0)
    assert speedup.interval.coverage > 0.95
    assert example_table().speedup("slow").value == 1.0
    assert example_table().speedup("bad") is None


def test_models_that_took_no_turns_have_no_interval():
    speedup = example_table(is_interleaved=False).speedup("fast")
    assert (speedup.value, speedup.interval) == (2.0, None)


def test_it_is_a_dictionary_in_order():
    table = example_table()
    assert (list(table), len(table), table["fast"].name) == (["slow", "fast", "bad"], 3, "fast")
    assert table.failed == {"bad": "ValueError: no"}
    assert table.baseline.name == "slow"
    rows = table.rows()
    assert [row["speedup"] for row in rows] == [1.0, 2.0, None]
    assert [row["time_ms"] for row in rows] == [pytest.approx(3.0), pytest.approx(1.5), None]


def test_models_are_measured_in_turns_and_scored_on_the_same(trained, constant, broken, digits):
    torch = require_part("torch")
    models = {
        "trained": trained,
        "torch": torch.nn.Linear(64, 10),
        "constant": constant(7),
        "broken": broken(),
        "later": broken(good_calls=4),
        "wrong size": Linear(65, 10),
    }
    results = benchmark_suite(models, digits[1], budget_s=QUICK)
    assert list(results) == list(models)
    assert set(results.failed) == {"broken", "later", "wrong size"}
    assert "65" in results.failed["wrong size"]
    rounds = {each.samples.count for each in results.values() if not each.is_failed}
    assert len(rounds) == 1, "everybody had the same number of turns"
    alone = measure_performance(trained, digits[1], budget_s=QUICK)
    assert results["trained"].scores == alone.scores
    assert results["constant"].accuracy == pytest.approx(np.mean(digits[1][1] == 7), abs=1e-12)
    assert results["broken"].accuracy is None


def test_the_same_seed_gives_the_same_order(monkeypatch):
    orders = []

    def seen(functions, *, rng, **settings):
        orders.append(rng.permutation(20).tolist())
        return original(functions, rng=rng, **settings)

    original = measuring.time_in_turns
    monkeypatch.setattr(measuring, "time_in_turns", seen)
    for seed in (1, 1, 2):
        benchmark_suite([Linear(2, 2)], np.ones((1, 2)), budget_s=QUICK, seed=seed)
    assert orders[0] == orders[1] != orders[2]


def test_workloads_and_targets_need_no_data():
    results = benchmark_suite(["mlp", Linear(3, 2)], budget_s=QUICK)
    assert (results["mlp"].accuracy, results["Linear"].accuracy) == (0.9758, None)


@pytest.mark.parametrize(
    ("models", "data", "settings", "message"),
    [
        ({}, None, {}, "no models"),
        ([Linear(2, 2)], [], {}, "no example"),
        ([Linear(2, 2)], np.ones((1, 2)), {"budget_s": 0}, "budget_s=0"),
        ([Linear(2, 2)], np.ones((1, 2)), {"batch_size": 3}, "the first batch has 1"),
    ],
)
def test_bad_input_is_refused(models, data, settings, message):
    with pytest.raises(SettingError, match=message):
        benchmark_suite(models, data, **settings)


def test_a_table_shows_itself():
    text = shown(example_table())
    assert "Model" in text
    assert "2.00x" in text


def test_the_comparison_prints_and_draws(capsys):
    require_part("matplotlib")
    figure = plot_performance_comparison(example_table())
    printed = capsys.readouterr().out
    assert [title in printed for title in ("Model", "Time", "Memory", "Accuracy")] == [True] * 4
    assert "bad failed: ValueError: no" in printed
    assert len(figure.axes) == 2


def test_separate_measurements_can_be_compared(capsys):
    require_part("matplotlib")
    table = example_table()
    assert plot_performance_comparison({"a": table["slow"], "b": table["fast"]}).axes
    assert "2.00x" in capsys.readouterr().out


@pytest.mark.parametrize("results", [{}, {"a": 1}, 7, [1]])
def test_what_are_no_results_is_refused(results):
    with pytest.raises(SettingError, match="benchmark_suite returned"):
        plot_performance_comparison(results)


def test_without_matplotlib_the_table_is_printed_and_the_extra_named(monkeypatch, capsys):
    original = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return original(name, *rest)

    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingPartError, match=r'pip install "\.\[plot\]"'):
        plot_performance_comparison(example_table())
    assert "slow" in capsys.readouterr().out
