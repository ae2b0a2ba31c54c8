import numpy as np
import pytest
from parts import require_part

from tinytorch.benchmarking.benchmark import BenchmarkResult, BenchmarkSuite
from tinytorch.core.layers import Linear
from tinytorch.errors import SettingError


@pytest.fixture
def suite(trained, constant, broken, digits):
    models = {"trained": trained, "constant": constant(1), "broken": broken()}
    return BenchmarkSuite(models=models, datasets=[digits[1]], warmup_runs=1, measurement_runs=8)


def with_results(points, **settings):
    """Give a suite that has measured these (latency, accuracy)."""
    suite = BenchmarkSuite({name: Linear(2, 2) for name in points}, **settings)
    for position, metric in enumerate(("latency", "accuracy")):
        suite.results[metric] = {
            name: BenchmarkResult.failed(metric, "ValueError: no")
            if point is None
            else BenchmarkResult(metric, [point[position]])
            for name, point in points.items()
        }
    return suite


def test_making_a_suite_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    suite = BenchmarkSuite(models=[Linear(2, 2)], datasets=[], output_dir="results")
    suite.run_full_benchmark()
    assert list(tmp_path.iterdir()) == []


def test_a_full_run_gives_every_metric_of_every_model(suite):
    told = []
    results = suite.run_full_benchmark(progress=lambda *step: told.append(step))
    assert list(results) == ["latency", "accuracy", "memory"]
    assert all(list(each) == ["trained", "constant", "broken"] for each in results.values())
    assert all(each["broken"].is_failed for each in results.values())
    assert results["accuracy"]["trained"].mean > 0.9
    assert told == [("latency", 0, 3), ("accuracy", 1, 3), ("memory", 2, 3), ("done", 3, 3)]


def test_without_data_there_is_no_accuracy():
    suite = BenchmarkSuite([Linear(3, 2)], measurement_runs=2)
    assert list(suite.run_full_benchmark()) == ["latency", "memory"]
    with pytest.raises(
        SettingError, match="'accuracy' was not measured; there are latency, memory"
    ):
        suite.plot_pareto_frontier()


def test_what_was_finished_is_kept(suite):
    def stop(metric, done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        suite.run_full_benchmark(progress=stop)
    assert list(suite.results) == ["latency", "accuracy"]


def test_the_front_has_the_models_that_no_other_beats():
    points = {"fast": (1.0, 0.9), "good": (5.0, 0.99), "beaten": (5.0, 0.95), "bad": None}
    suite = with_results(points)
    assert suite.pareto_frontier() == ["fast", "good"]
    assert suite.pareto_frontier("accuracy", "latency") == ["good", "fast"]


def test_figures_are_returned_and_saved_where_asked(tmp_path):
    require_part("matplotlib")
    points = {"fast": (1.0, 0.9), "good": (5.0, 0.99)}
    suite = with_results(points)
    figure = suite.plot_results(tmp_path / "deep" / "bars.png")
    assert len(figure.axes) == 2
    assert (tmp_path / "deep" / "bars.png").read_bytes().startswith(b"\x89PNG")
    suite.plot_pareto_frontier(save_path=tmp_path / "front.svg")
    assert "<svg" in (tmp_path / "front.svg").read_text("utf-8")
    elsewhere = with_results(points, output_dir=tmp_path / "out")
    elsewhere.plot_results()
    elsewhere.plot_pareto_frontier()
    elsewhere.generate_report()
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"benchmark_results.png", "pareto_latency_accuracy.png", "benchmark_report.md"}


def test_the_report_is_a_text_and_a_file_only_where_asked(suite, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    suite.run_full_benchmark()
    report = suite.generate_report()
    assert list(tmp_path.iterdir()) == []
    assert suite.generate_report(tmp_path / "report.md") == report
    assert (tmp_path / "report.md").read_text("utf-8") == report
    assert all(name in report for name in ("trained", "constant", "the wires are crossed"))


def test_nothing_measured_is_nothing_to_show():
    suite = BenchmarkSuite([Linear(2, 2)])
    for ask in (suite.plot_results, suite.plot_pareto_frontier, suite.generate_report):
        with pytest.raises(SettingError, match="nothing was measured yet"):
            ask()


def test_two_axes_need_two_metrics():
    with pytest.raises(SettingError, match="on both axes"):
        with_results({"a": (1.0, 1.0)}).pareto_frontier("latency", "latency")


def test_an_input_shape_may_be_given():
    suite = BenchmarkSuite([Linear(3, 2)], measurement_runs=2)
    results = suite.run_full_benchmark((5, 3))
    assert results["latency"]["Linear"].metadata["input_shapes"] == [[5, 3]]
    assert np.isfinite(results["memory"]["Linear"].mean)
