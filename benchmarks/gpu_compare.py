"""The comparer on a CUDA device: false alarms, known differences, evidence beside time.

    python benchmarks/gpu_compare.py [--trials 12] [--out gpu.json]

A stack of layers against itself, and against itself with 1% and 2% more layers: one whose time is
the launching of kernels, one whose time is the kernels. Then GPT-2 in float32 against bfloat16 with
outputs, accuracy, memory, energy, single and sustained calls, and one comparison in processes of
their own.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tinytorch import Isolated, Workload, compare

DEVICE = "cuda:0"
STACKS = {"launching": (100, 64, 8), "computing": (50, 2048, 2048)}  # layers, width, batch


def stack(kind: str, extra: int) -> Workload:
    """Give some linear layers, `extra` percent more of them."""
    layers, width, batch = STACKS[kind]
    torch.manual_seed(0)
    count = layers + round(layers * extra / 100)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(count)))
    return Workload(kind, model.to(DEVICE, torch.bfloat16), (_inputs(batch, width),))


def _inputs(batch: int, width: int) -> torch.Tensor:
    return torch.randn(batch, width, device=DEVICE, dtype=torch.bfloat16)


def tiny() -> tuple[Any, Any]:
    """Give a target for processes of their own."""
    return torch.nn.Linear(512, 512).to(DEVICE), torch.randn(64, 512, device=DEVICE)


def gpt2(dtype: torch.dtype) -> Workload:
    """Give GPT-2 small with random weights, scored by how likely it finds the next token."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(use_cache=False)).eval().to(DEVICE, dtype)
    ids = torch.randint(0, 50257, (4, 128), device=DEVICE)

    def evaluate(candidate: Any) -> np.ndarray[Any, Any]:
        generator = torch.Generator().manual_seed(1)
        held_out = torch.randint(0, 50257, (64, 64), generator=generator).to(DEVICE)
        with torch.no_grad():
            logits = candidate(held_out).logits[:, :-1].float()
        likely = torch.log_softmax(logits, -1).gather(-1, held_out[:, 1:, None])
        return likely.mean((1, 2)).cpu().double().numpy()

    return Workload(f"gpt2 {dtype}", model, (ids,), evaluate=evaluate, metric="log-likelihood")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    kept: dict[str, Any] = {"stacks": []}
    for kind in STACKS:
        for extra in (0, 1, 2):
            found = []
            for seed in range(options.trials):
                one, other = stack(kind, 0), stack(kind, extra)
                found.append(compare(one, other, evidence=False, seed=seed))
            verdicts = [each.verdict for each in found]
            counts = {word: verdicts.count(word) for word in dict.fromkeys(verdicts)}
            ratios = [each.time_ratio for each in found]
            truth = 1 + round(STACKS[kind][0] * extra / 100) / STACKS[kind][0]
            covers = sum(e.time_ratio_low <= truth <= e.time_ratio_high for e in found)
            seconds = np.median([each.seconds_used for each in found])
            print(
                f"{kind} x{truth:.2f}: {counts}, ratio {np.median(ratios):.4f} "
                f"({min(ratios):.4f} to {max(ratios):.4f}), covered {covers} of {len(found)}, "
                f"{seconds:.2f} s, call {found[0].pace.call_s[0] * 1e6:.0f} us, "
                f"{found[0].pace.loops} calls x {found[0].pace.pairs} pairs x {found[0].n}"
            )
            kept["stacks"].append({"kind": kind, "extra": extra, "verdicts": verdicts})
    result = compare(gpt2(torch.float32), gpt2(torch.bfloat16), budget_s=3.0, precision=0.02)
    print(result, "\nnotes:", *result.notes, sep="\n  ")
    print("accuracy", result.accuracy and (result.accuracy.verdict, result.accuracy.difference))
    print("outputs", result.outputs and (result.outputs.max_error, result.outputs.sqnr_db))
    print("resources", result.resources)
    print("p99", result.tails and [tail.p99 for tail in result.tails])
    print("energy", result.energy and [(e.median, e.values, e.notes) for e in result.energy])
    print("not measured", result.not_measured)
    kept["gpt2"] = result.to_dict()
    target = f"{Path(__file__).resolve()}:tiny"
    apart = compare(Isolated(target), Isolated(target), budget_s=20.0)
    print(apart, f"{apart.seconds_used:.1f} s", apart.notes)
    if options.out:
        options.out.write_text(json.dumps(kept))


if __name__ == "__main__":
    sys.exit(main())
