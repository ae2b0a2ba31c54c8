"""Time quantized linear layers: beside our own fp32, PyTorch's and ONNX Runtime's.

    python benchmarks/int8.py [--only TEXT ...] [--quick] [--json FILE]

Results are checked before anything is timed, against float64 on the very whole numbers that a side
quantizes to. The first table comes from our comparer, in this process. In the others every side
lives in a process of its own, and all take turns in random order. Numbers say how many times as
fast we are: above 1 we are faster. All sides use as many threads as the process may run on, or
TINYTORCH_BENCHMARK_THREADS. `--only dynamic: "batch 1 "` runs the rows whose name contains both.
Needs numba; takes what it finds of torch, torchao, onnx and onnxruntime, and names what is missing.
Ends with 1 if a target is missed, and with 3 if one could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from interleaving import REPLICATES, THREADS, Ratio, Side, side

# isort: split
import numpy as np
from generation_sides import Replicate, median_s, take_turns, times_as_fast
from generation_tables import header, interval, row
from int8_sides import FAMILIES, Case, Checked, Rival, build_ours, draw, our_layer

from tinytorch.comparison.compare import compare
from tinytorch.comparison.comparison import Comparison
from tinytorch.core.dispatch import set_backend
from tinytorch.core.kernels.numba.int8_simd import HAS_VNNI
from tinytorch.core.tensor import Tensor

CASES = [
    Case(inputs, outputs, batch)
    for inputs in (1024, 4096)
    for outputs in (1024, 4096)
    for batch in (1, 8, 64, 256)
]
OURS = "tinytorch"
MODES = ("dynamic", "static", "weight_only", "int4")
GAINS = {Case(1024, 1024, 1): 2.0, Case(1024, 4096, 1): 3.0, Case(1024, 1024, 64): 3.0}
"""How many times as fast as our own fp32 INT8 is to be."""

ROUNDING, MOST_TIES = 1e-5, 2
"""How far results may be from float64 on the same numbers: parts of the largest element, and how
many inputs of a row may have been rounded the other way."""

LEAST_DB = {"int4": 15.0, "fp32": 100.0}
"""How much stronger the signal is than what quantizing adds to it, at least; else 30 dB."""


@dataclass(frozen=True)
class Plan:
    """How often everything is repeated."""

    replicates: int = REPLICATES
    rounds: int = 5
    budget_s: float = 2.0


QUICK = Plan(replicates=1, rounds=1, budget_s=0.2)


@dataclass(frozen=True)
class Target:
    """What should be reached. Not to be able to measure it is not the same as to miss it."""

    name: str
    at_least: float
    found: float | None
    interval: str = ""
    reason: str = ""

    @property
    def verdict(self) -> str:
        if self.found is None:
            return f"inconclusive: {self.reason}"
        return "met" if self.found >= self.at_least else "missed"


# ---------------------------------------------------------------- check, then time


def check(name: str, mode: str, checked: Checked, exact: np.ndarray) -> float:
    """Give the signal to noise ratio against fp32 in decibels, or end it all."""
    error = np.abs(checked.found - checked.expected).max()
    allowed = ROUNDING * np.abs(checked.expected).max() + MOST_TIES * checked.tie
    if not error <= allowed:  # which NaN is not either
        raise SystemExit(f"{name}: results are off by {error:.1e}, so nothing is timed")
    noise = np.square(checked.found - exact, dtype=np.float64).sum()
    ratio_db = float(10 * np.log10(np.square(exact).sum() / noise))
    if not ratio_db > LEAST_DB.get(mode, 30.0):
        raise SystemExit(f"{name}: signal to noise is {ratio_db:.1f} dB, so nothing is timed")
    return ratio_db


@dataclass
class Benchmark:
    """The tables, and what they found so far."""

    plan: Plan
    only: tuple[str, ...]
    targets: list[Target] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def rows(self, title: str) -> list[Case]:
        return [
            case
            for case in CASES
            if all(text in f"{title}: {case.name} " for text in self.only)  # "batch 1 " ends there
        ]

    # ------------------------------------------------------------ beside our own fp32

    def gains(self) -> None:
        """Compare our quantized layers with our fp32, by our comparer."""
        wanted = {mode: self.rows(f"gain of {mode}") for mode in MODES}
        if not any(wanted.values()):
            return
        set_backend("numba")
        print("\n## Times as fast as our own fp32, by the comparer\n")
        header("layer", "fp32", *MODES)
        for case in CASES:
            modes = [mode for mode in MODES if case in wanted[mode]]
            if modes:
                self._gains_of(case, modes)

    def _gains_of(self, case: Case, modes: list[str]) -> None:
        found: dict[str, Comparison] = {}
        for mode in modes:
            name = f"gain of {mode}: {case.name}"
            check(name, mode, build_ours(case, 0, mode)[1](), draw(case, 0).exact)
            found[mode] = compare_layers(case, mode, self.plan)
            self.raw[name] = found[mode].to_dict()
            if mode == "dynamic" and case in GAINS:
                gain = found[mode]
                self.targets.append(Target(name, GAINS[case], gain.speedup, cell_interval(gain)))
        baseline = next(iter(found.values())).baseline.median
        cells = [gain_cell(found[mode]) if mode in found else "" for mode in MODES]
        row(case.name, time_of(baseline), *cells)

    # ------------------------------------------------------------ beside others

    def beside(self, mode: str) -> None:
        """Compare our layer of a mode with those of the others."""
        cases = self.rows(mode)
        if not cases:
            return
        for rival in FAMILIES[mode]:
            if rival.missing:
                self.missing[f"{rival.name} ({mode})"] = rival.missing
        rivals = [rival for rival in FAMILIES[mode] if not rival.missing]
        print(f"\n## {mode}: times as fast as others\n")
        header("layer", OURS, "Gop/s", *(rival.name for rival in rivals), "signal to noise")
        with ExitStack() as stack:
            ours = stack.enter_context(side(build_ours))
            others = {rival: stack.enter_context(side(rival.build)) for rival in rivals}
            for case in cases:
                self._beside_at(case, mode, ours, others)

    def _beside_at(self, case: Case, mode: str, ours: Side, others: Mapping[Rival, Side]) -> None:
        name = f"{mode}: {case.name}"
        quality: dict[str, float] = {}
        replicates = list(self._replicates(case, mode, ours, others, quality))
        self.raw[name] = {"seconds": replicates, "signal to noise in dB": quality}
        ratios = {
            rival.name: times_as_fast(OURS, rival.name, replicates)
            for rival in others
            if rival.name in replicates[0][0]
        }
        seconds = median_s(OURS, replicates)
        decibels = " / ".join(f"{each:.0f}" for each in quality.values())
        cells = [ratio_cell(ratios.get(rival.name)) for rival in others]
        row(case.name, time_of(seconds), f"{case.operations / seconds / 1e9:.0f}", *cells, decibels)
        if mode != "fp32":
            self.targets.append(fastest_target(name, ratios))

    def _replicates(
        self, case: Case, mode: str, ours: Side, others: Mapping[Rival, Side],
        quality: dict[str, float],
    ) -> Iterator[Replicate]:  # fmt: skip
        """Build all sides anew for each replicate, check them, and let them take turns."""
        sides = {OURS: ours, **{rival.name: each for rival, each in others.items()}}
        modes = {OURS: mode, **{rival.name: rival.mode for rival in others}}
        for seed in range(self.plan.replicates):
            exact = draw(case, seed).exact
            for name, each in sides.items():
                each.start(case, seed, modes[name])
            for name in list(sides):
                try:
                    checked = sides[name].built()
                except Exception as error:  # such as a compiler that it needs and does not find
                    self.missing[f"{name} ({mode})"] = f"{type(error).__name__}: {error}"
                    sides.pop(name)
                else:
                    quality[name] = check(f"{name}, {mode}: {case.name}", mode, checked, exact)
            if OURS not in sides:
                raise SystemExit(f"our own layer failed: {self.missing[f'{OURS} ({mode})']}")
            yield take_turns(sides, self.plan.rounds)


def compare_layers(case: Case, mode: str, plan: Plan) -> Comparison:
    drawn = draw(case, 0)
    return compare(
        our_layer(drawn, "fp32"),
        our_layer(drawn, mode),
        inputs=Tensor(drawn.x),
        budget_s=plan.budget_s,
        precision=0.05,
        evidence=False,
        names=("fp32", mode),
    )


def fastest_target(name: str, ratios: Mapping[str, Ratio]) -> Target:
    """Promise to be as fast as the fastest of the others."""
    if not ratios:
        return Target(name, 1.0, None, reason="nothing to compare with is installed")
    fastest = min(ratios, key=lambda rival: ratios[rival].median)
    ratio = ratios[fastest]
    return Target(f"{name}, beside {fastest}", 1.0, ratio.median, interval(ratio))


# ---------------------------------------------------------------- showing


def time_of(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def ratio_cell(ratio: Ratio | None) -> str:
    return "failed" if ratio is None else f"{ratio.median:.2f} ({interval(ratio)})"


def gain_cell(found: Comparison) -> str:
    return f"{found.speedup:.2f} ({cell_interval(found)})"


def cell_interval(found: Comparison) -> str:
    return f"{found.speedup_low:.2f} to {found.speedup_high:.2f}"


def setting() -> dict[str, Any]:
    described: dict[str, Any] = {
        "threads": THREADS,
        "machine": platform.processor() or platform.machine(),
        "VNNI": "yes" if HAS_VNNI else "no",
        "python": platform.python_version(),
    }
    for name in ("numpy", "numba", "torch", "torchao", "onnx", "onnxruntime"):
        try:
            described[name] = version(name)
        except PackageNotFoundError:
            described[name] = "not installed"
    described["load average before"] = round(os.getloadavg()[0], 1)
    return described


def show_targets(targets: list[Target]) -> None:
    print("\n## Targets\n")
    header("times as fast", "at least", "found", "interval", "verdict")
    for target in targets:
        found = "" if target.found is None else f"{target.found:.2f}"
        row(target.name, target.at_least, found, target.interval, target.verdict)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=(), help='such as dynamic: "batch 1 "')
    parser.add_argument("--quick", action="store_true", help="one turn each; judges nothing")
    parser.add_argument("--json", type=Path, help="write raw values here")
    options = parser.parse_args()
    described = setting()
    print(", ".join(f"{name} {value}" for name, value in described.items()))
    if described["load average before"] > 0.5:
        print("\n**The machine is busy**; threads that wait for each other suffer most from that.")
    benchmark = Benchmark(QUICK if options.quick else Plan(), tuple(options.only))
    benchmark.gains()
    for mode in FAMILIES:
        benchmark.beside(mode)
    for name, reason in benchmark.missing.items():
        print(f"\n- not measured: {name}: {reason}")
    if not benchmark.raw:
        raise SystemExit(f"no row has {' and '.join(options.only)} in its name")
    if options.json:
        found = {
            "missing": benchmark.missing,
            "targets": [{**vars(each), "verdict": each.verdict} for each in benchmark.targets],
            "found": benchmark.raw,
        }
        text = json.dumps({**described, "quick": options.quick, **found}, indent=1)
        options.json.write_text(text)
    return judge(benchmark.targets, is_quick=options.quick)


def judge(targets: list[Target], *, is_quick: bool) -> int:
    if is_quick:
        print("\nOne turn each says nothing about speed, so no target is judged.")
        return 0
    if not HAS_VNNI:
        print("\nThis processor has no VNNI, for which the targets were set; none is judged.")
        return 0
    show_targets(targets)
    verdicts = {target.verdict for target in targets}
    return 1 if "missed" in verdicts else 3 if verdicts - {"met"} else 0


if __name__ == "__main__":
    raise SystemExit(main())
