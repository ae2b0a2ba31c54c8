"""Checks of the lab on acceleration."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytorch.core.kernels.reference import gelu
from tinytorch.learning.checks.support import (
    PRODUCTS,
    Array,
    Rng,
    WatchedArray,
    close,
    draw,
    keys_of,
    near_sum,
    number_text,
)
from tinytorch.learning.work import Missed, Work, expect

SLACK = 30_000
"""Bytes that Python itself may allocate during a call."""


def _sizes(rng: Rng, count: int, low: int, high: int) -> list[int]:
    """Draw sizes that all differ, so that no axis can be taken for another."""
    return [int(each) for each in rng.choice(np.arange(low, high), count, replace=False)]


# ---------------------------------------------------------------- naive


@dataclass(frozen=True)
class _Counted:
    """A number that counts how often it is multiplied."""

    value: float
    counts: list[int]

    def __mul__(self, other: Any) -> float:
        self.counts.append(1)
        return self.value * float(getattr(other, "value", other))

    __rmul__ = __mul__

    def __float__(self) -> float:
        return self.value


def check_naive(work: Work, rng: Rng) -> None:
    """The product is that of the definition, for matrices of any shape."""
    size = int(rng.integers(3, 7))
    for shape in ((size, size, size), *(_sizes(rng, 3, 1, 8) for _ in range(3))):
        m, k, n = shape
        a, b = rng.integers(-9, 9, (m, k)), rng.integers(-9, 9, (k, n))
        found = work.naive_matmul(a.tolist(), b.tolist())
        expect(
            isinstance(found, list) and [np.size(row) for row in found] == [n] * m,
            "wrong-shape",
            f"({m}, {k}) by ({k}, {n}) is a list of {m} rows with {n} numbers each",
        )
        expect(
            not any(found[i] is found[i + 1] for i in range(m - 1)),
            "shared-rows",
            "all rows of your result are one list, so a change of one row changes all of them",
        )
        expect(
            not (m == k == n and not close(a @ b, a @ b.T) and close(found, a @ b.T)),
            "transposed",
            "that is the product with the transpose of b: which index of b runs with the sum?",
        )
        sums = np.cumsum((a @ b).reshape(-1)).reshape(m, n)
        expect(
            m * n == 1 or not close(found, sums) or close(sums, a @ b),
            "sum-not-reset",
            "each number of your result holds the sums before it, too: where does a sum begin?",
        )
        expect(close(found, a @ b), "wrong-product", f"({m}, {k}) by ({k}, {n}) has other numbers")


def check_naive_work(work: Work, rng: Rng) -> None:
    """Each pair of numbers is multiplied once: m·k·n multiplications, and none is a library's."""
    m, k, n = _sizes(rng, 3, 2, 7)
    counts: list[int] = []
    a = [[_Counted(float(each), counts) for each in row] for row in rng.random((m, k))]
    b = rng.random((k, n)).tolist()
    work.naive_matmul(a, b)
    expect(
        len(counts) == m * k * n,
        "wrong-count",
        f"({m}, {k}) by ({k}, {n}) takes {m * k * n} multiplications, and you made {len(counts)}",
    )


def check_naive_mismatch(work: Work, rng: Rng) -> None:
    """Matrices that do not fit each other are refused, whichever is longer."""
    m, k, n = _sizes(rng, 3, 2, 7)
    for other in (k + 1, k - 1):
        try:
            work.naive_matmul(rng.random((m, k)).tolist(), rng.random((other, n)).tolist())
        except ValueError:
            continue
        except IndexError as error:
            raise Missed(
                "not-refused", f"({m}, {k}) by ({other}, {n}) ended in an IndexError: look before"
            ) from error
        raise Missed(
            "not-refused", f"({m}, {k}) by ({other}, {n}) has no product, and you returned one"
        )


# ---------------------------------------------------------------- rows


def check_rows(work: Work, rng: Rng) -> None:
    """The product is right for any shape, stays in float32, and leaves its inputs alone."""
    for low, high in ((1, 6), (3, 20), (3, 20)):
        m, k, n = _sizes(rng, 3, low, high)
        a, b = draw(rng, m, k), draw(rng, k, n)
        kept = a.copy(), b.copy()
        found = np.asarray(work.vectorized_matmul(a, b))
        expect(
            np.array_equal(a, kept[0]) and np.array_equal(b, kept[1]),
            "inputs-changed",
            "your function has changed the arrays that it was given",
        )
        _check_product(found, a, b)


