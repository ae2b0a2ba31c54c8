import numpy as np
import pytest
from parts import require_part

numba = require_part("numba")

from tinytorch.core.kernels.numba import int8_convolution as tiles
from tinytorch.core.kernels.numba.int8_simd import PORTABLE
from tinytorch.core.kernels.numba.simd import LANES
from tinytorch.core.kernels.packing import pack_int8

LINES = 5
OUTPUTS = 11
ROW = 3 * LANES + 2


@numba.njit
def run_tile(height, width, seen, values, sums, scales, bias, step, out, position, last, way):
    output = 2
    tiles.patch_tile(
        height, width, seen, 3, values, output * 4, OUTPUTS * 4, LINES, sums, scales, bias,
        output, 7, step, out, 1, ROW, position, last, way,
    )  # fmt: skip


@numba.njit
def run_gather(images, tap_at, lines, out, step):
    tiles.gather_lines(images, 5, tap_at, lines, out, 2, step)


@numba.njit
def run_copy(source, step, target, count):
    tiles.copy_bytes(source, 1, step, target, 2, count)


@numba.njit
def run_fill(target, count, value):
    tiles.fill_bytes(target, 3, count, value)


@pytest.mark.parametrize("way", [None, PORTABLE], ids=["fastest", "portable"])
@pytest.mark.parametrize("height", tiles.TILE_HEIGHTS)
@pytest.mark.parametrize("width", tiles.TILE_WIDTHS)
def test_a_tile_multiplies_bytes_exactly_and_scales_the_sums(width, height, way, rng):
    weight = rng.integers(-128, 128, (4 * LINES, OUTPUTS)).astype(np.int8)
    scales, bias = (rng.uniform(0.5, 2, OUTPUTS).astype(np.float32) for _ in range(2))
    packed = pack_int8(weight, scales)
    seen = rng.integers(0, 256, (LINES, width, LANES, 4)).astype(np.uint8)
    flat = np.concatenate([np.zeros(3, np.uint8), seen.ravel()])
    out = np.zeros(1 + height * ROW, np.float32)
    step, last = np.float32(0.25), 2 * LANES + 1  # the last register overlaps the one before
    run_tile(height, width, flat, packed.values, packed.sums, scales, bias, step, out, 1, last, way)
    channels = slice(2, 2 + height)
    inputs = seen.transpose(1, 2, 0, 3).reshape(width * LANES, -1)  # (positions, inputs)
    totals = inputs.astype(int) @ weight[:, channels].astype(int) - 7 * packed.sums[channels]
    results = totals * (0.25 * scales[channels].astype(np.float64)) + bias[channels]
    expected = np.zeros((height, ROW))
    for vector in range(width):
        at = min(1 + vector * LANES, last)
        expected[:, at : at + LANES] = results[vector * LANES : (vector + 1) * LANES].T
    np.testing.assert_allclose(out[1:].reshape(height, ROW), expected, rtol=1e-6, atol=1e-4)
    assert out[0] == 0


@pytest.mark.parametrize("lines", [0, 1, 3])
def test_lines_hold_four_inputs_of_each_position(lines, rng):
    images = rng.integers(0, 256, 300).astype(np.uint8)
    tap_at, step = rng.integers(0, 200, 4 * lines), 3 * tiles.LINE_BYTES
    out = np.zeros(9 * tiles.LINE_BYTES + 2, np.uint8)
    run_gather(images, tap_at, lines, out, step)
    expected = np.zeros_like(out)
    for line in range(lines):
        seen = images[5 + tap_at[4 * line : 4 * line + 4, None] + np.arange(LANES)]
        at = 2 + line * step
        expected[at : at + tiles.LINE_BYTES] = seen.T.ravel()
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("step", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, tiles.LINE_BYTES, tiles.LINE_BYTES + 1, 150])
def test_bytes_are_copied_and_few_more_behind_them(count, step, rng):
    source = rng.integers(1, 256, 1 + 5 * (150 + tiles.LINE_BYTES)).astype(np.uint8)
    target = np.zeros(2 + 150 + tiles.LINE_BYTES, np.uint8)
    run_copy(source, step, target, count)
    np.testing.assert_array_equal(target[2 : 2 + count], source[1:][::step][:count])
    assert not target[:2].any()
    assert not target[2 + -(-count // tiles.LINE_BYTES) * tiles.LINE_BYTES :].any()


@pytest.mark.parametrize("count", [0, 1, 100])
def test_bytes_are_filled_and_no_others(count):
    target = np.zeros(110, np.uint8)
    run_fill(target, count, np.uint8(200))
    expected = np.zeros(110, np.uint8)
    expected[3 : 3 + count] = 200
    np.testing.assert_array_equal(target, expected)
