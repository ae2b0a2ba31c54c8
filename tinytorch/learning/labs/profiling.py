# %% [markdown] hours="4"
# # Profiling: why does this GPT take so long?
#
# The zoo has a small GPT: 4 layers, width 128, a context of 64 characters. One call takes a few
# milliseconds. Where do they go, and what would make it faster? In this lab you build the tools that
# answer this: a timer, a memory meter, a FLOP counter, a layer profiler, and a roofline. At the end
# you compare yours with those of the project, and use them to say which part to fix first.
#
# **How to work.** Each step has a place that says `your code goes here`. Write your code, save the
# file, and run
#
# ```console
# $ tinytorch learn check
# ```
#
# in this folder. It runs the checks of all steps; `tinytorch learn check timer` runs those of one.
# Checks use new random cases each time. They run only the imports, functions, classes and constants
# of this file, so the measurements between them may take their time.
#
# The lab is there twice, with the same text: work in the notebook `profiling.ipynb` (JupyterLab and
# VS Code open it), or in `profiling.py`. Of that file, `python profiling.py` shows the measurements down
# to the first place that is still open, where it stops with an error.
#
# You need NumPy and some Python: closures, `with` or `try`/`finally`. Expect four hours.

# %%
import gc
import inspect
import os
import time
import tracemalloc
from dataclasses import replace

# One thread: what other programs do on the other cores then disturbs less. It has to be said before
# NumPy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from tinytorch import Tensor, compare, load_workload, no_grad, profile_workload
from tinytorch.core.losses import CrossEntropyLoss
from tinytorch.core.optimizers import Adam
from tinytorch.learning.exercise import Bars, Outcome, Roof, check_prediction

# %% [markdown]
# ## A first look
#
# Here is the model, and ten calls of it, timed one by one with a stopwatch. With the extra `fast`, the
# first call on a machine compiles the kernels: this takes some time, once.

# %%
workload = load_workload("gpt")
gpt, (tokens,) = workload.model, workload.inputs


def forward():
    """Run the model once, without a graph."""
    with no_grad():
        return gpt(tokens)


calls_ms = {}
for number in range(1, 11):
    start = time.perf_counter()
    forward()
    calls_ms[f"call {number}"] = 1e3 * (time.perf_counter() - start)
print(f"call 1: {calls_ms.pop('call 1'):.1f} ms")
print(Bars("The nine calls after it", calls_ms, unit="ms"))

# %% [markdown]
# Which of these ten numbers is *the* time of a call? The first is much slower: kernels are compiled
# or loaded, memory is not allocated yet, caches are cold. Others may be slower because the system did
# something else meanwhile.
#
# ## Predict
#
# Write down what you expect, before you measure. Nobody grades this; being wrong here is how you
# notice what you did not know. Replace every `None`.
#
# - `slowest kind`: which kind of layer takes most time of its own: `"Linear"`,
#   `"MultiHeadAttention"` (scores and weighted sum, without its Linear layers), `"LayerNorm"`,
#   `"GELU"` or `"Embedding"`?
# - `million FLOPs`: how many million floating-point operations does a call with 64 tokens take?
# - `percent of peak`: how much of what this machine can compute per second does a call reach?
# - `backward / forward`: how many times longer is the backward pass than the forward pass?

# %%
PREDICTION = {
    ### BEGIN SOLUTION
    #: "slowest kind": None,
    #: "million FLOPs": None,
    #: "percent of peak": None,
    #: "backward / forward": None,
    "slowest kind": "MultiHeadAttention",
    "million FLOPs": 50,
    "percent of peak": 60,
    "backward / forward": 2,
    ### END SOLUTION
}
check_prediction(PREDICTION)

# %% [markdown] step="timer"
# ## Step 1: A timer that can be trusted
#
# A stopwatch has three enemies: the first calls, which are not like the others; Python's garbage
# collector, which starts when it likes; and the mean, which one slow call moves.
#
# Write `measure`. It calls `func` `warmup` times without looking at the clock, then `runs` times with
# the garbage collector off, each call timed alone. The collector has to be as it was afterwards (on
# if it was on, off if it was off), also when `func` raises.
#
# `clock` returns seconds. It is an argument so that your timer can be tested with a clock that
# follows a script: the check knows exactly what your timer should see.
#
# The *p95* is the time that 95% of the runs stay below. With few runs it lies between two of them:
# interpolate linearly between the closest ranks, as `np.percentile` does.
#
# *Hint:* read the clock right before and right after the call, and do nothing else in between.


