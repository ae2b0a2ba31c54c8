"""Compare our kernels with PyTorch eager's operators, and our products with the plain ones.

    python benchmarks/kernels.py [--backend NAME] [--only TEXT] [--quick] [--json FILE]

Results are checked to be equal before anything is timed; that first call also compiles the kernels.
In the first table each side lives in a process of its own, and a ratio is our time over PyTorch's:
below 1 we are faster. The second table has our matrix products beside those of the `reference`
backend, in one process on the same arrays; there a larger number is better. Both sides use as many
threads as the process may run on, or TINYTORCH_BENCHMARK_THREADS. Exits with 1 when a target is
missed. `--quick` only shows that everything works. Needs the `test` extra.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from interleaving import (
    PAIRS,
    REPLICATES,
    THREADS,
    Ratio,
    Run,
    Side,
    Target,
    Timed,
    compare,
    geometric_mean,
    show_targets,
    side,
    summarise,
)

# isort: split
import numpy as np
from kernel_cases import CASES, Case, Draw

from tinytorch.core.dispatch import KernelCall, recording, set_backend, use_backend
from tinytorch.core.kernels import BACKENDS, NUMPY, Array
from tinytorch.measure.ceilings import SECONDS, Ceilings, measure_ceilings

ABSOLUTE, RELATIVE = 1e-5, 1e-4
"""How far results may differ: parts of the largest element, and of each element."""

FUSED_LIMIT, CONVOLUTION_LIMIT, PRODUCT_GAIN = 0.667, 1.1, 1.5


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    replicates: int = REPLICATES
    pairs: int = PAIRS
    ceiling_seconds: float = SECONDS


QUICK = Effort(replicates=1, pairs=1, ceiling_seconds=0.5)


# ---------------------------------------------------------------- both sides, and do they agree?


def drawing(seed: int) -> Draw:
    rng = np.random.default_rng(seed)
    return lambda *shape: rng.standard_normal(shape, np.float32)


def as_arrays(result: Any) -> list[Array]:
    parts = result if isinstance(result, tuple) else (result,)
    return [np.asarray(part.detach() if hasattr(part, "detach") else part) for part in parts]


def recorded(ours: Run) -> tuple[list[Array], list[KernelCall]]:
    """Give the results of a call of ours and the kernels that it ran."""
    calls: list[KernelCall] = []
    with recording(calls.append):
        return as_arrays(ours()), calls


def build_ours(case: Case, seed: int, backend: str) -> tuple[Run, Callable[[], Any]]:
    set_backend(backend)
    ours, _ = case.make(drawing(seed))

    def check() -> tuple[list[Array], list[str]]:
        outputs, calls = recorded(ours)
        return outputs, [call.kind for call in calls]

    return ours, check


def build_theirs(case: Case, seed: int) -> tuple[Run, Callable[[], list[Array]]]:
    import torch  # never on our side, where its threads could be in the way

    torch.set_num_threads(THREADS)
    torch.set_grad_enabled(False)
    _, make = case.make(drawing(seed))
    theirs = make(torch)
    return theirs, lambda: as_arrays(theirs())


def check_equal(name: str, ours: list[Array], theirs: list[Array]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        if mine.shape != other.shape:
            raise SystemExit(f"{name}: shapes {mine.shape} and {other.shape}; nothing is timed")
        difference = np.abs(mine - other)
        allowed = ABSOLUTE * np.abs(other).max() + RELATIVE * np.abs(other)
        if not (difference <= allowed).all():  # which NaN is not either
            raise SystemExit(f"{name}: results differ by {difference.max():.2e}; nothing is timed")


# ---------------------------------------------------------------- the two tables


def compare_with_torch(cases: list[Case], backend: str, effort: Effort) -> dict[str, Ratio]:
    print("| case | tinytorch | PyTorch | ratio | 96% interval | pairs | NumPy's kernels |")
    print("|---|---|---|---|---|---|---|")
    results: dict[str, Ratio] = {}
    with side(build_ours) as ours, side(build_theirs) as theirs:
        for case in cases:
            results[case.name] = beside_torch(case, ours, theirs, backend, effort)
    print()
    for group in dict.fromkeys(case.group for case in cases):
        medians = [results[case.name].median for case in cases if case.group == group]
        print(f"- {group}: geometric mean {geometric_mean(medians):.2f} of {len(medians)} cases")
    return results


def beside_torch(case: Case, ours: Side, theirs: Side, backend: str, effort: Effort) -> Ratio:
    replicates = []
    kinds: list[str] = []
    for seed in range(effort.replicates):
        ours.start(case, seed, backend)
        theirs.start(case, seed)
        outputs, kinds = ours.built()
        check_equal(case.name, outputs, theirs.built())
        replicates.append(list(compare(ours, theirs, pairs=effort.pairs)))
    ratio = summarise(replicates)
    show(case, ratio, inherited(kinds, backend))
    return ratio


def inherited(kinds: list[str], backend: str) -> str:
    """Name the kernels that the backend leaves to NumPy."""
    kernels = BACKENDS[backend].kernels
    return ", ".join(kind for kind in kinds if kernels[kind] is NUMPY.kernels[kind])


def compare_with_reference(cases: list[Case], backend: str, effort: Effort) -> dict[str, Ratio]:
    """Compare products in this process. A ratio is the reference's time over ours."""
    limits = measure_ceilings(seconds=effort.ceiling_seconds)
    print("\n| product | reference | ours | times as fast | 96% interval | pairs |")
    print("|---|---|---|---|---|---|")
    results: dict[str, Ratio] = {}
    calls: dict[str, KernelCall] = {}
    for case in cases:
        results[case.name], calls[case.name] = beside_reference(case, backend, effort)
        show(case, results[case.name])
    mean = geometric_mean(ratio.median for ratio in results.values())
    print(f"\n- geometric mean: {mean:.2f} times as fast as the reference")
    show_limits(results, calls, limits)
    return results


