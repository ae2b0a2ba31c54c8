from itertools import pairwise

import pytest
from reported_optimizations import (
    EVERY_KIND,
    best_is_a_stack,
    harmful_names,
    limits_broken,
    nothing_tried,
    nothing_worked,
    timed,
)
from terminal import shown

from tinytorch.reporting.optimization import (
    optimization_markdown,
    render_optimization,
)
from tinytorch.tuning.optimization import Optimization


def terminal(optimization, width=100):
    return shown(render_optimization(optimization), width)


def titles(text):
    lines = text.splitlines()
    return [after for before, after in pairwise(lines) if not before]


def test_the_verdict_comes_first():
    lines = terminal(best_is_a_stack(), 200).splitlines()
    assert lines[0].startswith("gpt: int8-dynamic + compiled-kernels makes it 2.50x faster")
    assert lines[1].startswith("core on cpu; goal latency; 11 attempts")


def test_everything_has_its_place():
    found = titles(terminal(best_is_a_stack()))
    for title in (
        "Why it takes its time",
        "Speedup of what was timed",
        "Everything that was tried",
        "What was not used, and why",
        "What each part brings",
        "The Pareto front: nothing beats these in everything",
        "Suggestions, and what came of each alone",
        "What to do next",
        "Notes",
    ):
        assert title in found
    assert "Limits" not in found


def test_advice_that_nothing_carries_out_is_what_to_do_next():
    text = terminal(best_is_a_stack())
    before, after = text.split("What to do next")
    assert "1. Work on more examples at once" in after
    assert "Work on more examples" not in before


def test_broken_limits_are_said():
    text = terminal(limits_broken())
    assert "- the model as it is: time of a call: 1.00 ms, at most 100 us: broken" in text
    assert "at most 1.00 MB: kept" in text


def test_an_interrupt_is_said():
    assert "Interrupted: this is what was finished before." in terminal(nothing_tried())
    assert "Interrupted" not in terminal(best_is_a_stack())


def test_what_has_nothing_to_say_has_no_title():
    found = titles(terminal(nothing_worked()))
    assert "Speedup of what was timed" not in found
    assert "What each part brings" not in found
    assert "The Pareto front: nothing beats these in everything" not in found


@pytest.mark.parametrize("make", EVERY_KIND, ids=lambda make: make.__name__)
@pytest.mark.parametrize("width", [60, 100, 140])
def test_no_line_is_wider_than_the_terminal(make, width):
    assert max(map(len, terminal(make(), width).splitlines())) <= width


@pytest.mark.parametrize("make", EVERY_KIND, ids=lambda make: make.__name__)
def test_what_was_read_back_shows_the_same_numbers(make):
    found = make()
    kept = Optimization.from_dict(found.to_dict())
    before, after = (terminal(each).partition("Speedup of")[2] for each in (found, kept))
    assert before == after


def test_an_optimization_shows_itself():
    found = best_is_a_stack()
    assert shown(found, 100) == terminal(found)
    assert found._repr_html_().startswith("<pre")
    assert "makes it 2.50x faster" in found._repr_html_()


def test_names_cannot_break_a_notebook():
    assert "<script>" not in harmful_names()._repr_html_()


def test_the_markdown_is_here_too():
    assert optimization_markdown(best_is_a_stack()).startswith("### 2.50x faster")


def test_what_was_measured_again_is_said_below_the_verdict():
    again = timed("int8-dynamic", "compiled-kernels", ratio=0.5)
    lines = terminal(best_is_a_stack(confirmations=(again,)), 200).splitlines()
    assert "2.00x faster" in lines[0]
    assert lines[2].startswith("Confirmed: this was measured again")
    assert terminal(best_is_a_stack(), 200).splitlines()[2].startswith("This is not confirmed")
