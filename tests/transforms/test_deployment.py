"""Does a compressed model fit? The logic of budgets, and what is measured."""

import json
from dataclasses import replace

import numpy as np
import pytest
from example_compressions import deployment
from hypothesis import given
from hypothesis import strategies as st
from small_models import workload
from terminal import shown
from trained_digits import digits_workload

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.resources import Resources
from tinytorch.core.layers import Dropout, Sequential
from tinytorch.errors import CheckpointError, SettingError
from tinytorch.measure import timing
from tinytorch.measure.estimate import INCONCLUSIVE, Estimate
from tinytorch.transforms import deployment as deployment_module
from tinytorch.transforms.compressed_file import save_compressed
from tinytorch.transforms.compression import ModelCompressor
from tinytorch.transforms.deployment import (
    BUDGETS,
    DOES_NOT_FIT,
    FITS,
    NOT_MEASURED,
    VERDICTS,
    deployment_report,
)

NUMBERS = st.floats(0, 1e6)


@given(st.tuples(NUMBERS, NUMBERS).map(sorted), NUMBERS)
def test_an_interval_fits_whole_or_not_at_all_or_is_inconclusive(ends, limit):
    low, high = ends
    verdict = VERDICTS[Estimate(low, low, high).is_below(limit)]
    assert (verdict == FITS) is (high <= limit)
    assert (verdict == DOES_NOT_FIT) is (low > limit)
    assert verdict in (FITS, DOES_NOT_FIT, INCONCLUSIVE)


@given(st.tuples(NUMBERS, NUMBERS).map(sorted), NUMBERS, NUMBERS)
def test_a_larger_budget_never_fits_worse(ends, limit, more):
    order = [DOES_NOT_FIT, INCONCLUSIVE, FITS]
    before, after = (
        VERDICTS[Estimate(ends[0], *ends).is_below(each)] for each in (limit, limit + more)
    )
    assert order.index(after) >= order.index(before)


@given(NUMBERS, NUMBERS)
def test_what_is_known_exactly_is_always_decided(value, limit):
    assert VERDICTS[Estimate.counted(value).is_below(limit)] in (FITS, DOES_NOT_FIT)


def verdicts(found):
    return {check.name: check.verdict for check in found.checks if check.limit is not None}


def test_megabytes_are_powers_of_two():
    assert verdicts(deployment({"flash_mb": 3, "memory_mb": 0.99})) == {
        "flash_mb": FITS,
        "memory_mb": DOES_NOT_FIT,
    }


def test_an_interval_that_straddles_the_budget_shows_nothing():
    found = deployment({"load_ms": 10.5})
    assert verdicts(found) == {"load_ms": INCONCLUSIVE}
    assert found.verdict == INCONCLUSIVE
    check = next(each for each in found.checks if each.name == "load_ms")
    assert check.found.value == pytest.approx(10)
    assert check.found.low < 10.5 < check.found.high


def test_the_lost_score_is_judged_by_its_bounds():
    accuracy = deployment({}).accuracy
    assert accuracy.difference == pytest.approx(-1 / 2000)
    assert verdicts(deployment({"accuracy_drop": 0.01}))["accuracy_drop"] == FITS
    assert verdicts(deployment({"accuracy_drop": 0.0005}))["accuracy_drop"] == INCONCLUSIVE
    lost = compare_accuracy([1] * 500, [1, 0] * 250)
    found = deployment({"accuracy_drop": 0.01}, accuracy=lost)
    assert verdicts(found) == {"accuracy_drop": DOES_NOT_FIT}


def test_scores_that_are_no_numbers_do_not_fit():
    broken = compare_accuracy([1, 0] * 50, [float("nan")] * 100)
    found = deployment({"accuracy_drop": 0.5}, accuracy=broken)
    assert verdicts(found) == {"accuracy_drop": DOES_NOT_FIT}
    assert json.loads(json.dumps(found.to_dict()))["verdict"] == DOES_NOT_FIT


def test_what_was_not_measured_does_not_pass():
    found = deployment(
        {"latency_ms": 100, "flash_mb": 100},
        latency=None,
        not_measured={"latency_ms": "the model cannot be called"},
    )
    assert verdicts(found) == {"flash_mb": FITS, "latency_ms": NOT_MEASURED}
    assert found.verdict == INCONCLUSIVE
    check = next(each for each in found.checks if each.name == "latency_ms")
    assert check.reason == "the model cannot be called"


def test_one_broken_budget_is_enough():
    assert deployment({"flash_mb": 1, "load_ms": 10.5}).verdict == DOES_NOT_FIT
    assert deployment({"flash_mb": 3, "latency_ms": 2.1}).verdict == FITS


def test_without_a_budget_nothing_is_judged():
    assert deployment({}).verdict == ""
    assert deployment({}).to_dict()["verdict"] == ""
    assert repr(deployment({})) == "Deployment(mlp, 3,145,728 bytes instead of 31,457,280)"


def test_a_deployment_is_one_short_line():
    assert str(deployment({"flash_mb": 3})).endswith("instead of 31,457,280, fits)")


def test_budgets_may_be_numbers_of_numpy():
    found = deployment_report(
        replace(workload("mlp"), inputs=(), calibration=()), budgets={"flash_mb": np.float32(9)}
    )
    assert found.verdict == FITS
    assert json.dumps(found.to_dict()["budgets"]) == '{"flash_mb": 9.0}'


# ---------------------------------------------------------------- measured


