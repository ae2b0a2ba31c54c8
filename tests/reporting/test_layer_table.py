import io

import pytest
from example_profiles import example_profile, training_profile
from rich.console import Console

from tinytorch.reporting.document import Document
from tinytorch.reporting.layers import layers_section
from tinytorch.reporting.terminal import render


def shown(profile, *, width=160, **settings):
    console = Console(file=io.StringIO(), width=width, markup=False)
    section = layers_section(profile, **settings)
    console.print(render(Document("", None, section.blocks)))
    return console.file.getvalue().splitlines()


def row(lines, name):
    (found,) = [line for line in lines if line.split()[:1] == [name]]
    return found.split()


def test_a_wide_terminal_gets_every_column():
    head = shown(example_profile())[0]
    assert " ".join(head.split()) == (
        "layer share time self calls MACs FLOP/s bytes FLOP/B bound of peak params activ. peak mem"
    )


def test_a_narrow_terminal_gets_what_matters_most():
    lines = shown(example_profile(), width=80)
    assert lines[0].split()[:4] == ["layer", "share", "time", "self"]
    assert "bound" in lines[0]
    assert "calls" not in lines[0]
    assert all(len(line) <= 80 for line in lines)


def test_the_tree_is_indented():
    lines = shown(example_profile())
    assert [line[: line.index("█") if "█" in line else 40].rstrip() for line in lines[1:5]] == [
        "Net",
        "  blocks.0 ... 1 (2x) Block",
        "    fc Linear",
        "    (blocks.0 ... 1, self)",
    ]


def test_the_numbers_of_a_layer_stand_in_its_row():
    assert row(shown(example_profile()), "head")[1:] == [
        "Linear",
        "█▋",
        "20.0%",
        "2.00",
        "ms",
        "2.00",
        "ms",
        "1",
        "500",
        "500k",
        "400",
        "B",
        "2.50",
        "memory",
        "50.0%",
        "50",
        "160",
        "B",
        "0.0%",
    ]


def test_a_container_that_stands_open_has_no_time_of_its_own():
    lines = shown(example_profile())
    assert row(lines, "Net")[:5] == ["Net", "███████▎", "90.0%", "9.00", "ms"]
    assert row(lines, "Net")[5] == "1"  # its calls: the column `self` is empty


def test_the_last_rows_are_what_is_unattributed_and_the_total():
    rest, total = shown(example_profile())[-2:]
    assert rest.split() == ["(unattributed)", "▊", "10.0%", "1.00", "ms", "1.00", "ms"]
    assert total.split() == ["total", "████████", "100.0%", "10.0", "ms", "10.0", "ms"]


def test_depth_says_how_much_is_hidden():
    lines = shown(example_profile(), depth=1)
    assert row(lines, "blocks.0")[:6] == ["blocks.0", "...", "1", "(2x)", "+2", "Block"]


def test_expanded_blocks_are_all_there():
    assert row(shown(example_profile(), expand=True), "blocks.1")


def test_without_ceilings_there_are_no_bounds():
    head = shown(example_profile(ceilings=None))[0]
    assert "bound" not in head
    assert "of peak" not in head


def test_training_shows_the_backward_pass():
    lines = shown(training_profile())
    assert "backward" in lines[0]
    assert row(lines, "<backward>")[2:5] == ["30.0%", "6.00", "ms"]
    assert row(lines, "head")[8:10] == ["2.00", "ms"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 200])
@pytest.mark.parametrize("make", [example_profile, training_profile])
def test_every_width_is_respected(make, width):
    assert all(len(line) <= width for line in shown(make(), width=width))


def test_a_layer_has_its_share_of_the_memory_at_the_peak():
    profile = example_profile()
    lines = shown(profile)
    held = sum(size for path, size in profile.memory.peak_by_path.items() if path is not None)
    assert row(lines, "Net")[-1] == f"{held / profile.memory.peak_bytes:.1%}"
