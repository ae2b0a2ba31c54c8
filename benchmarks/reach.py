"""Is what `optimize` recommends as fast as the best engine used by hand?

    python benchmarks/reach.py [--only CASE ...] [--work FOLDER] [--budget SECONDS]
                               [--threads N] [--stage prepare | optimize | race]
                               [--csv FILE]

For each model, in processes of their own: each engine is used by hand (reach_by_hand.py, which
imports nothing of TinyTorch), `optimize` runs and saves its result, and then one process loads that
result and everything made by hand and times them in turns: in each round every side has a block of
calls, in random order, after one that is not timed, of which the fastest counts. A ratio is the
median over the rounds of the time by hand over ours, between two order statistics (97% or more).
What was made by hand counts where its outputs keep the limit that `optimize` keeps to. Each stage
of a model leaves a file in the folder of work, and is not repeated while that is there.

With one thread, the processor time of a call is taken in place of the time by the wall: programs
that share the cores do not enter it.
"""

from __future__ import annotations

import argparse
import csv
import inspect
import json
import math
import os
import random
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

STAGES = ("prepare", "optimize", "race")
ROUNDS, BLOCK_S, LONGEST_S = 15, 0.06, 150.0
FEWEST = 7
"""So many rounds give an interval of 98%; more are made while there is time."""
OUTSIDE, LEAST_SIMILARITY = 0.02, 0.99
"""How far outputs may move, of the largest; or how similar embeddings have to be, as a mean."""
WANTED = 0.97
PACKAGES = ("torch", "transformers", "onnxruntime", "openvino", "nncf", "tinytorch-perf")
COLUMNS = (
    "case", "model", "side", "ms", "ratio", "low", "high", "rounds", "output_error", "counts",
)  # fmt: skip


def main() -> int:
    options = _options()
    from reach_models import CASES

    for case in options.only or CASES:
        for stage in [options.stage] if options.stage else STAGES:
            if options.inside:
                import torch

                torch.set_num_threads(options.threads)
                INSIDE[stage](case, options.work / case, options.budget)
                return 0
            if (options.work / case / f"{stage}.json").exists():
                continue
            (options.work / case).mkdir(parents=True, exist_ok=True)
            run = [sys.executable, "-W", "ignore", *sys.argv[:1], "--inside", "--only", case]
            run += ["--stage", stage, "--work", str(options.work)]
            run += ["--budget", str(options.budget), "--threads", str(options.threads)]
            with (options.work / case / f"{stage}.log").open("w") as log:
                done = subprocess.run(run, stdout=log, stderr=log, env=PASSIVE, check=False)
            if done.returncode:
                print(f"{case}: {stage} failed; {log.name} says why", file=sys.stderr)
                break
    _table(options.work, [x for x in CASES if not options.only or x in options.only], options.csv)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE")
    parser.add_argument("--work", type=Path, default=Path("reach"), metavar="FOLDER")
    parser.add_argument("--budget", type=float, default=180.0, metavar="SECONDS")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--stage", choices=STAGES)
    parser.add_argument("--csv", type=Path, metavar="FILE")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


# ---------------------------------------------------------------- the stages, in their processes


def _workload(case: str) -> Any:
    import reach_models

    return getattr(reach_models, case)()


def _job(case: str, workload: Any, folder: Path) -> Any:
    import torch
    from reach_by_hand import Job
    from reach_models import KINDS

    names = list(inspect.signature(workload.model.forward).parameters)

    def named(arguments: Any) -> dict[str, Any]:
        if isinstance(arguments, dict):
            return arguments
        return dict(zip(names, arguments, strict=False))

    inputs = named(workload.inputs) | dict(workload.keywords)
    calls = [named(each) for each in workload.calibration]
    kind = KINDS.get(case.partition("_")[0], ("", 0, 0))
    (folder / "by_hand").mkdir(parents=True, exist_ok=True)
    return Job(workload.model, inputs, folder / "by_hand", torch.get_num_threads(), calls, *kind)


def prepare(case: str, folder: Path, budget_s: float) -> None:
    """Make everything by hand once, which leaves its files, and note what cannot be made."""
    import torch
    from reach_by_hand import HANDS, first

    workload = _workload(case)
    job = _job(case, workload, folder)
    expected: Any = None
    found: dict[str, Any] = {}
    with torch.no_grad():
        for name, make in HANDS.items():
            started = perf_counter()
            try:
                call = make(job)
                output = torch.as_tensor(first(call())).float()
            except Exception as error:  # an engine may refuse a model
                found[name] = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
            else:
                expected = output if expected is None else expected
                largest = float((output - expected).abs().max() / expected.abs().max())
                cosine = torch.cosine_similarity(output, expected, dim=-1).mean()
                found[name] = {"error": largest, "similarity": float(cosine)}
            found[name]["seconds"] = perf_counter() - started
            print(name, found[name], flush=True)
    _write(folder / "prepare.json", found)


