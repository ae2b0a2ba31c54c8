"""Checks of the lab on caching."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tinytorch.core.attention import MultiHeadAttention, scaled_dot_product_attention
from tinytorch.core.autograd import no_grad
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT
from tinytorch.learning.checks.support import (
    Array,
    Rng,
    array_of,
    close,
    draw,
    draw_sizes,
    near_sum,
    number_text,
)
from tinytorch.learning.work import Missed, Work, expect
from tinytorch.profiling.flops import count_flops

# ---------------------------------------------------------------- attend


def _attended(query: Array, key: Array, value: Array, **settings: Any) -> Array:
    return scaled_dot_product_attention(Tensor(query), Tensor(key), Tensor(value), **settings).data


def check_attend(work: Work, rng: Rng) -> None:
    """With as many keys as queries, each token sees itself and those before it."""
    for lead in ((), (2,), (2, 3)):
        time, size = draw_sizes(rng, 2, 4, 9)
        query, key, value = (draw(rng, *lead, time, size) for _ in range(3))
        kept = query.copy(), key.copy(), value.copy()
        found = array_of(work.attend(query, key, value), "attend", query.shape)
        expect(
            found.dtype == query.dtype,
            "float64",
            f"{query.dtype} came in, and {found.dtype} goes out: which number in your formula is a "
            "NumPy number of 64 bits, such as what np.sqrt returns for a Python number?",
        )
        expect(
            all(np.array_equal(*pair) for pair in zip(kept, (query, key, value), strict=True)),
            "inputs-changed",
            "your function has changed the arrays that it was given",
        )
        expect(
            not near_sum(found, _attended(query, key, value)),
            "mask-dropped",
            "every token sees all others, those after it too: there is no mask",
        )
        root = np.sqrt(size).astype(np.float32)
        expect(
            not near_sum(found, _attended(query * root, key, value, causal=True)),
            "scale-missing",
            "the scores are not divided by the square root of the width of a head",
        )
        expect(
            np.isfinite(found).all(), "not-finite", "some outputs are not numbers; look at the mask"
        )
        expect(
            near_sum(found, _attended(query, key, value, causal=True)),
            "wrong-attention",
            f"the outputs of {time} tokens differ; do the weights of each row add up to 1?",
        )


def check_attend_to_past(work: Work, rng: Rng) -> None:
    """With more keys than queries, the queries are those of the last tokens."""
    for _ in range(3):
        heads, new, past, size = draw_sizes(rng, 4)
        query = draw(rng, heads, new, size)
        key, value = (draw(rng, heads, past + new, size) for _ in range(2))
        found = array_of(work.attend(query, key, value), "attend", query.shape)
        expect(
            not near_sum(found, _attended(query, key, value)),
            "mask-dropped",
            f"with {past + new} keys, all {new} queries see all of them: the mask is gone",
        )
        start = np.tri(new, past + new, dtype=bool)
        expect(
            not near_sum(found, _attended(query, key, value, mask=start)),
            "mask-misaligned",
            f"your first query sees one key; it is token {past + 1} of {past + new}",
        )
        wanted = _attended(query, key, value, causal=True)
        expect(near_sum(found, wanted), "wrong-attention", f"{new} queries and {past + new} keys")
        one = array_of(work.attend(query[:, -1:], key, value), "attend", (heads, 1, size))
        expect(near_sum(one, wanted[:, -1:]), "wrong-attention", "a single query sees every key")


def check_large_scores(work: Work, rng: Rng) -> None:
    """Large scores give numbers: the largest of a row is taken off before exp."""
    time, size = draw_sizes(rng, 2, 4, 9)
    query, key, value = (draw(rng, 2, time, size) for _ in range(3))
    with np.errstate(all="ignore"):
        found = array_of(work.attend(300 * query, 300 * key, value), "attend", query.shape)
    expect(
        np.isfinite(found).all(),
        "overflow",
        "for large scores the outputs are not numbers: exp of a large number is infinite",
    )
    wanted = _attended(300 * query, 300 * key, value, causal=True)
    expect(near_sum(found, wanted), "wrong-attention", "for large scores the outputs differ")


# ---------------------------------------------------------------- cost


def check_pass_flops(work: Work, rng: Rng) -> None:
    """A pass costs what the framework counts for one of its models, past tokens included."""
    for _ in range(3):
        heads, layers, new, past = draw_sizes(rng, 4)
        d = 4 * heads
        model = GPT(11, d, layers, heads, max_seq_len=64, rng=0).eval()
        counted = count_flops(model, rng.integers(0, 11, (1, new))) - 2 * new * 11 * d
        found = work.pass_flops(new, 0, layers, d)
        expect(found != counted // 2, "macs", "you count multiply-accumulates; each is two FLOPs")
        expect(
            found == counted,
            "wrong-pass",
            f"the framework counts {counted} FLOPs for {new} tokens, {layers} layers of width {d} "
            f"(without the output layer), and you {number_text(found)}",
        )
        found, extra = work.pass_flops(new, past, layers, d), 4 * layers * new * past * d
        expect(
            found != counted,
            "past-missing",
            f"{past} past tokens do not change your count, but each new token attends to them",
        )
        expect(
            found == counted + extra,
            "wrong-past",
            f"{past} past tokens add {number_text(found - counted)}: which products grow?",
        )


def check_writing_flops(work: Work, rng: Rng) -> None:
    """Writing is the sum of its passes: the last token is not passed again."""
    for _ in range(3):
        prompt, count, layers, d = draw_sizes(rng, 4, 3, 9)
        found = {
            cached: work.writing_flops(prompt, count, layers, d, cached) for cached in (True, False)
        }

        def flops(new: int, past: int, layers: int = layers, d: int = d) -> int:
            return 2 * layers * new * (12 * d**2 + 2 * (past + new) * d)

        slow = [flops(prompt + done, 0) for done in range(count + 1)]
        quick = [flops(prompt, 0), *(flops(1, prompt + done) for done in range(count))]
        for cached, passes in ((False, slow), (True, quick)):
            expect(
                found[cached] != sum(passes),
                "one-pass-too-many",
                f"for {count} tokens you count {count + 1} passes",
            )
        expect(
            found[True] != sum(slow[:-1]),
            "cache-recomputes",
            "with a cache you count every token in every pass, as without one",
        )
        expect(
            found[False] == sum(slow[:-1]),
            "wrong-without-cache",
            f"a prompt of {prompt} and {count} tokens to write: which passes are there?",
        )
        expect(
            found[True] == sum(quick[:-1]),
            "wrong-with-cache",
            f"a prompt of {prompt} and {count} tokens to write: what is new in each pass?",
        )
        for cached in (True, False):
            none = work.writing_flops(prompt, 0, layers, d, cached)
            expect(none == 0, "nothing-to-write", "0 tokens to write take no pass")


def check_cache_bytes(work: Work, rng: Rng) -> None:
    """The cache holds keys and values of every layer, token and text of the batch."""
    for _ in range(3):
        tokens, layers, d, batch, size = draw_sizes(rng, 5)
        found = work.cache_bytes(tokens, layers, d, batch, size)
        wanted = 2 * tokens * layers * d * batch * size
        expect(found != wanted // 2, "keys-only", "keys or values are missing: both are held")
        expect(
            found not in (wanted // batch, wanted // size, wanted // layers),
            "factor-missing",
            "one of batch, layers and bytes per number does not count",
        )
        expect(found == wanted, "wrong-bytes", f"for {tokens} tokens you say {number_text(found)}")
    expect(
        work.cache_bytes(3, 2, 8) == 2 * 3 * 2 * 8 * 4,
        "factor-missing",
        "unless told otherwise there is one text, and numbers of 4 bytes",
    )


# ---------------------------------------------------------------- cache


class _Filled:
    """A learner's cache with what was appended to it, to compare with."""

    def __init__(self, work: Work, rng: Rng, *, length: int | None = None) -> None:
        self.rng = rng
        self.layers, self.batch, self.heads, self.d = draw_sizes(rng, 4)
        self.length = int(rng.integers(12, 20)) if length is None else length
        self.cache = work.Cache(self.layers, self.batch, self.heads, self.length, self.d)
        self.held: list[list[Array]] = [[] for _ in range(2 * self.layers)]

    def fill(self, new: int) -> list[tuple[Any, Any]]:
        """Append to all layers and advance; return what the cache returned."""
        returned = []
        for layer in range(self.layers):
            pair = [draw(self.rng, self.batch, self.heads, new, self.d) for _ in range(2)]
            for which in range(2):
                self.held[2 * layer + which].append(pair[which])
            returned.append(self.cache.append(layer, *pair))
        self.cache.advance(new)
        return returned

    def wanted(self, layer: int, which: int) -> Array:
        return np.concatenate(self.held[2 * layer + which], axis=2)


