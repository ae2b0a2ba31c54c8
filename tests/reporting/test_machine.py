import dataclasses
import io
import math

import pytest
from measure.imaginary import KIB, bandwidth, ceilings, environment, rate
from rich.console import Console

from tinytorch.measure.environment import describe_environment
from tinytorch.reporting.machine import ROWS, render_machine, roofline_picture

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
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, highlight=False)
    console.print(render_machine(machine or environment(), found, plain=plain))
    return stream.getvalue()


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
    assert "device " not in shown(ceilings())


def test_rates_have_ceiling_median_spread_and_number():
    (line,) = [line for line in shown(MANY).splitlines() if line.startswith("int8      torch")]
    assert line.split() == ["int8", "torch", "805", "GOP/s", "800", "GOP/s", "0.0%", "5"]


def test_levels_have_reading_and_copying():
    (line,) = [line for line in shown(MANY).splitlines() if line.startswith("L1 ")]
    assert "64 KiB" in line
    assert line.count("400 GB/s") == 2  # the ceiling, and reading
    assert "320 GB/s" in line


def test_a_level_that_was_only_copied_shows_a_dash():
    only_copy = dataclasses.replace(bandwidth("HBM", 4e12), read=None)
    lines = shown(ceilings(bandwidths=(only_copy,))).splitlines()
    words = next(line.split() for line in lines if line.startswith("HBM "))
    assert words == ["HBM", "-", "3.20", "TB/s", "-", "-", "3.20", "TB/s", "0.0%", "5"]


def test_what_was_not_measured_has_its_reason():
    text = shown(ceilings())
    assert "Not measured" in text
    assert "int8 rate" in text
    assert "import torch first" in text
    assert "Not measured" not in shown(GPU)


def test_doubts_are_shown_with_advice():
    text = shown(MANY)
    assert "Doubt: the machine is busy" in text
    assert "--refresh" in text
    assert "Note: not kept for the next time" in text
    assert "Doubt" not in shown(ceilings())


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


@pytest.mark.parametrize("found", [ceilings(), MANY, GPU])
@pytest.mark.parametrize("plain", [False, True])
def test_the_picture_fits_a_terminal(found, plain):
    lines = roofline_picture(found, plain=plain).splitlines()
    assert len(lines) == ROWS + 5
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("found", [ceilings(), MANY, GPU])
def test_a_plain_picture_is_plain(found):
    assert roofline_picture(found, plain=True).isascii()
    assert shown(found, plain=True).isascii()


@pytest.mark.parametrize("plain", [False, True])
def test_every_roof_in_the_picture_has_its_label(plain):
    picture = roofline_picture(MANY, plain=plain)
    for dtype in ("float32", "float64", "bfloat16", "int8"):
        assert f"{dtype} " in picture
    assert "float16 3.03G" not in picture.replace("bfloat16", "")  # far below this picture


def test_roofs_that_are_close_stand_below_each_other():
    close = ceilings(rates=tuple(rate(f"kind{n}", 100e9 + n * 1e8) for n in range(4)))
    picture = roofline_picture(close)
    assert all(f"kind{n} " in picture for n in range(4))


def test_roofs_are_flat_and_slopes_rise():
    lines = roofline_picture(ceilings(), plain=True).splitlines()[1 : ROWS + 1]
    bodies = [line[8:58].ljust(50) for line in lines]
    roofs = [row for row, body in enumerate(bodies) if body.endswith("-")]
    assert len(roofs) == 2  # float32 above float64
    dram = [body.rfind(".") for body in bodies[roofs[-1] + 1 :] if "." in body]
    assert dram == sorted(dram, reverse=True)


def test_each_ridge_is_marked_below_where_slope_and_roof_meet():
    lines = roofline_picture(ceilings(), plain=True).splitlines()
    axis = lines[ROWS + 1][8:]
    marks = [column for column, letter in enumerate(axis[:50]) if letter == "^"]
    assert len(marks) == 2
    # Twice the peak is twice the intensity: the same distance as between two octaves.
    octaves = math.log2(ceilings().peak_flops("float32") / ceilings().peak_flops("float64"))
    assert octaves == pytest.approx(1)
    slope_under_roof = [
        line[8:58].rfind(".") for line in lines[1 : ROWS + 1] if "-" not in line and "." in line
    ]
    assert min(slope_under_roof) < marks[0] < marks[1]


def test_one_level_and_one_dtype_make_a_picture():
    tiny = ceilings(rates=(rate("int8", 5.0),), bandwidths=(bandwidth("DRAM", 2.0),))
    assert "int8 5.0" in roofline_picture(tiny)


def test_levels_need_not_get_slower():
    odd = ceilings(bandwidths=(bandwidth("L1", 10e9, 64 * KIB), bandwidth("DRAM", 40e9)))
    assert "DRAM" in roofline_picture(odd)
