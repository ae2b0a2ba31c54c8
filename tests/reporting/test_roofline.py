import dataclasses
import io
import math

import pytest
from document_reading import tables
from example_profiles import (
    CALLS,
    example_profile,
    layer_calls,
    moving_profile,
    training_profile,
)
from measure.imaginary import KIB, bandwidth, ceilings, rate
from rich.console import Console

from tinytorch.errors import SettingError
from tinytorch.measure.samples import Samples
from tinytorch.reporting.document import Document
from tinytorch.reporting.profile import roofline_section
from tinytorch.reporting.roofline import (
    COLUMNS,
    FEWEST_COLUMNS,
    INDENT,
    ROWS,
    Roofline,
    RooflinePoint,
    roofline_picture,
)
from tinytorch.reporting.terminal import render

MANY = ceilings(
    rates=(
        rate("float32", 200e9),
        rate("float32", 150e9, "torch"),
        rate("float64", 100e9),
        rate("bfloat16", 400e9, "torch"),
        rate("float16", 3e9, "torch"),
        rate("int8", 800e9, "torch"),
    )
)
GPU = ceilings(
    device="cuda:0",
    rates=(rate("float32", 50e12, "torch"), rate("float16", 700e12, "torch")),
    bandwidths=(bandwidth("L2", 6e12, 50 << 20), bandwidth("HBM", 4e12)),
)


def picture(found, **settings):
    """Draw the roofs of all dtypes of a machine."""
    peaks = {each.dtype: found.peak_flops(each.dtype) for each in found.rates}
    return roofline_picture(peaks, found.bandwidths, **settings)


def canvas(drawn, columns=COLUMNS):
    """Give the rows between the axes, all of one length."""
    lines = drawn.splitlines()[1 : ROWS + 1]
    return [line[INDENT : INDENT + columns].ljust(columns) for line in lines]


def place(drawn, letter):
    """Give the row and the column of a letter, which must be there once."""
    rows = canvas(drawn)
    (found,) = [(row, line.index(letter)) for row, line in enumerate(rows) if letter in line]
    assert "".join(rows).count(letter) == 1
    return found


def console(width=80, encoding="utf-8"):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(file=stream, width=width, markup=False, highlight=False)


def shown(renderable, **settings):
    it = console(**settings)
    with it.capture() as captured:
        it.print(renderable)
    return captured.get()


# ---------------------------------------------------------------- the machine


@pytest.mark.parametrize("found", [ceilings(), MANY, GPU])
@pytest.mark.parametrize("plain", [False, True])
def test_the_picture_fits_a_terminal(found, plain):
    lines = picture(found, plain=plain).splitlines()
    assert len(lines) == ROWS + 3
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("found", [ceilings(), MANY, GPU])
@pytest.mark.parametrize("home", [False, True])
def test_a_plain_picture_is_plain(found, home):
    level = found.bandwidths[0].level if home else None
    assert picture(found, plain=True, home=level).isascii()


@pytest.mark.parametrize("plain", [False, True])
def test_every_roof_in_the_picture_has_its_label(plain):
    drawn = picture(MANY, plain=plain)
    for dtype in ("float32", "float64", "bfloat16", "int8"):
        assert f"{dtype} " in drawn
    assert "float16 3.03G" not in drawn.replace("bfloat16", "")  # far below this picture


def test_roofs_that_are_close_stand_below_each_other():
    close = ceilings(rates=tuple(rate(f"kind{n}", 100e9 + n * 1e8) for n in range(4)))
    lines = picture(close).splitlines()
    labelled = [line.split()[-2] for line in lines if "kind" in line]
    assert labelled == ["kind3", "kind2", "kind1", "kind0"]


def test_roofs_are_flat_and_slopes_rise():
    bodies = canvas(picture(ceilings(), plain=True))
    roofs = [row for row, body in enumerate(bodies) if body.endswith("-")]
    assert len(roofs) == 2  # float32 above float64
    dram = [body.rfind(".") for body in bodies[roofs[-1] + 1 :] if "." in body]
    assert dram == sorted(dram, reverse=True)