def check_append(work: Work, rng: Rng) -> None:
    """Each layer gets back all keys and values so far, over several passes."""
    filled = _Filled(work, rng, length=int(rng.integers(100, 120)))
    for new in (int(rng.integers(3, 6)), 1, 2):
        returned = filled.fill(new)
        for layer, pair in enumerate(returned):
            expect(
                len(pair) == 2,
                "no-pair",
                "append returns two arrays: all keys, all values",
            )
            for which in range(2):
                _check_held(filled, layer, which, np.asarray(pair[which]), new)
        total = filled.wanted(0, 0).shape[2]
        expect(
            filled.cache.position == total,
            "wrong-position",
            f"after passes with {total} tokens `position` is {filled.cache.position}",
        )


def _check_held(filled: _Filled, layer: int, which: int, found: Array, new: int) -> None:
    wanted = filled.wanted(layer, which)
    total, last = wanted.shape[2], filled.held[2 * layer + which][-1]
    expect(
        found.shape[2] != filled.length or total == filled.length,
        "whole-buffer",
        f"you return all {found.shape[2]} places; {total} hold tokens, the others zeros",
    )
    expect(
        not (found.shape == last.shape and total > new and near_sum(found, last)),
        "past-missing",
        "you return what is new; attention needs what came before, too",
    )
    expect(
        not (layer and found.shape != wanted.shape),
        "moves-within-pass",
        f"layer 0 is fine, and layer {layer} gets {found.shape[2]} tokens instead of {total}: "
        "the position has moved within a pass",
    )
    expect(
        found.shape == wanted.shape,
        "wrong-shape",
        f"append returns {found.shape}; it should be {wanted.shape}",
    )
    expect(
        near_sum(found, wanted),
        "wrong-content",
        f"layer {layer} gets other {'values' if which else 'keys'} than were appended to it",
    )