def optimize(case: str, folder: Path, budget_s: float) -> None:
    """Optimize the model and save what is recommended."""
    import tinytorch

    workload = _workload(case)

    def tell(attempt: Any) -> None:
        print(f"{attempt.name}: {attempt.outcome}; {attempt.reason}", flush=True)

    found = tinytorch.optimize(workload, budget_s=budget_s, on_attempt=tell)
    print(found, flush=True)
    best = found.recommended
    if best is not None:
        found.save(folder / "saved", target=f"{Path(__file__).with_name('reach_models.py')}:{case}")
    about = {"stack": best.name if best else "", "seconds": found.seconds, "name": workload.name}
    _write(folder / "optimize.json", about | {"result": found.to_dict()})


def race(case: str, folder: Path, budget_s: float) -> None:
    """Time what was saved and what was made by hand in turns."""
    import torch
    from reach_by_hand import HANDS

    from tinytorch import load_optimized

    workload = _workload(case)
    job = _job(case, workload, folder)
    saved = folder / "saved"
    ours = load_optimized(saved, workload) if saved.exists() else workload.model
    made = {name for name, about in _read(folder / "prepare.json").items() if "error" in about}
    inputs, keywords = workload.inputs, dict(workload.keywords)
    clock = process_time if torch.get_num_threads() == 1 else perf_counter
    with torch.no_grad():
        sides: dict[str, Any] = {"optimize": lambda: ours(*inputs, **keywords)}
        for name in HANDS:
            if name in made:
                sides[name] = HANDS[name](job)
        for call in sides.values():
            for _ in range(3):
                call()
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        started = perf_counter()
        for number in range(ROUNDS):
            if number >= FEWEST and perf_counter() - started > LONGEST_S:
                break
            for name in random.sample(list(sides), len(sides)):
                seconds[name].append(_block(sides[name], clock))
    versions = {name: version(name) for name in PACKAGES}
    about = {"versions": versions, "threads": torch.get_num_threads(), "clock": clock.__name__}
    _write(folder / "race.json", {"seconds": seconds, **about})


def _block(call: Any, clock: Any) -> float:
    """Return the seconds of a call: the least in a block of some, after one that is not timed.

    The least is what is left when others disturb single calls.
    """
    call()
    taken: list[float] = []
    while len(taken) < 3 or sum(taken) < BLOCK_S:
        started = clock()
        call()
        taken.append(clock() - started)
    return min(taken)


PASSIVE = os.environ | {"OMP_WAIT_POLICY": "passive"}
"""On cores that others use, too, threads that spin while they wait for one that was preempted make
eager calls of torch five times as long: they sleep, on every side."""
INSIDE = {"prepare": prepare, "optimize": optimize, "race": race}


# ---------------------------------------------------------------- the table


def _table(work: Path, cases: list[str], path: Path | None) -> None:
    rows: list[dict[str, Any]] = []
    print("| model | recommended | best by hand | ratio (interval) | against eager |")
    print("|---|---|---|---|---|")
    for case in cases:
        folder = work / case
        if not (folder / "race.json").exists():
            continue
        found = _rows(case, folder)
        rows += found
        kept = {each["side"]: each for each in found if each["counts"]}
        by_hand = [each for name, each in kept.items() if name not in ("optimize", "eager")]
        best = min(by_hand, key=lambda each: each["ratio"])
        ours, eager = found[0], next(each for each in found if each["side"] == "eager")
        stack = _read(folder / "optimize.json")["stack"] or "nothing"
        print(
            f"| {ours['model']} | {stack} | {best['side']} | {_shown(best)}"
            f", {_verdict(best)} | {_shown(eager)} |"
        )
    if path is not None:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def _rows(case: str, folder: Path) -> list[dict[str, Any]]:
    """Return a row for each side: the ratio is its time over that of what optimize recommends."""
    seconds = _read(folder / "race.json")["seconds"]
    about = _read(folder / "prepare.json")
    model = _read(folder / "optimize.json")["name"]
    rows = []
    for side, taken in seconds.items():
        logs = sorted(math.log(a / b) for a, b in zip(taken, seconds["optimize"], strict=True))
        skipped = _order_statistic(len(logs))
        known = about.get(side, {})
        rows.append(
            {
                "case": case,
                "model": model,
                "side": side,
                "ms": f"{median(taken) * 1e3:.4g}",
                "ratio": round(math.exp(median(logs)), 3),
                "low": round(math.exp(logs[skipped]), 3),
                "high": round(math.exp(logs[-1 - skipped]), 3),
                "rounds": len(logs),
                "output_error": f"{known['error']:.1e}" if known else "",
                "counts": not known or _keeps(case, known),
            }
        )
    return rows


def _keeps(case: str, known: dict[str, float]) -> bool:
    if case.startswith("minilm"):
        return known["similarity"] >= LEAST_SIMILARITY
    return known["error"] <= OUTSIDE


def _order_statistic(n: int) -> int:
    """Return how many values to leave out at each end for an interval of the median of 97%."""
    skipped, tail = 0, 2.0**-n
    while 2 * (tail + math.comb(n, skipped + 1) * 2.0**-n) <= 0.03:
        skipped += 1
        tail += math.comb(n, skipped) * 2.0**-n
    return skipped


def _verdict(row: dict[str, Any]) -> str:
    if row["low"] >= WANTED:
        return "reached"
    return "behind" if row["high"] < WANTED else "inconclusive"


def _shown(row: dict[str, Any]) -> str:
    return f"{row['ratio']:.2f}x ({row['low']:.2f}x to {row['high']:.2f}x)"


def _read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
