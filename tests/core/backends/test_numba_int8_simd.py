"""The micro-kernel of products with packed weights, on any processor."""

import numpy as np
import pytest
from parts import require_part

require_part("numba")

from numba import njit

from tinytorch.core.kernels.numba import int8_simd as numba_int8_simd
from tinytorch.core.kernels.numba import simd as numba_simd
from tinytorch.core.kernels.numba.int8_simd import (
    HAS_VNNI,
    PORTABLE,
    add_scaled,
    expect_writes,
    packed_tile,
    scale_integers,
    scale_integers_and_add,
)
from tinytorch.core.kernels.numba.simd import LANES, TILE_COLUMNS, VECTORS
from tinytorch.core.kernels.packing import pack_int4, pack_int8


def run_tile(rows, a, weight, out, way):
    multiply = packed_tile(rows)
    inputs, outputs = weight.shape
    last = (outputs - 1) // LANES * LANES * 4

    @njit
    def run(a, values, out, way):
        multiply(a, 0, inputs, values, 0, 4 * outputs, last, inputs // 4, out, 0, TILE_COLUMNS, way)

    run(a.ravel(), pack_int8(weight, np.ones(outputs, np.float32)).values, out, way)


@pytest.mark.parametrize("way", [None, PORTABLE], ids=["fastest", "portable"])
@pytest.mark.parametrize(("rows", "outputs"), [(1, TILE_COLUMNS), (4, 3), (3, LANES)])
def test_a_tile_of_bytes_is_exact(rows, outputs, way, rng):
    a = rng.choice([0, 1, 127, 128, 254, 255], (rows, 12)).astype(np.uint8)
    weight = rng.choice([-128, -127, -1, 0, 1, 127], (12, outputs)).astype(np.int8)
    out = np.empty((rows, TILE_COLUMNS), np.int32)
    run_tile(rows, a, weight, out.reshape(-1), way)
    np.testing.assert_array_equal(out[:, :outputs], a.astype(int) @ weight.astype(int))


def test_no_lines_add_up_to_zero():
    out = np.ones(TILE_COLUMNS, np.int32)
    run_tile(1, np.empty((1, 0), np.uint8), np.empty((0, 2), np.int8), out, None)
    assert not out[:2].any()


@pytest.mark.skipif(not HAS_VNNI, reason="counts an instruction that this processor has not")
def test_the_loop_over_lines_is_not_unrolled():
    """Unrolled it would need more pointers than there are registers."""
    multiply = packed_tile(1)

    @njit
    def run(a, values, out, lines, line_step):
        multiply(a, 0, 0, values, 0, line_step, 192, lines, out, 0, TILE_COLUMNS, None)

    run(np.zeros(4, np.uint8), np.zeros(256, np.int8), np.empty(TILE_COLUMNS, np.int32), 1, 256)
    (code,) = run.inspect_asm().values()
    assert code.count("vpdpbusd") == VECTORS


def test_sums_do_not_saturate():
    # two products alone are more than 16 bits hold, where older instructions stop
    for way in (None, PORTABLE):
        out = np.empty(TILE_COLUMNS, np.int32)
        run_tile(1, np.full((1, 8), 255, np.uint8), np.full((8, 2), -128, np.int8), out, way)
        assert out[:2].tolist() == [8 * 255 * -128] * 2


def test_a_tile_of_floats_multiplies_the_very_weights(rng):
    a = rng.integers(-9, 9, (2, 12)).astype(np.float32)  # sums of whole numbers are exact
    weight = rng.integers(-128, 128, (12, 5)).astype(np.int8)
    out = np.empty((2, TILE_COLUMNS), np.float32)
    run_tile(2, a, weight, out.reshape(-1), None)
    np.testing.assert_array_equal(out[:, :5], a @ weight)


def test_a_tile_of_floats_takes_weights_of_half_a_byte(rng):
    multiply = packed_tile(2, bits=4)

    @njit
    def run(a, values, out):
        multiply(a, 0, 16, values, 0, 20, 0, 2, out, 0, TILE_COLUMNS, None)

    a = rng.integers(-9, 9, (2, 16)).astype(np.float32)
    weight = rng.integers(-8, 8, (16, 5)).astype(np.int8)
    packed = pack_int4(weight, np.ones((2, 5), np.float32), group_size=8)
    out = np.empty((2, TILE_COLUMNS), np.float32)
    run(a.reshape(-1), packed.values, out.reshape(-1))
    shown = min(5, LANES)  # all registers read the first columns
    np.testing.assert_array_equal(out[:, :shown], (a @ weight)[:, :shown])


def test_a_vector_is_scaled_and_added():
    @njit
    def run(totals, scales, out):
        add_scaled(totals, 1, scales, 2, out, 3)

    numbers = np.arange(LANES + 4, dtype=np.float32)
    out = np.ones(LANES + 4, np.float32)
    run(numbers, numbers, out)
    expected = 1 + numbers[1 : LANES + 1] * numbers[2 : LANES + 2]
    assert out.tolist() == [1, 1, 1, *expected.tolist(), 1]


@pytest.mark.parametrize("adds_bias", [False, True])
def test_a_vector_is_corrected_and_scaled(adds_bias, rng):
    scale = scale_integers_and_add if adds_bias else scale_integers

    @njit
    def run(totals, excess, scales, bias, out):
        scale(totals, 1, excess, scales, bias, 2, np.float32(0.5), out, 3)

    totals, excess = (rng.integers(-999, 999, LANES + 5).astype(np.int32) for _ in range(2))
    scales, bias = (rng.integers(1, 9, LANES + 5).astype(np.float32) for _ in range(2))
    out = np.zeros(LANES + 5, np.float32)
    run(totals, excess, scales, bias, out)
    columns = slice(2, LANES + 2)
    expected = (totals[1 : LANES + 1] - excess[columns]) * 0.5 * scales[columns]
    np.testing.assert_array_equal(out[3 : LANES + 3], expected + adds_bias * bias[columns])
    assert not out[:3].any()
    assert not out[LANES + 3 :].any()


def test_to_expect_writes_changes_nothing():
    @njit
    def run(out):
        expect_writes(out, 0)
        expect_writes(out, out.size)  # behind the end, where nobody may write

    out = np.arange(5, dtype=np.float32)
    run(out)
    assert out.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("features", "lanes", "expected"),
    [
        ({"avx512f": True, "avx512vnni": True}, 16, True),
        ({"avx512f": True, "avx512vnni": False}, 16, False),
        ({"avx2": True, "avxvnni": True}, 8, True),
        ({"avx2": True, "avx512vnni": True}, 8, False),
        ({"neon": True}, 4, False),
    ],
)
def test_the_instruction_must_fit_the_registers(monkeypatch, features, lanes, expected):
    monkeypatch.setattr(numba_simd.config, "CPU_FEATURES", None)
    monkeypatch.setattr(numba_int8_simd.llvm, "get_host_cpu_features", lambda: features)
    monkeypatch.setattr(numba_int8_simd, "LANES", lanes)
    assert numba_int8_simd._has_vnni() is expected