def test_each_ridge_is_marked_below_where_slope_and_roof_meet():
    lines = picture(ceilings(), plain=True).splitlines()
    axis = lines[ROWS + 1][INDENT:]
    marks = [column for column, letter in enumerate(axis[:COLUMNS]) if letter == "^"]
    assert len(marks) == 2
    # Twice the peak is twice the intensity: the same distance as between two octaves.
    octaves = math.log2(ceilings().peak_flops("float32") / ceilings().peak_flops("float64"))
    assert octaves == pytest.approx(1)
    slope_under_roof = [
        line[INDENT : INDENT + COLUMNS].rfind(".")
        for line in lines[1 : ROWS + 1]
        if "-" not in line and "." in line
    ]
    assert min(slope_under_roof) < marks[0] < marks[1]


def test_one_level_and_one_dtype_make_a_picture():
    tiny = ceilings(rates=(rate("int8", 5.0),), bandwidths=(bandwidth("DRAM", 2.0),))
    assert "int8 5.0" in picture(tiny)


def test_levels_need_not_get_slower():
    odd = ceilings(bandwidths=(bandwidth("L1", 10e9, 64 * KIB), bandwidth("DRAM", 40e9)))
    assert picture(odd, plain=True).splitlines()[ROWS + 1].count("^") == 2


def test_the_order_of_the_peaks_does_not_matter():
    levels = ceilings().bandwidths
    one = roofline_picture({"float32": 2e11, "float64": 1e11}, levels)
    assert roofline_picture({"float64": 1e11, "float32": 2e11}, levels) == one


# ---------------------------------------------------------------- the level that holds the bytes


@pytest.mark.parametrize("home", ["L1", "L2", "L3", "DRAM"])
def test_the_roof_is_a_line_from_where_the_slope_of_home_meets_it(home):
    found = ceilings(rates=(rate("float32", 200e9),))
    lines = picture(found, home=home, plain=True).splitlines()
    mark = lines[ROWS + 1][INDENT:].index("^")
    (roof,) = [body for body in canvas("\n".join(lines)) if body.endswith("-")]
    # The mark is where the ridge is, a column of the roof starts at its middle.
    assert abs(roof.index("-") - mark) <= 1
    assert set(roof[mark + 1 :]) == {"-"}


def test_only_the_slope_of_home_is_a_line():
    rows = canvas(picture(ceilings(rates=(rate("float32", 200e9),)), home="L3", plain=True))
    columns = ["".join(column) for column in zip(*rows, strict=True)]
    assert all(column.count("+") <= 1 for column in columns)
    assert any("+" in column and "." in column for column in columns)


def test_dotted_lines_have_fewer_dots():
    def dots(drawn):
        letters = "".join(canvas(drawn)).replace(" ", "")
        return sum((ord(letter) - 0x2800).bit_count() for letter in letters)

    assert 0 < dots(picture(ceilings(), home="DRAM")) < dots(picture(ceilings()))


def test_an_unknown_home_is_refused_with_the_levels_that_there_are():
    with pytest.raises(SettingError, match="home='L9'; the levels are L1, L2, L3, DRAM"):
        picture(ceilings(), home="L9")


# ---------------------------------------------------------------- points


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("columns", [FEWEST_COLUMNS, COLUMNS])
def test_points_stand_in_the_order_of_their_numbers(plain, columns):
    points = [
        RooflinePoint("A", 0.01, 1e6),
        RooflinePoint("B", 2.0, 1e8),
        RooflinePoint("C", 5000.0, 5e12),
    ]
    drawn = picture(ceilings(), points=points, plain=plain, columns=columns)
    places = [place(drawn, letter) for letter in "ABC"]
    assert [row for row, _ in places] == sorted((row for row, _ in places), reverse=True)
    assert [column for _, column in places] == sorted(column for _, column in places)
    assert max(map(len, drawn.splitlines())) <= columns + 30


@pytest.mark.parametrize("exponent", [-12, -3, 0, 3, 12])
def test_the_frame_grows_to_hold_every_point(exponent):
    far = RooflinePoint("A", 10.0**exponent, 1e9 * 10.0**exponent)
    drawn = picture(ceilings(), points=[far])
    row, column = place(drawn, "A")
    assert 0 <= row < ROWS
    assert 0 <= column < COLUMNS
    assert max(map(len, drawn.splitlines())) <= 80


