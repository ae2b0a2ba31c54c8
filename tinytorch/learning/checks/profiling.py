"""Checks of the lab on profiling."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.layers import Linear
from tinytorch.core.losses import CrossEntropyLoss
from tinytorch.core.module import Module
from tinytorch.core.optimizers import Adam
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT
from tinytorch.learning.checks.support import (
    OWN_CLOCK,
    Rng,
    ScriptedClock,
    close,
    keys_of,
    number_text,
)
from tinytorch.learning.work import Missed, Work, expect
from tinytorch.profiling.flops import count_flops

# ---------------------------------------------------------------- timer


def _timed(work: Work, rng: Rng, *, runs: int, warmup: int) -> tuple[dict[str, Any], list[float]]:
    """Run the learner's timer on a clock that follows a script."""
    clock = ScriptedClock()
    script = [*(100 + rng.random(warmup)), *rng.gamma(1.0, 1.0, runs)]
    calls: list[float] = []

    def func() -> None:
        if len(calls) < len(script):
            clock.now += script[len(calls)]
        calls.append(clock.now)

    found = work.measure(func, warmup=warmup, runs=runs, clock=clock)
    expect(
        len(calls) == warmup + runs,
        "wrong-calls",
        f"with warmup={warmup} and runs={runs} the function was called {len(calls)} times; "
        f"it should be {warmup + runs}",
    )
    expect(clock.reads, "own-clock", OWN_CLOCK)
    keys_of(found, "measure", ("times", "median", "mean", "min", "p95"))
    return found, [float(each) for each in script[warmup:]]


def check_timed_calls(work: Work, rng: Rng) -> None:
    """Every run is timed alone, and the warm-up calls are not among the times."""
    for _ in range(3):
        runs, warmup = int(rng.integers(3, 9)), int(rng.integers(1, 5))
        found, script = _timed(work, rng, runs=runs, warmup=warmup)
        times = list(found["times"])
        expect(
            max(times, default=0.0) < 100,
            "warm-up-timed",
            "a warm-up call is among the times: they are there to be thrown away",
        )
        expect(
            len(times) == runs,
            "batch-timed",
            f"there are {len(times)} times for {runs} runs; each run is to be timed alone",
        )
        expect(
            close(times, script),
            "wrong-times",
            f"a run took {script[0]:.4f} s by the clock, and your list says {times[0]:.4f} s; "
            "what lies between the two readings besides the call?",
        )
    found, script = _timed(work, rng, runs=1, warmup=0)
    expect(close(found["median"], script[0]), "wrong-median", "a single run without warm-up")


def check_median(work: Work, rng: Rng) -> None:
    """The median is the middle of the sorted times, for odd and even numbers of runs."""
    for runs in (int(rng.integers(2, 6)) * 2, int(rng.integers(2, 6)) * 2 + 1):
        found, script = _timed(work, rng, runs=runs, warmup=1)
        _check_middle(found["median"], script)


def _check_middle(median: float, script: Sequence[float]) -> None:
    expect(
        not close(median, np.mean(script)),
        "mean-for-median",
        "your median is the mean of the times: one slow run would move it",
    )
    ordered = sorted(script)
    middles = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    expect(
        close(middles[0], middles[1]) or not any(close(median, each) for each in middles),
        "wrong-median",
        f"with {len(script)} runs two times are in the middle; your median is one of them",
    )
    expect(
        close(median, np.median(script)),
        "wrong-median",
        f"the middle of {_listed(ordered)} is not {number_text(median)}; are they sorted?",
    )


def check_summary(work: Work, rng: Rng) -> None:
    """Mean, minimum and p95 follow from the times; p95 interpolates between the closest ranks."""
    for _ in range(3):
        found, script = _timed(work, rng, runs=int(rng.integers(5, 15)), warmup=2)
        expect(close(found["mean"], np.mean(script)), "wrong-mean", "the mean is not that of times")
        expect(close(found["min"], min(script)), "wrong-min", "the minimum is not that of times")
        wanted, ordered = np.percentile(script, 95), sorted(script)
        expect(
            not any(close(found["p95"], each) for each in ordered) or wanted in ordered,
            "p95-not-interpolated",
            f"your p95 is one of the {len(script)} times; the 95% point lies between two of them",
        )
        expect(
            close(found["p95"], wanted),
            "wrong-p95",
            f"the p95 of {_listed(ordered)} is not {number_text(found['p95'])}",
        )


