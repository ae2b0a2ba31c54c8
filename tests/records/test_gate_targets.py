import numpy as np
import pytest
from example_comparisons import unevaluated
from example_gates import comparison, same_outputs
from example_records import ENVIRONMENT

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.evidence import NO_EVALUATE
from tinytorch.comparison.outputs import compare_outputs
from tinytorch.errors import Failure, MeasurementError, ModelError
from tinytorch.measure.estimate import INCONCLUSIVE
from tinytorch.records import gate_targets
from tinytorch.records.gate_targets import (
    GateSide,
    Measuring,
    Probed,
    against_commit,
    against_record,
    latency_of,
    record_of,
)
from tinytorch.records.history import StoredBaselines
from tinytorch.records.record import Record
from tinytorch.records.settings import GateSettings

MEASURING = Measuring(GateSettings(tolerance=0.1, budget_s=3.0, margin=0.02), ENVIRONMENT, seed=4)
FINE = Probed(python="3.11.4")
SCORED = Probed(python="3.11.4", has_evaluate=True)
LABELS = ("main", "the working tree")


@pytest.fixture
def sides(tmp_path):
    return (
        GateSide("baseline", "main", tmp_path, tmp_path),
        GateSide("candidate", "the working tree", tmp_path, tmp_path),
    )


@pytest.fixture
def compared(monkeypatch):
    """Let the comparer find what a test says, and keep what it was asked."""
    asked = {}

    def use(found):
        def compare(first, second, **settings):
            asked.update(settings, first=first, second=second)
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(gate_targets, "compare", compare)
        return asked

    return use


def gate(sides, probed=(FINE, FINE)):
    return against_commit("bench.py:make", sides, probed, MEASURING)


def test_the_comparer_is_asked_as_the_settings_say(sides, compared):
    asked = compared(comparison(1.3, outputs=same_outputs()))
    row = gate(sides)
    assert row.verdict == "regression"
    assert row.has_same_outputs
    assert (asked["budget_s"], asked["margin"], asked["seed"]) == (3.0, 0.02, 4)
    assert asked["first"].target == asked["second"].target == "bench.py:make"
    assert asked["is_known"](comparison(1.3).ratio)
    assert not asked["is_known"](comparison(1.1, spread=0.1).ratio)


@pytest.mark.parametrize(
    ("baseline", "candidate", "verdict"),
    [
        (Probed("TargetError: none", is_missing=True), FINE, "new"),
        (Probed("E: x"), FINE, "inconclusive"),
        (FINE, Probed("E: x"), "failed"),
        (FINE, Probed("TargetError: none", is_missing=True), "failed"),
        (Probed("E: x"), Probed("E: y"), "invalid"),
        (Probed("TargetError: none", is_missing=True), Probed("E: x"), "failed"),
        (Probed(foreign=("work/library.py",)), FINE, "invalid"),
        (FINE, Probed(foreign=("work/library.py",)), "invalid"),
    ],
)
def test_what_loading_has_shown_needs_no_measuring(sides, compared, baseline, candidate, verdict):
    asked = compared(comparison())
    row = gate(sides, (baseline, candidate))
    assert row.verdict == verdict
    assert asked == {}


def test_foreign_code_is_named_with_what_to_do(sides, compared):
    compared(comparison())
    reason = gate(sides, (Probed(foreign=("work/library.py",)), FINE)).reason
    assert "the baseline imports work/library.py" in reason
    assert "editable install" in reason


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ModelError("candidate raised E: x").about("candidate"), "failed"),
        (MeasurementError("candidate gave no answer").about("candidate"), "failed"),
        (ModelError("baseline raised E: x").about("baseline"), "inconclusive"),
        (MeasurementError("the clock showed 0 s"), "invalid"),
    ],
)
def test_a_failure_while_measuring_has_its_side(sides, compared, error, verdict):
    compared(error)
    row = gate(sides)
    assert (row.verdict, row.reason) == (verdict, str(error))


def test_accuracy_of_both_sides_is_compared(sides, compared):
    compared(comparison(accuracy=compare_accuracy([1] * 400, [0] * 400)))
    assert gate(sides, (SCORED, SCORED)).verdict == "accuracy"


@pytest.mark.parametrize(
    ("probed", "reason", "verdict", "words"),
    [
        ((SCORED, SCORED), unevaluated()["accuracy"], "failed", "candidate could not be"),
        ((SCORED, SCORED), Failure("400 scores but 300"), "inconclusive", "400 scores but 300"),
        ((SCORED, FINE), NO_EVALUATE, "inconclusive", "no evaluate any more"),
        ((FINE, FINE), NO_EVALUATE, "passed", ""),
    ],
)
def test_accuracy_that_is_not_known_never_passes(sides, compared, probed, reason, verdict, words):
    compared(comparison(not_measured={"accuracy": reason}))
    row = gate(sides, probed)
    assert row.verdict == verdict
    assert words in row.reason


def test_a_baseline_without_evaluate_is_noted(sides, compared):
    compared(comparison())
    row = gate(sides, (FINE, SCORED))
    assert row.verdict == "passed"
    assert "the baseline has no evaluate yet: accuracy is not compared" in row.notes


@pytest.mark.parametrize(
    ("baseline", "candidate", "words"),
    [
        (np.ones(2), np.array([1.0, 1.5]), "outputs differ by up to 0.5 (0.5 of the largest)"),
        (np.ones(2), np.ones(3), "outputs differ: "),
        (np.ones(2, int), np.zeros(2, int), "outputs differ: 0.00% of the values are equal"),
        (np.ones(2), np.ones(2), ""),
    ],
)
def test_outputs_that_differ_are_named(sides, compared, baseline, candidate, words):
    compared(comparison(outputs=compare_outputs([baseline], [candidate])))
    row = gate(sides)
    assert row.outputs.startswith(words)
    assert row.has_same_outputs is (words == "")


