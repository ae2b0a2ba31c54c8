"""Products of few rows with the weights of a layer of GPT-2: whole, in parts of the sum, in TF32.

    python benchmarks/few_row_products.py [--device cuda] [--rows 64] [--rounds 15]

Every call has other weights, so that none is found in a cache. On a CUDA device all calls are
captured as one graph, and the median of its replays is taken, by events, over the number of calls.
The parts of a sum are the best of those tried, by one such median each, and not added up: what
follows may do that. The error is the norm of the difference to a product in float64 over its norm.
Needs torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from statistics import median
from time import perf_counter

import torch
from generation_tables import header, row

WIDTHS = {
    "queries, keys, values": (768, 2304),
    "after attention": (768, 768),
    "up": (768, 3072),
    "down": (3072, 768),
}
PARTS = (2, 3, 4, 6, 8, 12, 16)
CALLS = 12
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def main() -> int:
    options = _options()
    device, is_cuda = options.device, options.device == "cuda"
    place = torch.cuda.get_device_name() if is_cuda else device
    print(f"torch {torch.__version__}, {place}, {options.rows} rows, {CALLS} weights\n")
    header("product", "way", "microseconds", "error: norm")
    torch.manual_seed(0)
    totals: dict[str, float] = {}
    with torch.no_grad():
        for name, (length, width) in WIDTHS.items():
            x = torch.randn(options.rows, length, device=device)
            weights = [torch.randn(length, width, device=device) for _ in range(CALLS)]
            bias = torch.randn(width, device=device)
            for way, us, error in _ways(x, weights, bias, rounds=options.rounds):
                kind = way.partition(":")[0]
                totals[kind] = totals.get(kind, 0.0) + us
                row(name, way, f"{us:.1f}", f"{error:.1e}")
    for way, us in totals.items():
        row("all four", way, f"{us:.0f}", "")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


def _ways(
    x: torch.Tensor, weights: list[torch.Tensor], bias: torch.Tensor, *, rounds: int
) -> Iterable[tuple[str, float, float]]:
    """Yield the name of each way, the microseconds of a call, and its error."""
    exact = x.double() @ weights[0].double()

    def error_of(found: torch.Tensor) -> float:
        return float((found.double() - exact).norm() / exact.norm())

    def whole(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.addmm(bias, x, weight)

    yield "float32", _microseconds(whole, x, weights, rounds), error_of(x @ weights[0])
    found = []
    for parts in PARTS:
        split = _in_parts(parts)
        error = error_of(split(x, weights[0]).sum(0))
        found.append((_microseconds(split, x, weights, rounds), parts, error))
    us, parts, error = min(found)
    yield f"float32 in parts: {parts}", us, error
    if x.is_cuda:
        torch.backends.cuda.matmul.allow_tf32 = True
        yield "TF32", _microseconds(whole, x, weights, rounds), error_of(x @ weights[0])
        torch.backends.cuda.matmul.allow_tf32 = False


def _in_parts(parts: int) -> Product:
    """Give a product whose sums are computed in so many parts, side by side."""

    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows, length = x.shape
        sides = x.view(rows, parts, length // parts).transpose(0, 1)
        return torch.bmm(sides, weight.view(parts, length // parts, weight.shape[1]))

    return product


def _microseconds(
    product: Product, x: torch.Tensor, weights: list[torch.Tensor], rounds: int
) -> float:
    def calls() -> None:
        for weight in weights:
            product(x, weight)

    time = _replays if x.is_cuda else _plain_calls
    return 1e6 * median(time(calls, rounds)) / len(weights)


def _plain_calls(calls: Callable[[], None], rounds: int) -> list[float]:
    calls()
    seconds = []
    for _ in range(rounds):
        started = perf_counter()
        calls()
        seconds.append(perf_counter() - started)
    return seconds


def _replays(calls: Callable[[], None], rounds: int) -> list[float]:
    calls()
    torch.cuda.synchronize()
    graph, seconds = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        calls()
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return seconds


if __name__ == "__main__":
    raise SystemExit(main())
