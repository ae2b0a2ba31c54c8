import numpy as np
import pytest
from parts import require_part

numba = require_part("numba")

from tinytorch.core.kernels.numba import convolution_tiles as tiles
from tinytorch.core.kernels.numba.simd import LANES, VECTORS

TAPS = 5


@numba.njit
def run_slide(height, width, a, a_at, image, tap_at, vector_at, bias, out, out_at):
    tiles.slide_tile(
        height, width, a, 0, TAPS, a_at, image, 2, tap_at, TAPS,
        vector_at, 1, bias, 0, out, 0, VECTORS * LANES, out_at, 0,
    )  # fmt: skip


@numba.njit
def run_sum(grad, image, tap_at, vector_at, out):
    plane = len(vector_at) * LANES
    tiles.sum_tile(
        grad, 0, plane, tiles.SUM_ROWS * plane, image, 0, len(image) // 2, tap_at, 0,
        vector_at, len(vector_at), 2, out, 0,
    )  # fmt: skip


@numba.njit
def run_copy(source, target, count):
    tiles.copy_row(source, 1, target, 2, count)


@numba.njit
def run_clear(target, count):
    tiles.clear(target, 2, count)


@pytest.mark.parametrize("height", tiles.TILE_HEIGHTS)
@pytest.mark.parametrize("width", tiles.TILE_WIDTHS)
def test_a_tile_is_the_product_of_weights_and_shifted_images(height, width, rng):
    a = rng.normal(size=height * TAPS).astype(np.float32)
    image = rng.normal(size=400).astype(np.float32)
    bias = rng.normal(size=height).astype(np.float32)
    a_at, tap_at = rng.permutation(TAPS), rng.integers(0, 100, TAPS)
    vector_at, out_at = rng.integers(0, 200, width + 1), rng.permutation(VECTORS) * LANES
    out = np.full(height * VECTORS * LANES, 7, np.float32)
    run_slide(height, width, a, a_at, image, tap_at, vector_at, bias, out, out_at)
    expected = np.full((height, VECTORS * LANES), 7, np.float64)
    for vector in range(width):
        starts = 2 + tap_at + vector_at[1 + vector]
        seen = image[starts[:, None] + np.arange(LANES)].astype(np.float64)
        at = slice(out_at[vector], out_at[vector] + LANES)
        expected[:, at] = a.reshape(height, TAPS)[:, a_at] @ seen + bias[:, None]
    np.testing.assert_allclose(out.reshape(height, -1), expected, rtol=0, atol=1e-5)


def test_a_tile_of_sums_goes_over_all_vectors_of_all_images(rng):
    rows, taps, vectors = tiles.SUM_ROWS, tiles.SUM_TAPS, 3
    grad = rng.normal(size=(2, rows, vectors, LANES)).astype(np.float32)
    image = rng.normal(size=(2, 300)).astype(np.float32)
    tap_at, vector_at = rng.integers(0, 50, taps), rng.integers(0, 200, vectors)
    out = np.empty(rows * taps, np.float32)
    run_sum(grad.reshape(-1), image.reshape(-1), tap_at, vector_at, out)
    at = (tap_at[:, None] + vector_at)[:, :, None] + np.arange(LANES)  # (taps, vectors, lanes)
    seen = image[:, at].astype(np.float64)
    expected = np.einsum("nrvl,ntvl->rt", grad.astype(np.float64), seen)
    np.testing.assert_allclose(out.reshape(rows, taps), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("count", [LANES, LANES + 1, 2 * LANES, 5 * LANES - 1])
def test_a_row_is_copied_whole_and_nothing_else(count, rng):
    source = rng.normal(size=6 * LANES).astype(np.float32)
    target = np.zeros(6 * LANES, np.float32)
    run_copy(source, target, count)
    expected = np.zeros_like(target)
    expected[2 : 2 + count] = source[1 : 1 + count]
    np.testing.assert_array_equal(target, expected)


def test_clearing_writes_as_many_zeros_as_it_was_told():
    target = np.ones(20, np.float32)
    run_clear(target, 7)
    assert target.sum() == 13
    assert not target[2:9].any()
