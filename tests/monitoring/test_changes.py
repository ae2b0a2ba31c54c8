"""What changes, and since when, in scripted time; and the promise about false alarms."""

import numpy as np
import pytest
from scripted_service import LAYERS, MEMORY, ScriptedService, first_change, learned

from tinytorch.codec import decode, encode
from tinytorch.monitoring import changes
from tinytorch.monitoring.changes import (
    CALM_MINUTES,
    FACTORS,
    MOST_LEARNED,
    SLOW_RATE,
    Change,
    ChangeDetector,
    Evidence,
    weights_of,
)
from tinytorch.monitoring.reference import Reference

LEAK = 20 * 2**20


@pytest.mark.parametrize("layer", range(len(LAYERS)))
def test_a_layer_that_is_a_fifth_slower_is_named_within_ten_minutes(layer):
    service, detector = learned(seed=layer)
    began = 60.0 * service.minute
    slower = [1.2 if at == layer else 1.0 for at in range(len(LAYERS))]
    change, minutes = first_change(service, detector, slower=slower)
    assert (change.kind, change.subject) == ("layer", LAYERS[layer])
    assert minutes <= 10
    assert change.since == began
    assert change.noticed == began + 60 * minutes
    assert change.factor == pytest.approx(1.2, abs=0.05)


def test_a_slower_machine_is_not_the_model():
    change, minutes = first_change(*learned(), machine=1.6)
    assert (change.kind, change.subject) == ("machine", "")
    assert minutes <= 10
    assert "not the model" in change.words


def test_all_layers_slower_on_the_same_machine_is_the_model():
    change, minutes = first_change(*learned(), slower=(1.4, 1.4, 1.4))
    assert change.kind == "model"
    assert minutes <= 10


def test_another_mix_of_inputs_is_not_the_model():
    service, detector = learned()
    detector.size_names = {8: "8x16"}
    change, minutes = first_change(service, detector, mix=(0.3, 0.7))
    assert (change.kind, change.subject) == ("inputs", "size 8x16")
    assert minutes <= 10


def test_a_leak_is_memory():
    service, detector = learned()
    found = []
    for minute in range(1, 20):
        found += detector.add(service.next(memory=MEMORY + minute * LEAK))
    assert [each.kind for each in found] == ["memory"]
    assert found[0].factor > 1.05


def test_nothing_is_found_where_nothing_changed():
    service, detector = learned()
    assert [detector.add(service.next()) for _ in range(2000)] == [()] * 2000


def test_a_change_is_told_once_and_ends_when_it_is_over():
    service, detector = learned()
    change, _ = first_change(service, detector, slower=(1.0, 1.3, 1.0))
    assert [detector.add(service.next(slower=(1.0, 1.3, 1.0))) for _ in range(60)] == [()] * 60
    assert [each.ended for each in detector.changes] == [None]
    for _ in range(CALM_MINUTES + 2):
        detector.add(service.next())
    assert detector.changes[0].ended > change.noticed
    again, minutes = first_change(service, detector, slower=(1.0, 1.3, 1.0))
    assert (again.subject, len(detector.changes)) == ("body", 2)
    assert minutes <= 10


def test_minutes_with_few_calls_wait_for_the_next():
    service, detector = learned()
    service.calls = 4
    change, minutes = first_change(service, detector, slower=(1.5, 1.0, 1.0), minutes=60)
    assert change.subject == "stem"
    assert minutes > 10


def test_a_reference_that_is_read_again_judges_alike():
    service, detector = learned()
    kept = decode(Reference, encode(detector.reference))
    resumed = ChangeDetector(LAYERS, 60, kept)
    change, minutes = first_change(service, resumed, slower=(1.2, 1.0, 1.0))
    assert change.subject == "stem"
    assert minutes <= 10


def test_what_is_kept_while_learning_is_bounded():
    service, detector = ScriptedService(calls=600), ChangeDetector(LAYERS, 200)
    for _ in range(150):
        detector.add(service.next())
    assert sum(len(each.calls) for each in detector._learned) <= MOST_LEARNED


# ---------------------------------------------------------------- the promise


def test_the_evidence_of_a_minute_is_one_on_average_at_most():
    good, bad = FACTORS
    assert SLOW_RATE * bad + (1 - SLOW_RATE) * good == pytest.approx(1.0)
    assert good > 0


def test_the_weights_add_up_to_one():
    _, detector = learned()
    assert weights_of(detector.reference).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("after_fast", [SLOW_RATE, 0.02])
def test_the_mean_run_length_holds_however_minutes_depend_on_each_other(monkeypatch, after_fast):
    """At the edge of what is assumed, with a smaller promise so that the runs end."""
    promised = 500
    monkeypatch.setattr(changes, "FALSE_ALARM_MINUTES", promised)
    rng = np.random.default_rng(0)
    streams, weights = 400, np.array([0.5, 0.3, 0.2])
    evidence = Evidence(weights, (streams,))
    ended = np.full(streams, 0)
    slow = np.zeros((streams, 3))
    for minute in range(1, 20 * promised):
        chance = np.where(slow == 1, SLOW_RATE, after_fast)
        slow = (rng.random((streams, 3)) < chance).astype(float)
        reached = evidence.add(slow, minute)
        ended[(ended == 0) & reached] = minute
    run = np.where(ended == 0, 20 * promised, ended)
    error = run.std() / np.sqrt(streams)
    assert run.mean() + 3 * error >= promised


def test_unknown_minutes_change_nothing():
    evidence = Evidence(np.array([1.0]))
    evidence.add(np.array([1.0]), 1)
    before = evidence.values.copy()
    evidence.add(np.array([np.nan]), 2)
    assert evidence.values == pytest.approx(before)


@pytest.mark.parametrize("kind", ["layer", "model", "machine", "inputs", "memory"])
def test_every_kind_of_change_has_words(kind):
    assert Change(kind, "x", 0.0, 60.0, 1.2).words
