import json
import math

import numpy as np
import pytest
from example_gates import comparison
from example_records import ENVIRONMENT, record

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.errors import SettingError
from tinytorch.measure.samples import Samples
from tinytorch.records.history import (
    Baseline,
    StoredBaselines,
    accuracy_against,
    baselines_in_file,
    baselines_in_store,
    compare_with_record,
    settings_of,
    stored_scores,
)
from tinytorch.records.store import RecordStore

GATE = {"kind": "gate", "settings": settings_of()}


def gate_record(value=0.0025, **changes):
    return record(value, **(GATE | changes))


def gate_series(values, **changes):
    return tuple(gate_record(value, hours=hour, **changes) for hour, value in enumerate(values))


def today(value, spread=0.001):
    return Samples("latency", tuple(value * (1 + spread * step) for step in range(-4, 5)))


def test_a_series_shows_a_small_difference_when_its_runs_agree(rng):
    values = 0.0025 * np.exp(rng.normal(0, 0.003, 10))
    *earlier, last = gate_series(values)
    ratio, notes = compare_with_record(
        today(last.samples["latency"].median * 1.08), Baseline(last, tuple(earlier))
    )
    assert 1.05 < ratio.low < ratio.value < ratio.high
    assert ratio.value == pytest.approx(1.08)
    assert "10 records" in notes[0]


def test_one_record_shows_only_what_exceeds_ten_percent():
    for factor, is_shown in ((1.09, False), (1.15, True), (0.95, False), (0.85, True)):
        ratio, notes = compare_with_record(today(0.0025 * factor), Baseline(gate_record()))
        assert (ratio.low > 1 or ratio.high < 1) is is_shown
        assert "minimum effect 10%" in notes[0]


def test_the_interval_covers_what_it_says(rng):
    """Runs that differ by chance: 95% of the intervals hold 1, within three standard errors."""
    trials, held = 300, 0
    for _ in range(trials):
        values = 0.0025 * np.exp(rng.normal(0, 0.02, 9))
        *earlier, last = gate_series(values[:-1])
        found, _ = compare_with_record(today(values[-1], 0.0), Baseline(last, tuple(earlier)))
        held += found.low <= 1 <= found.high
    assert held / trials >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)


def test_a_noisy_run_widens_the_interval():
    quiet, _ = compare_with_record(today(0.0025), Baseline(gate_record()))
    noisy, _ = compare_with_record(today(0.0025, 0.15), Baseline(gate_record()))
    assert noisy.high > quiet.high
    assert noisy.low < quiet.low


def test_records_before_a_change_of_level_say_nothing_about_spread(rng):
    values = np.exp(rng.normal(0, 0.002, 20)) * np.repeat([0.004, 0.0025], 10)
    *earlier, last = gate_series(values)
    ratio, notes = compare_with_record(today(0.0025), Baseline(last, tuple(earlier)))
    assert ratio.high < 1.05
    assert "of 10 records" in notes[0]


def test_the_newest_fitting_record_of_a_name_is_taken():
    first, second = gate_series([0.001, 0.002])
    stored = StoredBaselines("a file", (second, first, gate_record(name="other", hours=5)))
    found, reason = stored.of(gate_record(hours=9))
    assert reason == ""
    assert found.record == second
    assert found.earlier == (first,)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"environment": {**ENVIRONMENT, "fingerprint": "ff", "libraries": {"numpy": "2.0.0"}}},
         "machine: numpy 2.4.6 against 2.0.0"),
        ({"settings": settings_of("3.13.1")}, "settings: python"),
        ({"kind": "suite entry"}, "kind: gate against suite entry"),
        ({"name": "other"}, "a file has no record of other; it has: gpt"),
    ],
)  # fmt: skip
def test_unlike_records_are_refused_with_what_differs(changes, reason):
    stored = StoredBaselines("a file", (gate_record(),))
    found, words = stored.of(gate_record(**changes))
    assert found is None
    assert reason in words


def test_a_record_without_times_is_no_baseline():
    stored = StoredBaselines("a file", (gate_record(samples={}),))
    assert stored.of(gate_record())[1].endswith("it has no latency")


def test_the_store_gives_a_record_with_its_series(tmp_path):
    with RecordStore(tmp_path / "records.sqlite") as store:
        hashes = store.add_all([*gate_series([1, 2, 3]), gate_record(name="other")])
        stored = baselines_in_store(store, hashes[1][:10])
    found, _ = stored.of(gate_record())
    assert found.record.hash == hashes[1]
    assert [each.hash for each in found.earlier] == [hashes[0]]  # not those that came later
    assert stored.origin == f"record {hashes[1][:12]}"


def test_a_chosen_record_of_another_target_is_refused():
    stored = StoredBaselines("record x", (gate_record(),), gate_record())
    found, words = stored.of(gate_record(name="other"))
    assert found is None
    assert "name: gpt against other" in words


def test_a_file_gives_its_records_and_names_bad_lines(tmp_path):
    file = tmp_path / "records.jsonl"
    lines = [json.dumps(each.to_dict()) for each in gate_series([1, 2])]
    file.write_text("\n".join([*lines, "", "{broken", "[]"]), "utf-8")
    stored = baselines_in_file(file)
    assert len(stored.records) == 2
    assert "2 lines" in stored.notes[0]
    assert "line 4" in stored.notes[0]


def test_a_file_without_records_is_no_baseline(tmp_path):
    (tmp_path / "empty").write_text("", "utf-8")
    with pytest.raises(SettingError, match=r"holds no record.*it is empty"):
        baselines_in_file(tmp_path / "empty")
    (tmp_path / "python").write_text("import this\n", "utf-8")
    with pytest.raises(SettingError, match=r"holds no record.*line 1: not JSON"):
        baselines_in_file(tmp_path / "python")
    with pytest.raises(SettingError, match="cannot be read"):
        baselines_in_file(tmp_path / "none")


def test_scores_of_a_record_are_compared_example_by_example():
    before = compare_accuracy([1] * 400, [1] * 399 + [0], metric="top-1")
    kept = gate_record(details={"comparison": comparison(accuracy=before).to_dict()})
    now = compare_accuracy([0] * 400, [0] * 400)
    assert stored_scores(kept) == (before.candidate_scores, "top-1")
    found = accuracy_against(kept, now, 0.02)
    assert (found.verdict, found.metric, found.margin) == ("worse", "top-1", 0.02)
    assert accuracy_against(gate_record(), now, 0.02) is None