def _check_product(found: Array, a: Array, b: Array) -> None:
    (m, k), n = a.shape, b.shape[1]
    expect(
        found.shape == (m, n),
        "wrong-shape",
        f"({m}, {k}) by ({k}, {n}) gives ({m}, {n}), not {found.shape}",
    )
    expect(
        found.dtype == np.float32,
        "float64",
        f"float32 came in, and {found.dtype} goes out: what does np.zeros make by itself?",
    )
    expect(near_sum(found, a @ b), "wrong-product", f"({m}, {k}) by ({k}, {n}) has other numbers")


def check_rows_calls(work: Work, rng: Rng) -> None:
    """There is one loop, and it is yours: no function of NumPy that is a product."""
    m, k, n = _sizes(rng, 3, 30, 50)
    calls: list[tuple[str, Any]] = []
    a, b = (WatchedArray.of(draw(rng, *shape), calls) for shape in ((m, k), (k, n)))
    work.vectorized_matmul(a, b)
    found = sorted(PRODUCTS & {name for name, _ in calls})
    expect(
        not found,
        "library-product",
        f"you call {', '.join(found)}, which is the product that you are to build",
    )
    expect(
        len(calls) <= 4 * max(m, k, n) + 20,
        "several-loops",
        f"({m}, {k}) by ({k}, {n}) took {len(calls):,} operations on arrays; "
        "with a single loop it takes two or so for each turn",
    )


def check_rows_memory(work: Work, rng: Rng) -> None:
    """No array is larger than the largest of the three matrices."""
    m, k, n = _sizes(rng, 3, 60, 90)
    a, b = draw(rng, m, k), draw(rng, k, n)
    peak = _peak_bytes(lambda: work.vectorized_matmul(a, b))
    largest = 4 * max(m * k, k * n, m * n)
    expect(
        peak < 4 * largest + SLACK,
        "too-much-memory",
        f"the largest matrix has {largest:,} bytes, and your function allocates {peak:,}: "
        "is there an array with three axes?",
    )


def _peak_bytes(func: Callable[[], object]) -> int:
    """Return the bytes that a call allocates at its highest."""
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        func()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not was_tracing:
            tracemalloc.stop()


# ---------------------------------------------------------------- blocked


def check_blocked(work: Work, rng: Rng) -> None:
    """The product is right whether or not the block divides the sizes, and stays in float32."""
    for ragged in (False, True, True):
        block = int(rng.integers(3, 6))
        times = _sizes(rng, 3, 2, 6)
        extra = rng.integers(1, block, 3) if ragged else np.zeros(3, int)
        m, k, n = (block * each + int(more) for each, more in zip(times, extra, strict=True))
        a, b = draw(rng, m, k), draw(rng, k, n)
        found = np.asarray(work.blocked_matmul(a, b, block))
        if found.shape == (m, n):
            _check_tiles(found, a, b, block)
        _check_product(found, a, b)
    a, b = draw(rng, 3, 2), draw(rng, 2, 4)
    _check_product(np.asarray(work.blocked_matmul(a, b, 64)), a, b)


def _check_tiles(found: Array, a: Array, b: Array, block: int) -> None:
    (m, k), n = a.shape, b.shape[1]
    last = (k - 1) // block * block
    expect(
        not near_sum(found, a[:, last:] @ b[last:]),
        "not-added",
        "your result has only the last product of tiles: those along the inner axis add up",
    )
    whole = k // block * block
    edge_rows, edge_columns = m // block * block, n // block * block
    inside = found[:edge_rows, :edge_columns]
    is_ragged = whole < k or edge_rows < m or edge_columns < n
    partly = a[:edge_rows, :whole] @ b[:whole, :edge_columns]
    complete = (a @ b)[:edge_rows, :edge_columns]
    expect(
        not (
            is_ragged
            and not near_sum(found, a @ b)
            and (near_sum(inside, partly) or near_sum(inside, complete))
        ),
        "edge-missing",
        f"blocks of {block} do not divide ({m}, {k}) by ({k}, {n}), and what is left at the edges "
        "is missing",
    )


