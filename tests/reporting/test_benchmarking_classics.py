import math

import pytest
from document_reading import heads, rows
from parts import require_part
from terminal import shown

from tinytorch.benchmarking.benchmark import BenchmarkResult
from tinytorch.benchmarking.performance import Performance, PerformanceTable
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.samples import Samples
from tinytorch.reporting.benchmarking_classics import (
    draw_pareto,
    draw_performances,
    draw_results,
    markdown_report,
    performances_document,
    show_performances,
)

SECONDS = (0.002, 0.004, 0.003, 0.002, 0.002, 0.006, 0.002, 0.003)


def performance(name, factor=1.0, **settings):
    samples = Samples(name, tuple(factor * value for value in SECONDS))
    return Performance(name, samples, round(factor * 2**21), 2**20, **settings)


@pytest.fixture
def table():
    return PerformanceTable(
        {
            "slow": performance("slow", metric="accuracy", scores=(1.0, 1.0, 0.0, 1.0)),
            "fast": performance("fast", 0.5, metric="accuracy", scores=(1.0, 0.0), notes=("hm",)),
            "bro$ken": Performance("bro$ken", error="ValueError: 5 $ | 6"),
        },
        is_interleaved=True,
    )


@pytest.fixture
def results():
    return {
        "latency": {
            "slow|one": BenchmarkResult("latency", [4, 5, 6, 4, 5, 6], unit="ms"),
            "fast": BenchmarkResult("latency", [2, 2, 3, 2, 2, 3], {"notes": ["noisy"]}, unit="ms"),
            "bad": BenchmarkResult.failed("latency", "ValueError: no"),
        },
        "accuracy": {
            "slow|one": BenchmarkResult("accuracy", [1, 1, 1, 0], interval_of="mean"),
            "fast": BenchmarkResult("accuracy", [1, 0, 1, 0], interval_of="mean"),
            "bad": BenchmarkResult.failed("accuracy", "ValueError: no"),
        },
        "memory": {
            "slow|one": BenchmarkResult("memory", [2.0], unit="MB"),
            "fast": BenchmarkResult("memory", [1.0], unit="MB"),
            "bad": BenchmarkResult.failed("memory", "ValueError: no"),
        },
    }


def bars_of(axes):
    """Give the height of each bar by the name below it."""
    names = [label.get_text() for label in axes.get_xticklabels()]
    return dict(zip(names, [bar.get_height() for bar in axes.patches], strict=True))


def error_bars(axes):
    """Give the ends of each vertical line, from left to right."""
    return [
        tuple(segment[:, 1])
        for container in axes.collections
        for segment in container.get_segments()
    ]


def test_the_table_has_a_row_for_each_model(table):
    found = performances_document(table)
    titles = ["Model", "Time", "95% interval", "Memory", "Accuracy", "Speedup", "95% interval"]
    assert heads(found) == titles
    slow, fast, broken = rows(found)
    assert [slow[place] for place in (0, 1, 3, 4, 5)] == [
        "slow",
        "2.50 ms",
        "2.00 MB",
        "75.0%",
        "1.00x",
    ]
    assert [fast[place] for place in (1, 3, 4, 5)] == ["1.25 ms", "1.00 MB", "50.0%", "2.00x"]
    assert " to " in fast[6]
    assert broken[:2] == ["bro$ken", "failed"]


def test_failures_and_notes_stand_below(table, capsys):
    show_performances(table)
    printed = capsys.readouterr().out
    assert "bro$ken failed: ValueError: 5 $ | 6" in printed
    assert "- fast: hm" in printed


def test_what_holds_for_all_is_said_once():
    both = PerformanceTable({name: performance(name, notes=("busy",)) for name in "ab"})
    assert performances_document(both).notes == ["busy"]


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_table_fits_the_terminal(table, width):
    lines = shown(table, width).splitlines()
    assert max(map(len, lines)) <= width
    assert {"Time", "Memory", "Accuracy"} <= set(lines[0].split())


def test_scores_that_are_no_accuracy_have_a_column_of_their_own():
    score = performance("a", metric="luck", scores=(-0.5, -0.25))
    found = performances_document(PerformanceTable({"a": score}))
    assert "luck" in heads(found)
    assert "-0.375" in rows(found)[0]


def test_bars_have_the_values_and_the_names(table):
    require_part("matplotlib")
    time, memory, accuracy = draw_performances(table).axes
    assert [axes.get_title() for axes in (time, memory, accuracy)] == [
        "time per call (ms)",
        "memory (MB)",
        "accuracy",
    ]
    assert bars_of(time) == {"slow": pytest.approx(2.5), "fast": pytest.approx(1.25)}
    assert bars_of(memory) == {"slow": 2.0, "fast": 1.0}
    assert bars_of(accuracy) == {"slow": 0.75, "fast": 0.5}


def test_error_bars_are_the_intervals(table):
    require_part("matplotlib")
    time, memory, accuracy = draw_performances(table).axes
    wanted = [table[name].time_interval for name in ("slow", "fast")]
    assert error_bars(time) == [pytest.approx((each.low, each.high)) for each in wanted]
    assert error_bars(memory) == []
    wanted = [table[name].score_interval for name in ("slow", "fast")]
    assert error_bars(accuracy) == [pytest.approx((each.low, each.high)) for each in wanted]


