import os

import pytest

from tinytorch.measure import environment as disturbance
from tinytorch.measure.environment import CpuTicks, Observation, cpu_ticks, observe
from tinytorch.reporting.quantities import without_numbers


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.5, 0.5), raising=False)
    monkeypatch.setattr(disturbance, "usable_cores", lambda: 2)


def moment(wall=0.0, cpu=0.0, switches=0, stolen=0, total=0):
    return Observation(wall, cpu, switches, CpuTicks(stolen, total))


def doubts(**after):
    return moment(**{"wall": 10.0, "cpu": 9.9, "total": 2000, **after}).doubts_since(moment())


def test_a_quiet_machine_raises_no_doubt():
    assert doubts() == ()


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ({"stolen": 200}, "10% stolen"),
        ({"cpu": 4.0}, "40% of the time"),
        ({"switches": 900}, "900 times"),
    ],
)
def test_each_disturbance_has_its_number(after, words):
    (note,) = doubts(**after)
    assert words in note


def test_a_busy_machine_is_seen_by_its_load(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (7.0, 0, 0), raising=False)
    (note,) = doubts()
    assert "load average 7.0 on 2 cores" in note


def test_several_disturbances_are_one_sentence_that_differs_in_numbers_alone():
    one, other = doubts(cpu=4.0), doubts(switches=900, stolen=200)
    assert len(one) == len(other) == 1
    assert without_numbers(one[0]) == without_numbers(other[0])


def test_too_short_a_time_says_nothing_about_steal():
    assert doubts(stolen=5, total=10) == ()


def test_where_the_system_counts_nothing_there_is_no_doubt(monkeypatch):
    monkeypatch.delattr(os, "getloadavg", raising=False)
    blind = Observation(10.0, 9.9, None, None)
    assert blind.doubts_since(Observation(0.0, 0.0, None, None)) == ()


def test_ticks_are_read_from_the_kernel(tmp_path, monkeypatch):
    file = tmp_path / "stat"
    file.write_text("cpu  10 20 30 40 5 6 7 8 9 10\ncpu0 1 2\n")
    monkeypatch.setattr(disturbance, "STAT_FILE", file)
    assert cpu_ticks() == CpuTicks(stolen=8, total=126)


@pytest.mark.parametrize("content", [None, "", "cpu 1 2 x", "cpu 1 2 3"])
def test_ticks_that_cannot_be_read_are_none(tmp_path, monkeypatch, content):
    file = tmp_path / "stat"
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr(disturbance, "STAT_FILE", file)
    assert cpu_ticks() is None


def test_two_looks_are_in_order():
    first = observe()
    second = observe()
    assert second.wall_s >= first.wall_s
    assert second.cpu_s >= first.cpu_s
    assert isinstance(second.doubts_since(first), tuple)
