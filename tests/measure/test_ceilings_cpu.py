import sys

import pytest
from measure.imaginary import GIB, KIB, MIB, ceilings, environment, rate
from parts import require_part

from tinytorch.measure import ceilings_cpu
from tinytorch.measure import ceilings_cpu as bandwidth
from tinytorch.measure.ceilings_cpu import (
    Level,
    Steps,
    add_torch_rates,
    choose_kernels,
    count_steps,
    measure_cpu,
    memory_levels,
    numpy_kernels,
    numpy_rates,
    probe_bandwidths,
)
from tinytorch.measure.environment import Cache


def ignore(text):
    pass


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(bandwidth, "BLOCK_S", 1e-4)
    monkeypatch.setattr(ceilings_cpu, "ROUNDS", 2)
    monkeypatch.setattr(ceilings_cpu, "MOST_OVERTIME", 1e6)


def test_half_of_each_cache_is_touched_and_four_times_the_last():
    caches = {"L1d": Cache(32 * KIB, 64 * KIB), "L3": Cache(32 * MIB, 32 * MIB)}
    levels = memory_levels(environment(caches=caches, memory_bytes=64 * GIB))
    assert levels == [
        Level("L1", 32 * KIB, 64 * KIB),
        Level("L3", 16 * MIB, 32 * MIB),
        Level("DRAM", 128 * MIB, None),
    ]


@pytest.mark.parametrize(
    ("last_cache", "memory", "expected"),
    [
        (256 * MIB, 64 * GIB, 512 * MIB),  # at most 512 MiB ...
        (512 * MIB, 64 * GIB, GIB),  # ... but well beyond the cache
        (32 * MIB, 512 * MIB, 64 * MIB),  # and never much of a small memory
        (32 * MIB, None, 128 * MIB),
    ],
)
def test_the_memory_behind_is_touched_within_reason(last_cache, memory, expected):
    caches = {"L3": Cache(last_cache, last_cache)}
    levels = memory_levels(environment(caches=caches, memory_bytes=memory))
    assert levels[-1] == Level("DRAM", expected, None)


def test_with_few_threads_only_the_caches_that_they_can_reach_count():
    caches = {"L1d": Cache(32 * KIB, 64 * 32 * KIB), "L3": Cache(32 * MIB, 8 * 32 * MIB)}
    levels = memory_levels(environment(caches=caches, threads_in_force=4, memory_bytes=64 * GIB))
    assert [level.capacity_bytes for level in levels] == [4 * 32 * KIB, 4 * 32 * MIB, None]


def test_without_known_caches_only_the_memory_is_measured(quick):
    unknown = environment(caches={})
    bandwidths, missing = probe_bandwidths(unknown, budget_s=0.01, advance=ignore)
    assert [each.level for each in bandwidths] == ["DRAM"]
    assert "does not say how large" in missing["cache bandwidth"]


def test_every_level_is_visited_in_every_round(quick):
    require_part("numba")
    told = []
    bandwidths, missing = probe_bandwidths(environment(), budget_s=0.01, advance=told.append)
    assert [each.level for each in bandwidths] == ["L1", "L2", "DRAM"]
    assert told == ["L1 bandwidth", "L2 bandwidth", "DRAM bandwidth"] * 2
    assert missing == {}
    for each in bandwidths:
        assert each.threads == 2
        assert each.read.count == each.copy.count == 4
        assert min(each.read.minimum, each.copy.minimum) > 0
        assert each.read.unit == "B/s"


def test_a_machine_that_is_too_slow_is_visited_once(quick, monkeypatch):
    monkeypatch.setattr(bandwidth, "MOST_OVERTIME", 0.0)
    told = []
    bandwidths, _ = probe_bandwidths(environment(), budget_s=0.01, advance=told.append)
    assert told == [f"{each.level} bandwidth" for each in bandwidths]
    assert all(each.ceiling > 0 for each in bandwidths)


def test_bandwidth_is_probed_with_the_threads_in_force(quick):
    machine = environment(usable_cores=2, threads_in_force=1, caches={})
    bandwidths, _ = probe_bandwidths(machine, budget_s=0.01, advance=ignore)
    assert [each.threads for each in bandwidths] == [1]


def test_without_numba_small_caches_are_not_measured_and_the_reason_is_given(quick, monkeypatch):
    monkeypatch.setattr(ceilings_cpu, "choose_kernels", lambda: (numpy_kernels(), "no numba"))
    caches = {"L1d": Cache(32 * KIB, 64 * KIB), "L3": Cache(8 * MIB, 8 * MIB)}
    machine = environment(caches=caches, memory_bytes=128 * MIB)
    bandwidths, missing = probe_bandwidths(machine, budget_s=0.01, advance=ignore)
    assert [each.level for each in bandwidths] == ["L3", "DRAM"]
    assert missing == {
        "L1 bandwidth": "no numba, and calling NumPy takes too long beside so little memory"
    }


def test_a_missing_numba_gives_way_to_numpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    ceilings_cpu._compiled.cache_clear()
    kernels, reason = choose_kernels()
    assert kernels.library == "numpy"
    assert reason.startswith("numba cannot be imported")


