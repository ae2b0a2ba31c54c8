"""Machines and ceilings that do not exist, for tests."""

from tinytorch.measure.ceilings import Bandwidth, Ceilings, Rate
from tinytorch.measure.environment import Cache, Environment
from tinytorch.measure.samples import Samples

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def environment(**changes):
    """Give a machine with two cores and tiny memories, so that probing it is quick."""
    fields = {
        "cpu_model": "Example CPU",
        "instruction_sets": ("avx2", "fma"),
        "physical_cores": 2,
        "logical_cores": 2,
        "usable_cores": 2,
        "cpu_quota": None,
        "caches": {"L1d": Cache(16 * KIB, 32 * KIB), "L2": Cache(64 * KIB, 128 * KIB)},
        "governor": None,
        "frequency_mhz": 2600.0,
        "memory_bytes": 8 * MIB,
        "steal_share": 0.01,
        "load_average": 0.2,
        "system": "Linux 6",
        "machine": "x86_64",
        "python": "3.11.7",
        "libraries": {"numpy": "2.4.6"},
        "blas": "openblas 0.3",
        "threads": {},
        "threads_in_force": 2,
        "commit": None,
    }
    return Environment(**{**fields, **changes})


def rate(dtype, flops, library="numpy"):
    """Give a rate whose values lie within a percent of each other."""
    values = tuple(flops * factor for factor in (0.99, 1.0, 1.0, 1.0, 1.01))
    return Rate(dtype, library, Samples(f"{library} {dtype} matrix product", values, "FLOP/s"))


def bandwidth(level, bytes_per_second, capacity_bytes=None, *, copy=0.8):
    """Give a level that is read with a bandwidth and copied with a part of it."""
    read = Samples(f"{level} read", (bytes_per_second,) * 5, "B/s")
    return Bandwidth(
        level=level,
        working_set_bytes=(capacity_bytes or GIB) // 2,
        read=read,
        copy=Samples(f"{level} copy", (bytes_per_second * copy,) * 5, "B/s"),
        threads=2,
        capacity_bytes=capacity_bytes,
    )


def ceilings(**changes):
    """Give the ceilings of a small machine."""
    fields = {
        "device": "cpu",
        "rates": (rate("float32", 200e9), rate("float64", 100e9)),
        "bandwidths": (
            bandwidth("L1", 400e9, 64 * KIB),
            bandwidth("L2", 200e9, 2 * MIB),
            bandwidth("L3", 150e9, 32 * MIB),
            bandwidth("DRAM", 40e9),
        ),
        "cache_bytes": {"L1": 64 * KIB, "L2": 2 * MIB, "L3": 32 * MIB},
        "fingerprint": "0123456789abcdef",
        "measured_at": "2024-05-06T07:08:09+00:00",
        "not_measured": {"int8 rate": "import torch first and ask again"},
    }
    return Ceilings(**{**fields, **changes})