# %% step="timer"
def measure(func, warmup=3, runs=30, clock=time.perf_counter):
    """Time `func`; return a dictionary with all times and what sums them up, in seconds.

    `times` is the list of the `runs` times in their order; `median`, `mean`, `min` and `p95` are
    numbers.
    """
    ### BEGIN SOLUTION
    for _ in range(warmup):
        func()
    was_on = gc.isenabled()
    gc.disable()
    try:
        times = []
        for _ in range(runs):
            start = clock()
            func()
            times.append(clock() - start)
    finally:
        if was_on:
            gc.enable()
    return {
        "times": times,
        "median": float(np.median(times)),
        "mean": float(np.mean(times)),
        "min": min(times),
        "p95": float(np.percentile(times, 95)),
    }
    ### END SOLUTION


# %% [markdown]
# Now measure the model. Compare mean, median and p95: if they differ, what does the mean tell you?

# %%
found = measure(forward, runs=100)
summary = {name: 1e3 * found[name] for name in ("min", "median", "mean", "p95")}
print(Bars("One call of the GPT, 100 runs", summary, unit="ms"))

disturbed = [*found["times"], *(20 * t for t in found["times"][:5])]  # five calls 20 times slower
print(
    Bars(
        "The same, when five more calls are disturbed",
        {"median": 1e3 * np.median(disturbed), "mean": 1e3 * np.mean(disturbed)},
        unit="ms",
    )
)

# %% [markdown] step="memory"
# ## Step 2: A memory meter
#
# Time is half of the cost. `tracemalloc` of the standard library knows what Python and NumPy
# allocate: `tracemalloc.start()`, `tracemalloc.get_traced_memory()` (a pair: now, and the peak since
# the start or since `tracemalloc.reset_peak()`), `tracemalloc.stop()`.
#
# Write `memory_of`. The *peak* is what has to fit into the machine; what is *kept* is what the result
# takes after the call. They are different numbers: most of what a forward pass allocates is freed
# again.
#
# What was allocated before the call is none of it. Tracing makes Python slow, so it must have ended
# after the call, also when `func` raises; but a tracer that somebody else started has to keep
# running.
#
# *Hint:* hold on to the result until you have read the memory, or it is freed before you look.


# %% step="memory"
def memory_of(func):
    """Return the bytes that a call of `func` allocates: `{"peak": ..., "kept": ...}`.

    Both are above what was allocated before the call; `kept` includes the result of the call.
    """
    ### BEGIN SOLUTION
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        result = func()
        now, peak = tracemalloc.get_traced_memory()
        del result
    finally:
        if not was_tracing:
            tracemalloc.stop()
    return {"peak": peak - before, "kept": now - before}
    ### END SOLUTION


# %%
used = memory_of(forward)
weights = sum(each.data.nbytes for each in gpt.parameters())
kib = {"weights": weights, "peak of a call": used["peak"], "kept (the logits)": used["kept"]}
print(Bars("Memory of the GPT", {name: size / 1024 for name, size in kib.items()}, unit="KiB"))

# %% [markdown] step="flops"
# ## Step 3: A FLOP counter
#
# How much arithmetic is a call? A matrix product of (m, k) and (k, n) multiplies and adds m·k·n
# times, and each of these *multiply-accumulates* counts as **two** FLOPs. Everything else in this
# model (softmax, norms, GELU, biases) is small beside the products, and we leave it out.
#
# Write `layer_flops` for one layer and the shape of its input:
#
# - `Linear`: the input is (..., in), the weight (in, out). Every row of the input counts.
# - `MultiHeadAttention`: its four `Linear` layers are counted on their own, so count only the two
#   products inside: scores = Q·Kᵀ and the weighted sum of V. The input is (batch, time, width). Count
#   every pair of tokens, also those that a causal mask hides.
# - `TiedHead`, the output: a product with the matrix of the token embedding,
#   `layer.embedding.weight`, which is (vocabulary, width).
# - every other layer: 0.
#
# *Hint:* how do the heads share the width? Write down the shapes of Q, K and V for one head, and
# multiply by the number of heads.


