"""Where a tile finds what it sees: runs of bytes, one for each input of a patch."""

import numpy as np
import pytest
from int8_convolutions import SHAPES, Shape
from numpy.lib.stride_tricks import sliding_window_view
from parts import require_part

require_part("numba")

from tinytorch.core.kernels.numba import int8_convolution as layout
from tinytorch.core.kernels.reference_quantized import Window, quantize_rows


def laid_out(images, shape, *, step=None, zero_point=0):
    """Lay out images; give the bytes, guarded by others, the plan and the steps."""
    window = Window(shape.kernel, *shape.how.values())
    plan = layout.make_plan(shape.images[1:], shape.outputs, window)
    batch, channels, height, width = images.shape
    planes = images.reshape(batch * channels, height * width)
    size = len(planes) * plan.plane_bytes
    out, steps = np.full(size + 100, 99, np.uint8), np.empty(batch, np.float32)
    given = np.float32(1 if step is None else step)
    layout.lay_out(
        planes, batch, height, width, step is None, given, 1 / given, zero_point, *shape.padding,
        shape.kernel[1], shape.dilation[1], *shape.stride, plan.rows, plan.output[1],
        plan.is_plain, plan.plane_bytes, 2, steps, np.empty(len(planes), np.float32), out, work=0,
    )  # fmt: skip
    assert (out[size:] == 99).all()  # nothing is written behind
    return out[:size].reshape(batch, -1), plan, steps


def patches(whole, shape, zero):
    """Give (batch, channels, kernel rows, kernel columns, positions) the slow way."""
    (down, across), (rows, columns) = shape.padding, shape.dilation
    border = ((0, 0), (0, 0), (down, down), (across, across))
    padded = np.pad(whole, border, constant_values=zero)
    reach = [(k - 1) * d + 1 for k, d in zip(shape.kernel, shape.dilation, strict=True)]
    seen = sliding_window_view(padded, reach, axis=(2, 3))
    seen = seen[:, :, :: shape.stride[0], :: shape.stride[1], ::rows, ::columns]
    seen = seen.transpose(0, 1, 4, 5, 2, 3)
    return seen.reshape(*seen.shape[:4], -1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_input_of_a_patch_sees_a_run_of_bytes(shape, rng):
    zero_point = 11
    whole = rng.integers(-128, 128, shape.images)
    images = (whole - zero_point).astype(np.float32)
    found, plan, steps = laid_out(images, shape, step=1, zero_point=zero_point)
    expected = patches(whole + 128, shape, zero_point + 128)
    batch, channels, *_, positions = expected.shape
    per_group = channels // shape.groups
    assert positions == plan.output[0] * plan.output[1]
    for group in range(shape.groups):
        mine = slice(group * per_group, (group + 1) * per_group)
        wanted = expected[:, mine].reshape(batch, -1, positions)
        starts = group * per_group * plan.plane_bytes + plan.tap_at[: wanted.shape[1]]
        seen = found[:, starts[:, None] + np.arange(positions)]
        np.testing.assert_array_equal(seen, wanted)
    assert (steps == 1).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_whatever_a_register_reads_is_there(shape):
    plan = layout.make_plan(
        shape.images[1:], shape.outputs, Window(shape.kernel, *shape.how.values())
    )
    assert len(plan.tap_at) % 4 == 0
    assert plan.tap_at.dtype == np.int64
    positions = plan.output[0] * plan.output[1]
    per_group = shape.images[1] // shape.groups
    end = plan.tap_at.max() + max(positions, layout.LINE_BYTES)
    assert plan.tap_at.min() >= 0
    assert end <= per_group * plan.plane_bytes


def test_images_have_their_own_steps_and_bytes_of_the_reference(rng):
    shape = Shape((4, 2, 3, 5), 1, (1, 1))
    images = rng.normal(size=shape.images).astype(np.float32)
    images *= np.array([1e-9, 1, 1e9, 0], np.float32)[:, None, None, None]
    found, plan, steps = laid_out(images, shape)
    rows, expected = quantize_rows(images.reshape(4, -1))
    np.testing.assert_array_equal(steps, expected[:, 0])
    planes = found.reshape(4, 2, plan.plane_bytes)[:, :, :15]
    np.testing.assert_array_equal(planes.reshape(4, -1).astype(int) - 128, rows)


@pytest.mark.parametrize(
    "wrong",
    [
        {"groups": 3},
        {"groups": 0},
        {"kernel_size": (0, 3)},
        {"kernel_size": (9, 3)},
        {"stride": (1, 0)},
        {"padding": (-1, 0)},
        {"dilation": (0, 1)},
        {"dilation": (5, 1)},
    ],
)
def test_there_is_no_plan_where_shapes_do_not_fit(wrong):
    fields = {"kernel_size": (3, 3), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    right = Window(**fields, groups=2)
    assert layout.make_plan((4, 6, 6), 6, right) is not None
    assert layout.make_plan((4, 6, 6), 6, right._replace(**wrong)) is None
    assert layout.make_plan((4, 6, 6), 0, right) is None
    assert layout.make_plan((4, 0, 6), 6, right) is None