def check_views(work: Work, rng: Rng) -> None:
    """Memory is allocated once: what is returned are views of it, and nothing grows."""
    filled = _Filled(work, rng)
    numbers = 2 * filled.layers * filled.batch * filled.heads * filled.length * filled.d
    before = filled.cache.nbytes
    expect(
        before == 4 * numbers,
        "wrong-nbytes",
        f"keys and values for {filled.length} tokens are {4 * numbers} bytes in float32, "
        f"and `nbytes` says {before}",
    )
    first, second = filled.fill(2), filled.fill(1)
    expect(
        all(np.shares_memory(one[0], other[0]) for one, other in zip(first, second, strict=True)),
        "copies",
        "what append returns is a copy: every token copies all tokens before it",
    )
    expect(filled.cache.nbytes == before, "grows", "the memory of the cache has changed")


def check_full(work: Work, rng: Rng) -> None:
    """A cache can be filled to its end, and raises where there is no room, before it writes."""
    for new in (1, int(rng.integers(2, 5))):
        filled = _Filled(work, rng, length=6)
        filled.fill(6 - new + 1)
        kept = [np.array(filled.wanted(layer, 0)) for layer in range(filled.layers)]
        try:
            filled.cache.append(0, *(draw(rng, filled.batch, filled.heads, new, filled.d),) * 2)
        except ValueError:
            pass
        else:
            raise Missed(
                "overflow-silent",
                f"there was room for {new - 1} more, {new} came, and nothing was raised",
            )
        if new > 1:
            returned = filled.fill(new - 1)
            whole = np.asarray(returned[0][0])[:, :, : kept[0].shape[2]]
            expect(near_sum(whole, kept[0]), "written", "tokens were overwritten before it raised")


