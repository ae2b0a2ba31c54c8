import dataclasses
import json
from datetime import UTC, datetime, timedelta

import pytest
from measure.imaginary import GIB, KIB, MIB, bandwidth, ceilings, environment, rate
from parts import require_part

from tinytorch.errors import BackendError, MissingPartError, SettingError
from tinytorch.measure import ceilings as module
from tinytorch.measure import ceilings_cpu
from tinytorch.measure.ceilings import Ceilings, machine_ceilings, measure_ceilings, measuring_steps
from tinytorch.measure.samples import Samples


def test_the_peak_is_that_of_the_best_library():
    both = ceilings(rates=(rate("float32", 200e9), rate("float32", 300e9, "torch")))
    assert both.peak_flops("float32") == pytest.approx(300e9, rel=0.02)
    assert both.peak_flops("int8") is None


def test_a_ceiling_is_what_the_best_tenth_reached():
    slowed = dataclasses.replace(
        rate("float32", 1.0), samples=Samples("x", (1.0,) * 8 + (10.0, 10.0), "FLOP/s")
    )
    assert slowed.ceiling == 10
    assert slowed.median == 1
    assert slowed.best == 10


@pytest.mark.parametrize(
    ("working_set", "level", "expected"),
    [
        (0, "L1", 400e9),
        (64 * KIB, "L1", 400e9),
        (64 * KIB + 1, "L2", 200e9),
        (30 * MIB, "L3", 150e9),
        (GIB, "DRAM", 40e9),
        (None, "DRAM", 40e9),
    ],
)
def test_the_smallest_level_that_holds_the_working_set_counts(working_set, level, expected):
    assert ceilings().level(working_set) == level
    assert ceilings().bandwidth(working_set) == expected


def test_a_level_that_was_not_measured_is_passed_over():
    without = ceilings(bandwidths=ceilings().bandwidths[1:])
    assert without.level(1 * KIB) == "L2"


def test_the_bandwidth_is_the_faster_of_reading_and_copying():
    assert ceilings(bandwidths=(bandwidth("HBM", 100.0, copy=1.5),)).bandwidth() == 150
    only_copy = dataclasses.replace(bandwidth("HBM", 100.0), read=None)
    assert ceilings(bandwidths=(only_copy,)).bandwidth() == 80


def test_the_ridge_is_peak_over_bandwidth():
    found = ceilings()
    assert found.ridge("float32") == pytest.approx(found.peak_flops("float32") / 40e9)
    assert found.ridge("float32", 1 * KIB) == pytest.approx(found.peak_flops("float32") / 400e9)
    assert found.ridge("int8") is None


def test_a_negative_working_set_is_refused():
    with pytest.raises(SettingError, match="working_set_bytes=-1"):
        ceilings().bandwidth(-1)


def test_ceilings_without_a_bandwidth_are_refused():
    with pytest.raises(SettingError, match="without a bandwidth"):
        ceilings(bandwidths=())


def test_ceilings_survive_json():
    one = ceilings(notes=("a",), disturbances=("b",))
    assert Ceilings.from_dict(json.loads(json.dumps(one.to_dict(), allow_nan=False))) == one


def test_a_second_measurement_only_raises_ceilings():
    first = ceilings(disturbances=("busy",))
    second = ceilings(
        rates=(rate("float32", 300e9), rate("float64", 50e9), rate("int8", 9e9, "torch")),
        bandwidths=(bandwidth("L1", 1e9, 64 * KIB), bandwidth("DRAM", 60e9)),
    )
    best = first.improved_by(second)
    assert best.peak_flops("float32") == pytest.approx(300e9, rel=0.02)
    assert best.peak_flops("float64") == pytest.approx(100e9, rel=0.02)
    assert best.peak_flops("int8") == pytest.approx(9e9, rel=0.02)
    assert (best.bandwidth(1), best.bandwidth()) == (400e9, 60e9)
    assert best.disturbances == ()