# %% step="flops"
def layer_flops(layer, shape):
    """Return the FLOPs of the matrix products in one call of a layer, two per multiply-accumulate.

    `shape` is that of the input. The kind of a layer is `type(layer).__name__`.
    """
    ### BEGIN SOLUTION
    kind = type(layer).__name__
    rows = int(np.prod(shape[:-1]))
    if kind == "Linear":
        return 2 * rows * layer.in_features * layer.out_features
    if kind == "MultiHeadAttention":
        time, width = shape[-2:]
        return 2 * (2 * rows * time * width)
    if kind == "TiedHead":
        return 2 * rows * layer.embedding.weight.data.size
    return 0
    ### END SOLUTION


# %% [markdown] step="layers"
# ## Step 4: A layer profiler
#
# Which layer takes the time? `model(x)` calls `layer.forward` of every layer. In Python you can put
# another function in its place, on the object: `layer.forward = timed`. The class stays as it is, and
# `del layer.forward` brings back the original.
#
# Layers contain layers: the time of a block holds the time of its attention, which holds that of its
# projections. What you want is the **self time** of each layer: its time without that of the layers
# that were called inside of it. Then all self times add up to the time of the whole call, and none
# counts twice.
#
# Write `profile_layers`. `model.named_modules()` yields a name and a layer for each layer, the model
# itself (with the name `""`) first. Return one row per layer that was called. Restore every layer, also
# when the model raises. The output of the model must be what it was: pass on all arguments and
# results.
#
# *Hint:* keep a stack with one number per layer that is running now: the seconds that the layers
# inside of it have taken so far. When a layer ends, who needs to know its time?


# %% step="layers"
def profile_layers(model, x, clock=time.perf_counter):
    """Call the model once; return a list with a dictionary for each layer that was called.

    `name` and `kind` (the name of its class), `calls`, `self_s` (seconds without the layers inside
    of it, summed over calls) and `flops` (by `layer_flops`, summed over calls), in the order of
    `model.named_modules()`.
    """
    ### BEGIN SOLUTION
    rows, inside = [], []

    def watch(layer, row):
        original = layer.forward

        def timed(x, *others, **settings):
            inside.append(0.0)
            start = clock()
            output = original(x, *others, **settings)
            seconds = clock() - start
            row["self_s"] += seconds - inside.pop()
            if inside:
                inside[-1] += seconds
            row["calls"] += 1
            row["flops"] += layer_flops(layer, np.shape(getattr(x, "data", x)))
            return output

        layer.forward = timed

    layers = list(model.named_modules())
    for name, layer in layers:
        kind = type(layer).__name__
        rows.append({"name": name, "kind": kind, "calls": 0, "self_s": 0.0, "flops": 0})
    try:
        for (_, layer), row in zip(layers, rows, strict=True):
            watch(layer, row)
        with no_grad():
            model(x)
    finally:
        for _, layer in layers:
            vars(layer).pop("forward", None)
    return [row for row in rows if row["calls"]]
    ### END SOLUTION


# %% [markdown]
# One call is noisy, so take the median of many for each layer. The self time of the model and of the
# blocks is what happens *between* the layers: Python, additions, and bookkeeping.


# %%
def median_rows(model, x, calls=30):
    """Profile many calls; return the rows with the median of each self time."""
    profiles = [profile_layers(model, x) for _ in range(calls)]
    return [
        {**same[0], "self_s": float(np.median([each["self_s"] for each in same]))}
        for same in zip(*profiles, strict=True)
    ]


def by_kind(rows):
    """Return the self times summed up by kind of layer, the longest first."""
    seconds = {}
    for row in rows:
        seconds[row["kind"]] = seconds.get(row["kind"], 0.0) + row["self_s"]
    return dict(sorted(seconds.items(), key=lambda each: -each[1]))


rows = median_rows(gpt, tokens)
kinds_ms = {kind: 1e3 * seconds for kind, seconds in by_kind(rows).items()}
print(Bars("Self time by kind of layer", kinds_ms, "ms"))

mflops = sum(row["flops"] for row in rows) / 1e6
print(f"{mflops:.1f} million FLOPs in a call")

