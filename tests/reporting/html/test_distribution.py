import numpy as np
import pytest
from example_profiles import example_profile
from html_reading import Reading
from strange_profiles import gpu_profile, single_call_profile

from tinytorch.measure.samples import Samples
from tinytorch.profiling.profile import find_facts
from tinytorch.reporting.html.distribution import FEW, MOST_DOTS, latency_section


def section(profile):
    return latency_section(profile, find_facts(profile))


def with_latency(values, **fields):
    return example_profile(latency=Samples("latency", tuple(values), **fields))


@pytest.fixture
def many(rng):
    return with_latency(0.010 * np.exp(0.05 * rng.standard_normal(2 * MOST_DOTS)))


def test_few_values_are_dots_in_both_pictures():
    body = Reading(section(example_profile()).body)
    assert len(body.all("circle")) == 2 * 4
    assert body.all("rect", class_="column") == []


def test_many_values_are_columns_that_count_all_of_them(many):
    body = Reading(section(many).body)
    told = [text for text in body.texts("title") if "call" in text and ":" in text]
    counted = sum(int(text.rpartition(": ")[2].split()[0].replace(",", "")) for text in told)
    note = [text for text in body.texts("p") if "longer than is drawn" in text]
    beyond = int(note[0].split()[0]) if note else 0
    low = [text for text in body.texts("p") if "less than is drawn" in text]
    beyond += int(low[0].split()[0]) if low else 0
    assert counted + beyond == 2 * MOST_DOTS


def test_of_very_many_calls_some_are_drawn_and_it_says_so(many):
    shown = section(many)
    assert len(Reading(shown.body).all("circle")) == MOST_DOTS
    assert "one of 2 calls is drawn" in shown.body


def test_calls_far_away_are_named_and_not_hidden():
    values = [0.010 + 1e-5 * (place % 7) for place in range(2 * FEW)]
    body = section(with_latency([*values, 0.5])).body
    assert "1 call took longer than is drawn, up to 500 ms." in body
    assert "500 ms" in Reading(body).rows()[1]  # the most, in the table


def test_the_median_and_its_interval_are_drawn_and_told():
    shown = section(example_profile())
    body = Reading(shown.body)
    assert "median 10.0 ms" in body.texts("text")
    assert len(body.all("line", class_="middle")) == 2
    assert len(body.all("rect", class_="band")) == 2
    assert "10.0 ms, the band its 88% interval, 9.80 ms to 10.2 ms" in shown.about
    assert "Stable:" in shown.about


def test_equal_values_can_be_drawn():
    body = Reading(section(with_latency([0.01] * (FEW + 10))).body)
    assert len(body.all("rect", class_="column")) == 1


def test_means_of_several_calls_are_called_that():
    about = section(with_latency([0.01, 0.011, 0.012, 0.011], loops=10)).about
    assert "Each value is the mean of 10 calls." in about


def test_one_call_has_no_distribution():
    shown = section(single_call_profile())
    assert "One call was timed: 10.0 ms. How much it varies is unknown." in shown.body
    assert "svg" not in shown.body


def test_a_gpu_has_its_three_times():
    rows = Reading(section(gpu_profile()).body).rows()
    assert ["device time, by events", "8.00 ms", "8.00 ms to 8.00 ms"] in rows
    assert ["in its kernels, without gaps", "4.00 ms", "4.00 ms to 4.00 ms"] in rows
    assert ["the device waits for the program", "60.0%", ""] in rows
    assert "by events" not in section(example_profile()).body