@pytest.mark.parametrize(("on_device", "why"), [(None, "no peak"), (40, "weights are packed")])
def test_memory_that_is_not_known_has_its_own_reason(monkeypatch, on_device, why):
    missing = {"peak_bytes": "no peak", "parameter_bytes": "weights are packed"}
    found = Resources(device_peak_bytes=on_device, not_measured=missing)
    monkeypatch.setattr(deployment_module, "measure_resources", lambda workload: found)
    report = deployment_report(workload("mlp"), budgets={"memory_mb": 1}, budget_s=0.01)
    assert report.not_measured["memory_mb"] == why


def test_everything_is_measured_on_the_file(tmp_path):
    result = ModelCompressor(0.5, 8).compress(digits_workload())
    generous = {"flash_mb": 1, "load_ms": 1e6, "latency_ms": 1e6, "memory_mb": 100,
                "accuracy_drop": 0.5}  # fmt: skip
    found = deployment_report(digits_workload(), result, budgets=generous, budget_s=0.02)
    assert found.file_bytes == result.file_bytes
    assert found.original_bytes == result.original_bytes
    assert 3 <= found.load.count <= 11
    assert found.load.minimum > 0
    assert found.latency.minimum > 0
    assert found.peak_bytes > 4 * 64 * 48
    assert found.accuracy.candidate_scores == result.accuracy.candidate_scores
    assert found.verdict == FITS
    assert json.loads(json.dumps(found.to_dict()))["checks"][0]["name"] == "flash_mb"
    result.save(tmp_path / "small", {"made": "here"})
    again = deployment_report(digits_workload(), tmp_path / "small", budget_s=0.02)
    assert again.file_bytes == (tmp_path / "small").stat().st_size


def test_a_model_of_its_own_is_written_first(tmp_path):
    found = deployment_report(digits_workload(), budgets={"flash_mb": 1e-6}, budget_s=0.02)
    assert found.file_bytes == save_compressed(tmp_path / "own", digits_workload().model)
    assert found.accuracy.difference == 0
    assert found.verdict == DOES_NOT_FIT


def test_a_workload_without_data_has_reasons():
    bare = replace(workload("mlp"), inputs=(), calibration=())
    found = deployment_report(bare, budgets={"latency_ms": 1, "accuracy_drop": 0.01})
    assert found.load is found.latency is found.peak_bytes is found.accuracy is None
    assert found.not_measured.keys() == set(BUDGETS) - {"flash_mb"}
    assert "no inputs" in found.not_measured["load_ms"]
    assert "no evaluate()" in found.not_measured["accuracy_drop"]
    for reason in found.not_measured.values():
        assert reason in shown(found, 100)  # whole, beside its row


def test_unknown_budgets_are_refused_with_the_known_ones():
    with pytest.raises(SettingError, match=r"unknown budget 'ram'; there are flash_mb, load_ms"):
        deployment_report(workload("mlp"), budgets={"ram": 1})


@pytest.mark.parametrize("limit", [-1, float("nan"), float("inf"), "10", True, None])
def test_budgets_are_numbers(limit):
    with pytest.raises(SettingError, match="the budget flash_mb is a number"):
        deployment_report(workload("mlp"), budgets={"flash_mb": limit})


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(SettingError, match="the result of a ModelCompressor, or the path"):
        deployment_report(workload("mlp"), 5)
    with pytest.raises(SettingError, match="a report is made for a Workload"):
        deployment_report(workload("mlp").model)
    with pytest.raises(CheckpointError, match="there is no weights file"):
        deployment_report(workload("mlp"), tmp_path / "nothing")


def test_the_result_of_another_model_is_refused_without_a_path_that_nobody_knows(tmp_path):
    result = ModelCompressor(0.5, 8).compress(workload("mlp"))
    with pytest.raises(CheckpointError, match=r"^what was compressed does not fit") as caught:
        deployment_report(workload("cnn"), result)
    assert "tinytorch-" not in str(caught.value)
    result.save(tmp_path / "mine")
    with pytest.raises(CheckpointError, match="mine does not fit"):
        deployment_report(workload("cnn"), tmp_path / "mine")


def slow_loads(monkeypatch, seconds):
    """Let every reading of the clock be that many seconds after the one before."""
    now = iter(np.arange(1, 10_000) * seconds)
    monkeypatch.setattr(timing, "perf_counter", lambda: float(next(now)))


def test_a_file_that_loads_slowly_is_loaded_less_often(monkeypatch):
    loads = []
    load = deployment_module.load_compressed

    def counted(*arguments, **settings):
        loads.append(arguments)
        return load(*arguments, **settings)

    monkeypatch.setattr(deployment_module, "load_compressed", counted)
    slow_loads(monkeypatch, 10.0)
    found = deployment_report(digits_workload(), budget_s=1.0)
    assert (found.load.count, len(loads)) == (3, 4)
    note = next(note for note in found.notes if "3 times of 11" in note)
    assert "75%, not 95%" in note  # 1 - 2 / 2**3


def test_the_baseline_is_not_evaluated_in_training_mode():
    case = digits_workload()
    model = Sequential(*case.model.layers[:2], Dropout(0.9, rng=0), *case.model.layers[2:]).train()
    found = deployment_report(replace(case, model=model), budget_s=0.01)
    assert found.accuracy.baseline_scores == found.accuracy.candidate_scores
    assert found.accuracy.baseline_mean == case.evaluate(case.model).mean()
    assert model.training
    assert model.layers[2].training


def test_a_deployment_shows_itself():
    found = deployment({"flash_mb": 10})
    assert "It fits" in found._repr_html_()
    assert "It fits: the budget is kept." in shown(found)