def check_collector(work: Work, rng: Rng) -> None:
    """The garbage collector is off during the runs, and as it was before afterwards."""
    seen: list[bool] = []
    was_on = gc.isenabled()
    try:
        for is_on in (True, False):
            (gc.enable if is_on else gc.disable)()
            work.measure(lambda: seen.append(gc.isenabled()), warmup=0, runs=3)
            expect(
                gc.isenabled() == is_on,
                "gc-not-restored",
                f"the collector was {_on(is_on)} before, and is {_on(not is_on)} after your timer",
            )
        expect(not any(seen), "gc-on", "the garbage collector was on while a run was timed")
        for warmup, when in ((0, ""), (1, " in a warm-up call")):
            gc.enable()
            try:
                work.measure(_raising, warmup=warmup, runs=3)
            except ValueError:
                expect(
                    gc.isenabled(),
                    "gc-not-restored",
                    f"when the function raises{when}, the collector stays off: what runs in any "
                    "case?",
                )
            else:
                raise Missed("swallowed", "the function raised, and your timer kept that to itself")
    finally:
        (gc.enable if was_on else gc.disable)()


def _raising() -> None:
    raise ValueError("as a check")


def _on(is_on: bool) -> str:
    return "on" if is_on else "off"


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{each:.3f}" for each in values)


# ---------------------------------------------------------------- memory

SLACK = 20_000
"""Bytes that Python itself may allocate during a call."""


def check_memory(work: Work, rng: Rng) -> None:
    """The peak is the highest point during the call, and the kept bytes those of its result."""
    for _ in range(3):
        large, small = (
            int(each) for each in rng.integers((2_000_000, 300_000), (4_000_000, 600_000))
        )

        def func(large: int = large, small: int = small) -> Any:
            passing = np.ones(large, np.uint8)
            return passing[:small].copy()

        found = work.memory_of(func)
        keys_of(found, "memory_of", ("peak", "kept"))
        _check_bytes(found, large + small, small)


def check_memory_before(work: Work, rng: Rng) -> None:
    """What was allocated before the call, or had been its peak, does not count."""
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        held = np.ones(int(rng.integers(5_000_000, 6_000_000)), np.uint8)
        np.ones(
            int(rng.integers(20_000_000, 30_000_000)), np.uint8
        )  # freed at once; a peak of earlier times
        size = int(rng.integers(500_000, 900_000))
        found = work.memory_of(lambda: np.ones(size, np.uint8))
        expect(
            found["peak"] < held.nbytes,
            "before-counted",
            f"the call allocated {size:,} bytes, and your peak says {found['peak']:,}: "
            "it includes what was there, or had been there, before the call",
        )
        _check_bytes(found, size, size)
        expect(
            tracemalloc.is_tracing(),
            "stopped-others",
            "somebody was tracing before the call, and your function has stopped that tracer",
        )
    finally:
        if not was_tracing:
            tracemalloc.stop()


def _check_bytes(found: dict[str, int], peak: int, kept: int) -> None:
    expect(
        found["kept"] > kept / 2,
        "result-freed",
        f"the result takes {kept:,} bytes, and you found {found['kept']:,} kept; "
        "was the result still there when you looked?",
    )
    expect(
        abs(found["kept"] - kept) < SLACK,
        "wrong-kept",
        f"the result takes {kept:,} bytes, and you found {found['kept']:,} kept",
    )
    expect(
        not (peak > kept + SLACK and abs(found["peak"] - kept) < SLACK),
        "end-for-peak",
        "your peak is what is allocated at the end; in between there was more",
    )
    expect(
        abs(found["peak"] - peak) < SLACK,
        "wrong-peak",
        f"at its highest the call had {peak:,} bytes, and your peak says {found['peak']:,}",
    )


def check_tracing_ends(work: Work, rng: Rng) -> None:
    """Tracing has ended after the call, also when the function raises."""
    was_tracing = tracemalloc.is_tracing()
    if was_tracing:
        tracemalloc.stop()
    try:
        work.memory_of(list)
        expect(not tracemalloc.is_tracing(), "tracing-left-on", "tracing goes on after your call")
        try:
            work.memory_of(_raising)
        except ValueError:
            expect(
                not tracemalloc.is_tracing(),
                "tracing-left-on",
                "when the function raises, tracing goes on: what runs in any case?",
            )
        else:
            raise Missed("swallowed", "the function raised, and your meter kept that to itself")
    finally:
        if tracemalloc.is_tracing():
            tracemalloc.stop()
        if was_tracing:
            tracemalloc.start()