def test_numpy_multiplies_two_dtypes(monkeypatch):
    monkeypatch.setattr(ceilings_cpu, "SIZES", (32, 64))
    told = []
    rates = numpy_rates(budget_s=0.02, advance=told.append)
    assert [(rate.dtype, rate.library) for rate in rates] == [
        ("float32", "numpy"),
        ("float64", "numpy"),
    ]
    assert min(rate.samples.minimum for rate in rates) > 0
    assert told == ["NumPy float32 rate", "NumPy float64 rate"]


def test_torch_takes_the_place_of_what_numpy_lacks(monkeypatch):
    require_part("torch")
    from tinytorch.measure import ceilings_torch

    monkeypatch.setattr(ceilings_torch, "CPU_SIZES", (32,))
    monkeypatch.setattr(ceilings_torch, "CPU_DTYPES", ("float32", "int8", "no_such_dtype"))
    bare = ceilings(not_measured={**ceilings_cpu.NOT_NUMPY, "L1 bandwidth": "no numba"})
    found = add_torch_rates(bare, seconds=0.1, progress=None)
    assert found.has_library("torch")
    assert found.peak_flops("int8") > 0
    assert set(found.not_measured) == {"L1 bandwidth", "no_such_dtype rate"}


@pytest.fixture
def tiny_torch(quick, monkeypatch):
    """Let a whole measurement, PyTorch's part included, take no time."""
    require_part("torch")
    from tinytorch.measure import ceilings_torch

    monkeypatch.setattr(ceilings_cpu, "SIZES", (32,))
    monkeypatch.setattr(ceilings_torch, "CPU_SIZES", (32,))
    monkeypatch.setattr(ceilings_torch, "CPU_DTYPES", ("float32",))
    monkeypatch.setattr(ceilings_cpu, "torch_is_imported", lambda: True)
    monkeypatch.setattr(ceilings_cpu, "describe_environment", lambda: environment(caches={}))


@pytest.mark.parametrize(
    ("threads_of_blas", "physical_cores", "libraries"),
    [(2, 2, ["numpy", "torch"]), (4, 4, ["torch"]), (4, 2, ["numpy", "torch"])],
)
def test_numpy_is_no_ceiling_for_a_torch_with_fewer_threads(
    tiny_torch, monkeypatch, threads_of_blas, physical_cores, libraries
):
    machine = environment(caches={}, threads_in_force=2, physical_cores=physical_cores)
    monkeypatch.setattr(ceilings_cpu, "describe_environment", lambda: machine)
    monkeypatch.setattr(ceilings_cpu, "blas_threads", lambda blas: threads_of_blas)
    found = measure_cpu("fingerprint", seconds=0.05, progress=None)
    assert sorted({rate.library for rate in found.rates}) == libraries
    reason = found.not_measured.get("NumPy rates", "")
    assert ("4 threads, but PyTorch is set to 2" in reason) == ("numpy" not in libraries)


class Disturbed:
    """Counters that see a disturbance whenever torch was measured in between."""

    measured_torch = False

    def __init__(self):
        self.before = Disturbed.measured_torch

    def doubts_since(self, earlier):
        return ("disturbed",) if Disturbed.measured_torch and not earlier.before else ()


@pytest.fixture
def disturbed_torch(tiny_torch, monkeypatch):
    from tinytorch.measure import ceilings_torch

    def disturbed_rates(**_):
        monkeypatch.setattr(Disturbed, "measured_torch", True)
        return (rate("float32", 1e9, "torch"),), {}

    monkeypatch.setattr(Disturbed, "measured_torch", False)
    monkeypatch.setattr(ceilings_cpu, "observe", Disturbed)
    monkeypatch.setattr(ceilings_torch, "torch_rates", disturbed_rates)


def test_what_disturbs_the_rates_of_torch_is_kept(disturbed_torch):
    found = measure_cpu("fingerprint", seconds=0.05, progress=None)
    assert found.disturbances == ("disturbed",)


def test_what_disturbs_added_rates_is_kept_with_the_new_time(disturbed_torch):
    bare = ceilings(disturbances=("earlier",))
    found = add_torch_rates(bare, seconds=0.1, progress=None)
    assert found.disturbances == ("earlier", "disturbed")
    assert found.measured_at > bare.measured_at
    assert not found.is_doubtful  # it is tried again later, not at once


class Watcher:
    """Somebody who remembers what was told."""

    def __init__(self):
        self.seen = []

    def describe(self, text):
        self.seen.append(text)

    def advance(self, steps=1):
        self.seen.append(steps)


def test_a_step_counts_when_the_next_begins():
    watcher = Watcher()
    steps = Steps(watcher)
    for text in ("a", "b", "c"):
        steps(text)
    assert watcher.seen == ["a", 1, "b", 1, "c"]
    Steps(None)("nobody watches")


def test_the_steps_are_known_beforehand(quick, monkeypatch):
    require_part("numba")
    monkeypatch.setattr(ceilings_cpu, "SIZES", (32,))
    monkeypatch.setattr(ceilings_cpu, "describe_environment", environment)
    monkeypatch.setattr(ceilings_cpu, "torch_is_imported", lambda: False)
    watcher = Watcher()
    measure_cpu("fingerprint", seconds=0.05, progress=watcher)
    assert sum(isinstance(each, str) for each in watcher.seen) == count_steps()