def beside_reference(case: Case, backend: str, effort: Effort) -> tuple[Ratio, KernelCall]:
    replicates = []
    for seed in range(effort.replicates):
        product, _ = case.make(drawing(seed))
        plain, ours = partial(under, "reference", product), partial(under, backend, product)
        expected, calls = recorded(plain)
        check_equal(case.name, as_arrays(ours()), expected)
        replicates.append(list(compare(Timed(plain), Timed(ours), pairs=effort.pairs)))
    return summarise(replicates), calls[0]


def under(backend: str, product: Run) -> Any:
    with use_backend(backend):
        return product()


def show_limits(
    results: Mapping[str, Ratio], calls: Mapping[str, KernelCall], limits: Ceilings
) -> None:
    """Say how near the products are to what this machine can do, and which have no room left."""
    best = max(
        flops_of(calls[name]) / min(ratio.candidate_s, ratio.baseline_s)
        for name, ratio in results.items()
    )
    peak = max(best, limits.peak_flops("float32") or 0.0)
    print(
        f"\nThe best rate of a product in this run was {peak / 1e9:.0f} GFLOP/s. Products at that "
        "rate, or that read and write everything once at the bandwidth of the memory which holds "
        "it, would be at 100%:\n\n| product | limited by | reference | ours |\n|---|---|---|---|"
    )
    without_room = []
    for name, ratio in results.items():
        moved = sum(spec.nbytes for spec in (*calls[name].inputs, *calls[name].outputs))
        computing_s = flops_of(calls[name]) / peak
        moving_s = moved / limits.bandwidth(moved)
        least_s = max(computing_s, moving_s)
        limit = "computing" if computing_s >= moving_s else limits.level(moved)
        shares = f"{least_s / ratio.candidate_s:.0%} | {least_s / ratio.baseline_s:.0%}"
        print(f"| {name} | {limit} | {shares} |")
        if ratio.candidate_s < PRODUCT_GAIN * least_s:
            without_room.append(name)
    print(
        f"\n- bound by BLAS or memory already, so that no kernel could be {PRODUCT_GAIN} times as "
        f"fast as the reference: {'; '.join(without_room) or 'none'}"
    )
    for disturbance in limits.disturbances:
        print(f"- doubtful limits: {disturbance}")


