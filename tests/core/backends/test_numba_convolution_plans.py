import numpy as np
import pytest
from parts import require_part

require_part("numba")

from tinytorch.core.kernels.numba.convolution import backward_plan, forward_plan
from tinytorch.core.kernels.numba.simd import LANES

SIZES = [(5, 7), (3, LANES), (4, 2 * LANES), (6, 3 * LANES - 3), (1, 50)]


def forward(size, *, channels=3, stride=(1, 1), padding=(1, 1), dilation=(1, 1)):
    return forward_plan(channels, size, (3, 3), stride, padding, dilation)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (2, 3)])
def test_every_output_position_has_exactly_one_lane(size, stride):
    _, plan = forward(size, stride=stride)
    rows, columns = ((length - 1) // step + 1 for length, step in zip(size, stride, strict=True))
    places = np.sort(plan.lane_at[plan.lane_at >= 0])
    np.testing.assert_array_equal(places, np.arange(rows * columns))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (2, 3), (4, 4)])
def test_the_slides_of_a_derivative_reach_each_element_of_the_image_once(size, stride):
    plan = backward_plan((4, 2, 3, 3), size, stride, (1, 1), (1, 1))
    places = np.concatenate([part.lane_at[part.lane_at >= 0] for part in plan.slides])
    np.testing.assert_array_equal(np.sort(places), np.arange(size[0] * size[1]))
    # Each tap reaches one phase.
    assert sum(part.taps for part in plan.slides) <= 4 * 9


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (3, 4)])
@pytest.mark.parametrize("stride", [(1, 1), (1, 2), (2, 1), (3, 3)])
def test_no_offset_leaves_the_laid_out_planes(size, padding, stride):
    if min(size[0] + 2 * padding[0], size[1] + 2 * padding[1]) < 3:
        return
    layout, plan = forward(size, padding=padding, stride=stride)
    spare = 0 if layout.is_plain else layout.spare
    assert plan.tap_at.min() + plan.vector_at.min() >= 0
    assert plan.tap_at.max() + plan.vector_at.max() + LANES <= 3 * layout.size + spare
    back = backward_plan((4, 3, 3, 3), size, stride, padding, (1, 1))
    spare = 0 if back.layout.is_plain else back.layout.spare
    for part in back.slides:
        if part.taps:
            assert part.tap_at.min() + part.vector_at.min() >= 0
            assert part.tap_at.max() + part.vector_at.max() + LANES <= 4 * back.layout.size + spare


def test_images_that_already_lie_well_are_not_copied():
    layout, plan = forward_plan(3, (1, 4 * LANES), (1, 1), (1, 1), (0, 0), (1, 1))
    assert layout.is_plain
    assert plan.is_exact


def test_overlapping_vectors_are_not_exact():
    layout, plan = forward_plan(1, (4, LANES + 3), (1, 1), (1, 1), (0, 0), (1, 1))
    assert layout.is_plain == plan.is_direct
    assert not plan.is_exact


def test_tables_are_made_once_and_cannot_be_changed():
    _, plan = forward((5, 7))
    assert forward((5, 7))[1] is plan
    with pytest.raises(ValueError, match="read-only"):
        plan.vector_at[0] = 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stride", [(1, 1), (2, 3), (3, 3)])
@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (20, 20)])
def test_only_vectors_whose_lanes_all_are_neighbours_are_marked(size, stride, padding):
    if min(size[0] + 2 * padding[0], size[1] + 2 * padding[1]) < 3:
        return
    slides = [forward(size, stride=stride, padding=padding)[1]]
    slides += backward_plan((4, 3, 3, 3), size, stride, padding, (1, 1)).slides
    for part in slides:
        for lanes, is_run in zip(part.lane_at.reshape(-1, LANES), part.is_run, strict=True):
            would_be = lanes[0] + np.arange(LANES)
            assert is_run == (lanes[0] >= 0 and np.array_equal(lanes, would_be))
