"""The whole loop on real architectures: what `optimize` finds, proves and recommends.

    python benchmarks/optimize_models.py [--only NAME ...] [--device cuda] [--budget SECONDS]
                                         [--goal GOAL] [--quick] [--json FILE]

MLP, CNN and GPT of the zoo with their trained weights, judged by accuracy; GPT-2, BERT, ViT,
ResNet-50 and MobileNetV2 from configs of transformers with random weights, judged by outputs, which
may be off by 2% of the largest. A speedup is the time of the model as it is over that of what is
recommended, with a 95% interval. On a CUDA device: GPT-2, and a Llama of 1.1 billion parameters
that generates 200 tokens. Needs torch and transformers but for the zoo.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from generation_tables import header, row

from tinytorch import Workload, load_workload
from tinytorch.core.files import keep_freed_memory
from tinytorch.tuning.attempt import Attempt
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.optimize import optimize

COLUMNS = (
    "model",
    "recommended",
    "speedup",
    "memory",
    "size",
    "accuracy",
    "better",
    "tried",
    "seconds",
)


def main() -> int:
    options = _options()
    keep_freed_memory()
    cases = _cases(options.device, options.quick)
    unknown = set(options.only) - set(cases)
    if unknown:
        print(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(cases)}")
        return 2
    print(f"python {platform.python_version()}, {_versions()}, budget {options.budget:g} s each\n")
    header(*COLUMNS)
    raw, failed = {}, 0
    for name in options.only or cases:
        started = perf_counter()
        try:
            found = optimize(
                cases[name](),
                goal=options.goal,
                budget_s=options.budget,
                on_attempt=_told(name, started),
            )
        except Exception as error:  # one model that fails does not keep the others from running
            failed += 1
            row(name, f"failed: {error}", *"-" * (len(COLUMNS) - 2))
            continue
        row(*_cells(found))
        raw[name] = found.to_dict()
        if options.json:
            Path(options.json).write_text(json.dumps(raw), "utf-8")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--budget", type=float, default=240.0, metavar="SECONDS")
    parser.add_argument("--goal", default="latency")
    parser.add_argument("--quick", action="store_true", help="small shapes")
    parser.add_argument("--json", metavar="FILE", help="write everything that was measured")
    return parser.parse_args()


def _cases(device: str, is_quick: bool) -> dict[str, Callable[[], Workload]]:
    """Name -> what makes the workload; torch is imported by those that need it."""

    def of_torch(name: str) -> Callable[[], Workload]:
        def make() -> Workload:
            import torch_transform_cases

            found: Workload = getattr(torch_transform_cases, name)(is_quick, device)
            return found

        return make

    if device == "cuda":
        return {name: of_torch(name) for name in ("gpt2", "llama_text")}
    zoo = {name: lambda name=name: load_workload(name) for name in ("mlp", "cnn", "gpt")}
    return zoo | {name: of_torch(name) for name in ("gpt2", "bert", "vit", "resnet", "mobilenet")}


def _told(name: str, started: float) -> Callable[[Attempt], None]:
    def tell(attempt: Attempt) -> None:
        spent = perf_counter() - started
        print(
            f"{name} {spent:6.1f} s  {attempt.name}: {attempt.outcome}; {attempt.reason}",
            file=sys.stderr,
            flush=True,
        )

    return tell


def _cells(found: Optimization) -> list[str]:
    best = found.recommended
    counts = [str(len(found.helped)), str(len(found.attempts)), f"{found.seconds:.0f}"]
    if best is None or best.comparison is None:
        return [found.name, "nothing helps", *["-"] * 4, *counts]
    measured, compared = best.measured, best.comparison
    speedup = f"{compared.speedup:.2f} ({compared.speedup_low:.2f} to {compared.speedup_high:.2f})"
    shares = [f"{x.value:.2f}" if x else "-" for x in (measured.memory, measured.size)]
    accuracy = compared.accuracy
    kept = (
        f"{accuracy.baseline_mean:.4f} to {accuracy.candidate_mean:.4f}"
        if accuracy
        else f"outputs off by {compared.outputs.max_relative_error:.1e}"
        if compared.outputs and compared.outputs.max_relative_error is not None
        else "-"
    )
    return [found.name, best.name, speedup, *shares, kept, *counts]


def _versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in ("numpy", "numba", "torch", "transformers"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


if __name__ == "__main__":
    sys.exit(main())