# ---------------------------------------------------------------- flops


def check_linear(work: Work, rng: Rng) -> None:
    """A Linear layer costs two FLOPs per multiply-accumulate, for every row of its input."""
    for _ in range(3):
        batch, time, inner, outer = (int(each) for each in rng.integers(2, 40, 4))
        layer, rows = Linear(inner, outer, rng=0), batch * time
        found = work.layer_flops(layer, (batch, time, inner))
        wanted = 2 * rows * inner * outer
        expect(
            found != wanted // 2,
            "macs",
            "you count multiply-accumulates; each of them is two FLOPs",
        )
        expect(
            found not in (wanted + rows * outer, wanted + 2 * rows * outer),
            "bias-counted",
            "your count includes the bias; here only the matrix products count",
        )
        expect(
            found not in (2 * inner * outer, 2 * time * inner * outer, 2 * batch * inner * outer),
            "rows-missing",
            f"the input (batch={batch}, time={time}, {inner}) has {rows} rows; count all of them",
        )
        expect(
            found == wanted,
            "wrong-linear",
            f"for {inner} inputs, {outer} outputs and {rows} rows you count {number_text(found)}; "
            "every row is multiplied with every column of the weight",
        )


def check_attention(work: Work, rng: Rng) -> None:
    """Attention costs its two products, over all pairs of tokens and all heads."""
    for _ in range(3):
        batch, time, heads, size = (int(each) for each in rng.integers(2, 12, 4))
        width, projections = heads * size, 8 * batch * time * (heads * size) ** 2
        layer = MultiHeadAttention(width, heads, rng=0)
        found, wanted = work.layer_flops(layer, (batch, time, width)), 4 * batch * time**2 * width
        expect(
            found != wanted + projections,
            "projections-counted",
            "the four projections are Linear layers with rows of their own; here they count twice",
        )
        expect(
            found != wanted // 2,
            "one-product",
            "half of it: there are two products, and two "
            "FLOPs per multiply-accumulate, over all pairs of tokens",
        )
        expect(
            found not in (wanted // heads, wanted * heads),
            "heads",
            f"with {heads} heads of {size} the width is {width}: how wide is one head?",
        )
        expect(
            found == wanted,
            "wrong-attention",
            f"for (batch={batch}, time={time}, width={width}) you count {number_text(found)}; "
            f"it grows with the square of one of them",
        )


def check_total(work: Work, rng: Rng) -> None:
    """Over all layers of a GPT the count is that of what the project records when it runs."""
    model = _some_gpt(rng)
    ids = rng.integers(0, model.vocab_size, (int(rng.integers(1, 4)), int(rng.integers(3, 12))))
    shapes: list[tuple[Module, tuple[int, ...]]] = []
    for layer in model.modules():
        layer.register_forward_pre_hook(
            lambda each, inputs: shapes.append((each, np.shape(_raw(inputs[0]))))
        )
    model(ids)
    counts: dict[str, int] = {}
    for layer, shape in shapes:
        kind = type(layer).__name__
        counts[kind] = counts.get(kind, 0) + work.layer_flops(layer, shape)
    idle = [kind for kind in counts if counts[kind] and kind not in PRODUCTS]
    expect(not idle, "not-a-product", f"{', '.join(idle)}: no matrix product of its own, so 0")
    head = 2 * ids.size * model.vocab_size * model.embed_dim
    expect(
        counts["TiedHead"] == head,
        "wrong-head",
        "look at TiedHead: every token is multiplied with the whole matrix",
    )
    expect(
        sum(counts.values()) == count_flops(_some_gpt(None, like=model), ids),
        "wrong-total",
        "the sum over a GPT is not what the project counts; run the cell that compares them",
    )


PRODUCTS = ("Linear", "MultiHeadAttention", "TiedHead")


def _some_gpt(rng: Rng | None, *, like: GPT | None = None) -> GPT:
    if like is not None:
        sizes = (like.vocab_size, like.embed_dim, like.num_layers, like.num_heads)
        return GPT(*sizes, max_seq_len=like.max_seq_len, rng=0).eval()
    assert rng is not None
    heads = int(rng.integers(1, 4))
    width = heads * 2 * int(rng.integers(2, 5))
    return GPT(int(rng.integers(11, 30)), width, int(rng.integers(1, 3)), heads, 16, rng=0).eval()


def _raw(value: Any) -> Any:
    return value.data if isinstance(value, Tensor) else value


# ---------------------------------------------------------------- layers


class _Busy(Module):
    """A layer that takes a scripted time, with layers inside that are called one by one."""

    def __init__(self, clock: ScriptedClock, seconds: float, inner: Sequence[Module] = ()) -> None:
        self.clock, self.seconds, self.inner = clock, seconds, list(inner)

    def forward(self, x: Any, added: Any = None) -> Any:
        self.clock.now += self.seconds
        for layer in self.inner:
            x = layer(x, 1.0)
        return x + self.seconds + (0.0 if added is None else added)


def _some_input() -> Tensor:
    return Tensor(np.zeros((2, 3), np.float32))


def _tree(clock: ScriptedClock, rng: Rng) -> tuple[_Busy, dict[str, float], dict[str, int]]:
    """Return a model of busy layers, the self time of each, and how often it is called."""
    leaves = [_Busy(clock, float(each)) for each in rng.uniform(1, 9, 3)]
    inner = _Busy(clock, float(rng.uniform(1, 9)), [leaves[0], leaves[1], leaves[0]])
    model = _Busy(clock, float(rng.uniform(1, 9)), [inner, leaves[2]])
    calls = {"": 1, "inner.0": 1, "inner.0.inner.0": 2, "inner.0.inner.1": 1, "inner.1": 1}
    seconds = {name: each.seconds for name, each in model.named_modules()}  # type: ignore[attr-defined]
    return model, {name: seconds[name] * count for name, count in calls.items()}, calls


def _rows_of(work: Work, model: Module, x: Any, clock: Any) -> list[dict[str, Any]]:
    rows = work.profile_layers(model, x, clock=clock)
    expect(isinstance(rows, list) and rows, "no-rows", "the result is not a list with rows")
    for row in rows:
        keys_of(row, "a row of profile_layers", ("name", "kind", "calls", "self_s", "flops"))
    return list(rows)


def check_rows(work: Work, rng: Rng) -> None:
    """There is one row for each layer that was called, in the order of the model."""
    clock = ScriptedClock()
    model, _, calls = _tree(clock, rng)
    vars(model)["unused"] = _Busy(clock, 1.0)
    rows = _rows_of(work, model, _some_input(), clock)
    names = [row["name"] for row in rows]
    expect("unused" not in names, "not-called", "a layer that was not called has a row")
    expect(
        sorted(names) == sorted(calls),
        "wrong-rows",
        f"the layers {sorted(calls)} were called; there are rows for {sorted(names)}",
    )
    expect(names == list(calls), "wrong-order", "the rows are not in the order of named_modules()")
    found = {row["name"]: row["calls"] for row in rows}
    expect(found == calls, "wrong-calls", f"a layer was called twice; your calls are {found}")
    expect({row["kind"] for row in rows} == {"_Busy"}, "wrong-kind", "`kind` is the class's name")


def check_self_times(work: Work, rng: Rng) -> None:
    """The time of a layer is its own, summed over calls, without that of layers inside of it."""
    for _ in range(3):
        clock = ScriptedClock()
        model, own, _ = _tree(clock, rng)
        rows = {row["name"]: row["self_s"] for row in _rows_of(work, model, _some_input(), clock)}
        total = sum(own.values())
        expect(
            not close(rows[""], total),
            "inclusive",
            "the time of the model holds that of its layers: take off what ran inside of it",
        )
        twice = "inner.0.inner.0"
        expect(
            not close(rows[twice], own[twice] / 2),
            "last-call-only",
            "of a layer that is called twice, only one call is in its time",
        )
        wrong = [name for name in own if not close(rows[name], own[name])]
        expect(
            not wrong,
            "wrong-self-time",
            f"{wrong and (wrong[0] or 'the model')!r} took another time of its own; the self times "
            f"add up to {sum(rows.values()):.3f} s of {total:.3f} s",
        )


def check_left_alone(work: Work, rng: Rng) -> None:
    """Outputs stay what they were, and every layer is restored, also when one raises."""
    clock = ScriptedClock()
    model, _, _ = _tree(clock, rng)
    x = _some_input()
    before = model(x).data
    seen: list[Tensor] = []
    model.inner[1].register_forward_hook(lambda layer, inputs, output: seen.append(output))
    inside = model.inner[0](x, 1.0).data + 1.0 + model.inner[1].seconds  # type: ignore[attr-defined]
    _rows_of(work, model, x, clock)
    expect(
        seen and close(seen[0].data, inside, tolerance=1e-5),
        "output-changed",
        "a layer gave another output while it was watched: pass on all arguments and the result",
    )
    _check_restored(model)
    expect(
        close(model(x).data, before), "output-changed", "the model gives another output afterwards"
    )
    broken = _Busy(clock, 1.0, [*model.inner, _Raising()])
    try:
        work.profile_layers(broken, x, clock=clock)
    except ValueError:
        _check_restored(broken)
    else:
        raise Missed("swallowed", "a layer raised, and your profiler kept that to itself")


class _Raising(Module):
    def forward(self, *inputs: Any) -> Any:
        raise ValueError("as a check")


def _check_restored(model: Module) -> None:
    left = [name for name, each in model.named_modules() if "forward" in vars(each)]
    expect(
        not left,
        "not-restored",
        f"{len(left)} layers still have your function in the place of `forward`, for example "
        f"{left and (left[0] or 'the model')!r}",
    )


def check_flops_of_rows(work: Work, rng: Rng) -> None:
    """The FLOPs of all rows add up to what the project counts for that call."""
    model = _some_gpt(rng)
    ids = Tensor(rng.integers(0, model.vocab_size, (2, int(rng.integers(3, 12)))))
    rows = _rows_of(work, model, ids, ScriptedClock(step=1e-3))
    found, wanted = sum(row["flops"] for row in rows), count_flops(model, ids)
    expect(
        found == wanted,
        "wrong-flops",
        f"the rows of a GPT add up to {number_text(found)} FLOPs, the project counts {wanted}",
    )


# ---------------------------------------------------------------- training


class _Step:
    """A model, a loss and an optimizer that take scripted times, and record what was called."""

    def __init__(self, rng: Rng) -> None:
        self.clock, self.called = ScriptedClock(), list[str]()
        names = ("zero_grad", "model", "loss", "backward", "step")
        self.seconds = {
            name: float(each) for name, each in zip(names, rng.uniform(1, 9, 5), strict=True)
        }
        self.slots: list[dict[str, Any]] = []
        self.zero_grad, self.step = self._part("zero_grad"), self._part("step")

    def _part(self, name: str, result: Any = None) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            self.called.append(name)
            self.clock.now += self.seconds[name]
            return result

        return call

    def parameters(self) -> list[Any]:
        return []

    def __call__(self, *inputs: Any) -> Any:
        return self._part("model")()

    def loss(self, *_: Any) -> Any:
        return self._part("loss", SimpleNamespace(backward=self._part("backward")))()


TRAINING = (
    *("forward_s", "backward_s", "update_s"),
    *("parameter_bytes", "gradient_bytes", "optimizer_bytes"),
)


def check_training_times(work: Work, rng: Rng) -> None:
    """Forward (with the loss), backward and update are timed apart; clearing gradients is not."""
    parts = _Step(rng)
    found = work.training_step(parts, 0, 0, parts.loss, parts, clock=parts.clock)
    keys_of(found, "training_step", TRAINING)
    wanted = ["zero_grad", "model", "loss", "backward", "step"]
    expect(
        "zero_grad" in parts.called,
        "no-zero-grad",
        "gradients were not cleared: they would add up over the steps",
    )
    expect(
        parts.called == wanted,
        "wrong-order",
        f"the step went {' -> '.join(parts.called)}; it is {' -> '.join(wanted)}",
    )
    seconds = parts.seconds
    expect(
        not close(found["forward_s"], seconds["model"]),
        "loss-left-out",
        "the loss belongs to the forward pass, and its time is in none of yours",
    )
    expect(
        not close(found["forward_s"], seconds["zero_grad"] + seconds["model"] + seconds["loss"]),
        "zero-grad-timed",
        "your forward time holds that of zero_grad()",
    )
    sums = {
        "forward_s": seconds["model"] + seconds["loss"],
        "backward_s": seconds["backward"],
        "update_s": seconds["step"],
    }
    wrong = [name for name in sums if not close(found[name], sums[name])]
    expect(not wrong, "wrong-times", f"{', '.join(wrong)}: not what the clock has seen")


def check_training_bytes(work: Work, rng: Rng) -> None:
    """Bytes are those held after the step, when gradients and the optimizer's state are there."""
    inner, outer = (int(each) for each in rng.integers(3, 20, 2))
    for _ in range(2):
        model = Linear(inner, outer, rng=0)
        optimizer = Adam(model.parameters(), lr=1e-3)
        x, y = Tensor(rng.standard_normal((4, inner))), rng.integers(0, outer, 4)
        found = work.training_step(model, x, y, CrossEntropyLoss(), optimizer)
        size = 4 * (inner * outer + outer)
        expect(
            found["parameter_bytes"] == size,
            "wrong-parameter-bytes",
            f"{size // 4} parameters of 4 bytes are not {found['parameter_bytes']} bytes",
        )
        expect(
            found["gradient_bytes"] == size,
            "gradients-missed",
            f"gradients take as much as parameters, {size} bytes, and you found "
            f"{found['gradient_bytes']}; when did you look?",
        )
        state = sum(each.nbytes for slots in optimizer.slots for each in slots.values())
        expect(
            abs(found["optimizer_bytes"] - size) > size / 2,
            "one-slot",
            "Adam keeps two numbers per parameter; you count one of them",
        )
        expect(
            found["optimizer_bytes"] == state,
            "state-missed",
            f"Adam's state takes {state} bytes after a step, and you found "
            f"{found['optimizer_bytes']}; when did you look?",
        )
    unused = _HalfUsed(inner, outer)
    optimizer = Adam(unused.parameters(), lr=1e-3)
    found = work.training_step(unused, x, y, CrossEntropyLoss(), optimizer)
    expect(
        (found["parameter_bytes"], found["gradient_bytes"]) == (2 * size, size),
        "gradient-of-unused",
        f"half of {2 * size} bytes of parameters got a gradient, and you found "
        f"{found['gradient_bytes']} bytes of gradients; `grad` of the others is None",
    )


class _HalfUsed(Module):
    """Two layers of which the second is never called, so that its parameters get no gradient."""

    def __init__(self, inner: int, outer: int) -> None:
        self.used, self.unused = (Linear(inner, outer, rng=0) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


# ---------------------------------------------------------------- roofline


def check_roofline(work: Work, rng: Rng) -> None:
    """Intensity, what is attainable at it, and the bound follow from the numbers given."""
    for is_memory in (True, False, True, False):
        case, wanted = _roofline_case(rng, is_memory)
        found = work.roofline(**case)
        keys_of(found, "roofline", ("intensity", "attainable", "bound", "efficiency"))
        expect(
            not close(found["intensity"], 1 / wanted["intensity"]),
            "inverse-intensity",
            "your intensity is bytes per FLOP; it is FLOP per byte",
        )
        expect(
            close(found["intensity"], wanted["intensity"]),
            "wrong-intensity",
            f"{case['flops']:.3g} FLOP and {case['bytes_moved']:.3g} bytes",
        )
        expect(
            close(found["attainable"], wanted["attainable"]),
            "wrong-attainable",
            f"at {wanted['intensity']:.3g} FLOP/byte you say {found['attainable']:.3g} FLOP/s is "
            f"attainable, with a peak of {case['peak']:.3g} and {case['bandwidth']:.3g} bytes/s",
        )
        expect(
            found["bound"] == wanted["bound"],
            "wrong-bound",
            f"an intensity {'below' if is_memory else 'above'} the ridge means "
            f"{'memory' if is_memory else 'compute'}-bound, and you say {found['bound']!r}",
        )


def check_efficiency(work: Work, rng: Rng) -> None:
    """Efficiency is what was achieved over what is attainable at this intensity, not clamped."""
    for is_memory, factor in ((True, 1.0), (False, 1.0), (True, 0.01)):
        case, wanted = _roofline_case(rng, is_memory)
        case["seconds"] *= factor
        found, right = work.roofline(**case)["efficiency"], wanted["efficiency"] / factor
        expect(
            not (is_memory and close(found, case["flops"] / case["seconds"] / case["peak"])),
            "peak-for-attainable",
            "you compare with the peak; for memory-bound work the roof is lower than that",
        )
        expect(
            not (right > 1 and close(found, 1.0)),
            "clamped",
            "an efficiency above 1 was cut to 1: it is the sign of a wrong count, and must be seen",
        )
        expect(
            close(found, right), "wrong-efficiency", f"it is {right:.4g}, not {number_text(found)}"
        )


def _roofline_case(rng: Rng, is_memory: bool) -> tuple[dict[str, float], dict[str, Any]]:
    peak, bandwidth = float(rng.uniform(5e10, 5e11)), float(rng.uniform(1e10, 4e10))
    intensity = (
        peak / bandwidth * float(rng.uniform(0.1, 0.8) if is_memory else rng.uniform(1.5, 5))
    )
    moved = float(rng.uniform(1e6, 1e7))
    attainable = min(peak, bandwidth * intensity)
    efficiency = float(rng.uniform(0.2, 0.9))
    seconds = intensity * moved / (attainable * efficiency)
    case = {
        "flops": intensity * moved,
        "bytes_moved": moved,
        "seconds": seconds,
        "peak": peak,
        "bandwidth": bandwidth,
    }
    bound = "memory" if is_memory else "compute"
    wanted = {"intensity": intensity, "attainable": attainable, "bound": bound}
    return case, {**wanted, "efficiency": efficiency}


# ---------------------------------------------------------------- priority


def check_amdahl(work: Work, rng: Rng) -> None:
    """The speedup of the whole counts the part that stays as it is, also for infinite factors."""
    for _ in range(4):
        share, factor = float(rng.uniform(0.1, 0.9)), float(rng.uniform(1.5, 8))
        found = work.amdahl(share, factor)
        expect(
            not close(found, share * factor + 1 - share),
            "times-not-speeds",
            "you add up speeds; times add up, and the speedup is the old time over the new one",
        )
        expect(
            not close(found, 1 - share + share / factor),
            "inverse",
            "that is the time that remains; the speedup is how many times faster it is",
        )
        expect(
            close(found, 1 / (1 - share + share / factor)),
            "wrong-amdahl",
            f"{share:.0%} of the time, {factor:.2f} times faster, is not {number_text(found)}",
        )
        expect(
            close(work.amdahl(share, float("inf")), 1 / (1 - share)),
            "wrong-limit",
            f"if {share:.0%} of the time vanished, the rest would still take its time",
        )


def check_fix_first(work: Work, rng: Rng) -> None:
    """The kind with the largest sum is chosen, with its share of all rows and its limit."""
    for _ in range(3):
        many, single = (str(each) for each in rng.permutation(["Linear", "GELU", "LayerNorm"])[:2])
        each_s = float(rng.uniform(1, 2))
        rows: list[dict[str, Any]] = [
            {"kind": many, "self_s": each_s} for _ in range(int(rng.integers(4, 7)))
        ]
        rows.append({"kind": single, "self_s": 1.5 * each_s})
        rows.append({"kind": "GPT", "self_s": float(rng.uniform(0, 1))})
        rows = [rows[int(each)] for each in rng.permutation(len(rows))]
        rows = [{"name": f"{n}", "calls": 1, "flops": 0, **row} for n, row in enumerate(rows)]
        factor = float(rng.uniform(2, 5))
        found = work.fix_first(rows, factor)
        keys_of(found, "fix_first", ("kind", "share", "speedup", "limit"))
        expect(
            found["kind"] != single,
            "single-row",
            f"{single} has the slowest single layer, but all {many} layers together take longer",
        )
        expect(found["kind"] == many, "wrong-kind", f"{many} takes longest, not {found['kind']!r}")
        total = sum(row["self_s"] for row in rows)
        share = sum(row["self_s"] for row in rows if row["kind"] == many) / total
        expect(
            close(found["share"], share),
            "wrong-share",
            f"{many} has {share:.3f} of all rows' time, not {number_text(found['share'])}",
        )
        remaining = 1 - share
        expect(
            close(found["speedup"], 1 / (remaining + share / factor)),
            "wrong-speedup",
            f"with a factor of {factor:.2f}, by your own amdahl",
        )
        expect(
            close(found["limit"], 1 / remaining),
            "wrong-limit",
            "the limit is for a part that takes no time at all",
        )


CHECKS = {
    "timer": (check_timed_calls, check_median, check_summary, check_collector),
    "memory": (check_memory, check_memory_before, check_tracing_ends),
    "flops": (check_linear, check_attention, check_total),
    "layers": (check_rows, check_self_times, check_left_alone, check_flops_of_rows),
    "training": (check_training_times, check_training_bytes),
    "roofline": (check_roofline, check_efficiency),
    "priority": (check_amdahl, check_fix_first),
}