def test_failed_models_are_named_in_the_figure(table, results, tmp_path):
    require_part("matplotlib")
    figure = draw_performances(table)
    assert "bro\\$ken failed: ValueError" in figure.get_supxlabel()
    figure.savefig(tmp_path / "figure.png")  # a dollar is no formula
    assert (tmp_path / "figure.png").stat().st_size > 1000
    assert "bad (memory) failed" in draw_results(results).get_supxlabel()
    alone = PerformanceTable({"bad": Performance("bad", error="no")})
    assert [text.get_text() for text in draw_performances(alone).axes[0].texts] == ["not measured"]


def test_every_metric_is_drawn_with_its_interval(results):
    require_part("matplotlib")
    latency, accuracy, memory = draw_results(results).axes
    assert bars_of(latency) == {"slow|one": 5.0, "fast": 2.0}
    assert bars_of(accuracy) == {"slow|one": 0.75, "fast": 0.5}
    assert bars_of(memory) == {"slow|one": 2.0, "fast": 1.0}
    assert error_bars(latency) == [(4.0, 6.0), (2.0, 3.0)]
    assert error_bars(memory) == [], "a single value has no interval"
    assert latency.get_title() == "latency (ms)"


def test_the_front_is_a_line_and_everybody_has_a_name(results):
    require_part("matplotlib")
    points = {"a": (1.0, 0.5), "b": (2.0, 0.9), "c": (3.0, 0.7)}
    figure = draw_pareto(points, ["a", "b"], results, "latency", "accuracy")
    (axes,) = figure.axes
    (line,) = axes.lines
    assert list(zip(*line.get_data(), strict=True)) == [(1.0, 0.5), (2.0, 0.9)]
    assert axes.collections[0].get_offsets().tolist() == [[3.0, 0.7]]
    assert sorted(text.get_text() for text in axes.texts) == ["a", "b", "c"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("latency (ms)", "accuracy")
    assert "bad failed" in figure.get_supxlabel()


def report_of(results, rows_of):
    rows = {metric: rows_of(metric, by_name) for metric, by_name in results.items()}
    return markdown_report(
        results, rows, front=["fast"], runs=6, environment=describe_environment()
    )


@pytest.fixture
def report(results):
    def rows_of(metric, by_name):
        compared = {"speedup": None, "speedup_low": None, "speedup_high": None}
        rows = [{"model": name, **compared, **result.to_dict()} for name, result in by_name.items()]
        if metric == "latency":
            rows[0]["speedup"] = 1.0
            rows[1] |= {"speedup": 2.5, "speedup_low": 2.0, "speedup_high": math.e}
        return rows

    return report_of(results, rows_of)


def test_the_report_has_a_table_for_each_metric(report):
    lines = report.splitlines()
    assert r"| slow\|one | 5 | 4 to 6 | 6 | baseline |" in lines
    assert "| fast | 2 | 2 to 3 | 6 | 2.50x (2.00x to 2.72x) |" in lines
    assert "| bad | failed | - | 0 | - |" in lines
    assert r"| slow\|one | 2 | - | 1 |" in lines
    assert [line for line in lines if line.startswith("#")] == [
        "# Benchmark report",
        "## Latency (ms)",
        "## Accuracy",
        "## Memory (MB)",
        "## Pareto front",
        "## Failed",
        "## How it was measured",
    ]


def test_the_report_says_what_failed_and_how_it_was_measured(report):
    assert "- bad, memory: ValueError: no" in report
    assert "- Note on fast, latency: noisy" in report
    assert "6 rounds" in report
    assert "numpy" in report


def test_an_interval_that_covers_less_says_so():
    few = {"latency": {"a": BenchmarkResult("latency", [1.0, 2.0, 3.0], unit="ms")}}
    compared = {"speedup": None, "speedup_low": None, "speedup_high": None}
    text = report_of(
        few, lambda metric, by_name: [{"model": "a", **compared, **by_name["a"].to_dict()}]
    )
    assert "1 to 3 (75% only)" in text


def test_a_front_of_all_models_or_of_none_is_drawn(results):
    known = {name: {"latency": 1.0, "accuracy": 0.5} for name in ("slow|one", "fast")}
    for front in (list(known), []):
        points = {name: (each["latency"], each["accuracy"]) for name, each in known.items()}
        figure = draw_pareto(points, front, results, "latency", "accuracy")
        (axes,) = figure.axes
        assert len(axes.lines) == bool(front)
        assert len(axes.collections) == (not front)


def test_a_metric_that_failed_everywhere_has_no_unit(report_of_failures):
    assert "## Latency" in report_of_failures.splitlines()
    assert "Pareto" not in report_of_failures
    assert "rounds, each model" in report_of_failures


@pytest.fixture
def report_of_failures():
    failed = {"latency": {"bad": BenchmarkResult.failed("latency", "ValueError: no")}}
    environment = describe_environment()
    return markdown_report(failed, {"latency": []}, front=(), runs=3, environment=environment)
