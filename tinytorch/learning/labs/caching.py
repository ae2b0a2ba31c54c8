# %% [markdown] hours="4"
# # Caching: what does attention cost at 2,048 tokens?
#
# A language model writes one token after the other. For each, it looks at all tokens before it. The
# GPT of the zoo has 64 tokens of context, and writing is quick; models in use have thousands. What
# happens to the time per token on the way there, and what is the least that has to be computed?
#
# In this lab you build attention with a mask, a cache of keys and values, attention that uses the
# cache, and a loop that writes with it. You check it against the framework's own answers, count what
# was saved, and measure how time and memory grow from 128 to 4,096 tokens.
#
# **How to work.** Each step has a place that says `your code goes here`. Write your code, save the
# file, and run
#
# ```console
# $ tinytorch learn check
# ```
#
# in this folder. It runs the checks of all steps; `tinytorch learn check attend` runs those of one.
# Checks use new random cases each time. They run only the imports, functions, classes and constants
# of this file, so the measurements between them may take their time.
#
# The lab is there twice, with the same text: work in the notebook `caching.ipynb` (JupyterLab and
# VS Code open it), or in `caching.py`. Of that file, `python caching.py` shows the measurements down
# to the first place that is still open, where it stops with an error.
#
# You need NumPy, in particular products of arrays with several axes (`@`), and should have seen
# attention once. Expect four hours.

# %%
import inspect
import os
import time

# One thread: what other programs do on the other cores then disturbs less. It has to be said before
# NumPy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from tinytorch import Tensor, compare, load_workload, no_grad
from tinytorch.core.attention import KVCache, MultiHeadAttention
from tinytorch.core.transformers import GPT, TransformerBlock
from tinytorch.learning.exercise import Bars, Growth, Outcome, check_prediction

# %% [markdown]
# ## A first look
#
# The simplest way to write: give the model all tokens so far, take its answer for the last position,
# append it, repeat. Here is the time for the token at some positions.

# %%
gpt = load_workload("gpt").model.eval()


def write_slowly(model, prompt, count):
    """Return the prompt and `count` tokens after it: each one is a pass over everything before."""
    ids = list(prompt)
    with no_grad():
        for _ in range(count):
            logits = model(np.array([ids]))
            ids.append(int(logits.data[0, -1].argmax()))
    return ids


