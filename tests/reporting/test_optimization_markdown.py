import pytest
from reported_optimizations import (
    EVERY_KIND,
    best_is_a_stack,
    harmful_names,
    limits_broken,
    nothing_tried,
    timed,
)

from tinytorch.reporting.markdown import report_markdown
from tinytorch.reporting.optimization import optimization_markdown


def test_the_verdict_is_the_title():
    lines = optimization_markdown(best_is_a_stack()).splitlines()
    assert lines[0] == "### 2.50x faster"
    assert lines[2].startswith("gpt: int8-dynamic + compiled-kernels makes it 2.50x faster")


def test_the_table_has_a_row_for_every_attempt():
    lines = optimization_markdown(best_is_a_stack()).splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("| attempt |"))
    rows = lines[start + 2 : start + 13]
    assert all(row.startswith("|") for row in rows)
    assert rows[1].startswith("| int8-dynamic | better | 1.80x | 1.60x |")
    assert lines[start + 13] == ""


def test_the_picture_is_a_block_of_letters():
    text = optimization_markdown(best_is_a_stack())
    block = text.split("```")[1]
    assert "compiled-kernels" in block
    assert "●" in block


def test_the_rest_is_folded():
    text = optimization_markdown(best_is_a_stack())
    for title in ("Why it takes its time", "The Pareto front", "Suggestions", "Notes"):
        assert f"<summary>{title}</summary>" in text
    assert "tried: predicted 1.80x, measured 1.60x" in text
    assert text.count("<details>") == text.count("</details>") == 6


def test_limits_are_open():
    text = optimization_markdown(limits_broken())
    assert "Limits, for the model as it is:" in text
    assert "- time of a call: 1.00 ms, at most 100 us: broken" in text


def test_an_interrupt_is_said():
    assert "Interrupted" in optimization_markdown(nothing_tried())


@pytest.mark.parametrize("make", EVERY_KIND, ids=lambda make: make.__name__)
def test_it_is_found_by_the_type_of_the_result(make):
    assert report_markdown(make()) == optimization_markdown(make())


def test_names_stay_text():
    text = optimization_markdown(harmful_names())
    outside = "".join(text.split("```")[::2])
    for line in outside.splitlines():
        if "<script>" in line:  # only as code, where it is text
            assert "`<script>" in line
    assert "&lt;script&gt;" in outside


def test_what_was_measured_again_is_said_below_the_verdict():
    again = timed("int8-dynamic", "compiled-kernels", ratio=0.5)
    lines = optimization_markdown(best_is_a_stack(confirmations=(again,))).splitlines()
    assert lines[0] == "### 2.00x faster"
    assert lines[4].startswith("Confirmed: this was measured again")
