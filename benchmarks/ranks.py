"""How often profile_ranks names a rank that is slower, and one that is not; what recording costs.

    python benchmarks/ranks.py --scripted --runs 400
    OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 2 benchmarks/ranks.py --runs 100

Each rank has a core of its own. Runs with one rank slowed by 10% (it computes that much more) and
runs without take turns in random order; a run is one profile. The gain that the what-if of a slowed
run states is held against the steps of its neighbour without the cause. `--overhead` takes steps of
50 ms and more in turns, recorded or not. `--scripted` asks the rule alone, about drawn steps.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import argparse
import json

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tinytorch.measure.estimate import Estimate
from tinytorch.scale.ranks_torch import profile_ranks
from tinytorch.scale.stragglers import FALSE_ALARMS, find_stragglers

WIDTH, BATCH = 512, 32
PRODUCTS, MODEL = 72, 8
"""Products in a step, 0.6 ms each on a core of their own, and the work of the model in products."""


class Products(torch.nn.Module):
    """A layer that computes a given number of products."""

    def forward(self, x, count):
        for _ in range(count):
            torch.mm(x, x.T @ x)


def program():
    """Return a step that computes for about 50 ms on a core of its own, and `more` products."""
    torch.manual_seed(0)
    layers = [each for _ in range(4) for each in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    x, square, products = torch.randn(BATCH, WIDTH), torch.randn(WIDTH, 64), Products()

    def step(more=0):
        products(square.T, PRODUCTS + more)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def profiled(step, *, steps, more=0, overhead_steps=0):
    with profile_ranks(
        steps=steps, warmup=3, overhead_steps=overhead_steps, ceilings=False
    ) as found:
        for _ in range(steps + overhead_steps + 5):
            step(more)
    return found.result


def naming(options):
    """Alternate runs with and without a slowed rank; print who was named, and the gains."""
    rank, step = dist.get_rank(), program()
    rng, rows = np.random.default_rng(options.seed), []
    slowed = round(options.slow * (PRODUCTS + MODEL)) if rank == 1 else 0
    for _ in range(options.runs):
        pair = {}
        for is_slow in (bool(each) for each in rng.permutation(2)):
            found = profiled(step, steps=options.steps, more=slowed if is_slow else 0)
            pair[is_slow] = found
        if rank == 0:
            rows.append(row_of(pair))
            print(json.dumps(rows[-1]), flush=True)
    if rank == 0:
        summarise(rows)


def row_of(pair):
    names = {
        is_slow: [(each.rank, each.cause) for each in found.stragglers]
        for is_slow, found in pair.items()
    }
    gain = pair[True].step_s / pair[False].step_s
    what_if = next((each.speedup for each in pair[True].what_ifs if each.rank == 1), None)
    return {
        "named": names[True],
        "false": names[False],
        "step_ms": [1000 * pair[each].step_s for each in (False, True)],
        "gain": gain,
        "what_if": [what_if.value, *what_if] if what_if else None,
        "own_share": [each.own_share for each in pair[True].ranks],
        "bytes": [each.nbytes for each in pair[True].ranks],
        "fidelity": [each.words for each in pair[True].notes if each.code == "replay-differs"],
    }


def summarise(rows):
    gains = [(row["gain"], row["what_if"]) for row in rows if row["what_if"]]
    covered = sum(low <= gain <= high for gain, (_, low, high) in gains)
    print(
        json.dumps(
            {
                "runs": len(rows),
                "slow rank named": sum(row["named"] == [(1, "compute")] for row in rows),
                "false alarms": sum(bool(row["false"]) for row in rows),
                "what-if covers": f"{covered} of {len(gains)}",
                "median gain": float(np.median([row["gain"] for row in rows])),
                "median what-if": float(np.median([each[0] for _, each in gains] or [0])),
                "median step_ms": np.median([row["step_ms"] for row in rows], axis=0).tolist(),
            }
        )
    )


# ---------------------------------------------------------------- the rule on scripted steps


def scripted(options):
    """Print how often the rule names whom, on steps of 50 ms with noise and bursts, by ranks."""
    for ranks in (2, 4, 8):
        rng = np.random.default_rng(options.seed)
        found = {slow: [named(rng, ranks, slow) for _ in range(options.runs)] for slow in (0, 0.1)}
        alarms = sum(bool(each) for each in found[0])
        hits = sum(each == [1] for each in found[0.1])
        counts = {"ranks": ranks, "runs": options.runs, "false alarms": alarms, "10% named": hits}
        print(json.dumps(counts), flush=True)


def named(rng, ranks, slow, *, steps=100, noise=0.04, step_s=0.05):
    """Return who is named where rank 1 is slower by a share; a tenth of the time bursts add 30%."""
    parts = {}
    for rank in range(ranks):
        bursts = np.repeat(rng.random(steps // 4) < 0.1, 4) * 0.3
        factor = 1 + noise * rng.standard_normal(steps) + bursts + slow * (rank == 1)
        nothing = {part: np.zeros(steps) for part in ("hidden", "input", "host")}
        parts[rank] = {"compute": step_s * factor, **nothing}
    return [each.rank for each in find_stragglers(parts, step_s, false_alarms=FALSE_ALARMS / 2)]


def overhead(options):
    """Print what a recorded step takes over another one."""
    step = program()
    found = profiled(step, steps=20, overhead_steps=6 * options.runs)
    if dist.get_rank() == 0:
        ratio: Estimate = found.overhead
        own = max(each.own_share for each in found.ranks)
        shown = {"step_ms": 1000 * found.step_s, "ratio": ratio.value, "interval": list(ratio)}
        print(json.dumps({**shown, "n": ratio.n, "own_share": own}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-ms", type=float, default=10.0, help="of computing beside the model")
    parser.add_argument(
        "--typical-s", type=float, default=0.03, help="a step, of which 10% is added"
    )
    parser.add_argument("--slow", type=float, default=0.10)
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--scripted", action="store_true", help="the rule alone, without ranks")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.scripted:
        scripted(options)
        return
    rank = int(os.environ["LOCAL_RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    (overhead if options.overhead else naming)(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