def check_tiles(work: Work, rng: Rng) -> None:
    """All three axes are cut: no tile is larger than the block, and each product is made once."""
    block = int(rng.integers(3, 6))
    m, k, n = (block * each + 1 for each in _sizes(rng, 3, 2, 6))
    seen: list[tuple[int, int, int]] = []

    def multiply(one: Array, other: Array) -> Array:
        expect(
            one.ndim == 2 and other.ndim == 2 and one.shape[1] == other.shape[0],
            "wrong-tiles",
            f"`multiply` got {one.shape} and {other.shape}, which do not fit each other",
        )
        seen.append((*one.shape, other.shape[1]))
        product: Array = one @ other
        return product

    work.blocked_matmul(draw(rng, m, k), draw(rng, k, n), block, multiply)
    expect(seen, "own-product", "`multiply`, which was passed in, was never called")
    for axis, name in enumerate(("rows of a", "the inner axis", "columns of b")):
        most = max(each[axis] for each in seen)
        expect(
            most <= block,
            "axis-not-cut",
            f"a tile has {most} along {name}, and the block is {block}: cut all three axes",
        )
    total, wanted = sum(math.prod(each) for each in seen), m * k * n
    expect(
        total == wanted,
        "wrong-work",
        f"the tiles make {total} multiply-accumulates together; the product has {wanted}",
    )
    count = math.prod(math.ceil(each / block) for each in (m, k, n))
    expect(
        len(seen) == count,
        "wrong-tiles",
        f"there are {count} products of tiles, and you made {len(seen)}",
    )


# ---------------------------------------------------------------- traffic


def check_traffic(work: Work, rng: Rng) -> None:
    """The bytes are those of the tiles that are read, counted one by one, and of the result."""
    for _ in range(4):
        block = int(rng.integers(2, 9))
        m, k, n = (block * each + int(rng.integers(1, block)) for each in _sizes(rng, 3, 2, 7))
        size = int(rng.choice([1, 2, 4, 8]))
        found = work.traffic(m, k, n, block, size)
        read_a, read_b = _tiles_read(m, k, n, block)
        once = size * (m * k + k * n + m * n)
        expect(
            found != once,
            "read-once",
            "you count each matrix once, as if the cache held all of them",
        )
        expect(
            found != size * (read_a + read_b),
            "result-missing",
            "the result is written, too, each number once",
        )
        expect(
            not close(found, size * (m * k * n / block * 2 + m * n)),
            "not-whole",
            f"{n} columns make {math.ceil(n / block)} tiles of {block}, not {n / block:.2f}",
        )
        swapped = size * (m * k * math.ceil(m / block) + k * n * math.ceil(n / block) + m * n)
        expect(
            found != swapped,
            "axes-swapped",
            "a tile of `a` is read again for each tile of columns of `b`, not of rows of `a`",
        )
        expect(
            close(found, size * (read_a + read_b + m * n)),
            "wrong-traffic",
            f"({m}, {k}) by ({k}, {n}) in blocks of {block} reads {read_a} numbers of a and "
            f"{read_b} of b, {size} bytes each; you have {number_text(found)} bytes in all",
        )


def _tiles_read(m: int, k: int, n: int, block: int) -> tuple[int, int]:
    """Go through all products of tiles; return the numbers read of a and of b."""

    def length(start: int, size: int) -> int:
        return min(block, size - start)

    read_a = read_b = 0
    for i in range(0, m, block):
        for j in range(0, n, block):
            for p in range(0, k, block):
                read_a += length(i, m) * length(p, k)
                read_b += length(p, k) * length(j, n)
    return read_a, read_b


def check_intensity(work: Work, rng: Rng) -> None:
    """Intensity is FLOPs, two per multiply-accumulate, over your traffic."""
    for _ in range(3):
        m, k, n, block = _sizes(rng, 4, 4, 60)
        size = int(rng.choice([2, 4]))
        found, moved = work.intensity(m, k, n, block, size), work.traffic(m, k, n, block, size)
        wanted = 2 * m * k * n / moved
        expect(not close(found, wanted / 2), "macs", "a multiply-accumulate counts as two FLOPs")
        expect(
            not close(found, 1 / wanted), "inverse", "that is bytes per FLOP; it is the other way"
        )
        expect(
            close(found, wanted),
            "wrong-intensity",
            f"{2 * m * k * n} FLOPs and {moved} bytes give {wanted:.4g}, not {number_text(found)}",
        )


