from reported_optimizations import (
    HARMLESS,
    best_is_a_stack,
    harmful_names,
    nothing_tried,
    nothing_worked,
    only_time,
)

from tinytorch.reporting.html import optimization_page as trade_offs
from tinytorch.reporting.html.markup import Markup
from tinytorch.reporting.html.optimization_page import trade_offs_section


def test_time_is_shown_against_accuracy_memory_and_size():
    body = trade_offs_section(best_is_a_stack()).body
    assert body.count("<svg") == 3
    for words in ("Change of the accuracy", "Peak memory", "Size of the file"):
        assert f"{words} against time" in body


def test_points_have_the_numbers_of_the_attempts():
    body = trade_offs_section(best_is_a_stack()).body
    assert "int8-dynamic + compiled-kernels: 40.0% (39.8% to 40.2%); -0.15 points" in body
    assert "as it is: 100.0%; 100.0%" in body
    assert "low-rank" not in body  # never ranked


def test_the_front_over_everything_is_marked_in_every_picture(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        trade_offs, "pareto_picture", lambda chart: drawn.append(chart.points) or Markup("")
    )
    trade_offs_section(best_is_a_stack())
    marked = [{each.name for each in points if each.is_on_front} for points in drawn]
    assert marked == [set(best_is_a_stack().front)] * 3


def test_the_front_is_listed():
    body = trade_offs_section(best_is_a_stack()).body
    front = best_is_a_stack().front
    table = body[body.index("<table") :]
    assert all(name in table for name in front)
    assert "channels-last" not in table


def test_what_nobody_measured_has_no_picture():
    body = trade_offs_section(only_time()).body
    assert "<svg" not in body
    assert "No picture of the peak memory: it is not known of any attempt." in body


def test_without_a_measurement_there_is_no_section():
    assert trade_offs_section(nothing_worked()) is None
    assert trade_offs_section(nothing_tried()) is None


def test_names_stay_text():
    body = trade_offs_section(harmful_names()).body
    assert HARMLESS not in body
    assert "&lt;script&gt;" in body