def flops_of(product: KernelCall) -> float:
    output = product.outputs[0]
    return 2 * output.nbytes / output.dtype.itemsize * product.inputs[0].shape[-1]


def show(case: Case, ratio: Ratio, *remarks: str) -> None:
    interval = ""
    if len(ratio.values) == REPLICATES:
        low, high = ratio.interval
        interval = f"{low:.2f} to {high:.2f}"
    print(
        f"| {case.name} | {ratio.candidate_s * 1e3:.3f} ms | {ratio.baseline_s * 1e3:.3f} ms "
        f"| {ratio.median:.2f} | {interval} | {ratio.pairs} |"
        + "".join(f" {remark} |" for remark in remarks),
        flush=True,
    )


# ---------------------------------------------------------------- targets


def all_targets(ratios: Mapping[str, Ratio], gains: Mapping[str, Ratio]) -> list[Target]:
    """Give what is promised; a mean of some of its cases is none."""

    def medians(group: str, found: Mapping[str, Ratio]) -> list[float]:
        names = [case.name for case in CASES if case.group == group]
        return [found[name].median for name in names] if set(names) <= set(found) else []

    fused, products = medians("fused", ratios), medians("products", gains)
    return [
        Target(
            "fused kernels, geometric mean of the ratios",
            FUSED_LIMIT,
            geometric_mean(fused) if fused else None,
        ),
        *(
            Target(case.name, CONVOLUTION_LIMIT, ratios[case.name].median)
            if case.name in ratios
            else Target(case.name, CONVOLUTION_LIMIT, None)
            for case in CASES
            if case.group == "convolution"
        ),
        Target(
            "products, geometric mean of times as fast as the reference",
            PRODUCT_GAIN,
            geometric_mean(products) if products else None,
            at_least=True,
        ),
    ]


def setting(backend: str) -> dict[str, Any]:
    packages = ["numpy", "torch", *(["numba"] if "numba" in BACKENDS else [])]
    return {
        "backend": backend,
        "threads": THREADS,
        "machine": platform.processor(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
        "load average before": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="numba", help=", ".join(BACKENDS))
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--quick", action="store_true", help="one turn each; judges nothing")
    parser.add_argument("--json", type=Path, help="write raw values here")
    options = parser.parse_args()
    if options.backend not in BACKENDS:
        parser.error(f"no backend {options.backend!r} here; there are {', '.join(BACKENDS)}")
    cases = [case for case in CASES if options.only in case.name]
    if not cases:
        raise SystemExit(f"no case has {options.only!r} in its name")
    effort = QUICK if options.quick else Effort()
    described = setting(options.backend)
    print(", ".join(f"{name} {value}" for name, value in described.items() if value != "") + "\n")
    if described["load average before"] > 0.5:
        print("**The machine is busy**; threads that wait for each other suffer most from that.\n")
    ratios = compare_with_torch(cases, options.backend, effort)
    products = [case for case in cases if case.group == "products"]
    gains = compare_with_reference(products, options.backend, effort) if products else {}
    targets = all_targets(ratios, gains)
    if options.json:
        tables = {"ratios_to_torch": ratios, "times_as_fast_as_reference": gains}
        raw = {
            table: {name: asdict(ratio) for name, ratio in found.items()}
            for table, found in tables.items()
        }
        raw["targets"] = [asdict(target) for target in targets]
        described["quick"] = options.quick
        options.json.write_text(json.dumps({**described, **raw}, indent=1))
    if options.quick:
        print("\nOne turn each says nothing about speed, so no target is judged.")
        return
    show_targets(targets)
    sys.exit(any(target.is_missed for target in targets))


if __name__ == "__main__":
    main()