def check_largest_block(work: Work, rng: Rng) -> None:
    """Three tiles of the largest block fit into the cache, and of the next larger one do not."""
    for _ in range(4):
        size = int(rng.choice([1, 2, 4, 8]))
        block = int(rng.integers(20, 400))
        for cache in (3 * size * block**2, 3 * size * (block + 1) ** 2 - 1):
            found = work.largest_block(cache, size)
            expect(
                found != math.isqrt(cache // size),
                "one-tile",
                "one tile of that size fits; there have to be three, one of each matrix",
            )
            expect(
                found == block and isinstance(found, (int, np.integer)),
                "wrong-block",
                f"into {cache:,} bytes fit three tiles of {block} by {block} numbers of {size} "
                f"bytes, and no larger ones; you say {number_text(found)}",
            )


# ---------------------------------------------------------------- gelu


def check_gelu(work: Work, rng: Rng) -> None:
    """The values are those of GELU, in float32, and the input stays as it is."""
    for size in (int(rng.integers(50, 99)), 64, int(rng.integers(2, 9))):
        x = 2 * draw(rng, size)
        kept = x.copy()
        found = np.asarray(work.fused_gelu(x, 16))
        expect(np.array_equal(x, kept), "input-changed", "x is not as it was before the call")
        expect(
            found.dtype == np.float32,
            "float64",
            f"float32 came in, and {found.dtype} goes out: what does np.empty make by itself?",
        )
        wanted = gelu(x, approximate="tanh")
        expect(found.shape == x.shape, "wrong-shape", f"x is {x.shape}, and you gave {found.shape}")
        whole = size // 16 * 16
        expect(
            whole == size or near_sum(found, wanted) or not near_sum(found[:whole], wanted[:whole]),
            "tail-missing",
            f"{size} numbers in pieces of 16: the last {size - whole} are not right",
        )
        expect(near_sum(found, wanted), "wrong-gelu", "the values are not those of plain_gelu()")


def check_gelu_shapes(work: Work, rng: Rng) -> None:
    """Arrays of several axes, transposed ones, and single numbers keep their shape and order."""
    m, k, n = _sizes(rng, 3, 3, 9)
    cases = {
        "three axes": draw(rng, m, k, n),
        "a transposed array": draw(rng, m, k).T,
        "every second column": draw(rng, m, 2 * k)[:, ::2],
        "an array of one number": draw(rng, 1),
    }
    for name, x in cases.items():
        found = np.asarray(work.fused_gelu(x, 7))
        expect(
            found.shape == x.shape,
            "wrong-shape",
            f"{name}: the shape is {found.shape} and should be {x.shape}",
        )
        expect(
            near_sum(found, gelu(x, approximate="tanh")),
            "wrong-order",
            f"{name}: the values differ. Is your flat result really a view, in the order of x?",
        )


def check_gelu_memory(work: Work, rng: Rng) -> None:
    """Besides the result, there are a few arrays of a piece, however large x is."""
    chunk = 4096
    x = draw(rng, int(rng.integers(40, 60)) * chunk + 5)
    peak = _peak_bytes(lambda: work.fused_gelu(x, chunk)) - x.nbytes
    expect(
        peak < 0.9 * x.nbytes,
        "whole-temporaries",
        f"besides the result you hold {peak:,} bytes at once, as much as x or more ({x.nbytes:,}): "
        "which array is as large as x?",
    )
    expect(
        peak < 8 * 4 * chunk + SLACK,
        "too-much-memory",
        f"besides the result you hold {peak:,} bytes; a piece of {chunk} numbers has {4 * chunk:,}",
    )


# ---------------------------------------------------------------- bound


def _machine(rng: Rng) -> tuple[float, float]:
    return float(rng.uniform(5e10, 5e11)), float(rng.uniform(1e10, 4e10))


def check_least(work: Work, rng: Rng) -> None:
    """Computing and moving overlap: the longer of the two is the bound."""
    for factor in (0.1, 0.5, 2.0, 10.0):
        peak, bandwidth = _machine(rng)
        moved = float(rng.uniform(1e6, 1e7))
        flops = factor * moved * peak / bandwidth
        found = work.least_s(flops, moved, peak, bandwidth)
        computing, moving = flops / peak, moved / bandwidth
        expect(
            not close(found, computing + moving),
            "sum-for-longer",
            "you add up computing and moving; both go on at the same time",
        )
        expect(
            not close(found, min(computing, moving)),
            "shorter-for-longer",
            "that is the shorter of the two; what has to be waited for is the longer",
        )
        expect(
            close(found, max(computing, moving)),
            "wrong-bound",
            f"computing takes {computing:.3g} s and moving {moving:.3g} s; "
            f"you say {number_text(found)}",
        )


def check_chain_in_memory(work: Work, rng: Rng) -> None:
    """Where memory limits a whole chain, unfused it moves all bytes once for each operation."""
    for _ in range(2):
        peak, bandwidth = 1e15, float(rng.uniform(1e9, 1e10))
        numbers, size = int(rng.integers(1000, 90_000)), int(rng.choice([2, 4, 8]))
        costs = [1.0] * int(rng.integers(3, 9))
        pass_s = 2 * numbers * size / bandwidth
        fused, unfused = (
            work.chain_s(numbers, costs, each, peak, bandwidth, size) / pass_s
            for each in (True, False)
        )
        expect(
            not close(fused, 0.5),
            "one-way",
            "an operation reads all numbers and writes all of them: that is twice the bytes",
        )
        expect(
            not close(fused, len(costs)),
            "all-bytes",
            "fused, what lies between two operations is never moved; you count it still",
        )
        expect(
            not close(unfused, 1.0),
            "fused-too",
            "unfused, every operation reads and writes all numbers; you count that once",
        )
        expect(
            close(fused, 1.0) and close(unfused, len(costs)),
            "wrong-chain",
            f"a chain of {len(costs)} operations that waits for memory reads and writes all "
            f"numbers once if it is fused (you: {fused:.3g} times), else {len(costs)} times "
            f"(you: {unfused:.3g})",
        )


def check_chain(work: Work, rng: Rng) -> None:
    """Each operation of an unfused chain has a bound of its own; a fused one has a single bound."""
    for _ in range(4):
        peak, bandwidth = _machine(rng)
        numbers, size = int(rng.integers(1000, 90_000)), int(rng.choice([2, 4, 8]))
        moved = 2 * numbers * size
        turn = moved / bandwidth * peak / numbers  # the cost of computing for as long as moving
        costs = [turn * float(each) for each in rng.uniform(0.1, 0.9, int(rng.integers(3, 7)))]
        costs.insert(int(rng.integers(len(costs))), turn * float(rng.uniform(3, 9)))
        computing = numbers * sum(costs) / peak
        each_s = [max(numbers * cost / peak, moved / bandwidth) for cost in costs]
        unfused = work.chain_s(numbers, costs, False, peak, bandwidth, size)
        expect(
            not close(unfused, max(computing, len(costs) * moved / bandwidth)),
            "one-piece",
            "unfused, the operations run one after the other: each has a bound of its own, and "
            "these add up",
        )
        _check_seconds("unfused", unfused, sum(each_s), costs)
        fused = work.chain_s(numbers, costs, True, peak, bandwidth, size)
        _check_seconds("fused", fused, max(computing, moved / bandwidth), costs)


def _check_seconds(name: str, found: Any, wanted: float, costs: Sequence[float]) -> None:
    expect(
        close(found, wanted),
        "wrong-chain",
        f"{name}, these {len(costs)} operations take at least {wanted:.4g} s; "
        f"you say {number_text(found)}",
    )


# ---------------------------------------------------------------- target


def check_headroom(work: Work, rng: Rng) -> None:
    """Kinds are sorted by what they could save, each layer against a bound of its own."""
    for _ in range(3):
        peak, bandwidth = _machine(rng)
        rows = _layer_rows(rng, peak, bandwidth)
        found = work.headroom(rows, peak, bandwidth)
        expect(
            isinstance(found, list) and len(found) == 4,
            "wrong-kinds",
            "there are four kinds of layer, so the list has four dictionaries",
        )
        for each in found:
            keys_of(each, "headroom", ("kind", "seconds", "least_s", "saved_s", "speedup"))
        order = [each["kind"] for each in found]
        wanted = _headroom_of(rows, peak, bandwidth)
        by_time = sorted(wanted, key=lambda kind: -wanted[kind]["seconds"])
        expect(
            order != by_time,
            "by-time",
            f"{by_time[0]} takes longest, but it is near its bound: sort by what can be saved",
        )
        by_name = {each["kind"]: each for each in found}
        _check_saved(by_name, wanted)
        expect(
            order == list(wanted),
            "wrong-order",
            f"the most to save is in {next(iter(wanted))}, and your list begins with {order[0]}",
        )
        total = sum(row["seconds"] for row in rows)
        for kind, each in wanted.items():
            speedup = by_name[kind]["speedup"]
            expect(
                not close(speedup, each["seconds"] / (each["seconds"] - each["saved_s"])),
                "speedup-of-part",
                f"that is how many times faster {kind} gets; the question is the whole call",
            )
            expect(
                close(speedup, total / (total - each["saved_s"])),
                "wrong-speedup",
                f"{each['saved_s']:.3g} s saved of {total:.3g} s make the whole "
                f"{total / (total - each['saved_s']):.3f} times faster, "
                f"not {number_text(speedup)} times",
            )


def _check_saved(found: dict[str, dict[str, Any]], wanted: dict[str, dict[str, float]]) -> None:
    for kind, each in wanted.items():
        mine = found[kind]
        for name, word in (("seconds", "take"), ("least_s", "need at least")):
            expect(
                close(mine[name], each[name]),
                f"wrong-{name.removesuffix('_s')}",
                f"all layers of {kind} together {word} {each[name]:.4g} s, "
                f"not {number_text(mine[name])}",
            )
        difference = each["seconds"] - each["least_s"]
        expect(
            close(difference, each["saved_s"]) or not close(mine["saved_s"], difference),
            "hidden",
            f"a layer of {kind} is faster than its bound, and hides what the others could save",
        )
        expect(
            close(mine["saved_s"], each["saved_s"]),
            "wrong-saved",
            f"{kind} could save {each['saved_s']:.4g} s, not {number_text(mine['saved_s'])}",
        )


def _layer_rows(rng: Rng, peak: float, bandwidth: float) -> list[dict[str, Any]]:
    """Draw layers: the slowest kind is near its bound, one layer of another beats its own."""

    def row(kind: str, least: float, over: float, is_memory: bool) -> dict[str, Any]:
        other = float(rng.uniform(0.1, 0.8))
        flops, moved = (other, 1.0) if is_memory else (1.0, other)
        return {
            "kind": kind,
            "seconds": least * over,
            "flops": least * flops * peak,
            "bytes": least * moved * bandwidth,
        }

    def some(low: float, high: float) -> float:
        return float(rng.uniform(low, high))

    rows = [row("Linear", some(4, 5), some(1.05, 1.1), False) for _ in range(4)]
    rows += [row("GELU", some(1, 1.2), some(4, 5), True) for _ in range(3)]
    rows += [row("LayerNorm", some(1, 1.2), some(2, 3), True) for _ in range(2)]
    rows += [row("LayerNorm", 1.0, 0.4, True)]
    rows += [row("Softmax", some(0.2, 0.3), some(1.2, 1.5), False)]
    return [rows[int(each)] for each in rng.permutation(len(rows))]


def _headroom_of(
    rows: Sequence[dict[str, Any]], peak: float, bandwidth: float
) -> dict[str, dict[str, float]]:
    kinds: dict[str, dict[str, float]] = {}
    for row in rows:
        least = max(row["flops"] / peak, row["bytes"] / bandwidth)
        found = kinds.setdefault(row["kind"], {"seconds": 0.0, "least_s": 0.0, "saved_s": 0.0})
        found["seconds"] += row["seconds"]
        found["least_s"] += least
        found["saved_s"] += max(0.0, row["seconds"] - least)
    return dict(sorted(kinds.items(), key=lambda each: -each[1]["saved_s"]))


CHECKS = {
    "naive": (check_naive, check_naive_work, check_naive_mismatch),
    "rows": (check_rows, check_rows_calls, check_rows_memory),
    "blocked": (check_blocked, check_tiles),
    "traffic": (check_traffic, check_intensity, check_largest_block),
    "gelu": (check_gelu, check_gelu_shapes, check_gelu_memory),
    "bound": (check_least, check_chain_in_memory, check_chain),
    "target": (check_headroom,),
}