def check_reset(work: Work, rng: Rng) -> None:
    """After a reset the cache begins anew, in the same memory."""
    filled = _Filled(work, rng)
    before = filled.fill(3)[0][0]
    filled.cache.reset()
    expect(filled.cache.position == 0, "not-reset", "after reset() the position is not 0")
    filled.held = [[] for _ in range(2 * filled.layers)]
    after = filled.fill(2)
    _check_held(filled, 0, 0, np.asarray(after[0][0]), 2)
    expect(np.shares_memory(before, after[0][0]), "reallocates", "reset() has allocated new memory")


# ---------------------------------------------------------------- cached


@contextmanager
def _inputs_of(*layers: Module) -> Iterator[list[tuple[int, ...]]]:
    """Collect the shapes of what layers are called with."""
    shapes: list[tuple[int, ...]] = []

    def hook(_: Module, inputs: tuple[Any, ...]) -> None:
        shapes.append(np.shape(inputs[0].data if isinstance(inputs[0], Tensor) else inputs[0]))

    handles = [each.register_forward_pre_hook(hook) for each in layers]
    try:
        yield shapes
    finally:
        for each in handles:
            each.remove()


def _layer_case(rng: Rng) -> tuple[MultiHeadAttention, Array, Callable[..., Any]]:
    heads, size = int(rng.integers(2, 4)), int(rng.integers(2, 5))
    layer = MultiHeadAttention(heads * size, heads, causal=True, rng=int(rng.integers(1 << 30)))
    for each in (layer.q_proj, layer.k_proj):  # scores that matter
        each.weight.data = 3 * each.weight.data
    x = draw(rng, 2, int(rng.integers(6, 10)), heads * size)
    return layer.eval(), x, lambda work, layers=1: work.Cache(layers, 2, heads, x.shape[1], size)


def check_prefill(work: Work, rng: Rng) -> None:
    """The first tokens, all at once, give what the layer gives: none sees what comes after it."""
    for _ in range(2):
        layer, x, make = _layer_case(rng)
        with no_grad():
            wanted = layer(Tensor(x)).data
            layer.causal = False
            unmasked = layer(Tensor(x)).data
            layer.causal = True
            found = work.cached_attention(layer, Tensor(x), make(work), 0)
        found = array_of(found, "cached_attention", x.shape)
        expect(
            not near_sum(found, unmasked),
            "mask-dropped",
            "in the first pass every token sees all others, those after it too",
        )
        expect(
            near_sum(found, wanted),
            "wrong-prefill",
            "the outputs of the first tokens differ from the layer's; look at how heads are split "
            "and merged, and at the output projection",
        )


def check_pieces(work: Work, rng: Rng) -> None:
    """In pieces of any length the outputs are those of all tokens at once."""
    layer, x, make = _layer_case(rng)
    cache, index = make(work, 3), 2
    with no_grad():
        wanted = layer(Tensor(x)).data
    start = 0
    for new in (3, 1, 2, x.shape[1] - 6):
        if not new:
            continue
        piece = Tensor(x[:, start : start + new])
        with no_grad(), _inputs_of(layer.q_proj, layer.k_proj, layer.v_proj) as shapes:
            found = work.cached_attention(layer, piece, cache, index)
        _check_new_only(shapes, new)
        expect(
            cache.position == start,
            "advanced",
            "your function has advanced the cache: other layers did not get these tokens yet",
        )
        cache.advance(new)
        found = array_of(found, "cached_attention", piece.shape)
        expect(
            near_sum(found, wanted[:, start : start + new]),
            "wrong-piece",
            f"tokens {start + 1} to {start + new} differ from those of a pass over all tokens",
        )
        start += new


