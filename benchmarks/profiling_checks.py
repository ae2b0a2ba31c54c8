"""Is the profiler right, and what does it cost? Measured on this machine, side by side.

    python benchmarks/profiling_checks.py [--quick]

1. Overhead: calls with every layer watched against unwatched calls, in turns, for GPT-2 small and
   for 100 tiny layers, beside plain hooks and torch.profiler on the same models.
2. The own times of all layers against the time of the model, and what is unattributed.
3. Peak memory against the sum of live tensor bytes by PyTorch's own allocator events.
4. Amdahl: a layer is really replaced by one that is twice as fast; predicted against measured.
5. Bounds: workloads built to be limited by computing and by memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import nn

from tinytorch import profile_model
from tinytorch.profiling.profile import Profile

console = Console(width=110)


class TinyLayers(nn.Module):
    """A hundred layers that do next to nothing, so that watching them is all that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(100)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Repeated(nn.Module):
    """One product, again and again: half as often is exactly twice as fast."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.product = nn.Linear(width, width, bias=False)
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = self.product(x)
        return x


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ratio_in_turns(watched: Callable[[], Any], plain: Callable[[], Any], turns: int) -> float:
    """Give the median ratio of neighbouring calls."""
    for call in (watched, plain):
        call()
    return statistics.median(seconds(watched) / seconds(plain) for _ in range(turns))


def with_hooks(model: nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    """Time every layer by forward hooks, as is often done."""

    def call() -> None:
        starts: list[float] = []
        spent: list[float] = []
        handles = []
        for module in model.modules():
            handles.append(
                module.register_forward_pre_hook(lambda *_: starts.append(time.perf_counter()))
            )
            handles.append(
                module.register_forward_hook(
                    lambda *_: spent.append(time.perf_counter() - starts.pop())
                )
            )
        started = time.perf_counter()
        model(x)
        call.seconds = time.perf_counter() - started  # type: ignore[attr-defined]
        for handle in handles:
            handle.remove()

    return call


def hook_overhead(model: nn.Module, x: torch.Tensor, turns: int) -> float:
    call: Any = with_hooks(model, x)
    ratios = []
    for _ in range(turns):
        call()
        ratios.append(call.seconds / seconds(lambda: model(x)))
    return statistics.median(ratios) - 1


def profiler_overhead(model: nn.Module, x: torch.Tensor, turns: int) -> float:
    ratios = []
    for _ in range(turns):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            watched = seconds(lambda: model(x))
        ratios.append(watched / seconds(lambda: model(x)))
    return statistics.median(ratios) - 1


def check_overhead(quick: bool) -> None:
    table = Table(
        "model",
        "unwatched",
        "watched",
        "plain hooks",
        "torch.profiler",
        "own times",
        "unattributed",
    )
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    tokens = torch.randint(0, 50257, (1, 128))
    cases: list[tuple[str, nn.Module, torch.Tensor, float, int]] = [
        ("GPT-2 small, 1x128", gpt2, tokens, 4.0 if quick else 40.0, 3 if quick else 15),
        ("100 tiny layers", TinyLayers().eval(), torch.randn(1, 16), 2.0, 51),
    ]
    with torch.no_grad():
        for name, model, x, budget, turns in cases:
            profile = profile_model(model, x, budget_s=budget, ceilings=False)
            table.add_row(
                name,
                f"{profile.latency.median * 1e3:.2f} ms",
                f"{profile.overhead:+.1%}",
                f"{hook_overhead(model, x, turns):+.1%}",
                f"{profiler_overhead(model, x, max(3, turns // 5)):+.1%}",
                f"{adds_up(profile):.3%} off",
                f"{profile.unattributed_s / profile.total_s:.2%}",
            )
    console.print(table)


def adds_up(profile: Profile) -> float:
    """Compare the own times of all layers with the time of the model, which was taken apart."""
    return abs(sum(layer.self_s for layer in profile.layers) / profile.layer("").time_s - 1)


def allocator_peaks(call: Callable[[], Any]) -> tuple[int, int]:
    """Integrate the allocator's own events: the peak between operators, and that inside of them.

    Inside, operators have scratch memory that no tensor shows.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        kept = call()
    del kept
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    level = between = inside = 0
    end_of_operator = 0
    for event in events:
        if event.name() == "[memory]":
            if event.start_ns() > end_of_operator:
                between = max(between, level)
            level += event.nbytes()
            inside = max(inside, level)
        elif event.name().startswith("aten::") and event.start_ns() >= end_of_operator:
            between = max(between, level)
            end_of_operator = event.start_ns() + event.duration_ns()
    return between, inside