# %% [markdown] step="training"
# ## Step 5: A training step
#
# Training does more: a forward pass that keeps what the backward pass needs, the backward pass, and
# the update of the optimizer. Each has its own time, and memory of its own kind: *parameters*,
# *gradients* (as many bytes), and the *state of the optimizer* (Adam keeps two numbers per
# parameter).
#
# Write `training_step`. The order of a step is: `optimizer.zero_grad()`; forward, which includes the
# loss; `backward()` of the loss; `optimizer.step()`. The first is not timed.
#
# Bytes are those really held after the step: `p.data.nbytes`, `p.grad.nbytes` (`grad` is an array, or
# None for what got no gradient). The optimizer holds its state in `optimizer.slots`: a list with a
# dictionary for each parameter, from the name of a state to its array.
#
# *Hint:* gradients are there after `backward()`, not before, and the state of the optimizer only after
# its first step.


# %% step="training"
def training_step(model, x, targets, loss, optimizer, clock=time.perf_counter):
    """Run one training step; return seconds and bytes of its parts in a dictionary.

    Keys: `forward_s`, `backward_s`, `update_s`, `parameter_bytes`, `gradient_bytes`,
    `optimizer_bytes`.
    """
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    begin = clock()
    error = loss(model(x), targets)
    after_forward = clock()
    error.backward()
    after_backward = clock()
    optimizer.step()
    end = clock()
    state = [each for slots in optimizer.slots for each in slots.values()]
    parameters = model.parameters()
    return {
        "forward_s": after_forward - begin,
        "backward_s": after_backward - after_forward,
        "update_s": end - after_backward,
        "parameter_bytes": sum(each.data.nbytes for each in parameters),
        "gradient_bytes": sum(each.grad.nbytes for each in parameters if each.grad is not None),
        "optimizer_bytes": sum(each.nbytes for each in state),
    }
    ### END SOLUTION


# %%
student = load_workload("gpt").model.train()  # a copy: the other one stays as it was trained
next_tokens = np.roll(tokens.data, -1, axis=-1)
optimizer = Adam(student.parameters(), lr=1e-5)
loss = CrossEntropyLoss()


def train():
    """Run a training step on the copy."""
    return training_step(student, tokens, next_tokens, loss, optimizer)


steps = [train() for _ in range(20)][5:]
parts = ("forward_s", "backward_s", "update_s")
medians = {name: 1e3 * float(np.median([each[name] for each in steps])) for name in parts}
print(Bars("A training step", medians, unit="ms"))

batch = {"1": 1, "8": 8, "32": 32}
held = {name.removesuffix("_bytes"): steps[-1][name] for name in steps[-1] if "bytes" in name}
for name, count in batch.items():
    many = Tensor(np.repeat(tokens.data, count, axis=0))
    student.zero_grad()
    graph = memory_of(lambda many=many: loss(student(many), np.roll(many.data, -1, axis=-1)))
    held[f"kept for backward, batch {name}"] = graph["kept"]
print(Bars("Memory of training", {name: size / 2**20 for name, size in held.items()}, "MiB"))

# %% [markdown]
# When in a step is how much of it held? The project records the birth and the death of every buffer, so
# it can draw the *memory timeline* of a step, here with a batch of 16. Where does forward end?

# %%
sixteen = replace(workload, inputs=(Tensor(np.repeat(tokens.data, 16, axis=0)),))
timeline = profile_workload(sixteen, training=True, ceilings=False, budget_s=1.0).memory
levels = timeline.series(20, from_first_change=True)["total"]
over_time = {f"up to {5 * n}% of the step": each / 2**20 for n, each in enumerate(levels, 1)}
print(Bars("Memory during a training step", over_time, "MiB"))

# %% [markdown] step="roofline"
# ## Step 6: The roofline
#
# Is a layer slow because the machine cannot compute faster, or because it waits for memory? The
# *intensity* of a piece of work is its FLOPs per byte that it moves. A machine that computes at most
# `peak` FLOP/s and moves at most `bandwidth` bytes/s can do work of an intensity at
#
#     attainable = the lower of: peak, and bandwidth x intensity
#
# Below the *ridge* (peak / bandwidth) memory limits, and a faster processor does not help. From it on,
# computing does.
#
# Write `roofline`. Nothing is clamped: an efficiency above 1 is a sign that something was counted
# wrongly, and must be seen.
#
# *Hint:* compare the achieved rate with what is attainable *at this intensity*, not with the peak.