def _check_new_only(shapes: list[tuple[int, ...]], new: int) -> None:
    rows = [shape[-2] for shape in shapes]
    expect(
        sum(rows) <= 3 * new,
        "recomputes",
        f"{new} tokens were new, and the three projections got {rows} tokens: "
        "what is known is computed again",
    )
    expect(len(rows) == 3, "projections", f"the three projections were called {len(rows)} times")


# ---------------------------------------------------------------- write


def _some_gpt(rng: Rng) -> GPT:
    heads, size, layers = (int(each) for each in rng.integers(2, 4, 3))
    model = GPT(23, heads * size, layers, heads, max_seq_len=24, rng=int(rng.integers(1 << 30)))
    for parameter in model.parameters():  # far from uniform, so that positions and past matter
        parameter.data = parameter.data + 0.3 * draw(rng, *parameter.shape)
    return model.eval()


def check_next_logits(work: Work, rng: Rng) -> None:
    """The logits are those of a pass over all tokens, for the first pass and for later ones."""
    model = _some_gpt(rng)
    attention = model.blocks[0].attention
    ids = rng.integers(0, 23, (2, 9))
    cache = work.Cache(len(model.blocks), 2, attention.num_heads, 9, attention.head_dim)
    with no_grad():
        wanted = model(ids).data
    start = 0
    for new in (4, 1, 1, 3):
        piece = ids[:, start : start + new]
        restarted = _from_position_0(model, ids[:, :start], piece)
        found = array_of(work.next_logits(model, piece, cache), "next_logits", (2, 23))
        start += new
        expect(
            cache.position == start,
            "not-advanced",
            f"after {start} tokens the cache is at position {cache.position}",
        )
        expect(
            start == new or not near_sum(found, restarted),
            "positions-restart",
            "the positions begin at 0 in every pass; where is the first new token?",
        )
        expect(
            near_sum(found, wanted[:, start - 1]),
            "wrong-logits",
            f"with {new} new tokens after {start - new} the logits are not those without a cache",
        )


def _from_position_0(model: GPT, past: Array, new: Array) -> Array:
    """Return the logits of the last token where the positions of new tokens begin at 0."""
    cache = model.make_cache(len(new))
    with no_grad():
        if past.shape[1]:
            model.forward_with_cache(past, cache)
        x = model.position_embedding(model.token_embedding(new), 0)
        for index, block in enumerate(model.blocks):
            x = block.forward_with_cache(x, cache, index)
        logits: Array = model.head(model.norm(x[:, -1:])).data[:, -1]
    return logits


def check_write(work: Work, rng: Rng) -> None:
    """The text is what the framework writes, and each token goes through the model once."""
    model = _some_gpt(rng)
    for _ in range(2):
        prompt = [int(each) for each in rng.integers(0, 23, int(rng.integers(2, 6)))]
        count = int(rng.integers(4, 12))
        with _inputs_of(model.token_embedding) as shapes:
            found = work.write(model, list(prompt), count)
        passed, needed = sum(shape[-1] for shape in shapes), len(prompt) + count - 1
        wanted = [int(each) for each in model.generate(prompt, count).data]
        found = [int(each) for each in found]
        expect(
            found != wanted[len(prompt) :], "prompt-missing", "the result begins with the prompt"
        )
        expect(
            found[: len(prompt)] == prompt and len(found) == len(wanted),
            "wrong-length",
            f"for {len(prompt)} tokens and {count} more the result has {len(found)}",
        )
        expect(found == wanted, "wrong-text", "the framework writes other tokens after this prompt")
        expect(
            passed != needed + 1,
            "one-pass-too-many",
            "the last token went through the model, and nobody uses its logits",
        )
        expect(
            passed == needed,
            "recomputes",
            f"{passed} tokens went through the model, and {needed} are needed: "
            "what is in the cache need not come again",
        )
    expect(work.write(model, [1, 2], 0) == [1, 2], "wrong-length", "0 more tokens: the prompt")


