"""The inner loops of sparse products, as LLVM instructions.

The weights of a sparse matrix meet inputs that lie anywhere, which no vector instruction likes: one
that gathers takes longer than reading the inputs one by one. So one row is a plain sum, but several
at once (:func:`sparse_dot`). Many rows are no trouble: where the same input of all rows lies
together, one weight meets a whole vector of them (:func:`sparse_tile`).

Offsets count elements from the first element of an array. Nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tinytorch.core.backends.numba_simd import (
    FLOAT,
    LANES,
    VECTOR,
    broadcast,
    element,
    load_vector,
    multiply_add,
    store_vector,
)

__all__ = ["CHAINS", "sparse_dot", "sparse_tile"]

CHAINS = 4
"""Sums that grow side by side, so that no addition has to wait for the one before it."""


class _SparseLoop:
    """A loop over the weights of one output, in LLVM's language."""

    def __init__(self, context: Any, builder: Any, arrays: dict[str, tuple[Any, Any]]) -> None:
        self.context, self.builder, self.arrays = context, builder, arrays

    def load(self, name: str, offset: Any) -> Any:
        """Read one element of an array."""
        kind, array = self.arrays[name]
        return self.builder.load(element(self.context, self.builder, kind, array, offset))

    def weight(self, k: Any) -> tuple[Any, Any]:
        """Give the input that weight `k` meets, as wide as k, and the weight."""
        is_signed = self.arrays["indices"][0].dtype.signed
        widen = self.builder.sext if is_signed else self.builder.zext
        return widen(self.load("indices", k), k.type), self.load("values", k)

    def run(self, first: Any, last: Any, chains: int, add: Callable[[Any, int], None]) -> None:
        """Write add(k, chain) for all first <= k < last: in turns to each chain, the rest to 0."""
        builder = self.builder

        def constant(value: int) -> Any:
            return ir.Constant(first.type, value)

        turns = builder.sdiv(builder.sub(last, first), constant(chains))
        with cgutils.for_range(builder, turns) as loop:
            start = builder.add(first, builder.mul(loop.index, constant(chains)))
            for chain in range(chains):
                add(builder.add(start, constant(chain)), chain)
        done = builder.add(first, builder.mul(turns, constant(chains)))
        with cgutils.for_range(builder, builder.sub(last, done)) as loop:
            add(builder.add(done, loop.index), 0)

    def sums(self, count: int, kind: Any) -> list[Any]:
        """Give places for sums that are zero; LLVM keeps them in registers."""
        places = [cgutils.alloca_once(self.builder, kind) for _ in range(count)]
        for place in places:
            self.builder.store(ir.Constant(kind, None), place)
        return places

    def total(self, places: list[Any]) -> Any:
        """Add up sums, neighbours first."""
        left = [self.builder.load(place) for place in places]
        while len(left) > 1:
            pairs = zip(left[::2], left[1::2], strict=True)
            left = [self.builder.fadd(one, other) for one, other in pairs]
        return left[0]


@intrinsic
def sparse_dot(typing, x, x_offset, values, indices, first, last):
    """Give the sum over first <= k < last of values[k] * x[x_offset + indices[k]]."""
    count = types.int64
    signature = types.float32(x, count, values, indices, count, count)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, x_offset, values, indices, first, last = arguments
        kinds = signature.args
        loop = _SparseLoop(
            context,
            builder,
            {"x": (kinds[0], x), "values": (kinds[2], values), "indices": (kinds[3], indices)},
        )
        sums = loop.sums(CHAINS, FLOAT)

        def add(k: Any, chain: int) -> None:
            index, weight = loop.weight(k)
            number = loop.load("x", builder.add(x_offset, index))
            product = builder.fmul(number, weight, flags=("contract",))
            total = builder.fadd(product, builder.load(sums[chain]), flags=("contract",))
            builder.store(total, sums[chain])

        loop.run(first, last, CHAINS, add)
        return loop.total(sums)

    return signature, generate


def sparse_tile(vectors: int) -> Callable[..., None]:
    """Make the function that computes one output for `vectors` vectors of rows.

    out[i] = sum over first <= k < last of values[k] * x[indices[k] * x_line + i], for
    i < vectors * LANES, where x and out are counted from their offsets
    """
    chains = max(1, CHAINS // vectors)

    @intrinsic
    def multiply(typing, x, x_offset, x_line, values, indices, first, last, out, out_offset):
        count = types.int64
        signature = types.void(x, count, count, values, indices, count, count, out, count)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x, x_offset, x_line, values, indices, first, last, out, out_offset = arguments
            kinds = signature.args
            loop = _SparseLoop(
                context, builder, {"values": (kinds[3], values), "indices": (kinds[4], indices)}
            )
            x_start = element(context, builder, kinds[0], x, x_offset)
            out_start = element(context, builder, kinds[7], out, out_offset)
            sums = [loop.sums(chains, VECTOR) for _ in range(vectors)]

            def part(start: Any, vector: int) -> Any:
                return builder.gep(start, [ir.Constant(first.type, vector * LANES)])

            def add(k: Any, chain: int) -> None:
                index, weight = loop.weight(k)
                line = builder.gep(x_start, [builder.mul(index, x_line)])
                factor = broadcast(builder, weight)
                for vector in range(vectors):
                    place = sums[vector][chain]
                    rows = load_vector(builder, part(line, vector))
                    total = multiply_add(builder, factor, rows, builder.load(place))
                    builder.store(total, place)

            loop.run(first, last, chains, add)
            for vector in range(vectors):
                store_vector(builder, loop.total(sums[vector]), part(out_start, vector))
            return context.get_dummy_value()

        return signature, generate

    return multiply
