"""Attention of one new token per sequence over a preallocated cache, in Triton. On CUDA only.

All queries that share a head of keys are answered by one program, so that keys and values are read
once. Long caches are cut into parts, each read by a separate program; the last one to finish puts
the parts together. Only what has been written is read, not the whole cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK_T = 64
"""Keys that are read at once."""
WARPS = 8
PROGRAMS = 128
"""So many programs, if the cache is long enough, keep the device busy."""
LEAST_QUERIES = 16
"""The matrix units take no fewer rows."""


@triton.jit
def _together(
    parts_ptr, sums_ptr, place,
    PARTS: tl.constexpr, QUERIES: tl.constexpr, D_PADDED: tl.constexpr,
):  # fmt: skip
    """Combine the partial results of the programs of one head, each with its own largest score."""
    group, ds = tl.arange(0, QUERIES), tl.arange(0, D_PADDED)
    highest = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    sums = tl.zeros((QUERIES, D_PADDED), tl.float32)
    for part in range(PARTS):
        kept = (place * PARTS + part) * QUERIES + group
        their_highest = tl.load(sums_ptr + kept * 2, cache_modifier=".cg")
        their_total = tl.load(sums_ptr + kept * 2 + 1, cache_modifier=".cg")
        theirs = tl.load(parts_ptr + kept[:, None] * D_PADDED + ds[None, :], cache_modifier=".cg")
        higher = tl.maximum(highest, their_highest)
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        fading, weight = tl.exp(highest - shift), tl.exp(their_highest - shift)
        total = total * fading + their_total * weight
        sums = sums * fading[:, None] + theirs * weight[:, None]
        highest = higher
    return sums / total[:, None]


@triton.jit
def _attend_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, state_ptr, y_ptr, parts_ptr, sums_ptr,
    length, scale, q_b, q_h, q_d, kv_b, kv_h, kv_t, mask_b, mask_h, mask_t,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr,
    D: tl.constexpr, D_PADDED: tl.constexpr, HAS_MASK: tl.constexpr,
    PARTS: tl.constexpr, BLOCK_T: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    if IS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    place, part = tl.program_id(0), tl.program_id(1)
    batch, head = place // KV_HEADS, place % KV_HEADS
    group = tl.arange(0, QUERIES)
    ds = tl.arange(0, D_PADDED)
    ts = tl.arange(0, BLOCK_T)
    is_query, is_d = group < GROUP, ds < D
    heads = head * GROUP + group
    both = is_query[:, None] & is_d[None, :]
    q = tl.load(
        q_ptr + batch * q_b + heads[:, None] * q_h + ds[None, :] * q_d, mask=both, other=0.0
    )
    written = tl.minimum(tl.load(state_ptr).to(tl.int32) + 1, length)
    share = tl.cdiv(tl.cdiv(written, PARTS), BLOCK_T) * BLOCK_T
    begin = part * share
    end = tl.minimum(begin + share, written)
    highest = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    sums = tl.zeros((QUERIES, D_PADDED), tl.float32)
    rows = batch.to(tl.int64) * kv_b + head * kv_h
    for start in range(begin, end, BLOCK_T):
        now = start + ts
        is_t = now < end
        cells = rows + now[:, None] * kv_t + ds[None, :]
        inside = is_t[:, None] & is_d[None, :]
        k = tl.load(k_ptr + cells, mask=inside, other=0.0)
        v = tl.load(v_ptr + cells, mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = is_t[None, :]
        if HAS_MASK:
            cell = mask_ptr + batch * mask_b + heads[:, None] * mask_h + now[None, :] * mask_t
            seen = seen & (tl.load(cell, mask=is_query[:, None] & is_t[None, :], other=0) != 0)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - shift[:, None])
        fading = tl.exp(highest - shift)
        total = total * fading + tl.sum(weights, axis=1)
        sums = sums * fading[:, None]
        sums += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        highest = higher
    outs = y_ptr + (batch * KV_HEADS * GROUP + heads[:, None]) * D + ds[None, :]
    if PARTS == 1:
        tl.store(outs, (sums / total[:, None]).to(y_ptr.dtype.element_ty), mask=both)
    else:
        mine = place * PARTS + part
        kept = mine * QUERIES + group
        tl.store(parts_ptr + kept[:, None] * D_PADDED + ds[None, :], sums)
        tl.store(sums_ptr + kept * 2, highest)
        tl.store(sums_ptr + kept * 2 + 1, total)
        tl.debug_barrier()
        done = tl.atomic_add(state_ptr + 1 + place, 1, sem="acq_rel")
        if done == PARTS - 1:
            mean = _together(parts_ptr, sums_ptr, place, PARTS, QUERIES, D_PADDED)
            tl.store(outs, mean.to(y_ptr.dtype.element_ty), mask=both)
            tl.store(state_ptr + 1 + place, 0)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    state: torch.Tensor,
    scale: float,
    *,
    is_early: bool = True,
) -> torch.Tensor:
    """Attend with one query per sequence: (batch, heads, 1, d) over caches of (batch, heads, t, d).

    `state` holds where the newest key was written, and then a zero for each head of keys, in
    which the programs count who is done. `mask` says what may be seen, of a shape that broadcasts
    to (batch, heads, 1, t). The result is (batch, 1, heads, d).
    """
    batch, heads, _, d = q.shape
    kv_heads, length = k.shape[1], k.shape[2]
    group = heads // kv_heads
    queries = max(LEAST_QUERIES, triton.next_power_of_2(group))
    padded = max(16, triton.next_power_of_2(d))
    parts = min(triton.cdiv(length, BLOCK_T), max(1, PROGRAMS // (batch * kv_heads)), 32)
    y = torch.empty((batch, 1, heads, d), dtype=q.dtype, device=q.device)
    kept = batch * kv_heads * parts * queries
    many = parts > 1
    sums = torch.empty(kept * padded if many else 1, dtype=torch.float32, device=q.device)
    totals = torch.empty(kept * 2 if many else 1, dtype=torch.float32, device=q.device)
    seen = None if mask is None else mask.expand(batch, heads, 1, length)
    steps = (0, 0, 0) if seen is None else (seen.stride(0), seen.stride(1), seen.stride(3))
    _attend_kernel[(batch * kv_heads, parts)](
        q, k, v, q if seen is None else seen, state, y, sums, totals,
        length, scale, q.stride(0), q.stride(1), q.stride(3),
        k.stride(0), k.stride(1), k.stride(2), *steps,
        KV_HEADS=kv_heads, GROUP=group, QUERIES=queries, D=d, D_PADDED=padded,
        HAS_MASK=seen is not None, PARTS=parts, BLOCK_T=BLOCK_T, IS_EARLY=is_early,
        num_warps=WARPS, **({"launch_pdl": True} if is_early else {}),
    )  # fmt: skip
    return y