# %% step="roofline"
def roofline(flops, bytes_moved, seconds, peak, bandwidth):
    """Return where a piece of work stands under the roof, in a dictionary.

    `intensity` (FLOP per byte), `attainable` (FLOP/s), `bound` ("memory" or "compute") and
    `efficiency` (achieved FLOP/s over what is attainable).
    """
    ### BEGIN SOLUTION
    intensity = flops / bytes_moved
    attainable = min(peak, bandwidth * intensity)
    return {
        "intensity": intensity,
        "attainable": attainable,
        "bound": "memory" if intensity < peak / bandwidth else "compute",
        "efficiency": flops / seconds / attainable,
    }
    ### END SOLUTION


# %% [markdown]
# The project measures the ceilings of this machine once and keeps them. This takes some seconds the
# first time.

# %%
profile = profile_workload(workload, budget_s=2.0)
peak = profile.ceilings.peak_flops("float32")
bandwidth = profile.ceilings.bandwidth(profile.working_set_bytes)
whole = roofline(mflops * 1e6, profile.bytes_moved, found["median"], peak, bandwidth)
print(f"peak {peak / 1e9:.0f} GFLOP/s, bandwidth {bandwidth / 1e9:.1f} GB/s")
print(f"the whole call: {whole['intensity']:.1f} FLOP/byte, {whole['bound']}-bound")
print(f"{whole['efficiency']:.0%} of what is attainable")
point = (whole["intensity"], mflops * 1e6 / found["median"])
print(Roof("The whole call, below the roof", profile.ceilings, {"a call of the GPT": point}))

# %% [markdown]
# Is anything above 100%? Then count again what you counted, or the peak is too low: ceilings that
# were measured on a busy machine are. `tinytorch machine --refresh` measures them anew.

# %% [markdown] step="priority"
# ## Step 7: What to fix first
#
# If a part takes a *share* of the time and becomes `factor` times faster, the rest stays as it is.
# That is Amdahl's law, and it is why one does not speed up what is only 5% of the time.
#
# Write `amdahl`, the speedup of the whole; and `fix_first`, which takes rows as your profiler makes
# them and finds the **kind** of layer with the most to gain. Layers of one kind are made faster
# together, so add up the self times of a kind; the share is of all rows together.
#
# *Hint:* what remains of the time after the change? With an infinite factor (`float("inf")`), the
# part vanishes.


# %% step="priority"
def amdahl(share, factor):
    """Return how many times faster the whole gets when a share of it gets `factor` times faster."""
    ### BEGIN SOLUTION
    remaining = (1 - share) + share / factor
    return 1 / remaining if remaining else float("inf")
    ### END SOLUTION


def fix_first(rows, factor=2.0):
    """Return the kind of layer that is worth most: a dictionary.

    `kind`, `share` (of the self time of all rows), `speedup` (of the whole, if that kind gets
    `factor` times faster) and `limit` (if it took no time at all).
    """
    ### BEGIN SOLUTION
    seconds = {}
    for row in rows:
        seconds[row["kind"]] = seconds.get(row["kind"], 0.0) + row["self_s"]
    kind = max(seconds, key=seconds.get)
    share = seconds[kind] / sum(seconds.values())
    return {
        "kind": kind,
        "share": share,
        "speedup": amdahl(share, factor),
        "limit": amdahl(share, float("inf")),
    }
    ### END SOLUTION


# %%
layers_only = [row for row in rows if row["kind"] not in ("GPT", "TransformerBlock", "Sequential")]
first = fix_first(rows)
print(f"fix {first['kind']} first: {first['share']:.0%} of the time")
print(f"twice as fast: {first['speedup']:.2f}x overall; at most {first['limit']:.2f}x")

# %% [markdown]
# ## Your prediction
#
# Here is what you wrote beside what you measured.

# %%
measured = {
    "slowest kind": fix_first(layers_only)["kind"],
    "million FLOPs": mflops,
    "percent of peak": 100 * mflops * 1e6 / found["median"] / peak,
    "backward / forward": medians["backward_s"] / medians["forward_s"],
}
print(Outcome(PREDICTION, measured))