@pytest.mark.parametrize(
    ("output", "words"), [(np.ones(3), "shape"), (np.array([1.0, np.nan]), "finite")]
)
def test_broken_outputs_fail_and_are_not_ranked_by_speed(sides, compared, output, words):
    compared(comparison(0.5, outputs=compare_outputs([np.ones(2)], [output])))
    row = gate(sides)
    assert row.verdict == "failed"
    assert row.reason.startswith("candidate gives broken outputs: ")
    assert words in row.reason
    assert (row.ratio, row.change) == (None, "")
    assert record_of(row, MEASURING, LABELS).samples == {}


# ---------------------------------------------------------------- records


def kept(ratio=1.0, **changes):
    """Give the record of a gate whose candidate took so much of a millisecond."""
    found = comparison(ratio, **changes)
    row = gate_targets.TargetResult("bench.py:make", 0.05, found.ratio, found)
    return record_of(row, MEASURING, LABELS, run="gate-1")


def test_a_record_holds_times_per_process_and_everything_observed():
    found = kept(1.5)
    assert found.series[:2] == ("gate", "bench.py:make")
    assert found.samples["latency"].median == pytest.approx(0.0015, rel=1e-3)
    assert found.samples["time ratio"].count == 13
    assert found.details["against"] == "main"
    assert found.run == "gate-1"
    assert Record.from_dict(found.to_dict()) == found


def test_a_failure_is_a_record_without_samples(sides):
    row = gate(sides, (FINE, Probed("E: x")))
    found = record_of(row, MEASURING, LABELS)
    assert found.samples == {}
    assert found.details["verdict"] == "failed"


def against(stored, sides, seen=FINE):
    return against_record("bench.py:make", sides[1], seen, stored, MEASURING)


def test_a_record_made_against_a_commit_serves_as_baseline(sides, compared):
    asked = compared(comparison(1.0, baseline_name="candidate"))
    stored = StoredBaselines("a file", (kept(0.5),))
    row = against(stored, sides)
    assert asked["first"] == asked["second"]
    assert row.ratio.value == pytest.approx(2.0, rel=1e-2)
    assert row.verdict == "regression"
    assert any("minimum effect 10%" in note for note in row.notes)
    assert asked["is_known"](comparison(1.0).ratio)
    assert not asked["is_known"](comparison(1.2).ratio)
    assert list(record_of(row, MEASURING, LABELS).samples) == ["latency"]
    assert record_of(row, MEASURING, LABELS).series == kept().series


def test_the_same_speed_as_one_record_is_not_shown(sides, compared):
    compared(comparison(1.0))
    assert against(StoredBaselines("a file", (kept(1.0),)), sides).verdict == INCONCLUSIVE


def test_an_unlike_record_is_refused_before_measuring(sides, compared):
    asked = compared(comparison())
    row = against(StoredBaselines("a file", (kept(),)), sides, SCORED)
    assert row.obstacle == ""
    asked.clear()
    other = GateSide("candidate", "x", sides[1].folder, python="python3.13")
    row = against_record(
        "bench.py:make", other, Probed(python="3.13.0"), StoredBaselines("f", (kept(),)), MEASURING
    )
    assert row.verdict == INCONCLUSIVE
    assert "settings: python none against 3.13.0" in row.reason
    assert asked == {}


def test_a_candidate_that_fails_has_failed_whatever_the_record_says(sides, compared):
    stored = StoredBaselines("a file", (kept(),))
    assert against(stored, sides, Probed("E: x")).verdict == "failed"
    compared(ModelError("candidate once more raised E: x"))
    row = against(stored, sides)
    assert (row.verdict, row.candidate_error) == ("failed", "candidate once more raised E: x")


def test_stored_scores_are_compared(sides, compared):
    good, bad = [1] * 400, [0] * 400
    before = kept(2.0, accuracy=compare_accuracy(good, good))
    stored = StoredBaselines("a file", (before,))
    compared(comparison(1.0, accuracy=compare_accuracy(bad, bad)))
    assert against(stored, sides, SCORED).verdict == "accuracy"
    compared(comparison(1.0, accuracy=compare_accuracy([1] * 300, [1] * 300)))
    assert "400 scores" in against(stored, sides, SCORED).obstacle
    compared(comparison(1.0, not_measured={"accuracy": NO_EVALUATE}))
    assert "the record has an accuracy, this run none" in against(stored, sides).obstacle
    compared(comparison(1.0, not_measured=unevaluated()))
    assert against(stored, sides, SCORED).verdict == "failed"


def test_accuracy_that_the_record_lacks_is_noted(sides, compared):
    compared(comparison(1.0, accuracy=compare_accuracy([1] * 9, [1] * 9)))
    row = against(StoredBaselines("a file", (kept(2.0),)), sides, SCORED)
    assert row.verdict == "passed"
    assert "the record has no accuracy: it is not compared" in row.notes


def test_noise_against_itself_is_noted(sides, compared):
    compared(comparison(1.2))
    row = against(StoredBaselines("a file", (kept(),)), sides)
    assert any("differs by +20.0%" in n for n in row.notes)


def test_one_value_for_each_process():
    found = comparison(2.0, n=12)
    assert latency_of(found).count == 12
    assert latency_of(found).median == pytest.approx(0.002, rel=1e-3)
