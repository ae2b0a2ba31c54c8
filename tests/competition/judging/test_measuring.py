"""From answers to the values of measures."""

from dataclasses import replace

import numpy as np
import pytest
from example_legs import DECATHLON, SPRINT, a_leg

from tinytorch.competition.events import EVENTS
from tinytorch.competition.heats import (
    MEASURES,
    charge_s,
    heat_of,
    times_of,
    without_postponed,
)


def test_every_measure_of_every_event_can_be_taken():
    names = {each.name for event in EVENTS.values() for each in event.measures}
    assert names == MEASURES.keys()


def test_equal_legs_give_equal_values():
    heat = heat_of(DECATHLON, (a_leg(DECATHLON), a_leg(DECATHLON)), (-1.2, -1.2), has_own_code=True)
    assert heat.reference == heat.entry
    assert heat.entry["perplexity"] == pytest.approx(np.exp(1.2))


def test_the_sprint_is_about_nine_of_ten_calls():
    leg = a_leg(inner_s=10e-6)
    heat = heat_of(SPRINT, (leg, leg), (1.0, 1.0), has_own_code=False)
    calls = [each.answer.inner_s for each in leg.given if each.ask.purpose == "timed"]
    assert heat.entry["p90 latency"] == np.percentile(calls, 90)


def test_three_times_as_fast_is_a_third_of_the_time():
    legs = (a_leg(inner_s=30e-6), a_leg(inner_s=10e-6))
    heat = heat_of(SPRINT, legs, (1.0, 1.0), has_own_code=True)
    assert heat.reference["p90 latency"] / heat.entry["p90 latency"] == pytest.approx(3.0)


def test_hidden_time_is_charged_to_code():
    reference, entry = a_leg(inner_s=30e-6), a_leg(inner_s=1e-6, outside_s=59e-6)
    assert np.median(charge_s(entry, reference, "timed")) == pytest.approx(26e-6, rel=0.1)
    charged = times_of(entry, charged_against=reference)["timed"]
    assert np.median(charged) == pytest.approx(27e-6, rel=0.1)
    assert np.median(times_of(entry)["timed"]) == pytest.approx(1e-6, rel=0.1)


def test_a_call_that_took_no_time_has_a_score_all_the_same():
    """Code that stops its clock, and answers something else at once: a finding, and no crash."""
    reference = a_leg(DECATHLON)
    entry = replace(a_leg(DECATHLON, inner_s=0.0, outside_s=10e-6), cold=reference.cold)
    heat = heat_of(DECATHLON, (reference, entry), (-1.2, -1.2), has_own_code=True)
    assert all(0 < value < np.inf for value in heat.entry.values())


def test_nobody_is_paid_for_a_fast_socket():
    assert not charge_s(a_leg(outside_s=10e-6), a_leg(), "timed").any()


def _disturbed(leg, *, seed):
    """Let every fifth message wait, whichever that is."""
    rng = np.random.default_rng(seed)
    waits = 40e-6 * (rng.random(len(leg.given)) < 0.2) * rng.exponential(size=len(leg.given))
    given = [
        replace(each, answer=replace(each.answer, round_trip_s=each.answer.round_trip_s + wait_s))
        for each, wait_s in zip(leg.given, waits, strict=True)
    ]
    return replace(leg, given=tuple(given))


def test_messages_that_wait_on_both_sides_are_charged_to_nobody():
    """A busy machine would make all code look slower than the same technique that is declared."""
    reference, entry = (_disturbed(a_leg(inner_s=20e-6), seed=seed) for seed in (1, 2))
    honest = heat_of(SPRINT, (reference, entry), (1.0, 1.0), has_own_code=False)
    charged = heat_of(SPRINT, (reference, entry), (1.0, 1.0), has_own_code=True)
    assert charged.reference == honest.reference
    assert charged.entry["p90 latency"] == pytest.approx(honest.entry["p90 latency"], rel=0.05)


def test_hidden_time_is_charged_on_a_busy_machine_too():
    reference = _disturbed(a_leg(inner_s=20e-6), seed=1)
    hiding = _disturbed(a_leg(inner_s=1e-9, outside_s=50e-6), seed=2)
    assert np.mean(times_of(hiding, charged_against=reference)["timed"]) > 15e-6


def test_whoever_hides_the_time_of_some_calls_pays_for_these():
    reference = a_leg(inner_s=300e-6)
    given = [
        replace(each, answer=replace(each.answer, inner_s=each.answer.inner_s * (place % 3 > 0)))
        for place, each in enumerate(reference.given)
    ]
    entry = replace(reference, given=tuple(given))
    told, charged = times_of(entry), times_of(entry, charged_against=reference)
    honest = times_of(reference)["timed"].sum()
    assert told["timed"].sum() < 0.8 * honest
    assert charged["timed"].sum() == pytest.approx(honest, rel=0.03)


def test_loading_that_is_put_off_is_loading():
    reference = a_leg(DECATHLON)
    lazy = replace(
        reference,
        loading=replace(reference.loading, seconds=0.001, describing_s=0.06),
        cold=replace(reference.cold, round_trip_s=reference.cold.round_trip_s + 0.04),
    )
    assert without_postponed(lazy, reference).loading.seconds == pytest.approx(0.101)
    heat = heat_of(DECATHLON, (reference, lazy), (-1.2, -1.2), has_own_code=True)
    assert heat.entry["load time"] == pytest.approx(0.101)
    assert heat.entry["cold start"] > heat.reference["cold start"]


def test_code_that_gives_memory_back_is_no_smaller_than_its_file():
    leg = a_leg(DECATHLON)
    small = replace(leg, usage=replace(leg.usage, peak_bytes=4096))
    assert without_postponed(small, leg).usage.peak_bytes == leg.loading.file_bytes


def test_to_be_slow_with_short_texts_gains_nothing():
    leg = a_leg(DECATHLON)
    slow = replace(
        leg,
        given=tuple(
            replace(each, answer=replace(each.answer, inner_s=9 * each.answer.inner_s))
            if each.ask.purpose == "short"
            else each
            for each in leg.given
        ),
    )
    heats = [
        heat_of(DECATHLON, (leg, each), (-1.2, -1.2), has_own_code=False).entry
        for each in (leg, slow)
    ]
    products = [heat["prefill"] * heat["scaling"] for heat in heats]
    assert products[0] == pytest.approx(products[1])