def check_room(work: Work, rng: Rng) -> None:
    """The cache is as long as the text that is written, and no longer."""
    model, lengths = _some_gpt(rng), []
    original = work.Cache

    def recording(layers: int, batch: int, heads: int, length: int, d: int) -> Any:
        lengths.append(length)
        return original(layers, batch, heads, length, d)

    work.names["Cache"] = recording  # what the learner's functions find under this name
    prompt, count = int(rng.integers(2, 6)), int(rng.integers(4, 12))
    try:
        work.write(model, [1] * prompt, count)
    finally:
        work.names["Cache"] = original
    expect(len(lengths) == 1, "many-caches", f"{len(lengths)} caches were made for one text")
    expect(
        lengths[0] <= prompt + count,
        "too-long",
        f"the cache has room for {lengths[0]} tokens, and the text has {prompt + count}",
    )


# ---------------------------------------------------------------- growth


def check_exponent(work: Work, rng: Rng) -> None:
    """The exponent is the slope of the line that fits best in logarithms, over all sizes."""
    for _ in range(3):
        power, factor = float(rng.uniform(0.5, 3)), float(rng.uniform(1e-6, 1e-3))
        sizes = np.array([128, 256, 512, 1024, 2048]) + rng.integers(0, 40, 5)
        exact = factor * sizes**power
        found = work.exponent(list(sizes), list(exact))
        expect(
            close(found, power),
            "wrong-exponent",
            f"for times that grow as size**{power:.3f} you find {number_text(found)}; "
            "is it a line in the logarithms of both?",
        )
        noisy = exact * np.exp(rng.normal(0, 0.3, 5))
        found = work.exponent(list(sizes), list(noisy))
        ends = np.log(noisy[-1] / noisy[0]) / np.log(sizes[-1] / sizes[0])
        expect(not close(found, ends), "ends-only", "the sizes between first and last do not count")
        wanted = np.polyfit(np.log(sizes), np.log(noisy), 1)[0]
        expect(close(found, wanted), "wrong-fit", "with noise it is not the least-squares line")


def check_longest(work: Work, rng: Rng) -> None:
    """Tokens that fit beside the weights are counted whole, and never below 0."""
    for _ in range(3):
        layers, d, batch, size = draw_sizes(rng, 4)
        per_token, weights = 2 * layers * d * batch * size, int(rng.integers(1000, 5000))
        wanted = int(rng.integers(3, 50))
        total = weights + wanted * per_token + int(rng.integers(1, per_token))
        found = work.longest(total, weights, layers, d, batch, size)
        expect(found != total // per_token, "weights-missing", "the weights need their part, too")
        expect(
            found == int(found), "not-whole", f"{number_text(found)} tokens: a part does not fit"
        )
        expect(
            found == wanted,
            "wrong-longest",
            f"{total - weights} bytes are left, a token of {batch} texts takes {per_token}, and "
            f"{number_text(found)} do not fit",
        )
        none = work.longest(weights - 1, weights, layers, d, batch, size)
        expect(none == 0, "negative", f"the weights alone do not fit, and you say {none} tokens")


CHECKS = {
    "attend": (check_attend, check_attend_to_past, check_large_scores),
    "cost": (check_pass_flops, check_writing_flops, check_cache_bytes),
    "cache": (check_append, check_views, check_full, check_reset),
    "cached": (check_prefill, check_pieces),
    "write": (check_next_logits, check_write, check_room),
    "growth": (check_exponent, check_longest),
}
