"""Products of a few rows with matrices, as decoding needs them, in Triton. Imported on CUDA only.

One token times a matrix is a matter of reading the matrix: the kernel that keeps the most bytes in
flight wins. Every program computes some outputs whole, so nothing is written twice. Matrices that
are multiplied with the same input are read by one launch. A launch begins while the kernel before
it ends (programmatic dependent launch): weights do not depend on that one, so their first bytes are
asked for before waiting; of norms and biases, too, which are few, but come from as far away. A
matrix is read once in a step, so it is the first to leave the cache.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

MOST_ROWS = 4
"""With more rows the matrix units of the device win."""
MOST_MATRICES = 3
LINE_BYTES = 4096
"""So much of each row is asked for at once, and half of that where rows are longer."""


@triton.jit
def _wait(IS_EARLY: tl.constexpr):
    if IS_EARLY:
        tl.extra.cuda.gdc_wait()


@triton.jit
def _let_next_begin(IS_EARLY: tl.constexpr):
    if IS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _activated(x, NAME: tl.constexpr):
    if NAME == "silu":
        x = x * tl.sigmoid(x)
    elif NAME == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif NAME == "gelu_tanh":
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x * tl.sigmoid(2.0 * inner)
    elif NAME == "relu":
        x = tl.maximum(x, 0.0)
    return x


@triton.jit
def _inverse_size(
    x_ptr, rows, eps, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """Return one over the root of the mean square of each row."""
    lines, ks = tl.arange(0, ROWS), tl.arange(0, BLOCK_K)
    squares = tl.zeros((ROWS,), tl.float32)
    for start in tl.static_range(0, K, BLOCK_K):
        x = _row_part(x_ptr, lines, rows, start + ks, K)
        squares += tl.sum(x * x, axis=1)
    return tl.rsqrt(squares / K + eps)


@triton.jit
def _row_part(x_ptr, lines, rows, ks, K: tl.constexpr):
    inside = (lines < rows)[:, None] & (ks < K)[None, :]
    x = tl.load(x_ptr + lines[:, None] * K + ks[None, :], mask=inside, other=0.0)
    return x.to(tl.float32)


@triton.jit
def _normed(x, inverse, scale, KIND: tl.constexpr):
    """Scale rows to size one and by the weights of a norm, rounded where PyTorch rounds."""
    x = (x * inverse[:, None]).to(KIND).to(tl.float32)
    return (x * scale.to(tl.float32)[None, :]).to(KIND).to(tl.float32)


@triton.jit
def _joint_kernel(
    x_ptr, w0, w1, w2, b0, b1, b2, norm_ptr, added_ptr, y_ptr,
    rows, n0, n1, n2, stride_out, stride_in, eps,
    K: tl.constexpr, ROWS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_NORM: tl.constexpr,
    IS_ADDED: tl.constexpr, IS_EARLY: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute some columns of x @ [w0, w1, w2]^T; (n, k) is at n * stride_out + k * stride_in."""
    _let_next_begin(IS_EARLY)
    program = tl.program_id(0)
    blocks0, blocks1 = tl.cdiv(n0, BLOCK_N), tl.cdiv(n1, BLOCK_N)
    w, b, n, block, column = w0, b0, n0, program, 0
    if program >= blocks0 + blocks1:
        w, b, n, block, column = w2, b2, n2, program - blocks0 - blocks1, n0 + n1
    elif program >= blocks0:
        w, b, n, block, column = w1, b1, n1, program - blocks0, n0
    outs = block * BLOCK_N + tl.arange(0, BLOCK_N)
    is_out = outs < n
    ks = tl.arange(0, BLOCK_K)
    lines = tl.arange(0, ROWS)
    is_line = lines < rows
    places = w + outs[:, None].to(tl.int64) * stride_out + ks[None, :] * stride_in
    tile = tl.load(
        places, mask=is_out[:, None] & (ks < K)[None, :], other=0.0, eviction_policy="evict_first"
    )
    if HAS_NORM:
        scale = tl.load(norm_ptr + ks, mask=ks < K, other=0.0)
    if HAS_BIAS:
        bias = tl.load(b + outs, mask=is_out, other=0.0)
    _wait(IS_EARLY)
    kind = y_ptr.dtype.element_ty
    results = lines[:, None] * (n0 + n1 + n2) + column + outs[None, :]
    held = is_line[:, None] & is_out[None, :]
    if IS_ADDED:
        added = tl.load(added_ptr + results, mask=held, other=0.0)
    if HAS_NORM:
        inverse = _inverse_size(x_ptr, rows, eps, K, ROWS, BLOCK_K)
    sums = tl.zeros((ROWS, BLOCK_N, BLOCK_K), tl.float32)
    for start in tl.static_range(0, K, BLOCK_K):
        inside = (start + ks) < K
        if start > 0:
            tile = tl.load(
                places + start * stride_in,
                mask=is_out[:, None] & inside[None, :],
                other=0.0,
                eviction_policy="evict_first",
            )
            if HAS_NORM:
                scale = tl.load(norm_ptr + start + ks, mask=inside, other=0.0)
        x = _row_part(x_ptr, lines, rows, start + ks, K)
        if HAS_NORM:
            x = _normed(x, inverse, scale, kind)
        sums += tile.to(tl.float32)[None, :, :] * x[:, None, :]
    total = tl.sum(sums, axis=2)
    if HAS_BIAS:
        total += bias.to(tl.float32)[None, :]
    if IS_ADDED:
        total = total.to(kind).to(tl.float32) + added.to(tl.float32)
    tl.store(y_ptr + results, total.to(kind), mask=held)


