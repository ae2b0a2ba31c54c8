import builtins
from pathlib import Path

import pytest
from example_records import record
from parts import require_part

from tinytorch.benchmarking.suite_run import ENTRY_KIND, EntryOutcome, suite_fronts
from tinytorch.errors import MissingPartError, SettingError
from tinytorch.measure.samples import Samples
from tinytorch.reporting.suite import check_plot, draw_suite, write_plot

require_part("matplotlib")


def outcome(name, scenario, metric, *values, score=0.9, failure=None):
    samples = {metric: Samples(metric, values, "s" if metric == "latency" else "examples/s")}
    samples["peak memory"] = Samples("peak memory", (2**20 * values[0] * 1e3,), "B")
    details = {"accuracy": {"metric": "accuracy", "mean": score}, "examples": 1}
    made = record(
        kind=ENTRY_KIND,
        name=f"{name}/{scenario}",
        samples={} if failure else samples,
        settings={"target": name.partition("/")[0], "scenario": {"name": scenario}},
        details={"failure": failure} if failure else details,
    )
    return EntryOutcome(made)


OUTCOMES = [
    outcome("mlp/a", "single-stream", "latency", 1e-3, 2e-3, 3e-3),
    outcome("mlp/b_$x$", "single-stream", "latency", 2e-3, 2e-3, 3e-3, score=0.8),
    outcome("cnn/a", "single-stream", "latency", 5e-3),
    outcome("mlp/a", "offline", "throughput", 100.0, 110.0),
    outcome("mlp/a", "server", "rate", 50.0),
]


def test_there_is_a_panel_for_each_scenario_and_each_objective():
    figure = draw_suite(OUTCOMES, suite_fronts(OUTCOMES))
    titles = [axes.get_title(loc="left") for axes in figure.axes[:3]]
    assert titles == ["single-stream", "offline", "server"]
    assert {axes.get_ylabel() for axes in figure.axes[3:]} == {"accuracy (%)", "peak memory (MiB)"}


def test_a_bar_shows_the_median():
    figure = draw_suite(OUTCOMES, ())
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == pytest.approx([2.0, 2.0, 5.0])


def test_the_line_goes_through_the_front():
    figure = draw_suite(OUTCOMES, suite_fronts(OUTCOMES))
    accuracy = next(axes for axes in figure.axes if axes.get_ylabel() == "accuracy (%)")
    line = accuracy.get_lines()[0]
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([2.0], [90.0])


def test_what_failed_is_not_drawn():
    failed = outcome("mlp/c", "single-stream", "latency", 1.0, failure="it broke")
    figure = draw_suite([failed], suite_fronts([failed]))
    assert figure.axes == []
    assert figure.texts[0].get_text() == "nothing was measured"


@pytest.mark.parametrize(("name", "start"), [("a.svg", b"<?xml"), ("a.PNG", b"\x89PNG")])
def test_a_picture_is_written(tmp_path, name, start):
    check_plot(tmp_path / name)
    write_plot(tmp_path / name, draw_suite(OUTCOMES, suite_fronts(OUTCOMES)))
    assert (tmp_path / name).read_bytes().startswith(start)


def test_what_cannot_be_written_is_known_before(tmp_path):
    with pytest.raises(SettingError, match=r"a name that ends with .svg or .png"):
        check_plot(tmp_path / "a.pdf")
    with pytest.raises(SettingError, match="there is no folder"):
        check_plot(tmp_path / "nowhere" / "a.svg")


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(SettingError, match=r"a.svg cannot be written"):
        write_plot(tmp_path / "a.svg", draw_suite(OUTCOMES, ()))


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    real_import = builtins.__import__

    def without(name, *arguments, **keywords):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingPartError, match=r"\.\[plot\]"):
        check_plot(Path("a.svg"))
