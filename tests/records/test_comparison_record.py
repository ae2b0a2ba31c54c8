import math

import pytest
from example_comparisons import comparison, with_evidence
from example_records import ENVIRONMENT

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.comparison import Comparison
from tinytorch.comparison.resources import Resources
from tinytorch.measure.interleaving import Pace
from tinytorch.records.record import Record, comparison_record, comparison_samples

SETTINGS = {"baseline": "mlp", "candidate": "cnn"}


def record(found, **changes):
    return comparison_record(found, name="cnn against mlp", settings=SETTINGS, **changes)


def test_a_record_gives_the_comparison_back():
    found = with_evidence()
    read = Record.from_dict(record(found).to_dict())
    assert Comparison.from_dict(read.details["comparison"]) == found


def test_the_ratio_of_every_round_is_kept():
    samples = comparison_samples(comparison(0.8, n=7))
    assert samples["time ratio"].count == 7
    assert samples["time ratio"].median == pytest.approx(0.8)
    assert samples["latency"].median == pytest.approx(8e-4)
    assert samples["baseline latency"].median == pytest.approx(1e-3)


def test_each_side_is_kept_under_its_name_with_its_own_loops():
    pace = Pace((7, 30), 3, 0, 0.02, (1e-3, 2e-4))
    samples = comparison_samples(comparison(0.2, pace=pace))
    assert all(name == each.name for name, each in samples.items())
    assert samples["baseline latency"].loops == 7
    assert samples["latency"].loops == 30


def test_what_the_candidate_needs_is_kept_where_it_is_known():
    samples = comparison_samples(with_evidence())
    assert samples["peak memory"].values == (4096.0,)
    assert samples["throughput"].median == pytest.approx(10_000)
    assert samples["energy"].unit == "J"
    assert samples["accuracy"].median == pytest.approx(0.75125)
    assert "file size" not in samples


def test_an_accuracy_that_is_no_number_is_left_out():
    failed = compare_accuracy([1.0] * 9, [math.nan] * 9)
    assert "accuracy" not in comparison_samples(comparison(accuracy=failed))


def test_the_time_that_it_took_is_no_setting():
    quick, long = (record(comparison(seconds_used=seconds)) for seconds in (0.1, 9.0))
    assert quick.settings_key == long.settings_key
    assert quick.settings == {**SETTINGS, "clock": "wall"}


def test_the_environment_is_that_of_the_comparison(tmp_path):
    assert record(comparison()).environment == ENVIRONMENT
    assert record(comparison(), folder=tmp_path).commit is None


def test_cold_caches_and_kinds_of_devices_are_settings():
    assert record(comparison(cache="cold")).settings["cache"] == "cold"
    devices = {"cuda:0": {"name": "H200", "looks": 3}}
    found = record(comparison(environment={**ENVIRONMENT, "devices": devices}))
    assert found.settings["devices"] == {"cuda:0": "H200"}
    assert found.settings_key != record(comparison()).settings_key


def test_memory_of_a_device_is_a_series_of_its_own():
    both = (Resources(device_peak_bytes=10), Resources(device_peak_bytes=20))
    samples = comparison_samples(comparison(resources=both))
    assert samples["peak device memory"].values == (20.0,)
