"""Sensitivity and calibration in the terminal."""

import math

import numpy as np
import pytest
from terminal import shown

from tinytorch.errors import SettingError
from tinytorch.formats.ranges import RangeObserver
from tinytorch.reporting.transforms import (
    render_calibration,
    render_sensitivity,
)
from tinytorch.transforms.quantize import Calibration
from tinytorch.transforms.quantize.sensitivity import LayerSensitivity, Sensitivity

SMALL = LayerSensitivity("layers.0", "INT8 weight", 0.0025, 0.0, 3000)
LARGE = LayerSensitivity("layers.[red]2", "INT4 weight", 0.005, 0.25, 2048)
TOGETHER = LayerSensitivity("2 layers", "together", 0.01, 0.5, 5048)
BOTH = Sensitivity((SMALL, LARGE), TOGETHER, 8)


def lines_of(renderable, width=120):
    return [" ".join(line.split()) for line in shown(renderable, width).splitlines()]


# ---------------------------------------------------------------- sensitivity


def test_the_headline_says_what_all_do_and_which_is_worst():
    lines = lines_of(render_sensitivity(BOTH), 200)
    assert lines[0] == "Sensitivity outputs of 8 batches"
    assert lines[1] == (
        "Quantizing all 2 layers changes the outputs by 1.00%, the worst one alone, layers.[red]2, "
        "by 0.50%; the model then holds 4.93 KiB less."
    )


def test_the_worst_layer_comes_first_and_all_together_last():
    rows = [line for line in lines_of(render_sensitivity(BOTH)) if "█" in line]
    assert rows == [
        "layers.[red]2 ██████ 0.50% 25.0% 2 KiB INT4 weight",
        "layers.0 ███ 0.25% 0.0% 2.93 KiB INT8 weight",
        "all together ████████████ 1.00% 50.0% 4.93 KiB",
    ]


def test_one_layer_is_not_told_twice():
    one = Sensitivity((SMALL,), SMALL, 1)
    lines = lines_of(render_sensitivity(one))
    assert lines[1].startswith("Quantizing layers.0 changes the outputs by 0.25%; the model")
    assert lines[0].endswith("1 batch")
    assert not any(line.startswith("all together") for line in lines)


def test_more_layers_than_are_wanted_are_summed_up():
    lines = lines_of(render_sensitivity(BOTH, top=1))
    assert "1 more, with at most 0.25% each" in lines
    assert not any(line.startswith("layers.0") for line in lines)
    with pytest.raises(SettingError, match="top=0"):
        render_sensitivity(BOTH, top=0)


@pytest.mark.parametrize(
    ("error", "text"),
    [(0.0, "0.00%"), (1e-6, "<0.01%"), (0.12345, "12.35%"), (math.inf, "inf")],
)
def test_errors_are_neither_hidden_nor_made_up(error, text):
    layer = LayerSensitivity("a", "what", error, None, 10)
    row = lines_of(render_sensitivity(Sensitivity((layer,), layer, 1)))[4]
    assert row.startswith("a ")
    assert f" {text} 10 B" in row


def test_outputs_that_are_no_rows_have_no_column_for_it():
    layer = LayerSensitivity("a", "what", 0.1, None, 10)
    assert "top-1" not in shown(render_sensitivity(Sensitivity((layer,), layer, 1))).split("\n")[3]
    assert "top-1" in shown(render_sensitivity(BOTH))


def test_a_model_that_grows_is_said_to():
    layer = LayerSensitivity("a", "what", 0.1, None, -2048)
    text = shown(render_sensitivity(Sensitivity((layer,), layer, 1)))
    assert "the model then holds 2 KiB more." in text


def test_no_layers_are_no_error():
    nothing = LayerSensitivity("no layers", "as it is", 0.0, None, 0)
    assert "No layer is quantized" in shown(render_sensitivity(Sensitivity((), nothing, 1)))


# ---------------------------------------------------------------- calibration


def statistics_of(values):
    observer = RangeObserver()
    observer.update(np.asarray(values, np.float32))
    return observer.statistics


@pytest.fixture
def found(rng):
    many = rng.normal(size=20_000).clip(-2.4, 2.4)
    many[0] = 10.0
    layers = {"layers.[red]0": statistics_of(many), "layers.2": statistics_of([0, 0, 0, 4])}
    return Calibration(layers, batches=3)


def row_of(renderable, layer, width=160):
    (row,) = [line for line in lines_of(renderable, width) if line.startswith(layer)]
    return row


def test_the_head_says_how_ranges_were_chosen(found):
    assert lines_of(found)[0] == "Calibration inputs of 2 layers in 3 batches, ranges by mse"
    other = render_calibration(found, ranges="percentile")
    assert lines_of(other)[0].endswith("ranges by percentile")


def test_a_row_has_what_was_seen_and_what_is_chosen(found):
    row = row_of(render_calibration(found, ranges="minmax"), "layers.2")
    assert row.endswith("0 to 4 0 to 4 0.0% 1 1.73 75.0% 4")
    row = row_of(render_calibration(found, ranges="percentile"), "layers.[red]0")
    low, high = found.range_of("layers.[red]0", "percentile")
    assert f" -2.4 to 10 {low:.3g} to {high:.3g} <0.1% " in row


def test_brackets_enclose_the_range(found):
    text = shown(render_calibration(found, ranges="percentile"), 160)
    (row,) = [line for line in text.splitlines() if line.startswith("layers.[red]0")]
    picture = row.removeprefix("layers.[red]0").strip()[:22]
    # Of 20 letters from -2.4 to 10, 2.4 is at the end of the 8th, and zero at that of the 4th.
    assert (picture[0], picture[9]) == ("[", "]")
    assert picture[4:6] == "██"
    assert picture[10:] == " " * 11 + "▁"


def test_nothing_outside_is_all_inside(found):
    row = row_of(render_calibration(found, ranges="minmax"), "layers.2")
    assert row.startswith("layers.2 [█ ▅] 0 to 4")


def test_a_layer_that_got_nothing_is_shown_as_that():
    row = row_of(render_calibration({"a": statistics_of([])}), "a")
    assert row == "a nothing seen - - - - - - 0"


def test_zeros_only_are_inside_of_their_range():
    row = row_of(render_calibration({"a": statistics_of([0.0, 0.0])}), "a")
    assert row.startswith("a [ █] 0 to 0 0 to 0 0.0%")


def test_statistics_alone_can_be_shown(found):
    text = lines_of(render_calibration(dict(found)))
    assert text[0].startswith("Calibration inputs of 2 layers in 1 batch,")
    assert "No layer was calibrated" in shown(render_calibration({}))


def test_an_unknown_way_to_choose_is_refused(found):
    with pytest.raises(SettingError, match="ranges 'best'"):
        render_calibration(found, ranges="best")


# ---------------------------------------------------------------- both


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_longer_than_the_terminal(found, width):
    for renderable in (render_sensitivity(BOTH), render_calibration(found)):
        assert all(len(line) <= width for line in shown(renderable, width).splitlines())


def test_a_narrow_terminal_keeps_what_matters(found):
    assert "layers.[red]2 ██████ 0.50%" in "\n".join(lines_of(render_sensitivity(BOTH), 60))
    low, high = found.range_of("layers.[red]0")
    assert row_of(found, "layers.[red]0", 60).endswith(f"]▁ {low:.3g} to {high:.3g} <0.1%")


def test_notebooks_get_html(found):
    assert "all together" in BOTH._repr_html_()
    assert "ranges by mse" in found._repr_html_()