def step(model: nn.Module, x: torch.Tensor, training: bool) -> Any:
    if not training:
        with torch.no_grad():
            return model(x)
    loss = model(x).logits.sum()
    loss.backward()
    return loss


def check_memory() -> None:
    table = Table("model", "live tensors", "allocator", "ratio", "with scratch", "ratio")
    config = transformers.GPT2Config(n_embd=256, n_layer=4, n_head=4, vocab_size=5000)
    resnet = transformers.ResNetConfig(hidden_sizes=[64, 128, 256, 512], depths=[1, 1, 1, 1])
    cases: list[tuple[str, nn.Module, torch.Tensor]] = [
        (
            "GPT-2 (4x256), 2x128",
            transformers.GPT2LMHeadModel(config).eval(),
            torch.randint(0, 5000, (2, 128)),
        ),
        (
            "ResNet (4 blocks), 4x3x128x128",
            transformers.ResNetForImageClassification(resnet).eval(),
            torch.randn(4, 3, 128, 128),
        ),
    ]
    for name, model, x in cases:
        for training in (False, True):
            profile = profile_model(
                model, x, runs=1, ceilings=False, training=training, optimizer=None
            )
            live = profile.memory.peak_activation_bytes
            model.zero_grad()
            between, inside = allocator_peaks(lambda: step(model, x, training))  # noqa: B023
            table.add_row(
                f"{name}{', training' if training else ''}",
                f"{live / 2**20:.2f} MiB",
                f"{between / 2**20:.2f} MiB",
                f"{live / between:.4f}",
                f"{inside / 2**20:.2f} MiB",
                f"{live / inside:.4f}",
            )
    console.print(table)


def check_amdahl(quick: bool) -> None:
    table = Table("share of the layer", "predicted", "measured", "off by")
    x = torch.randn(64, 512)
    for others in (2, 6, 12):
        slow = nn.Sequential(Repeated(512, others), Repeated(512, 12)).eval()
        fast = nn.Sequential(slow[0], Repeated(512, 6)).eval()
        with torch.no_grad():
            profile = profile_model(slow, x, budget_s=1.0 if quick else 4.0, ceilings=False)
            measured = ratio_in_turns(lambda: slow(x), lambda: fast(x), 31 if quick else 151)  # noqa: B023
        share = profile.share(profile.layer("1"))
        predicted = 1 / (1 - share + share / 2)
        table.add_row(
            f"{share:.1%}",
            f"{predicted:.3f}x",
            f"{measured:.3f}x",
            f"{predicted / measured - 1:+.1%}",
        )
    console.print(table)


def check_bounds() -> None:
    table = Table("workload", "bound", "FLOP/s", "of what the roof allows")
    cases: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
        "2048 x 2048 product": (nn.Linear(2048, 2048), torch.randn(2048, 2048)),
        "sum of two 256 MB arrays": (Add(), torch.randn(1 << 26)),
        "one row times 8192 x 8192": (nn.Linear(8192, 8192), torch.randn(1, 8192)),
    }
    for name, (model, x) in cases.items():
        profile = profile_model(model, x, runs=7)
        bound = profile.model_bound
        assert bound is not None
        achieved = (profile.flops + profile.other_flops) / profile.latency.median
        table.add_row(name, bound.bound, f"{achieved / 1e9:.2f} G", f"{bound.of_attainable:.0%}")
    console.print(table)


class Add(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


def main() -> None:
    transformers.logging.set_verbosity_error()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    check_overhead(quick)
    check_memory()
    check_amdahl(quick)
    check_bounds()


if __name__ == "__main__":
    main()
