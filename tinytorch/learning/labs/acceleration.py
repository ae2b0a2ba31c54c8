# %% [markdown] hours="4"
# # Acceleration: where do the factors of thousands come from?
#
# A product of matrices is three loops and a line. Written like that in Python, one product of the
# zoo's GPT takes a good part of a second; the library needs a fraction of a millisecond for the same
# numbers. In this lab you build what lies between: array operations, blocks that fit into a cache, and
# operations that are fused. You count the bytes that each of them moves, compute what the machine
# allows, and decide which layer of the GPT is worth making faster.
#
# **How to work.** Each step has a place that says `your code goes here`. Write your code, save the
# file, and run
#
# ```console
# $ tinytorch learn check
# ```
#
# in this folder. It runs the checks of all steps; `tinytorch learn check blocked` runs those of one.
# Checks use new random cases each time. They run only the imports, functions, classes and constants
# of this file, so the measurements between them may take their time.
#
# The lab is there twice, with the same text: work in the notebook `acceleration.ipynb` (JupyterLab and
# VS Code open it), or in `acceleration.py`. Of that file, `python acceleration.py` shows the measurements down
# to the first place that is still open, where it stops with an error.
#
# You need NumPy and slices, and should know what a product of matrices is. The lab on profiling
# introduces the roofline; here it is used again. Expect four hours.

# %%
import inspect
import math
import os
import time

# One thread: then all of the numbers below are about the same part of the machine. It has to be said
# before NumPy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from tinytorch import Tensor, compare, load_workload, no_grad, profile_workload
from tinytorch.learning.exercise import Bars, Growth, Outcome, Roof, check_prediction
from tinytorch.perf import acceleration as real

# %% [markdown]
# ## A first look
#
# The first layer of the feed-forward network in the GPT multiplies 64 tokens of width 128 by a matrix
# (128, 512). That is 4.2 million multiply-accumulates. Here is what one of them takes in Python, and
# what all of them take in the library.


