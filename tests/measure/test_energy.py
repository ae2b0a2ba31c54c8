import math
from dataclasses import dataclass, field

import pytest

from tinytorch.errors import MeasurementError, SettingError
from tinytorch.measure import energy
from tinytorch.measure.energy import (
    MICRO,
    EnergyMeter,
    find_energy_meters,
    find_rapl,
    measure_energy,
)

RANGE = 262_143_328_850


def add_domain(root, folder, name, energy_uj, range_uj=RANGE):
    (root / folder).mkdir(parents=True)
    files = {"name": name, "energy_uj": energy_uj, "max_energy_range_uj": range_uj}
    for file, content in files.items():
        (root / folder / file).write_text(f"{content}\n")


@dataclass
class Counting:
    """A meter that goes up by what it is told with each reading."""

    steps: list
    name: str = "counting"
    seen: list = field(default_factory=lambda: [0])

    def read(self):
        self.seen.append(self.seen[-1] + self.steps[(len(self.seen) - 1) % len(self.steps)])
        return self.seen[-1]

    def joules_between(self, before, after):
        return float(after - before)


# ---------------------------------------------------------------- RAPL


def test_packages_are_found_and_their_parts_are_not(tmp_path):
    add_domain(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    add_domain(tmp_path, "intel-rapl:0:0", "core", 1)
    add_domain(tmp_path, "intel-rapl:0:1", "dram", 1)
    add_domain(tmp_path, "intel-rapl:1", "package-1", 7)
    add_domain(tmp_path, "intel-rapl:2", "psys", 1)
    add_domain(tmp_path, "intel-rapl-mmio:0", "package-0", 1)
    (tmp_path / "dtpm").mkdir()
    meters, reasons = find_rapl(tmp_path)
    assert [meter.name for meter in meters] == ["RAPL package-0", "RAPL package-1"]
    assert [meter.read() for meter in meters] == [5_000_000, 7]
    assert reasons == ()


def test_microjoules_become_joules():
    meter = EnergyMeter("x", int, MICRO, RANGE)
    assert meter.joules_between(1_000_000, 3_500_000) == pytest.approx(2.5)


def test_a_counter_that_begins_again_loses_nothing():
    meter = EnergyMeter("x", int, MICRO, RANGE)
    assert meter.joules_between(RANGE - 1_000_000, 500_000) == pytest.approx(1.5)


def test_a_machine_without_counters_says_so(tmp_path):
    for root in (tmp_path, tmp_path / "nothing"):
        meters, (reason,) = find_rapl(root)
        assert meters == ()
        assert "there is no package" in reason


def test_a_counter_for_root_only_is_named(tmp_path, monkeypatch):
    add_domain(tmp_path, "intel-rapl:0", "package-0", 1)

    def refuse(path):
        raise PermissionError

    monkeypatch.setattr(energy, "_number", refuse)
    meters, (reason,) = find_rapl(tmp_path)
    assert meters == ()
    assert "may be read by root only" in reason


def test_one_package_that_cannot_be_read_leaves_none(tmp_path):
    add_domain(tmp_path, "intel-rapl:0", "package-0", 1)
    add_domain(tmp_path, "intel-rapl:1", "package-1", "nonsense")
    meters, (reason,) = find_rapl(tmp_path)
    assert meters == ()
    assert "intel-rapl:1 cannot be read" in reason


# ---------------------------------------------------------------- devices


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "mps"])
def test_every_device_has_meters_or_reasons(device):
    meters, reasons = find_energy_meters(device)
    assert bool(meters) != bool(reasons)
    assert all(isinstance(reason, str) for reason in reasons)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_the_real_counters_count(device):
    meters, reasons = find_energy_meters(device)
    if not meters:
        pytest.skip("; ".join(reasons))
    samples = measure_energy(lambda: sum(range(1000)), meters=meters, seconds=2.0, windows=1)
    assert samples.median > 0


# ---------------------------------------------------------------- measuring


@pytest.fixture
def short(monkeypatch):
    """Calibrate with one call, so that tests are quick."""
    monkeypatch.setattr(energy, "CALIBRATION_S", 0.0)


def test_all_meters_are_added_up_and_shared_by_the_calls(short):
    meters = (Counting([30]), Counting([12], name="other"))
    samples = measure_energy(lambda: None, meters=meters, seconds=0.001, windows=3, name="f")
    assert samples.values == pytest.approx([42 / samples.loops] * 3)
    assert (samples.unit, samples.name) == ("J", "f")
    assert "counting, other" in samples.notes[0]
    assert "idle" in samples.notes[0]


def test_every_window_has_the_same_calls(short):
    calls = []
    samples = measure_energy(
        lambda: calls.append(1), meters=(Counting([1]),), seconds=0.001, windows=2
    )
    assert len(calls) == 2 * samples.loops + 2  # one to warm up, one to calibrate


def test_a_device_is_waited_for_before_the_counter_is_read(short):
    events = []
    meter = Counting([1])
    read = meter.read
    meter.read = lambda: events.append("read") or read()
    measure_energy(
        lambda: events.append("call"),
        meters=(meter,),
        seconds=1e-9,
        windows=1,
        wait=lambda: events.append("wait"),
    )
    assert events == ["call", "wait", "call", "wait", "read", "call", "wait", "read"]


def test_a_long_calibration_counts_all_its_calls(monkeypatch):
    moments = iter([0.0, 0.01, 0.03, 0.07])  # one call, then two, then four: seven in 0.07 s
    monkeypatch.setattr(energy, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(energy, "CALIBRATION_S", 0.05)
    samples = measure_energy(lambda: None, meters=(Counting([1]),), seconds=0.2, windows=2)
    assert samples.loops == 10


def test_what_a_call_takes_is_not_measured_where_it_is_known():
    calls = []
    found = measure_energy(
        lambda: calls.append(1), meters=[Counting([1])], seconds=1.0, windows=2, call_s=0.8
    )
    assert (len(calls), found.count, found.loops) == (2, 2, 1)


def test_counters_that_never_move_measure_nothing(short):
    with pytest.raises(MeasurementError, match="did not move in 4 windows"):
        measure_energy(lambda: None, meters=(Counting([0]),), seconds=1e-9)


def test_counters_that_sometimes_move_are_named(short):
    # Readings come in pairs: the first step of each is before the window.
    meter = Counting([0, 5, 0, 0])
    samples = measure_energy(lambda: None, meters=(meter,), seconds=1e-9, windows=2)
    assert "did not move in 1 of 2 windows" in samples.notes[-1]


def test_a_counter_that_vanishes_gives_no_number(short, tmp_path):
    add_domain(tmp_path, "intel-rapl:0", "package-0", 1)
    meters, _ = find_rapl(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    with pytest.raises(MeasurementError, match="RAPL package-0 cannot be read any more"):
        measure_energy(lambda: None, meters=meters, seconds=1e-9)


@pytest.mark.parametrize(
    "settings", [{"meters": ()}, {"seconds": 0.0}, {"seconds": math.nan}, {"windows": 0}]
)
def test_settings_that_measure_nothing_are_refused(settings):
    with pytest.raises(SettingError):
        measure_energy(lambda: None, **{"meters": (Counting([1]),), **settings})