def minutes_ago(minutes):
    return (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()


def test_doubt_comes_with_disturbance_and_age():
    assert not ceilings(measured_at=minutes_ago(9999)).is_doubtful
    assert not ceilings(measured_at=minutes_ago(1), disturbances=("busy",)).is_doubtful
    for unclear in (minutes_ago(15), "yesterday", "2024-05-06"):
        assert ceilings(measured_at=unclear, disturbances=("busy",)).is_doubtful


def test_a_machine_that_is_never_quiet_is_left_in_peace_ever_longer():
    found = ceilings(measured_at=minutes_ago(15), disturbances=("busy",))
    again = found.improved_by(found)
    assert again.attempts == 2
    assert not again.is_doubtful
    tired = ceilings(measured_at=minutes_ago(25 * 60), disturbances=("busy",), attempts=999)
    assert tired.is_doubtful


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TINYTORCH_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_known", {})
    torch_is(monkeypatch, imported=False)
    return tmp_path


def torch_is(monkeypatch, *, imported):
    for place in (module, ceilings_cpu):
        monkeypatch.setattr(place, "torch_is_imported", lambda: imported)


@pytest.fixture
def measured(monkeypatch, cache):
    """Replace measuring, and give the list of devices that it was asked for."""
    asked = []

    def measure(device, *, progress=None, **_):
        asked.append(device)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return ceilings(device=device, measured_at=now)

    monkeypatch.setattr(module, "measure_ceilings", measure)
    return asked


class Watcher:
    """Somebody who remembers what was told."""

    def __init__(self):
        self.told, self.done = [], 0

    def describe(self, text):
        self.told.append(text)

    def advance(self, steps=1):
        self.done += steps


def forget(monkeypatch):
    monkeypatch.setattr(module, "_known", {})


def test_a_machine_is_measured_once(measured, monkeypatch):
    first = machine_ceilings()
    forget(monkeypatch)  # as another process would
    assert machine_ceilings() == first
    assert measured == ["cpu"]


def test_refresh_measures_again(measured):
    machine_ceilings()
    machine_ceilings(refresh=True)
    assert measured == ["cpu", "cpu"]


def test_another_environment_is_another_machine(measured, monkeypatch):
    machine_ceilings()
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    machine_ceilings()
    assert measured == ["cpu", "cpu"]


def test_a_spoiled_file_is_measured_again(measured, cache, monkeypatch):
    machine_ceilings()
    forget(monkeypatch)
    (file,) = cache.glob("*.json")
    file.write_text("{")
    machine_ceilings()
    assert measured == ["cpu", "cpu"]


def test_a_folder_that_cannot_be_written_is_a_note_and_measured_once(measured, cache, monkeypatch):
    (cache / "file").write_text("")
    monkeypatch.setenv("TINYTORCH_CACHE", str(cache / "file" / "below"))
    found = machine_ceilings()
    assert any("not kept for the next time" in note for note in found.notes)
    assert machine_ceilings() == found
    assert measured == ["cpu"]


def test_doubtful_ceilings_are_measured_again_and_only_rise(measured, monkeypatch):
    machine_ceilings()
    (path,) = module._known
    doubtful = ceilings(
        disturbances=("busy",), rates=(rate("float32", 500e9), rate("float64", 1e9))
    )
    monkeypatch.setattr(module, "_known", {path: doubtful})
    found = machine_ceilings()
    assert measured == ["cpu", "cpu"]
    assert found.peak_flops("float32") == pytest.approx(500e9, rel=0.02)
    assert found.peak_flops("float64") == pytest.approx(100e9, rel=0.02)


def test_what_torch_adds_is_measured_once_torch_is_there(measured, monkeypatch):
    added = []

    def add(found, *, seconds, progress):
        added.append(seconds)
        return dataclasses.replace(found, rates=(*found.rates, rate("int8", 9e9, "torch")))

    monkeypatch.setattr(ceilings_cpu, "add_torch_rates", add)
    assert machine_ceilings().peak_flops("int8") is None
    torch_is(monkeypatch, imported=True)
    for _ in range(2):
        assert machine_ceilings().peak_flops("int8") == pytest.approx(9e9, rel=0.02)
    forget(monkeypatch)
    assert machine_ceilings().has_library("torch")
    assert (len(added), measured) == (1, ["cpu"])


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "tpu:0", "CPU"])
def test_an_unknown_device_is_refused(cache, device):
    with pytest.raises(SettingError, match="it must be cpu, cuda or cuda:N"):
        machine_ceilings(device)
    with pytest.raises(SettingError, match="it must be cpu, cuda or cuda:N"):
        measure_ceilings(device)
    with pytest.raises(SettingError, match="it must be cpu, cuda or cuda:N"):
        measuring_steps(device)


def test_cuda_without_torch_names_the_extra(cache, monkeypatch):
    monkeypatch.setattr(module.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPartError, match=r"pip install '\.\[torch\]'"):
        machine_ceilings("cuda")


def test_a_cuda_device_that_is_not_there_is_a_clear_error(cache):
    torch = require_part("torch")
    missing = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(BackendError, match=f"device '{missing}'"):
        machine_ceilings(missing)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_no_time_is_refused(seconds):
    with pytest.raises(SettingError, match="seconds="):
        measure_ceilings(seconds=seconds)


def test_a_real_measurement_tells_what_it_does(cache, monkeypatch):
    monkeypatch.setattr(ceilings_cpu, "ROUNDS", 1)
    monkeypatch.setattr(ceilings_cpu, "describe_environment", environment)
    monkeypatch.setattr(ceilings_cpu, "SIZES", (64,))
    watcher = Watcher()
    found = measure_ceilings(seconds=0.1, progress=watcher)
    assert watcher.done == len(watcher.told) - 1  # the last one ends with the measurement
    assert len(watcher.told) <= measuring_steps()
    assert found.bandwidths[-1].level == "DRAM"
    assert min(rate.median for rate in found.rates) > 0
    assert {"int8 rate", "float16 rate", "bfloat16 rate"} <= set(found.not_measured)


def test_what_was_measured_before_is_not_called_missing_afterwards():
    with_torch = ceilings(rates=(rate("float32", 1e9), rate("int8", 1e9, "torch")))
    best = with_torch.improved_by(ceilings())
    assert best.peak_flops("int8") is not None
    assert best.not_measured == {}


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_ceilings_that_are_not_above_zero_are_refused(value):
    with pytest.raises(SettingError, match="not above 0"):
        ceilings(bandwidths=(bandwidth("L1", value),))
    with pytest.raises(SettingError, match="not above 0"):
        ceilings(rates=(rate("float32", value),))
