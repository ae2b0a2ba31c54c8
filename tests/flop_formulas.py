"""What operations cost in FLOPs, thought out from their sizes and never counted.

Two FLOPs per multiply-accumulate, contractions only (products of matrices, convolutions, attention
products, recurrent products), and dense: padded taps and masked positions count.
"""

from __future__ import annotations

import math


def contraction(*sizes: int) -> int:
    """Multiply and accumulate once for every combination of all indices, kept or summed."""
    return 2 * math.prod(sizes)


def convolution(
    batch: int, channels: tuple[int, int], kernel: tuple[int, ...], out: tuple[int, ...]
) -> int:
    """At each output position, each output channel reads every tap of every input channel.

    `channels` is (out, in) as in the weight: with groups, `in` is what one group reads.
    """
    return contraction(batch, *channels, *kernel, *out)


def transposed_convolution(
    batch: int, channels: tuple[int, int], kernel: tuple[int, ...], size: tuple[int, ...]
) -> int:
    """Every input position is multiplied with every tap of every output channel of its group.

    `channels` is (in, out) as in the weight, and `size` that of the input: a longer stride makes
    the output larger, but not the work.
    """
    return contraction(batch, *channels, *kernel, *size)


def positions(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
) -> tuple[int, ...]:
    """Count the places of a window along each axis."""
    reach = [dilation * (taps - 1) + 1 for taps in kernel]
    return tuple(
        (length + 2 * padding - span) // stride + 1
        for length, span in zip(size, reach, strict=True)
    )


def attention(
    batch: int, heads: int, queries: int, keys: int, *, width: int, value_width: int | None = None
) -> int:
    """Give scores (queries x keys) and the weighted sum of values, for each head."""
    return contraction(batch, heads, queries, keys, width) + contraction(
        batch, heads, queries, keys, width if value_width is None else value_width
    )


def attention_layer(
    batch: int,
    queries: int,
    keys: int,
    width: int,
    *,
    heads: int,
    head_width: int | None = None,
    key_heads: int | None = None,
) -> int:
    """Project queries, keys and values, attend, and project back to `width`."""
    head_width = width // heads if head_width is None else head_width
    key_heads = heads if key_heads is None else key_heads
    return (
        contraction(batch, queries, width, heads * head_width)
        + 2 * contraction(batch, keys, width, key_heads * head_width)
        + attention(batch, heads, queries, keys, width=head_width)
        + contraction(batch, queries, heads * head_width, width)
    )


def feed_forward(tokens: int, width: int, hidden: int, *, matrices: int = 2) -> int:
    """Go from `width` to `hidden` and back; gated networks have a third matrix."""
    return matrices * contraction(tokens, width, hidden)


def recurrent(
    steps: int,
    features: int,
    hidden: int,
    *,
    gates: int,
    layers: int = 1,
    directions: int = 1,
    projection: int = 0,
) -> int:
    """Multiply input and state with the matrices of all gates at every step of every sequence.

    `steps` is the sum of the lengths. With a projection the state is `projection` wide, and one
    more product makes it of the `hidden` cells.
    """
    state = projection or hidden
    widths = [features] + [directions * state] * (layers - 1)
    per_layer = [
        contraction(steps, gates * hidden, width + state) + contraction(steps, hidden, projection)
        for width in widths
    ]
    return directions * sum(per_layer)
