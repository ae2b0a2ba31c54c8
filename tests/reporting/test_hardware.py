import io

import pytest
from example_profiles import example_profile
from rich.console import Console

from tinytorch.profiling.hardware import Device, estimate_on
from tinytorch.reporting.document import Document
from tinytorch.reporting.machine import estimate_section
from tinytorch.reporting.terminal import render

FASTER = Device("faster machine", {"float32": 1e9}, 1e8)


def shown(estimate):
    console = Console(file=io.StringIO(), width=140, markup=False)
    console.print(render(Document("", None, (estimate_section(estimate),))))
    return console.file.getvalue()


def test_an_estimate_says_that_it_is_one():
    text = shown(estimate_on(example_profile(), FASTER))
    assert text.startswith("On faster machine: an estimate, not a measurement")
    assert "described by the user" in text
    assert "price" not in text


def test_it_says_how_far_from_the_bound_the_model_is_here():
    estimate = estimate_on(example_profile(), FASTER)
    assert f"{estimate.optimism:.2f}x" in shown(estimate)


def test_without_ceilings_only_the_bound_is_known():
    text = shown(estimate_on(example_profile(ceilings=None), FASTER))
    assert "unknown: the ceilings of this machine were not measured" in text


def test_a_price_becomes_the_cost_of_a_million_calls():
    estimate = estimate_on(example_profile(), FASTER, price_per_hour=3600.0)
    assert estimate.cost_at_best == pytest.approx(1e6 * estimate.at_best_s)
    assert "for a million calls at 3600 an hour" in shown(estimate)


def test_what_is_not_in_the_estimate_is_named():
    assert "- not counted, so not in the estimate: odd" in shown(
        estimate_on(example_profile(), FASTER)
    )
