import sys

import pytest

from tinytorch.measure import environment as hardware
from tinytorch.measure.environment import (
    Cache,
    cache_levels,
    cpu_model,
    frequency_governor,
    instruction_sets,
)

INTEL = "processor : 0\nmodel name\t: Example CPU @ 2 GHz\nflags\t\t: fpu avx2 fma amx_int8\n"
ARM = "processor : 0\nFeatures : fp asimd asimddp i8mm\n\nModel : Example Board\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Give a function that makes the files of an imaginary machine."""
    monkeypatch.setattr(hardware, "CPU_FILE", tmp_path / "cpuinfo")
    monkeypatch.setattr(hardware, "CPU_TREE", tmp_path / "cpu")
    monkeypatch.setattr(sys, "platform", "linux")

    def make(files):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return make


def cache_files(cpu, index, *, level, kind, size, shared):
    folder = f"cpu/cpu{cpu}/cache/index{index}"
    return {
        f"{folder}/level": f"{level}\n",
        f"{folder}/type": f"{kind}\n",
        f"{folder}/size": f"{size}\n",
        f"{folder}/shared_cpu_list": f"{shared}\n",
    }


def two_cores():
    files = {}
    for cpu in (0, 1):
        files |= cache_files(cpu, 0, level=1, kind="Data", size="32K", shared=cpu)
        files |= cache_files(cpu, 1, level=1, kind="Instruction", size="64K", shared=cpu)
        files |= cache_files(cpu, 2, level=2, kind="Unified", size="1024K", shared=cpu)
        files |= cache_files(cpu, 3, level=3, kind="Unified", size="32M", shared="0-1")
    return files


def test_the_processor_has_a_name(machine):
    machine({"cpuinfo": INTEL})
    assert cpu_model() == "Example CPU @ 2 GHz"


def test_a_board_has_a_name_too(machine):
    machine({"cpuinfo": ARM})
    assert cpu_model() == "Example Board"
    assert instruction_sets() == ("asimd", "asimddp", "i8mm")


def test_only_instructions_that_matter_are_listed(machine):
    machine({"cpuinfo": INTEL})
    assert instruction_sets() == ("avx2", "fma", "amx_int8")


def test_shared_caches_count_once(machine):
    machine(two_cores())
    assert cache_levels() == {
        "L1d": Cache(32 << 10, 64 << 10),
        "L2": Cache(1 << 20, 2 << 20),
        "L3": Cache(32 << 20, 32 << 20),
    }


def test_caches_of_cores_that_we_may_not_use_do_not_count(machine):
    machine(two_cores())
    assert cache_levels(frozenset({1}))["L2"] == Cache(1 << 20, 1 << 20)


def test_the_levels_stand_from_small_to_large(machine):
    machine(two_cores())
    assert list(cache_levels()) == ["L1d", "L2", "L3"]


def test_a_size_that_cannot_be_read_is_left_out(machine):
    machine(cache_files(0, 0, level=2, kind="Unified", size="many", shared="0"))
    assert cache_levels() == {}


def test_the_governor_is_read(machine):
    machine({"cpu/cpu0/cpufreq/scaling_governor": "powersave\n"})
    assert frequency_governor() == "powersave"


def test_a_system_that_says_nothing_is_no_error(machine, monkeypatch):
    monkeypatch.setattr(hardware.platform, "processor", lambda: "")
    assert cpu_model() is None
    assert instruction_sets() == ()
    assert cache_levels() == {}
    assert frequency_governor() is None


def test_a_mac_answers_by_sysctl(machine, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    answers = {"machdep.cpu.brand_string": "Example M1", "hw.l1dcachesize": "65536"}
    monkeypatch.setattr(hardware, "_sysctl", answers.get)
    assert cpu_model() == "Example M1"
    assert cache_levels() == {"L1d": Cache(65536, 65536)}


def test_a_missing_sysctl_is_no_answer(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert hardware._sysctl("hw.l1dcachesize") is None