@triton.jit
def _gated_kernel(
    x_ptr, w0, w1, norm_ptr, y_ptr, rows, N, eps,
    K: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr, HAS_NORM: tl.constexpr,
    IS_EARLY: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute some columns of activation(x @ w0^T) * (x @ w1^T), rounded where PyTorch rounds."""
    _let_next_begin(IS_EARLY)
    outs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_out = outs < N
    ks = tl.arange(0, BLOCK_K)
    lines = tl.arange(0, ROWS)
    is_line = lines < rows
    places = outs[:, None].to(tl.int64) * K + ks[None, :]
    first = is_out[:, None] & (ks < K)[None, :]
    gate_tile = tl.load(w0 + places, mask=first, other=0.0, eviction_policy="evict_first")
    up_tile = tl.load(w1 + places, mask=first, other=0.0, eviction_policy="evict_first")
    if HAS_NORM:
        scale = tl.load(norm_ptr + ks, mask=ks < K, other=0.0)
    _wait(IS_EARLY)
    kind = y_ptr.dtype.element_ty
    if HAS_NORM:
        inverse = _inverse_size(x_ptr, rows, eps, K, ROWS, BLOCK_K)
    gates = tl.zeros((ROWS, BLOCK_N, BLOCK_K), tl.float32)
    ups = tl.zeros((ROWS, BLOCK_N, BLOCK_K), tl.float32)
    for start in tl.static_range(0, K, BLOCK_K):
        inside = (start + ks) < K
        if start > 0:
            held = is_out[:, None] & inside[None, :]
            gate_tile = tl.load(
                w0 + places + start, mask=held, other=0.0, eviction_policy="evict_first"
            )
            up_tile = tl.load(
                w1 + places + start, mask=held, other=0.0, eviction_policy="evict_first"
            )
            if HAS_NORM:
                scale = tl.load(norm_ptr + start + ks, mask=inside, other=0.0)
        x = _row_part(x_ptr, lines, rows, start + ks, K)
        if HAS_NORM:
            x = _normed(x, inverse, scale, kind)
        gates += gate_tile.to(tl.float32)[None, :, :] * x[:, None, :]
        ups += up_tile.to(tl.float32)[None, :, :] * x[:, None, :]
    gate = tl.sum(gates, axis=2).to(kind).to(tl.float32)
    gate = _activated(gate, ACTIVATION).to(kind).to(tl.float32)
    up = tl.sum(ups, axis=2).to(kind).to(tl.float32)
    held = is_line[:, None] & is_out[None, :]
    tl.store(y_ptr + lines[:, None] * N + outs[None, :], (gate * up).to(kind), mask=held)


def joint_product(
    x: torch.Tensor,
    weights: list[torch.Tensor],
    biases: list[torch.Tensor],
    *,
    transposed: bool = False,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    added: torch.Tensor | None = None,
    is_early: bool = True,
) -> torch.Tensor:
    """Multiply a few rows with up to three matrices; the results lie side by side in the last axis.

    Matrices are (outputs, inputs), or the other way round if `transposed`. There are as many biases
    as matrices, or none. With the weights of a `norm`, rows are scaled to a mean square of one
    before; `added` has the shape of the result and is added to it.
    """
    inputs = x.shape[-1]
    flat = x.reshape(-1, inputs).contiguous()
    rows = flat.shape[0]
    outputs = [each.shape[1 if transposed else 0] for each in weights]
    spare = [0] * (MOST_MATRICES - len(weights))
    matrices = [*weights, *(weights[0] for _ in spare)]
    offsets = [*biases, *(matrices[len(biases) :])]
    stride_out, stride_in = (1, outputs[0]) if transposed else (inputs, 1)
    block_n, block_k, warps = _joint_blocks(inputs, x.element_size(), transposed)
    grid = (sum(triton.cdiv(each, block_n) for each in outputs),)
    y = torch.empty((*x.shape[:-1], sum(outputs)), dtype=x.dtype, device=x.device)
    _joint_kernel[grid](
        flat, *matrices, *offsets, flat if norm is None else norm,
        y if added is None else added.contiguous(), y,
        rows, *outputs, *spare, stride_out, stride_in, eps,
        K=inputs, ROWS=triton.next_power_of_2(rows), HAS_BIAS=bool(biases),
        HAS_NORM=norm is not None, IS_ADDED=added is not None, IS_EARLY=is_early,
        BLOCK_N=block_n, BLOCK_K=block_k, num_warps=warps, **_launched(is_early),
    )  # fmt: skip
    return y


def gated_product(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    activation: str,
    *,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    is_early: bool = True,
) -> torch.Tensor:
    """Return activation(x @ gate^T) * (x @ up^T) for a few rows; with a `norm` as above."""
    inputs, outputs = x.shape[-1], gate.shape[0]
    flat = x.reshape(-1, inputs).contiguous()
    rows = flat.shape[0]
    block_n, block_k, warps = _gated_blocks(inputs, x.element_size())
    y = torch.empty((*x.shape[:-1], outputs), dtype=x.dtype, device=x.device)
    _gated_kernel[(triton.cdiv(outputs, block_n),)](
        flat, gate, up, flat if norm is None else norm, y, rows, outputs, eps,
        K=inputs, ROWS=triton.next_power_of_2(rows), ACTIVATION=activation,
        HAS_NORM=norm is not None, IS_EARLY=is_early,
        BLOCK_N=block_n, BLOCK_K=block_k, num_warps=warps, **_launched(is_early),
    )  # fmt: skip
    return y


def _joint_blocks(inputs: int, element_bytes: int, transposed: bool) -> tuple[int, int, int]:
    """Choose outputs per program, inputs read at once, and warps; measured on an H200."""
    if transposed:
        return 8, min(512, triton.next_power_of_2(inputs)), 4
    line = LINE_BYTES // element_bytes
    if inputs > line:
        return 2, line // 2, 2
    return 4, triton.next_power_of_2(inputs), 4


def _gated_blocks(inputs: int, element_bytes: int) -> tuple[int, int, int]:
    return 2, min(LINE_BYTES // element_bytes, triton.next_power_of_2(inputs)), 4


def _launched(is_early: bool) -> dict[str, Any]:
    return {"launch_pdl": True} if is_early else {}