def median_s(func, runs=15):
    """Return the median of some calls, in seconds."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        func()
        times.append(time.perf_counter() - start)
    return float(np.median(times[runs // 3 :]))


some_text = np.arange(64)[None] % gpt.vocab_size
with no_grad():
    per_token = {
        f"token {n}": 1e3 * median_s(lambda n=n: gpt(some_text[:, :n])) for n in (2, 8, 16, 32, 64)
    }
print(Bars("Time for one more token, without a cache", per_token, unit="ms"))

# %% [markdown]
# ## Predict
#
# Write down what you expect, before you measure. Nobody grades this. Replace every `None`.
#
# - `times for twice as many`: without a cache, how many times longer does it take to write 64 tokens
#   than to write 32?
# - `exponent of attention`: if the time of attention over n tokens at once grows as n to the power of
#   p for long texts, what is p?
# - `speedup at 1024`: for one attention layer (width 128), how many times faster is the 1,024th token
#   with a cache than without?
# - `MiB for 4096`: how many MiB of keys and values does this GPT (4 layers, width 128, float32) need to
#   hold for 4,096 tokens?

# %%
PREDICTION = {
    ### BEGIN SOLUTION
    #: "times for twice as many": None,
    #: "exponent of attention": None,
    #: "speedup at 1024": None,
    #: "MiB for 4096": None,
    "times for twice as many": 4,
    "exponent of attention": 2,
    "speedup at 1024": 1000,
    "MiB for 4096": 100,
    ### END SOLUTION
}
check_prediction(PREDICTION)

# %% [markdown] step="attend"
# ## Step 1: Attention that does not look ahead
#
# Each token has a *query*, a *key* and a *value*. A token's output is the weighted mean of the values
# of the tokens that it may see; the weights are
#
#     softmax(query · keys / sqrt(head_dim))
#
# A token may see itself and what came before, which a *mask* enforces: scores of later tokens become
# -inf before the softmax.
#
# Write `attend` for arrays. There may be more keys than queries: then the queries belong to the
# **last** tokens. With 3 queries and 5 keys, the first query is token 3 of 5 and sees 3 keys, the last
# one sees all 5. This is what a cache will need, and it is where most implementations are wrong once.
#
# For the softmax, subtract the largest score of each row first: `exp(1000)` is infinite. And stay in the
# precision that came in: float32 in, float32 out. One NumPy number of 64 bits in a formula turns whole
# arrays into float64, which takes twice the memory and more time, in every layer that follows.
#
# *Hint:* `np.tri(rows, columns, k)` is a matrix with ones on and below a diagonal, and zeros above.
# Draw the 3 by 5 case on paper: what is k?


# %% step="attend"
def attend(query, key, value):
    """Return causal attention: (..., new, d) for queries (..., new, d), keys and values (..., all, d).

    The queries are those of the last `new` of `all` tokens.
    """
    ### BEGIN SOLUTION
    new, total = query.shape[-2], key.shape[-2]
    scores = query @ np.swapaxes(key, -1, -2) / query.shape[-1] ** 0.5
    visible = np.tri(new, total, total - new, dtype=bool)
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights @ value
    ### END SOLUTION


# %% [markdown]
# What does it look like? Here are the weights of the first tokens of one head, for random vectors: each
# row is a token, and sees one more than the row above.

# %%
rng = np.random.default_rng(0)
example = rng.standard_normal((6, 8))
weights_seen = attend(example, example, np.eye(6))  # values that show the weights themselves
for row in weights_seen:
    print("  ".join(f"{each:.2f}" if each > 0 else " ·  " for each in row))

# %% [markdown] step="cost"
# ## Step 2: What does it cost?
#
# Before building anything, count. Take a model with `layers` blocks of width `d`. For every *new*
# token, a block has products with matrices of 12·d² numbers: 4·d² for the four projections of
# attention, 8·d² for the feed-forward network. And every new token is multiplied with the keys and the
# values of the tokens it attends to, d numbers each. (We leave out the output layer, and count all
# tokens that are there, also those that a mask hides.)
#
# Write three functions. A multiply-accumulate counts as two FLOPs.
#
# - `pass_flops`: one pass over `new` tokens, when `past` tokens are known already from a cache: each new
#   token attends to all `past + new`.
# - `writing_flops`: all passes together that it takes to write `count` tokens after a prompt. *Without* a
#   cache, each pass has to compute everything that is there so far. *With* one, the first pass takes the
#   whole prompt, and every later pass one token. The last token written is not passed through the model
#   again, and without a token to write (`count` 0) there is no pass.
# - `cache_bytes`: the size of the keys and values of all layers.
#
# *Hint:* write down the passes for a prompt of 3 and 2 tokens to write: how many new tokens, how many
# past ones, in each?


# %% step="cost"
def pass_flops(new, past, layers, d):
    """Return the FLOPs of a pass over `new` tokens that follow `past` tokens in a cache."""
    ### BEGIN SOLUTION
    return 2 * layers * new * (12 * d**2 + 2 * (past + new) * d)
    ### END SOLUTION


def writing_flops(prompt, count, layers, d, cached):
    """Return the FLOPs of writing `count` tokens after `prompt` tokens, with a cache or without."""
    ### BEGIN SOLUTION
    if not cached:
        return sum(pass_flops(prompt + done, 0, layers, d) for done in range(count))
    first = pass_flops(prompt, 0, layers, d) if count else 0
    return first + sum(pass_flops(1, prompt + done, layers, d) for done in range(count - 1))
    ### END SOLUTION


def cache_bytes(tokens, layers, d, batch=1, bytes_per_number=4):
    """Return the bytes of the keys and values of `tokens` tokens in all layers."""
    ### BEGIN SOLUTION
    return 2 * batch * layers * tokens * d * bytes_per_number
    ### END SOLUTION


# %%
lengths = (128, 256, 512, 1024, 2048, 4096)
counted = {
    "without": [writing_flops(n // 2, n // 2, 4, 128, cached=False) / 1e9 for n in lengths],
    "with cache": [writing_flops(n // 2, n // 2, 4, 128, cached=True) / 1e9 for n in lengths],
}
print(
    Growth("Billion FLOPs to write the second half of a text", lengths, counted, size_name="tokens")
)

# %% [markdown] step="cache"
# ## Step 3: A cache of keys and values
#
# Keys and values of a token do not depend on later tokens (why?), so they can be kept. Write the
# class `Cache`.
#
# - It allocates all memory **once**, when it is made. Growing an array by one token copies all of it,
#   for every token: that alone makes writing quadratic again.
# - `append(layer, key, value)` takes what is new of one layer, (batch, heads, new, d), writes it after
#   the past, and returns all keys and values so far, as *views* of its memory: (batch, heads, past +
#   new, d).
# - A pass goes through all layers with the same tokens, so the position must not move within a pass.
#   `advance(new)` moves it, once, after the last layer.
# - `reset()` forgets all tokens and keeps the memory.
# - When there is no room for the new tokens, `append` raises a `ValueError` that says so, before it
#   writes anything. A cache that silently drops tokens gives wrong text, and nobody knows why.
#
# *Hint:* two arrays, (layers, batch, heads, length, d) each, and slices of them. A slice is a view.


# %% step="cache"
class Cache:
    """Keys and values of all layers for up to `length` tokens."""

    def __init__(self, layers, batch, heads, length, d):
        """Allocate the memory, as float32; `position`, the number of tokens held, is 0."""
        ### BEGIN SOLUTION
        self.keys = np.zeros((layers, batch, heads, length, d), np.float32)
        self.values = np.zeros_like(self.keys)
        self.position = 0
        ### END SOLUTION

    def append(self, layer, key, value):
        """Write what is new of a layer; return all keys and all values of it, as views."""
        ### BEGIN SOLUTION
        end = self.position + key.shape[2]
        if end > self.keys.shape[3]:
            raise ValueError(f"the cache is full: {end} tokens, room for {self.keys.shape[3]}")
        self.keys[layer, :, :, self.position : end] = key
        self.values[layer, :, :, self.position : end] = value
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]
        ### END SOLUTION

    def advance(self, new):
        """Make `new` tokens part of the past, after all layers have got them."""
        ### BEGIN SOLUTION
        self.position += new
        ### END SOLUTION

    def reset(self):
        """Forget all tokens and keep the memory."""
        ### BEGIN SOLUTION
        self.position = 0
        ### END SOLUTION

    @property
    def nbytes(self):
        """The bytes of the memory."""
        ### BEGIN SOLUTION
        return self.keys.nbytes + self.values.nbytes
        ### END SOLUTION


# %% [markdown] step="cached"
# ## Step 4: Attention with the cache
#
# Now put both together. `layer` is a `MultiHeadAttention` of the framework with its four projections
# `q_proj`, `k_proj`, `v_proj`, `out_proj` (each takes a `Tensor` and returns one; `.data` is the array),
# and `num_heads` and `head_dim`.
#
# Write `cached_attention`. It gets only the **new** tokens, (batch, new, width), and does what the layer
# would do for them after everything that the cache holds:
#
# 1. project the new tokens to queries, keys and values;
# 2. split the width into heads: (batch, new, heads · head_dim) becomes (batch, heads, new, head_dim);
# 3. append keys and values to the cache, and attend to all of them with your `attend`;
# 4. merge the heads, and project with `out_proj`.
#
# Nothing of old tokens is computed again; the check looks at what the projections got. It does not
# advance the cache: other layers still have to see these tokens.
#
# The first pass, the *prefill*, brings many new tokens at once. They must not see each other's future:
# `attend` takes care of it, if you give it what it needs.
#
# *Hint:* `reshape` first, then `swapaxes`. The other order mixes tokens and heads, with the right shape.


# %% step="cached"
def cached_attention(layer, x, cache, index):
    """Return what attention gives for the new tokens x (batch, new, width), a Tensor.

    `index` is the number of the layer in the cache, which gets the new keys and values.
    """
    ### BEGIN SOLUTION
    batch, new, _ = x.shape

    def split(projected):
        parts = projected.data.reshape(batch, new, layer.num_heads, layer.head_dim)
        return parts.swapaxes(1, 2)  # (batch, heads, new, head_dim)

    query, key, value = (split(each(x)) for each in (layer.q_proj, layer.k_proj, layer.v_proj))
    mixed = attend(query, *cache.append(index, key, value))
    return layer.out_proj(Tensor(mixed.swapaxes(1, 2).reshape(batch, new, -1)))
    ### END SOLUTION


# %% [markdown] step="write"
# ## Step 5: Write with it
#
# Two functions to the end. `next_logits` passes new tokens through a GPT. The framework's GPT does
#
# ```text
# x = token_embedding(ids) + the vectors of their positions
# for each block:  x = x + attention(norm1(x));  x = x + mlp(norm2(x))
# logits = head(norm(x))
# ```
#
# In Python: `model.token_embedding(ids)` is a Tensor (batch, new, width), and
# `model.position_embedding(x, start)` adds the vectors of the positions from `start` on. The blocks are
# `model.blocks`, each with `norm1`, `attention`, `norm2` and `mlp`; tensors can be added. Use your
# `cached_attention` for the attention, and advance the cache once at the end. Only the logits of the
# last token are needed: take `x[:, -1:]` before `model.norm` and `model.head`.
#
# `write` returns the prompt and `count` more tokens. It is greedy: the token with the largest logit is
# next. The first pass takes the whole prompt, and each later one only the token that was just written.
# Make a cache that is as long as it needs to be, and no longer.
#
# *Hint:* at which position is the first new token, if the cache holds `cache.position`?


# %% step="write"
def next_logits(model, ids, cache):
    """Pass new tokens, an array (batch, new) of ids, through the model; advance the cache.

    Return the logits of the last token, an array (batch, vocabulary).
    """
    ### BEGIN SOLUTION
    with no_grad():
        x = model.position_embedding(model.token_embedding(ids), cache.position)
        for index, block in enumerate(model.blocks):
            x = x + cached_attention(block.attention, block.norm1(x), cache, index)
            x = x + block.mlp(block.norm2(x))
        cache.advance(ids.shape[1])
        return model.head(model.norm(x[:, -1:])).data[:, -1]
    ### END SOLUTION


def write(model, prompt, count):
    """Return a list: the ids of the prompt, and `count` tokens after it, chosen greedily."""
    ### BEGIN SOLUTION
    attention = model.blocks[0].attention
    length = len(prompt) + count
    cache = Cache(len(model.blocks), 1, attention.num_heads, length, attention.head_dim)
    ids, new = list(prompt), list(prompt)
    for _ in range(count):
        logits = next_logits(model, np.array([new]), cache)
        new = [int(logits[0].argmax())]
        ids += new
    return ids
    ### END SOLUTION


# %%
prompt = [int(each) for each in load_workload("gpt").inputs[0].data[0, :8]]
same = write(gpt, prompt, 50) == write_slowly(gpt, prompt, 50)
print("the same text with and without the cache:", same)

# %% [markdown] step="growth"
# ## Step 6: How does it grow?
#
# Measured times of several sizes follow a law `time = c · size**p`, at least over a range. In logarithms
# this is a straight line: log(time) = log(c) + p · log(size). The *exponent* p says what happens when
# the size doubles: the time gets `2**p` times longer.
#
# Write `exponent`: fit a line to the logarithms by least squares (`np.polyfit`). And write `longest`: how
# many tokens fit into a number of bytes, when the weights need their part, and every token
# its keys and values?
#
# *Hint:* `longest` is a whole number, and never negative: a model may not fit at all.


# %% step="growth"
def exponent(sizes, times):
    """Return the exponent p of the law times = c * sizes**p that fits best in logarithms."""
    ### BEGIN SOLUTION
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
    ### END SOLUTION


def longest(total_bytes, weight_bytes, layers, d, batch=1, bytes_per_number=4):
    """Return how many tokens fit into memory beside the weights, for each of `batch` texts."""
    ### BEGIN SOLUTION
    per_token = cache_bytes(1, layers, d, batch, bytes_per_number)
    return max(0, (total_bytes - weight_bytes) // per_token)
    ### END SOLUTION


# %% [markdown]
# Now the question of this lab, measured: one attention layer of width 128, from 128 to 4,096 tokens. How
# long does it take to compute all tokens at once, as every pass without a cache does; and how long for
# one more token with your cache?

# %%
layer = MultiHeadAttention(128, 4, causal=True, rng=0).eval()


def once_for_all(n):
    """Return the seconds of a pass over n tokens."""
    x = Tensor(np.random.default_rng(1).standard_normal((1, n, 128)).astype(np.float32))
    with no_grad():
        return median_s(lambda: layer(x), runs=6)


def one_more(n):
    """Return the seconds for the token after n - 1 in the cache."""
    draw = np.random.default_rng(1).standard_normal((1, n, 128)).astype(np.float32)
    cache = Cache(1, 1, 4, n, 32)
    with no_grad():
        cached_attention(layer, Tensor(draw[:, :-1]), cache, 0)
        cache.advance(n - 1)
        last = Tensor(draw[:, -1:])
        return median_s(lambda: cached_attention(layer, last, cache, 0))


all_ms = [1e3 * once_for_all(n) for n in lengths]
one_ms = [1e3 * one_more(n) for n in lengths]
times = {"all tokens, ms": all_ms, "one more, ms": one_ms}
print(Growth("One attention layer of width 128", lengths, times, size_name="tokens"))

kib = {"cache of the GPT, KiB": [cache_bytes(n, 4, 128) / 1024 for n in lengths]}
print(Growth("Memory", lengths, kib, size_name="tokens"))
print(f"weights of the GPT: {sum(p.data.nbytes for p in gpt.parameters()) / 1024:,.0f} KiB")

# %% [markdown]
# Look at the exponents, and at the slope of the last doublings: short texts are dominated by what does
# not depend on their length.

# %%
print(f"all tokens, from 1,024 on: exponent {exponent(lengths[3:], all_ms[3:]):.2f}")
print(f"one more, from 1,024 on: exponent {exponent(lengths[3:], one_ms[3:]):.2f}")
slow = {n: median_s(lambda n=n: write_slowly(gpt, prompt[:1], n), runs=3) for n in (30, 60)}
measured = {
    "times for twice as many": slow[60] / slow[30],
    "exponent of attention": exponent(lengths[3:], all_ms[3:]),
    "speedup at 1024": all_ms[3] / one_ms[3],
    "MiB for 4096": cache_bytes(4096, 4, 128) / 2**20,
}
print(Outcome(PREDICTION, measured))

# %% [markdown]
# ## Yours against the real one
#
# Are they right, and how fast are they? First the logits against the framework's own cache, then the
# times. The comparer of the project runs both sides in turns and gives a ratio with its interval.

# %%
ids = np.array([prompt])
heads, size = gpt.blocks[0].attention.num_heads, gpt.blocks[0].attention.head_dim
with no_grad():
    plain = gpt(ids).data[:, -1]
    theirs, _ = gpt.forward_with_cache(ids)
mine = next_logits(gpt, ids, Cache(4, 1, heads, 64, size))
print(f"yours differs by at most {np.abs(mine - plain).max():.2e} from a pass without a cache,")
print(f"the framework's cache by {np.abs(theirs.data[:, -1] - plain).max():.2e}")

print("40 tokens of the zoo's GPT, no cache (baseline) against yours (candidate):")
print(compare(lambda: write_slowly(gpt, prompt, 40), lambda: write(gpt, prompt, 40), budget_s=3.0))
print("the same, yours (baseline) against the framework's (candidate):")
print(compare(lambda: write(gpt, prompt, 40), lambda: gpt.generate(prompt, 40), budget_s=3.0))

# %% [markdown]
# That is far less than 40 times faster. A context of 64 tokens is short: a pass over all of it takes only
# a few times longer than one over a single token, and much of both is Python. So here is a model of the
# same size with room for 512 tokens (untrained: what it writes makes no sense, but takes the same time),
# and 5 tokens to write after 500. What is the most that a cache can bring here, if every pass but the
# first were free?

# %%
long_gpt = GPT(gpt.vocab_size, 128, 4, 4, max_seq_len=512, rng=0).eval()
long_prompt = [int(each) for each in rng.integers(0, gpt.vocab_size, 500)]
prefill = median_s(lambda: write(long_gpt, long_prompt, 1), runs=6)
print(f"the prompt alone takes {1e3 * prefill:.0f} ms, with a cache or without")
print("5 tokens after 500, no cache (baseline) against yours (candidate):")
print(
    compare(
        lambda: write_slowly(long_gpt, long_prompt, 5),
        lambda: write(long_gpt, long_prompt, 5),
        budget_s=4.0,
    )
)

# %% [markdown]
# Where the real code lives. Read `KVCache`: it has what yours has, and a ring for windows and
# padding for batches beside it. What else does the framework do in the pass of a single token?

# %%
for real in (KVCache, MultiHeadAttention, TransformerBlock, GPT):
    _, line = inspect.getsourcelines(real)
    print(f"{real.__name__:20} {inspect.getsourcefile(real)}:{line}")
print("look for forward_with_cache() in the last three")

# %% [markdown]
# ## The question
#
# A service holds conversations of 4,096 tokens with a model of 32 layers and width 4,096 in 16 bits (7
# billion parameters). How many conversations fit beside the weights into 80 GiB? Use your functions.
# Then: which one of the following brings most, and what does it cost? Half the bytes per number, half the
# layers, keys and values shared by 8 heads each (a width of 512 instead of 4,096 in the cache).

# %%
weights_7b = 7_000_000_000 * 2
options = {
    "as it is": {"layers": 32, "d": 4096, "bytes_per_number": 2},
    "8-bit cache": {"layers": 32, "d": 4096, "bytes_per_number": 1},
    "half the layers": {"layers": 16, "d": 4096, "bytes_per_number": 2},
    "shared heads": {"layers": 32, "d": 512, "bytes_per_number": 2},
}
fitting = {name: longest(80 * 2**30, weights_7b, **each) / 4096 for name, each in options.items()}
print(Bars("Conversations of 4,096 tokens in 80 GiB", fitting))

# %% [markdown]
# ## Reflection
#
# Answer in your own words, in a few sentences each:
#
# 1. Why may keys and values be kept, but not the outputs of a model with attention in both
#    directions?
# 2. Your cache makes a token cheaper. By how much at 1,024 tokens, and why is it less than 1,024 times?
# 3. What limits the speed of a single token with a cache: computing, or moving bytes? Give the
#    intensity (FLOP per byte) of a product of one row with a matrix.
# 4. When does the cache cost more memory than the weights, for the GPT of the zoo and for the model of
#    the question? What would you do first about it?
#
# `tinytorch learn solution reflection` shows a model answer, once all steps have passed.

# %% [markdown] answer="reflection"
# 1. With a causal mask, what a token computes depends on earlier tokens only. A new token changes
#    nothing of what is known. With attention in both directions, every new token changes the outputs
#    of all others in the first layer, hence their keys and values in the second, and so on.
# 2. The table says all/one at 1,024. A pass over 1,024 tokens does 1,024 times as much work, but in
#    large products that run near the machine's peak; a single token has products of one row, which
#    are bound by memory and by Python's overhead. So the time falls by far less than the work.
# 3. Moving bytes. A product of one row with a (d, d) matrix takes 2·d² FLOPs and reads d² numbers of 4
#    bytes: half a FLOP per byte, far below the ridge of any machine. That is why batching
#    conversations, or fewer bits per weight, makes writing faster.
# 4. For the zoo's GPT a token takes 4 KiB of keys and values and the weights about 3 MiB, so from
#    some 800 tokens on. In the question a token takes 512 KiB, and 4,096 tokens 2 GiB: seven
#    conversations are more than the weights. Sharing keys and values between heads divides it by 8,
#    but the model has to be trained for it; 8-bit numbers halve it, and need a check of accuracy.

# %% [markdown]
# ## You are done when
#
# - `tinytorch learn check` says that all steps passed;
# - the text is the same with and without your cache, and the logits differ by less than 0.001;
# - the comparer says that yours is faster than no cache after 500 tokens, and you know why it is not
#   by more;
# - you can say how time and memory grow from 128 to 4,096 tokens, with exponents that you measured;
# - you have answered the four questions above.
