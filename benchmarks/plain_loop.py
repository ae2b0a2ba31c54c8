"""What a user would do: load the saved model in a fresh process and time it with a plain loop.

    python benchmarks/plain_loop.py CASE FOLDER [baseline | candidate]

It prints "ready" once both models were called, and times them when it may read a line; then it
prints one line of JSON: seconds per call of each side, one value per block. Blocks of both sides
alternate, unless one side is named: then it is alone in its process. Nothing of TinyTorch's
measuring code is used: the only imports are the model and `load_optimized`.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any

import claim_cases
import torch

from tinytorch import load_optimized
from tinytorch.core.autograd import no_grad

BLOCKS, BLOCK_S = 15, 0.05
FEWEST_BLOCKS, LONGEST_S = 3, 10.0
"""Where a call takes long, fewer blocks are timed once this time has passed."""
WARM_UP_S = 0.5


def main() -> None:
    case, folder, *only = sys.argv[1:]
    workload = getattr(claim_cases, case)()
    models = {}
    if only != ["candidate"]:
        models["baseline"] = workload.model
    if only != ["baseline"]:
        models["candidate"] = load_optimized(folder, workload)
    with without_gradients(workload.model):
        calls = {side: caller(model, workload) for side, model in models.items()}
        for call in calls.values():
            block(call, 0.0, synchronise_for(workload))
        print("ready", flush=True)
        sys.stdin.readline()
        for call in calls.values():
            block(call, WARM_UP_S, synchronise_for(workload))
        seconds: dict[str, list[float]] = {side: [] for side in calls}
        started = perf_counter()
        for number in range(BLOCKS):
            if number >= FEWEST_BLOCKS and perf_counter() - started > LONGEST_S:
                break
            for side in random.sample(list(calls), len(calls)):
                seconds[side].append(block(calls[side], BLOCK_S, synchronise_for(workload)))
    print(json.dumps(seconds))


def caller(model: Any, workload: Any) -> Callable[[], Any]:
    inputs, keywords = workload.inputs, dict(workload.keywords)
    return lambda: model(*inputs, **keywords)


def block(call: Callable[[], Any], at_least_s: float, synchronise: Callable[[], None]) -> float:
    """Return the seconds of a call in the mean; each is waited for before the next begins."""
    synchronise()
    count, started = 0, perf_counter()
    while True:
        call()
        synchronise()
        count += 1
        spent = perf_counter() - started
        if spent >= at_least_s:
            return spent / count


def synchronise_for(workload: Any) -> Callable[[], None]:
    is_cuda = any(getattr(each, "is_cuda", False) for each in workload.inputs)
    return torch.cuda.synchronize if is_cuda else lambda: None


def without_gradients(model: Any) -> AbstractContextManager[Any]:
    return no_grad() if type(model).__module__.startswith("tinytorch.core") else torch.no_grad()


if __name__ == "__main__":
    main()
