import dataclasses
import io

import pytest
from measure.imaginary import KIB, bandwidth, ceilings, environment, rate
from rich.console import Console

from tinytorch.measure.environment import describe_environment
from tinytorch.reporting.html.page import page_from, render_page
from tinytorch.reporting.machine import machine_document
from tinytorch.reporting.terminal import render

MANY = ceilings(
    rates=(
        rate("float32", 200e9),
        rate("float32", 150e9, "torch"),
        rate("float64", 100e9),
        rate("bfloat16", 400e9, "torch"),
        rate("float16", 3e9, "torch"),
        rate("int8", 800e9, "torch"),
    ),
    disturbances=("the machine is busy",),
    notes=("not kept for the next time",),
)
GPU = ceilings(
    device="cuda:0",
    rates=(rate("float32", 50e12, "torch"), rate("float16", 700e12, "torch")),
    bandwidths=(bandwidth("L2", 6e12, 50 << 20), bandwidth("HBM", 4e12)),
    not_measured={},
    device_name="Example GPU",
)


def shown(found, machine=None, *, width=80, plain=False):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii" if plain else "utf-8")
    console = Console(file=stream, width=width, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(render(machine_document(machine or environment(), found)))
    return captured.get()


def test_the_machine_is_described():
    text = shown(ceilings(), environment(threads={"OMP_NUM_THREADS": "1"}, cpu_quota=1.5))
    for words in ("Example CPU", "2 usable of 2", "quota 1.5", "L1d 2 x 16 KiB", "8 MiB"):
        assert words in text
    assert "OMP_NUM_THREADS=1" in text
    assert "numpy 2.4.6" in text


def test_a_machine_that_says_nothing_is_shown_all_the_same():
    unknown = environment(
        cpu_model=None,
        instruction_sets=(),
        logical_cores=None,
        caches={},
        frequency_mhz=None,
        memory_bytes=None,
        steal_share=None,
        load_average=None,
        libraries={},
        blas=None,
    )
    assert "unknown" in shown(ceilings(), unknown)


def test_this_machine_can_be_shown():
    assert "usable of" in shown(ceilings(), describe_environment())


def test_another_device_is_named():
    assert "cuda:0 Example GPU" in shown(GPU)
    assert "cuda" not in shown(ceilings())


def test_rates_have_ceiling_median_spread_and_number():
    (line,) = [line for line in shown(MANY).splitlines() if line.startswith("int8      torch")]
    assert line.split() == ["int8", "torch", "805", "GOP/s", "800", "GOP/s", "0.0%", "5"]


def test_levels_have_reading_and_copying():
    (line,) = [line for line in shown(MANY).splitlines() if line.startswith("L1 ")]
    assert "64 KiB" in line
    assert line.count("400 GB/s") == 2  # the ceiling, and reading
    assert "320 GB/s" in line


def test_a_level_that_was_only_copied_has_no_reading():
    only_copy = dataclasses.replace(bandwidth("HBM", 4e12), read=None)
    lines = shown(ceilings(bandwidths=(only_copy,))).splitlines()
    words = next(line.split() for line in lines if line.startswith("HBM "))
    assert words == ["HBM", "3.20", "TB/s", "3.20", "TB/s", "0.0%", "5"]


def test_what_was_not_measured_has_its_reason():
    text = shown(ceilings())
    assert "Not measured" in text
    assert "int8 rate" in text
    assert "import torch first" in text
    assert "Not measured" not in shown(GPU)


def test_doubts_are_shown_with_advice():
    text = shown(MANY)
    assert "- the machine is busy; " in text
    assert "--refresh" in text
    assert "- not kept for the next time" in text
    assert "--refresh" not in shown(ceilings())


def test_ridges_are_peak_over_bandwidth():
    lines = shown(ceilings()).splitlines()
    (line,) = [line for line in lines if line.startswith("float64 ") and "FLOP" not in line]
    peak = ceilings().peak_flops("float64")
    assert [float(word) for word in line.split()[1:]] == pytest.approx(
        [peak / level for level in (400e9, 200e9, 150e9, 40e9)], rel=0.01
    )


def test_without_rates_there_is_no_roof():
    text = shown(ceilings(rates=()))
    assert "Roofline" not in text
    assert "DRAM" in text


def test_the_picture_says_how_to_read_it():
    text = " ".join(shown(ceilings()).split())
    slopes = "L1 400 GB/s, L2 200 GB/s, L3 150 GB/s, DRAM 40.0 GB/s"
    assert f"Bandwidths, left to right: {slopes}" in text
    assert "ridge points of DRAM" in text


def test_slopes_are_named_from_left_also_where_levels_get_faster():
    odd = ceilings(bandwidths=(bandwidth("L1", 10e9, 64 * KIB), bandwidth("DRAM", 40e9)))
    assert "left to right: DRAM 40.0 GB/s, L1 10.0 GB/s" in shown(odd)


@pytest.mark.parametrize("found", [ceilings(), MANY, GPU])
@pytest.mark.parametrize("plain", [False, True])
def test_every_line_fits_a_terminal(found, plain):
    assert all(len(line) <= 80 for line in shown(found, plain=plain).splitlines())


@pytest.mark.parametrize("found", [ceilings(), MANY, GPU])
def test_a_plain_machine_is_plain(found):
    assert shown(found, plain=True).isascii()


def test_the_roofs_of_all_dtypes_are_drawn():
    text = shown(MANY).split("Roofline")[1].split("Ridge points")[0]
    for dtype in ("float32", "float64", "bfloat16", "int8"):
        assert f"{dtype} " in text


def test_the_verdict_is_the_peak_and_the_bandwidth_of_the_memory():
    banner = machine_document(environment(), ceilings()).banner
    assert banner.verdict == "float32 201 GFLOP/s, DRAM 40.0 GB/s"


def test_a_page_draws_every_roof_and_slope():
    html = render_page(page_from(machine_document(environment(), MANY)))
    for name in ("float32 201 GFLOP/s", "float64", "DRAM 40.0 GB/s", "L1 400 GB/s"):
        assert name in html