def test_a_point_at_its_peak_stands_on_the_roof():
    found = ceilings(rates=(rate("float32", 200e9),))
    on_roof = RooflinePoint("A", 20.0, found.peak_flops("float32"))
    drawn = picture(found, points=[on_roof], plain=True)
    row, column = place(drawn, "A")
    assert canvas(drawn)[row][column - 1] == "-"


def test_a_point_at_its_bandwidth_stands_on_the_slope():
    found = ceilings(bandwidths=(bandwidth("DRAM", 40e9),))
    drawn = picture(found, points=[RooflinePoint("A", 0.5, 20e9)], plain=True)
    row, column = place(drawn, "A")
    assert "." in (canvas(drawn)[row][column - 1] + canvas(drawn)[row][column + 1])


def test_the_first_of_two_points_in_one_place_stays_and_both_are_named():
    points = [RooflinePoint(letter, 1.0, 1e9) for letter in "BAD"] + [RooflinePoint("C", 9.0, 1e9)]
    drawn = picture(ceilings(), points=points)
    assert place(drawn, "B")
    assert place(drawn, "C")
    assert "A" not in "".join(canvas(drawn))
    assert drawn.splitlines()[-1].strip() == "in one place: B, A, D"


def test_points_apart_need_no_such_line():
    assert "in one place" not in picture(ceilings(), points=[RooflinePoint("A", 1.0, 1e9)])


def test_numbers_on_the_axis_do_not_touch():
    wide = [RooflinePoint("A", 1e-9, 1e9), RooflinePoint("B", 1e12, 1e9)]
    numbers = picture(ceilings(), points=wide).splitlines()[ROWS + 2].split()
    assert len(numbers) > 2
    assert all(math.log10(float(number)).is_integer() for number in numbers)


