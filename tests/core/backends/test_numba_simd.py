"""The micro-kernel of products, and the register file it is cut for."""

import os
import subprocess
import sys

import numpy as np
import pytest
from parts import require_part
from project_files import ROOT

require_part("numba")

from numba import njit

from tinytorch.core.kernels.numba import simd as numba_simd
from tinytorch.core.kernels.numba.simd import (
    LANES,
    TILE_COLUMNS,
    VECTORS,
    copy_vectors,
    narrow_tile_product,
    tile_product,
    transpose_block,
)


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("add", [False, True])
def test_a_tile_is_a_small_product(rows, add, rng):
    multiply = tile_product(rows)

    @njit
    def run(a, panel, out, add):
        multiply(a, 0, 7, 1, panel, 3, TILE_COLUMNS, 7, out, 2, TILE_COLUMNS + 1, add)

    a = rng.integers(-9, 9, (rows, 7)).astype(np.float32)
    panel = rng.integers(-9, 9, (7, TILE_COLUMNS)).astype(np.float32)
    shifted = np.concatenate([np.full(3, np.nan, np.float32), panel.ravel()])
    out = np.ones(2 + rows * (TILE_COLUMNS + 1), np.float32)
    run(a.ravel(), shifted, out, add)
    grid = out[2:].reshape(rows, TILE_COLUMNS + 1)
    np.testing.assert_array_equal(grid[:, :TILE_COLUMNS], a @ panel + add)
    assert (grid[:, TILE_COLUMNS] == 1).all()  # nothing beside the tile was written
    assert (out[:2] == 1).all()


@pytest.mark.parametrize("rows", [1, 6])
def test_a_narrow_tile_is_as_wide_as_asked(rows, rng):
    multiply = narrow_tile_product(rows)

    @njit
    def run(a, panel, out, add, vectors):
        multiply(a, 0, 7, 1, panel, 0, TILE_COLUMNS, 7, out, 0, TILE_COLUMNS, add, vectors)

    a = rng.integers(-9, 9, (rows, 7)).astype(np.float32)
    panel = rng.integers(-9, 9, (7, TILE_COLUMNS)).astype(np.float32)
    for add in (False, True):
        for vectors in range(1, VECTORS + 1):
            out = np.ones((rows, TILE_COLUMNS), np.float32)
            run(a.ravel(), panel.ravel(), out.ravel(), add, vectors)
            width = vectors * LANES
            np.testing.assert_array_equal(out[:, :width], (a @ panel)[:, :width] + add)
            assert (out[:, width:] == 1).all()


def test_a_product_of_depth_0_is_0_or_what_was_there():
    multiply = tile_product(2)

    @njit
    def run(a, panel, out, add):
        multiply(a, 0, 1, 1, panel, 0, TILE_COLUMNS, 0, out, 0, TILE_COLUMNS, add)

    a, panel = np.ones(2, np.float32), np.ones(TILE_COLUMNS, np.float32)
    out = np.full(2 * TILE_COLUMNS, 5, np.float32)
    run(a, panel, out, True)
    assert (out == 5).all()
    run(a, panel, out, False)
    assert (out == 0).all()


def test_a_block_is_turned_around(rng):
    @njit
    def run(source, target):
        transpose_block(source, 1, LANES + 3, target, 2, LANES + 1)

    source = rng.standard_normal(1 + LANES * (LANES + 3)).astype(np.float32)
    target = np.zeros(2 + LANES * (LANES + 1), np.float32)
    run(source, target)
    block = source[1:].reshape(LANES, LANES + 3)[:, :LANES]
    turned = target[2:].reshape(LANES, LANES + 1)
    np.testing.assert_array_equal(turned[:, :LANES], block.T)
    assert not turned[:, LANES].any()


def test_a_line_of_a_panel_is_copied(rng):
    @njit
    def run(source, target):
        copy_vectors(source, 3, target, 1)

    source = rng.standard_normal(TILE_COLUMNS + 3).astype(np.float32)
    target = np.zeros(TILE_COLUMNS + 2, np.float32)
    run(source, target)
    np.testing.assert_array_equal(target[1:-1], source[3:])
    assert target[0] == target[-1] == 0


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"avx512f": True, "avx": True}, (16, 4)),
        ({"avx512f": False, "avx": True}, (8, 2)),
        ({"neon": True}, (4, 4)),
        ({"sse2": True}, (4, 2)),
    ],
)
def test_a_tile_fits_the_registers_of_the_processor(monkeypatch, features, expected):
    monkeypatch.setattr(numba_simd.config, "CPU_FEATURES", None)
    monkeypatch.setattr(numba_simd.llvm, "get_host_cpu_features", lambda: features)
    lanes, vectors = numba_simd._register_file()
    assert (lanes, vectors) == expected
    registers = 32 if {"avx512f", "neon"} & {name for name, on in features.items() if on} else 16
    assert numba_simd.TILE_ROWS * vectors + vectors + 1 <= registers


INT8_PRODUCT = """
import numpy as np
from tinytorch import Tensor, use_backend
from tinytorch.core.layers import Linear
from tinytorch.perf.quantization import QuantizedLinear

x = Tensor(np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32))
layer = QuantizedLinear(Linear(64, 96, rng=0))
with use_backend("numpy"):
    expected = layer(x).data
with use_backend("numba"):
    assert np.abs(layer(x).data - expected).max() < 1e-5
"""


@pytest.mark.slow
@pytest.mark.parametrize("features", ["", "+sse4.2,+avx,+avx2,+fma,-avx512f"])
def test_kernels_use_only_the_instructions_that_numba_may_use(features, tmp_path):
    variables = {
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": features,
        "TINYTORCH_CACHE": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    ran = subprocess.run(
        [sys.executable, "-c", INT8_PRODUCT],
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