# %%
def median_s(func, runs=15):
    """Return the median time of some calls in seconds; the first third is warm-up."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        func()
        times.append(time.perf_counter() - start)
    return float(np.median(times[runs // 3 :]))


def add_up(count=100_000):
    """Do `count` multiply-accumulates in Python."""
    total = 0.0
    for _ in range(count):
        total += 1.5 * 2.5
    return total


rng = np.random.default_rng(0)
left = rng.standard_normal((64, 128)).astype(np.float32)
right = rng.standard_normal((128, 512)).astype(np.float32)
macs = 64 * 128 * 512
library_s = median_s(lambda: left @ right, runs=30)
print(f"one multiply-accumulate in Python: {1e9 * median_s(add_up) / 100_000:.1f} ns")
print(f"one in the library:                {1e9 * library_s / macs:.4f} ns")

# %% [markdown]
# ## Predict
#
# Write down what you expect, before you measure. Nobody grades this. Replace every `None`.
#
# - `three loops / library`: how many times longer does the product take in three Python loops?
# - `one loop / library`: and in one Python loop over whole rows of NumPy?
# - `fused GELU, 128 KiB`: GELU is a chain of eight simple operations. How many times faster is it if
#   they are fused, for 32,768 numbers (128 KiB)?
# - `fused GELU, 16 MiB`: and for 4 million numbers?
# - `GPT without GELU`: how many times faster would a call of the GPT be, if GELU took no time at all?

# %%
PREDICTION = {
    ### BEGIN SOLUTION
    #: "three loops / library": None,
    #: "one loop / library": None,
    #: "fused GELU, 128 KiB": None,
    #: "fused GELU, 16 MiB": None,
    #: "GPT without GELU": None,
    "three loops / library": 100,
    "one loop / library": 2,
    "fused GELU, 128 KiB": 8,
    "fused GELU, 16 MiB": 8,
    "GPT without GELU": 1.1,
    ### END SOLUTION
}
check_prediction(PREDICTION)

# %% [markdown] step="naive"
# ## Step 1: Three loops
#
# Write `naive_matmul` for matrices that are lists of rows, without NumPy: row i of the result has, at
# place j, the sum of `a[i][p] * b[p][j]` over all p. It is the definition, and what everything else
# in this lab is checked against. If the rows of `a` are not as long as `b` has rows, raise a
# `ValueError` that says both lengths.
#
# *Hint:* what is `[[0.0] * n] * m`? Change one number of it and print it.


# %% step="naive"
def naive_matmul(a, b):
    """Return the product of two matrices, each a list of rows, as a list of rows."""
    ### BEGIN SOLUTION
    if len(a[0]) != len(b):
        raise ValueError(f"rows of {len(a[0])} numbers cannot be multiplied with {len(b)} rows")
    result = []
    for row in a:
        sums = [0.0] * len(b[0])
        for j in range(len(sums)):
            for p in range(len(b)):
                sums[j] += row[p] * b[p][j]
        result.append(sums)
    return result
    ### END SOLUTION


# %%
lists = left.tolist(), right.tolist()
naive_s = median_s(lambda: naive_matmul(*lists), runs=3)
print(f"three loops: {1e3 * naive_s:.0f} ms, {naive_s / library_s:,.0f} times the library")

# %% [markdown] step="rows"
# ## Step 2: One loop
#
# Most of that time is Python: it looks up names, checks types and makes a number object, millions of
# times. NumPy does this once for a whole array. So write `vectorized_matmul` for arrays with a
# **single** Python loop, and array operations inside of it. No `@`, `np.dot` or `np.einsum`: these
# are what you are building.
#
# Two ways to go wrong: a loop in a loop (still too much Python), and no loop at all. `a[:, :, None] *
# b` computes every multiplication at once, but it makes an array of m·k·n numbers: 16 MiB here, and
# 256 GiB for two matrices of 4,096. No array that you make may be larger than the largest of the three
# matrices. And float32 in means float32 out.
#
# *Hint:* the result is a sum over p of products of a column of `a` with a row of `b`. What shapes do
# they need, so that one multiplication gives (m, n)?


# %% step="rows"
def vectorized_matmul(a, b):
    """Return the product of arrays (m, k) and (k, n) with one Python loop."""
    ### BEGIN SOLUTION
    result = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for p in range(a.shape[1]):
        result += a[:, p : p + 1] * b[p]
    return result
    ### END SOLUTION


# %%
vectorized_s = median_s(lambda: vectorized_matmul(left, right))
times_ms = {"three loops": naive_s, "one loop": vectorized_s, "library": library_s}
print(Bars("(64, 128) by (128, 512)", {k: 1e3 * v for k, v in times_ms.items()}, "ms"))

# %% [markdown] step="blocked"
# ## Step 3: Blocks
#
# What is left? Each turn of your loop reads and writes the whole result, k times. A processor has a
# small, fast memory, the cache; what does not fit has to come from the large, slow one. So good
# libraries cut all three matrices into square *tiles* that fit into the cache together, and finish
# with a tile before they go on.
#
# Write `blocked_matmul`. Cut **all three** axes into pieces of at most `block`; pieces at the edges are
# smaller. For each tile of the result, add up the products of tiles of `a` and `b`. The product of two
# tiles is `multiply(tile_of_a, tile_of_b)`, an argument: the check passes one that looks at what it gets.
#
# *Hint:* three loops over `range(0, size, block)`. A slice may reach beyond the end of an array, so the
# edges need nothing special.


# %% step="blocked"
def blocked_matmul(a, b, block=64, multiply=np.matmul):
    """Return the product of arrays (m, k) and (k, n), as a sum of products of tiles."""
    ### BEGIN SOLUTION
    m, k, n = *a.shape, b.shape[1]
    result = np.zeros((m, n), a.dtype)
    for i in range(0, m, block):
        rows = slice(i, i + block)
        for j in range(0, n, block):
            columns = slice(j, j + block)
            for p in range(0, k, block):
                inner = slice(p, p + block)
                result[rows, columns] += multiply(a[rows, inner], b[inner, columns])
    return result
    ### END SOLUTION


# %%
blocks_ms = {
    f"block {size}": 1e3 * median_s(lambda size=size: blocked_matmul(left, right, size))
    for size in (8, 16, 32, 64, 128)
}
print(Bars("Your blocks", {**blocks_ms, "library": 1e3 * library_s}, "ms"))

# %% [markdown]
# Small blocks are slow again: now the three loops of Python are around the tiles. The library has the same
# loops in machine code, and tiles for every level of the memory, down to the registers. That is why
# blocking by hand in Python does not beat it. What it teaches is *why* blocks help, and this you can
# count.

# %% [markdown] step="traffic"
# ## Step 4: Count the bytes
#
# Say the cache holds three tiles, one of each matrix. A tile of the result stays there until its sum is
# complete, and is written to memory once. For each product of tiles, one tile of `a` and one of `b` are
# read from memory. What does that add up to? And what would be moved with `block=1`, in the naive loops?
#
# Write three functions:
#
# - `traffic`: the bytes between memory and cache, for any sizes, also if `block` does not divide them;
# - `intensity`: the FLOPs of the product (two per multiply-accumulate) per byte of that traffic;
# - `largest_block`: the largest whole number `block` so that three square tiles fit into a cache.
#
# *Hint:* how often is a number of `a` read? Once for each tile of which axis?


# %% step="traffic"
def traffic(m, k, n, block, bytes_per_number=4):
    """Return the bytes that a blocked product of (m, k) and (k, n) moves."""
    ### BEGIN SOLUTION
    reads = m * k * math.ceil(n / block) + k * n * math.ceil(m / block)
    return bytes_per_number * (reads + m * n)
    ### END SOLUTION


def intensity(m, k, n, block, bytes_per_number=4):
    """Return the FLOPs of a blocked product for each byte that it moves."""
    ### BEGIN SOLUTION
    return 2 * m * k * n / traffic(m, k, n, block, bytes_per_number)
    ### END SOLUTION


def largest_block(cache_bytes, bytes_per_number=4):
    """Return the largest block of which three square tiles fit into a cache."""
    ### BEGIN SOLUTION
    return math.isqrt(cache_bytes // (3 * bytes_per_number))
    ### END SOLUTION


# %% [markdown]
# The *ridge* of a machine is its peak over its bandwidth: work of a lower intensity waits for memory. The
# project measures both once and keeps them; this takes some seconds the first time.

# %%
workload = load_workload("gpt")
gpt, (tokens,) = workload.model, workload.inputs
profile = profile_workload(workload, budget_s=2.0)
peak, bandwidth = profile.ceilings.peak_flops("float32"), profile.ceilings.bandwidth()
print(f"peak {peak / 1e9:.0f} GFLOP/s, memory {bandwidth / 1e9:.1f} GB/s,", end=" ")
print(f"ridge {peak / bandwidth:.1f} FLOP/byte")
sizes = (1, 4, 16, 64, 256)
counted = [intensity(1024, 1024, 1024, each) for each in sizes]
print(Growth("A product of 1,024", sizes, {"FLOP/byte": counted}, size_name="block"))
for name, size in profile.ceilings.cache_bytes.items():
    print(f"{name}: {size / 1024:,.0f} KiB, blocks of up to {largest_block(size)}")

# %% [markdown] step="gelu"
# ## Step 5: Fuse
#
# Blocks work because each number is used many times. In an elementwise function each number is used
# once, so is there nothing to win? There is: such a function is a *chain*. GELU, in the form that the
# GPT uses, is
#
#     0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
#
# In NumPy each of these operations reads whole arrays and writes a whole one, which the next reads
# again. Fused, a number is read once, all is computed, and the result is written.
#
# Write `fused_gelu`. Without a compiler you can fuse by pieces: take `chunk` numbers, run the whole chain
# on them in a buffer that stays in the cache, write them to the result, go on. Besides the result,
# make no array larger than `chunk`, and make buffers once, not for each piece. `x` has any shape, may
# be smaller than a piece, need not be contiguous, and stays as it is. float32 in, float32 out.
#
# *Hint:* `np.multiply(x, x, out=buffer)` and `buffer *= x` write into memory that is there.
# `result.reshape(-1)` of a new array is a view of it; what is `x.reshape(-1)` when x is not contiguous?


# %% step="gelu"
def plain_gelu(x):
    """Return GELU as a chain of operations on whole arrays."""
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def fused_gelu(x, chunk=16_384):
    """Return GELU of an array; besides the result, only arrays of up to `chunk` numbers are made."""
    ### BEGIN SOLUTION
    result = np.empty(x.shape, x.dtype)
    source, target = x.reshape(-1) if x.flags.c_contiguous else x.flat, result.reshape(-1)
    buffer = np.empty(min(chunk, x.size), x.dtype)
    for start in range(0, x.size, chunk):
        piece = source[start : start + chunk]
        part = buffer[: piece.size]
        np.multiply(piece, piece, out=part)
        part *= 0.044715
        part += 1
        part *= piece
        part *= 0.7978845608
        np.tanh(part, out=part)
        part += 1
        part *= piece
        np.multiply(part, 0.5, out=target[start : start + piece.size])
    return result
    ### END SOLUTION


# %%
gains = {}
for name, count in {"128 KiB": 1 << 15, "1 MiB": 1 << 18, "16 MiB": 1 << 22}.items():
    numbers = rng.standard_normal(count).astype(np.float32)
    chain_ms = 1e3 * median_s(lambda numbers=numbers: plain_gelu(numbers))
    fused_ms = 1e3 * median_s(lambda numbers=numbers: fused_gelu(numbers))
    gains[name] = chain_ms / fused_ms
    print(Bars(f"GELU of {name}", {"chain": chain_ms, "fused": fused_ms}, "ms"))

# %% [markdown] step="bound"
# ## Step 6: When does fusing pay?
#
# A piece of work takes at least as long as its computing takes at the machine's peak, and at least as
# long as its bytes take at the machine's bandwidth. Both go on at the same time, so the longer of the two
# is the bound. This is the roofline, said in seconds.
#
# Write `least_s`, this bound; and `chain_s`, the bound for a chain of elementwise operations on
# `numbers` numbers. `costs` has the FLOPs per number of each operation, such as `[1, 1, 20]` for two
# multiplications and a tanh. Unfused, every operation is a piece of work of its own that reads and
# writes all numbers, and they run one after the other. Fused, the chain is a single piece: it reads and
# writes all numbers once.
#
# *Hint:* a long tanh in the middle may be limited by computing while its neighbours wait for memory. So
# in which order do you take the sum and the maximum?


# %% step="bound"
def least_s(flops, moved, peak, bandwidth):
    """Return the fewest seconds that some FLOPs and some moved bytes can take."""
    ### BEGIN SOLUTION
    return max(flops / peak, moved / bandwidth)
    ### END SOLUTION


def chain_s(numbers, costs, fused, peak, bandwidth, bytes_per_number=4):
    """Return the fewest seconds of a chain of elementwise operations, fused or not."""
    ### BEGIN SOLUTION
    moved = 2 * numbers * bytes_per_number
    if fused:
        return least_s(numbers * sum(costs), moved, peak, bandwidth)
    return sum(least_s(numbers * cost, moved, peak, bandwidth) for cost in costs)
    ### END SOLUTION


# %% [markdown]
# What does it say for GELU, whose tanh costs about 20 FLOPs? Once for numbers that
# come from memory, and once for the nearest cache. Then look at the picture. What reaches more than
# 100% of what memory allows has its numbers in a cache; each slope is a level of the memory.

# %%
GELU_COSTS = [1, 1, 1, 1, 1, 20, 1, 1, 1]
nearest = profile.ceilings.bandwidth(1 << 15)
for name, rate in {"memory": bandwidth, "the nearest cache": nearest}.items():
    one, other = (chain_s(1 << 20, GELU_COSTS, each, peak, rate) for each in (False, True))
    print(f"from {name}, at {rate / 1e9:.0f} GB/s, fusing allows up to {one / other:.1f}x")

flops = 2 * macs
large = numbers.size * sum(GELU_COSTS)
points = {
    "product, library": (intensity(64, 128, 512, 64), flops / library_s),
    "product, one loop": (2 / 16, flops / vectorized_s),  # 4 numbers move for 2 FLOPs
    "GELU 16 MiB, chain": (sum(GELU_COSTS) / 8 / len(GELU_COSTS), 1e3 * large / chain_ms),
    "GELU 16 MiB, fused": (sum(GELU_COSTS) / 8, 1e3 * large / fused_ms),
}
print(Roof("What was achieved, and the roof", profile.ceilings, points))

# %% [markdown] step="target"
# ## Step 7: Which layer first?
#
# A layer that takes half of the time may be as fast as the machine allows: nothing to win. Another takes
# a tenth of it and could be ten times faster. So what counts is the *headroom*: the time of a layer minus
# its bound. By Amdahl's law, the whole can get faster by no more than the time that is saved.
#
# Write `headroom`. It takes rows with `kind`, `seconds`, `flops` and `bytes`, one for each layer, and
# returns one dictionary for each **kind**, the one with the most to save first:
#
# - `seconds` and `least_s`: the sums over its layers; the bound is that of each layer on its own;
# - `saved_s`: what could be saved. A layer that beats its bound has none, and must not hide what others
#   could save (the bytes of a small layer may come from a faster cache than the bandwidth says);
# - `speedup`: how many times faster the whole gets if all of that is saved.
#
# *Hint:* the new time of the whole is the old one without what is saved.


# %% step="target"
def headroom(rows, peak, bandwidth):
    """Return what each kind of layer could save at most, a list of dictionaries, the most first."""
    ### BEGIN SOLUTION
    kinds = {}
    for row in rows:
        least = least_s(row["flops"], row["bytes"], peak, bandwidth)
        found = kinds.setdefault(row["kind"], {"seconds": 0.0, "least_s": 0.0, "saved_s": 0.0})
        found["seconds"] += row["seconds"]
        found["least_s"] += least
        found["saved_s"] += max(0.0, row["seconds"] - least)
    total = sum(row["seconds"] for row in rows)
    found = [
        {"kind": kind, **each, "speedup": total / (total - each["saved_s"])}
        for kind, each in kinds.items()
    ]
    return sorted(found, key=lambda each: -each["saved_s"])
    ### END SOLUTION


# %%
rows = [
    {"kind": row.kind, "seconds": row.self_s, "flops": row.self_flops, "bytes": row.self_bytes}
    for row in profile.layers
]
in_cache = profile.ceilings.bandwidth(profile.working_set_bytes)
found = headroom(rows, peak, in_cache)
print(f"{'kind':20} {'takes':>9} {'at least':>9} {'whole gets':>11}")
for each in found:
    print(
        f"{each['kind']:20} {1e6 * each['seconds']:6.0f} µs {1e6 * each['least_s']:6.0f} µs", end=""
    )
    print(f" {each['speedup']:10.2f}x")

# %% [markdown]
# ## Your prediction
#
# Here is what you wrote beside what you measured.

# %%
total = sum(row["seconds"] for row in rows)
gelu_share = sum(row["seconds"] for row in rows if row["kind"] == "GELU") / total
measured = {
    "three loops / library": naive_s / library_s,
    "one loop / library": vectorized_s / library_s,
    "fused GELU, 128 KiB": gains["128 KiB"],
    "fused GELU, 16 MiB": gains["16 MiB"],
    "GPT without GELU": 1 / (1 - gelu_share),
}
print(Outcome(PREDICTION, measured))

# %% [markdown]
# ## Yours against the real ones
#
# First: are they right? Against the product in float64, and against the GELU of the project. Then the
# times, by the comparer of the project: it runs both sides in turns, in random order, and gives the ratio
# of their times with an interval.

# %%
exact = left.astype(np.float64) @ right.astype(np.float64)
for func in (vectorized_matmul, blocked_matmul):
    print(f"{func.__name__} differs by at most {np.abs(func(left, right) - exact).max():.1e}")
a, b, x = Tensor(left), Tensor(right), Tensor(numbers[: 1 << 18])
print(f"the library by {np.abs(left @ right - exact).max():.1e},", end=" ")
print(f"tiled_matmul() by {np.abs(real.tiled_matmul(a, b).data - exact).max():.1e}")
print(f"GELU differs by {np.abs(real.fused_gelu(x).data - fused_gelu(x.data)).max():.1e}")

print("blocks of 64, yours (baseline) against the project's tiled_matmul (candidate):")
print(compare(lambda: blocked_matmul(left, right), lambda: real.tiled_matmul(a, b), budget_s=2.0))
print("your blocks (baseline) against the library (candidate):")
print(compare(lambda: blocked_matmul(left, right), lambda: left @ right, budget_s=2.0))
print("GELU of 1 MiB, yours (baseline) against the project's (candidate):")
print(compare(lambda: fused_gelu(x.data), lambda: real.fused_gelu(x), budget_s=2.0))

# %% [markdown]
# Where the real code lives. With the extra `fast`, GELU is a single loop that numba compiles: each number
# stays in a register, and pieces are not needed.

# %%
for each in (real.tiled_matmul, real.fused_gelu, real.unfused_gelu, real.FuseLayers):
    _, line = inspect.getsourcelines(each)
    print(f"{each.__name__:16} {inspect.getsourcefile(each)}:{line}")

# %% [markdown]
# ## The question
#
# Which kind of layer of the GPT would you make faster first, and what can it bring at most? Your table
# says so, from the profile. Now test one such statement. The cell below puts the *slow* chain in the
# place of the GPT's GELU, and measures the whole. Before you run it: you know the time of both for these
# arrays, (64, 512) in each of 4 layers, and what a call takes. What should the ratio be?

# %%
slow_gpt = load_workload("gpt").model.eval()
for block in slow_gpt.blocks:
    for layer in block.mlp.layers:
        if type(layer).__name__ == "GELU":
            layer.forward = lambda x: Tensor(plain_gelu(x.data))


def call(model):
    """Run a model once, without a graph."""
    with no_grad():
        return model(tokens)


hidden = Tensor(rng.standard_normal((1, 64, 512)).astype(np.float32))
chain_s_here = median_s(lambda: plain_gelu(hidden.data), runs=50)
fused_s_here = median_s(lambda: real.fused_gelu(hidden), runs=50)
whole_s = median_s(lambda: call(gpt), runs=50)
print(f"GELU of (64, 512): chain {1e6 * chain_s_here:.0f} µs, the real {1e6 * fused_s_here:.0f} µs")
expected = 1 + 4 * (chain_s_here - fused_s_here) / whole_s
print(f"so a call of {1e3 * whole_s:.2f} ms should take {expected:.3f} times as long; measured:")
print(compare(lambda: call(gpt), lambda: call(slow_gpt), budget_s=3.0))

# %% [markdown]
# ## Reflection
#
# Answer in your own words, in a few sentences each:
#
# 1. From three loops to one, and from one loop to the library: what is saved by each of the two?
# 2. Your count says that larger blocks are always better. What limits them?
# 3. Why does fusing help less, or not at all, for small arrays? Which numbers of yours show it?
# 4. Which kind of layer has the most headroom in the GPT, and what is the headroom of the rows that
#    compute nothing (`GPT`, `TransformerBlock`)? What would reduce that?
#
# `tinytorch learn solution reflection` shows a model answer, once all steps have passed.

# %% [markdown] answer="reflection"
# 1. From three loops to one: Python's work for each number (names, types, number objects), which
#    becomes work for each array. From one loop to the library: bytes. One loop moves the whole result
#    k times; the library keeps tiles in caches and registers, and uses all lanes of the processor's
#    vectors (and its cores) meanwhile.
# 2. Three tiles have to fit into the cache: beyond `largest_block` they are evicted before they are
#    used again, and the count, which assumed that they stay, is wrong. Real libraries also choose tiles
#    by the number of registers and by how a cache maps addresses.
# 3. Fusing saves bytes between the operations. A small array stays in a cache anyway, where bytes are
#    cheap, and what remains is tanh, which both compute. The gains for 128 KiB and for 16 MiB show it,
#    and so do the two bounds. Large arrays also have to be allocated: the system hands out memory
#    page by page, for each array of the chain.
# 4. It depends on the machine; on most, `Linear` and `MultiHeadAttention` have the most, since small
#    products run far below the peak. The rows that compute nothing have a bound of zero: all of their
#    time is headroom. It is the time of Python between the layers, a cost per call, so larger batches
#    share it, and recording the call once (a graph) removes it.

# %% [markdown]
# ## You are done when
#
# - `tinytorch learn check` says that all steps passed;
# - your products differ from the exact one by no more than a few times what the library's does;
# - you can say for which sizes fusing GELU pays on your machine, and why;
# - the comparer's ratio for the slow GELU is near what you computed before, or you know why not;
# - you have answered the four questions above.