@pytest.mark.parametrize("number", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("name", ["intensity", "flops_per_s"])
def test_a_point_needs_positive_numbers(name, number):
    with pytest.raises(SettingError, match=f"{name}=.*give a positive number"):
        RooflinePoint(**{"letter": "A", "intensity": 1.0, "flops_per_s": 1.0, name: number})


def test_a_point_has_one_letter():
    with pytest.raises(SettingError, match="letter='AB'; a point has room for exactly one"):
        RooflinePoint("AB", 1.0, 1.0)


def test_a_picture_without_room_roof_or_slope_is_refused():
    with pytest.raises(SettingError, match="columns=5; a roofline needs at least 20"):
        picture(ceilings(), columns=5)
    with pytest.raises(SettingError, match="0 peaks and 4 bandwidths"):
        roofline_picture({}, ceilings().bandwidths)
    with pytest.raises(SettingError, match="1 peaks and 0 bandwidths"):
        roofline_picture({"float32": 1e9}, ())


# ---------------------------------------------------------------- a profile


def chart_of(profile, **settings):
    """Give the chart of a profile, None where there is none."""
    charts = [x for x in roofline_section(profile, **settings).blocks if isinstance(x, Roofline)]
    return charts[0] if charts else None


def legend(profile):
    (found,) = tables(roofline_section(profile))
    return found[1:]


def drawn(profile, **settings):
    return shown(render(Document("", None, [chart_of(profile)])), **settings)


def test_every_letter_has_its_layer_time_intensity_rate_and_share_of_what_is_attainable():
    hotspot = example_profile().bottleneck
    assert hotspot.bound is not None
    name, time, bound, intensity, achieved, share = legend(example_profile())[0]
    assert name == "A  blocks.*.fc (2x) Linear"
    assert (time, bound) == ("40.0%", "memory")
    assert float(intensity) == pytest.approx(hotspot.bound.intensity, rel=0.005)
    assert float(achieved.split()[0]) * 1e6 == pytest.approx(hotspot.bound.achieved, rel=0.005)
    assert share == f"{hotspot.bound.of_attainable:.1%}"


def test_letters_are_where_the_hotspots_are():
    profile = example_profile()
    points = chart_of(profile).points
    bounds = [hotspot.bound for hotspot in profile.hotspots if hotspot.bound is not None]
    assert [point.letter for point in points] == list("ABCDEF")[: len(bounds)]
    for point, bound in zip(points, bounds, strict=True):
        assert point.intensity == pytest.approx(bound.intensity)
        assert point.flops_per_s == pytest.approx(bound.achieved)
    assert "A" in "".join(canvas(drawn(profile)))


def test_home_is_the_level_that_holds_what_a_call_touches():
    chart = chart_of(example_profile())
    assert chart.home == "DRAM"
    assert chart.peaks == {"float32": pytest.approx(1e6)}
    assert chart.points[0].flops_per_s == pytest.approx(4000 / 0.004)  # two layers of 2,000 FLOP


def test_the_backward_pass_and_the_update_have_letters_too():
    names = [line[0] for line in legend(training_profile())]
    assert names[0] == "A  <backward>"
    assert any("<update>" in name for name in names)


def many_layers(count):
    """Give a profile of so many different layers, all with a counted cost."""
    base = example_profile()
    (linear,) = [each for each in base.operations if each.path == "head" and each.macs]
    paths = [f"layer{'x' * index}" for index in range(count)]
    operations = [dataclasses.replace(linear, path=path) for path in paths]
    calls = [(path, index, index + 0.5 + index / 100) for index, path in enumerate(paths)]
    return example_profile(
        kinds={"": "Net"} | dict.fromkeys(paths, "Linear"),
        runs=(layer_calls([*calls, ("", 0.0, float(count))]),) * 4,
        watched=Samples("watched", (count * 1e-3,) * 4),
        recording=dataclasses.replace(base.recording, operations=tuple(operations)),
        parameters=(),
    )


def test_the_slowest_layers_have_letters_and_the_others_none():
    points = chart_of(many_layers(11)).points
    assert [point.letter for point in points] == [*"ABCDEFGH", *[""] * 3]
    rates = [point.flops_per_s for point in points]  # the same work in less and less time
    assert rates == sorted(rates)
    assert sum(bool(x.letter) for x in chart_of(many_layers(9), top=2).points) == 2
    assert len(legend(many_layers(11))) == 8


def test_only_the_roof_of_the_dtype_is_drawn():
    both = dataclasses.replace(example_profile().ceilings, rates=ceilings().rates)
    assert "float64" not in drawn(example_profile(ceilings=both))


def test_a_point_above_the_line_is_explained():
    assert "Above the line" in roofline_section(example_profile()).about
    slow = [(path, 100 * start, 100 * end) for path, start, end in CALLS]
    below = example_profile(runs=(layer_calls(slow),) * 4, watched=Samples("watched", (1.0,) * 4))
    assert "Above the line" not in roofline_section(below).about


def test_what_has_no_flops_has_no_place_on_logarithmic_axes():
    base = example_profile()
    still = [
        dataclasses.replace(each, cost=dataclasses.replace(each.cost, macs=0, other_flops=0))
        if each.path == "head" and each.cost
        else each
        for each in base.operations
    ]
    profile = example_profile(
        recording=dataclasses.replace(base.recording, operations=tuple(still))
    )
    assert "head" in {hotspot.name for hotspot in profile.hotspots if hotspot.bound is not None}
    assert [line[0].split()[1] for line in legend(profile)] == ["blocks.*.fc", "blocks.*"]
    assert chart_of(moving_profile()) is None


def test_without_ceilings_or_counted_work_there_is_no_picture():
    base = example_profile()
    idle = dataclasses.replace(base.recording, operations=())
    other = dataclasses.replace(base.ceilings, rates=(rate("int8", 1e6),))
    for profile in (
        example_profile(ceilings=None),
        example_profile(recording=idle),
        example_profile(ceilings=other),
    ):
        assert chart_of(profile) is None


@pytest.mark.parametrize("width", [50, 60, 80, 200])
@pytest.mark.parametrize("make", [example_profile, training_profile, lambda: many_layers(9)])
def test_the_picture_is_as_wide_as_the_terminal_but_at_most_80(make, width):
    lines = drawn(make(), width=width).splitlines()
    assert all(len(line.rstrip()) <= min(80, width) for line in lines)
    assert lines[ROWS + 1].rstrip().endswith("FLOP per byte")


def test_a_terminal_without_unicode_gets_plain_letters():
    assert drawn(example_profile(), encoding="ascii").isascii()