# %% [markdown]
# ## Yours against the real ones
#
# First: do they agree? The project counts FLOPs by recording what really ran, and yours by formulas,
# so the two come to the same number by different ways.

# %%
from tinytorch.perf.profiling import Timer, count_flops

print("FLOPs: yours", int(mflops * 1e6), "the project's", count_flops(gpt, tokens))
theirs = Timer().measure(forward, runs=100)
print(f"median: yours {1e3 * found['median']:.3f} ms, the project's {theirs['p50_ms']:.3f} ms,")
print(f"  with the interval {theirs['ci_low_ms']:.3f} to {theirs['ci_high_ms']:.3f} ms")
print("the profiler of the project:")
print(profile)

# %% [markdown]
# Then: what does watching cost? The project's comparer runs both sides in turns, in random order, and
# gives the ratio of their times with an interval. Here, the model alone against the model under your
# layer profiler. Everything a profiler does between the layers lands in somebody's time: this is how
# much you disturb what you measure. The project measures the time of a call *unwatched*, and takes
# only the shares from watched calls. `1.4 of its time` means: 1.4 times as long.

# %%
print(compare(forward, lambda: profile_layers(gpt, tokens), budget_s=2.0))

# %% [markdown]
# Where the real code lives, for when you are curious:

# %%
for real in (Timer, count_flops, compare, profile_workload, type(profile)):
    print(f"{real.__name__:20} {inspect.getsourcefile(real)}")

# %% [markdown]
# ## The question
#
# Which part of this GPT would you fix first, and what can it bring at most? Answer with numbers of
# yours: the kind of layer, its share, the limit by Amdahl's law, how far it is from the roof, and what
# you would change. Then test one thing that you can change without touching a layer: the number of
# tokens per call. Run `fix_first` on profiles with a batch of 1 and of 16. What happens to the share of
# Python, the time *between* layers?

# %%
for count in (1, 16):
    seconds = by_kind(median_rows(gpt, Tensor(np.repeat(tokens.data, count, axis=0)), calls=10))
    total = sum(seconds.values())
    percent = {kind: 100 * each / total for kind, each in list(seconds.items())[:6]}
    print(Bars(f"Batch {count}: {1e3 * total / count:.2f} ms per example", percent, unit="%"))

# %% [markdown]
# ## Reflection
#
# Answer in your own words, in a few sentences each:
#
# 1. Your timer reports the median. When would you rather report the p95, or the minimum?
# 2. Your FLOP counter counts every pair of tokens, though half of them are masked. Is that wrong?
# 3. The whole call reaches only a part of the machine's peak. Name two reasons, with evidence from
#    your profile.
# 4. What dominates the memory of a training step at batch 1, and what at batch 32? What follows for
#    a model that does not fit?
#
# `tinytorch learn solution reflection` shows a model answer, once all steps have passed.

# %% [markdown] answer="reflection"
# 1. The median says what a typical call takes, and does not move when a few calls are disturbed. A
#    service promises something about its slow calls, so there the p95 or p99 counts, measured under
#    load. The minimum estimates the cost of the code alone; it is no promise to anybody, and it falls
#    the longer one measures.
# 2. It depends on the question. The kernel here computes these products and masks them afterwards, so
#    they take time, and counting what was executed is right for a roofline. For *useful* work only
#    half count. What matters is that the number says which of the two it is.
# 3. Products of 64 rows are small: they run below the peak that large products reach, and the profile
#    shows an efficiency per layer. And a good part of the self time belongs to the model and the
#    blocks: Python between the layers, which computes nothing. With a batch of 16 its share falls,
#    which is the evidence that it is a cost per call and not per token.
# 4. At batch 1 the parameters with their gradients and Adam's state dominate: four times the weights.
#    What is kept for the backward pass grows with the batch, and at 32 it is by far the largest. So a
#    smaller batch, or computing parts again in the backward pass (checkpointing), helps against the
#    latter; an optimizer with less state, or fewer bits per number, against the former.

# %% [markdown]
# ## You are done when
#
# - `tinytorch learn check` says that all steps passed;
# - your FLOPs are exactly those of the project, and your median lies near its interval;
# - you can say in one sentence which part of this GPT to fix first, with its share and its limit;
# - you have answered the four questions above.
