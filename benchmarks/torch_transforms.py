"""Transforms of PyTorch models, each proved by the comparer: on a CPU, or on a CUDA device.

    python benchmarks/torch_transforms.py [--device cuda] [--only NAME ...] [--quick]
                                          [--limit SECONDS] [--json FILE]

BERT-base, ViT-B/16, GPT-2 small and ResNet-50 from configs of transformers, with random weights.
Every transform plans on the workload and is carried out; then the comparer checks the outputs and
times the eager float32 model and the candidate in turns. A speedup is the time of the eager model
over that of the candidate, with a 95% interval: above 1 the candidate is faster. On a device these
are single calls by the wall clock, synchronised before and after each. What was done once
(compiling, capturing) is no part of it; it has a column of its own, and so has planning, which does
it for the first time: torch keeps much of what it compiled then. The error of outputs is that of
the worst one: as the norm of the difference over the norm, and the largest over the largest.

On a CPU, TINYTORCH_BENCHMARK_THREADS sets the threads. `--limit` is for each section, of which the
most important come first; one that fails does not keep the others from running. Needs torch and
transformers.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from torch_sections import run_torch_sections

# isort: split
import torch
from generation_tables import header, row
from quantization_tables import Target, at_least, below
from torch_transform_cases import TEXT_AND_IMAGES, gpt2, resnet, trained_resnet

from tinytorch import Workload, compare
from tinytorch.comparison.comparison import Comparison
from tinytorch.transforms.capture_graph import CaptureGraph
from tinytorch.transforms.channels_last import ChannelsLast
from tinytorch.transforms.compile_model import CompileModel
from tinytorch.transforms.fold_batch_norm import FoldBatchNorm
from tinytorch.transforms.fuse_attention import FuseAttention
from tinytorch.transforms.inference_mode import InferenceMode
from tinytorch.transforms.lower_precision import LowerPrecision
from tinytorch.transforms.set_threads import SetThreads
from tinytorch.transforms.tensor_float32 import TensorFloat32

LEAST_SPEEDUP, MOST_ERROR = 1.5, 1e-2
MOST_GPT2_MS, MOST_RESNET_MS = 0.88, 4.1
LEAST_AGREEMENT = 0.99
IMAGES = 64
COLUMNS = (
    "model",
    "transform",
    "eager",
    "candidate",
    "speedup",
    "verdict",
    "error: norm",
    "largest",
)
COLUMNS += ("top-1", "planning", "once", "pays after")
WIDEST_REASON = 110


@dataclass(frozen=True)
class Effort:
    """How much is done; what is not judged says nothing."""

    budget_s: float = 8.0
    precision: float | None = 0.03
    is_judged: bool = True


QUICK = Effort(budget_s=0.3, precision=None, is_judged=False)


@dataclass
class Benchmark:
    """The sections, and what they found so far."""

    effort: Effort
    device: str
    targets: list[Target] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def is_quick(self) -> bool:
        return not self.effort.is_judged

    def judge(self, target: Target) -> None:
        """Keep a target; tiny models say nothing about it."""
        is_judged = self.effort.is_judged
        self.targets.append(target if is_judged else replace(target, verdict="inconclusive"))

    # ------------------------------------------------------------ on a CPU

    def precision(self) -> None:
        """Half the bits: bfloat16 in layers, and everywhere."""
        header(*COLUMNS)
        for make in TEXT_AND_IMAGES.values():
            case = make(self.is_quick)
            found = [
                self.measure(case, f"bfloat16, {how}", LowerPrecision(how=how))
                for how in ("layers", "convert")
            ]
            exact = [each for each in found if each and norm_error(each) <= MOST_ERROR]
            name = f"{case.name}: speedup with an error of at most {MOST_ERROR:g}"
            best = max((each.speedup_low for each in exact), default=0.0)
            self.judge(at_least(f"{name}, low end", LEAST_SPEEDUP, best))

    def compiled(self) -> None:
        """Compiled: by itself, with packed weights, and after half the bits."""
        header(*COLUMNS)
        for make in TEXT_AND_IMAGES.values():
            case = make(self.is_quick)
            self.measure(case, "compiled", CompileModel())
            self.measure(case, "compiled, frozen", CompileModel(freeze=True))
            half = LowerPrecision(how="layers")
            self.measure(case, "bfloat16 in layers, compiled", half, CompileModel())

    def attention(self) -> None:
        """Attention computed by hand, fused."""
        header(*COLUMNS)
        for make in TEXT_AND_IMAGES.values():
            case = make(self.is_quick, self.device, attention="eager")
            self.measure(case, "fused attention", FuseAttention())

    def calling(self) -> None:
        """Called in another way: inference mode, another number of threads."""
        header(*COLUMNS)
        for make in TEXT_AND_IMAGES.values():
            case = make(self.is_quick)
            self.measure(case, "inference mode", InferenceMode())
            self.measure(case, "threads", SetThreads())

    def images(self) -> None:
        """Convolutions: batch norms folded, channels last."""
        header(*COLUMNS)
        case = resnet(self.is_quick)
        self.measure(case, "batch norms folded", FoldBatchNorm())
        self.measure(case, "channels last", ChannelsLast())
        self.measure(case, "both", FoldBatchNorm(), ChannelsLast())
        half = LowerPrecision(how="convert", tolerance=0.1)
        self.measure(case, "both, bfloat16", FoldBatchNorm(), half, ChannelsLast())

    # ------------------------------------------------------------ on a CUDA device

    def launches(self) -> None:
        """GPT-2 forward, 1 x 64: compiled, captured, both."""
        header(*COLUMNS)
        case = gpt2(self.is_quick, self.device)
        best = math.inf
        for name, transforms in {
            "TF32, compiled and captured": [TensorFloat32(), CaptureGraph(compile=True)],
            "TF32, captured": [TensorFloat32(), CaptureGraph()],
            "compiled and captured": [CaptureGraph(compile=True)],
            "captured": [CaptureGraph()],
            "captured, outputs not copied": [CaptureGraph(copy_outputs=False)],
            "compiled": [CompileModel()],
            "compiled, reduce-overhead": [CompileModel(mode="reduce-overhead")],
        }.items():
            found = self.measure(case, name, *transforms)
            if found:
                best = min(best, found.candidate.median * 1e3)
        self.judge(below("GPT-2 forward, 1 x 64, float32 or TF32: ms", MOST_GPT2_MS, best))

    def half_launches(self) -> None:
        """GPT-2 forward, 1 x 64, in bfloat16: captured, and compiled as well."""
        header(*COLUMNS)
        case = gpt2(self.is_quick, self.device)
        half = LowerPrecision()
        self.measure(case, "bfloat16, compiled and captured", half, CaptureGraph(compile=True))
        self.measure(case, "bfloat16, captured", half, CaptureGraph())

    def convolutions(self) -> None:
        """ResNet-50 with 64 images: half the bits, channels last, compiled, captured."""
        header(*COLUMNS)
        batch = 4 if self.is_quick else IMAGES
        case = trained_resnet(self.is_quick, self.device, batch)
        folded, half, last = FoldBatchNorm(), LowerPrecision(tolerance=0.1), ChannelsLast()
        best: Comparison | None = None
        for name, transforms in {
            "bfloat16, channels last, compiled": (half, last, CompileModel()),
            "the same, batch norms folded": (folded, half, last, CompileModel()),
            "the same, captured": (folded, half, last, CaptureGraph(compile=True)),
            "bfloat16, channels last": (half, last),
            "channels last": (last,),
            "batch norms folded": (folded,),
        }.items():
            found = self.measure(case, name, *transforms)
            if found is None or found.is_accurate is not True:
                continue
            if best is None or found.candidate.median < best.candidate.median:
                best = found
        milliseconds = best.candidate.median * 1e3 if best else math.inf
        self.judge(below("ResNet-50, 64 images, as accurate: ms", MOST_RESNET_MS, milliseconds))
        agreement = best.outputs.top1_agreement if best and best.outputs else None
        name = "ResNet-50: same prediction as float32"
        self.judge(at_least(name, LEAST_AGREEMENT, agreement or 0.0))

    # ------------------------------------------------------------ one row

    def measure(self, case: Workload, name: str, *transforms: Any) -> Comparison | None:
        """Carry out transforms one after the other and compare; None where that is not possible."""
        clear_up()
        try:
            return self._measure(case, name, transforms)
        except Exception as error:  # the other rows are still worth having
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:WIDEST_REASON]
            row(case.name, name, f"failed: {reason}")
            self.targets.append(Target(f"{case.name}: {name}", "measured", reason, "inconclusive"))
            return None

    def _measure(self, case: Workload, name: str, transforms: Sequence[Any]) -> Comparison | None:
        changed, notes, planning_s = case, [], 0.0
        for transform in transforms:
            started = perf_counter()
            plan = transform.plan(changed)
            planning_s += perf_counter() - started
            if plan.is_empty:
                reason = "; ".join(dict.fromkeys(each.reason for each in plan.skipped))
                row(case.name, name, f"not applied: {reason[:WIDEST_REASON]}")
                self.raw[f"{case.name}: {name}"] = {"not_applied": reason}
                return None
            notes += plan.notes
            changed = replace(changed, model=transform.apply(changed, plan))
        effort = self.effort
        found = compare(
            case,
            changed,
            budget_s=effort.budget_s,
            precision=effort.precision,
            names=("eager", name),
        )
        facts = {"plan_notes": notes, "planning_s": planning_s}
        self.raw[f"{case.name}: {name}"] = found.to_dict() | facts
        row(case.name, name, *cells(found, planning_s))
        return found


def clear_up() -> None:
    """Forget what was compiled for the last row, and give its memory back."""
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# ---------------------------------------------------------------- cells


def norm_error(found: Comparison) -> float:
    """Give the norm of the difference over the norm of what was expected, of the worst output."""
    decibels = found.outputs.sqnr_db if found.outputs and not found.outputs.broken else None
    return math.inf if decibels is None else 10 ** (-decibels / 20)


def time_cells(found: Comparison) -> tuple[str, ...]:
    times = (f"{each.median * 1e3:.3g} ms" for each in (found.baseline, found.candidate))
    low, high = found.speedup_low, found.speedup_high
    return *times, f"{found.speedup:.2f} ({low:.2f} to {high:.2f}, n={found.n})", found.verdict


def cells(found: Comparison, planning_s: float) -> tuple[str, ...]:
    outputs, pays = found.outputs, found.break_even
    assert outputs is not None
    verdict = found.verdict
    if outputs.broken:
        verdict = f"broken: {outputs.broken}"
    elif found.accuracy is not None:
        verdict += f", {found.accuracy.verdict} ({found.accuracy.candidate_mean:.1%} right)"
    largest, top1 = outputs.max_relative_error, outputs.top1_agreement
    once = sum(each.seconds for each in found.preparations[1])
    return (
        *time_cells(found)[:3],
        verdict,
        f"{norm_error(found):.1e}",
        "-" if largest is None else f"{largest:.1e}",
        "-" if top1 is None else f"{top1:.1%}",
        f"{planning_s:.1f} s",
        f"{once:.1f} s" if once else "-",
        f"{math.ceil(pays.calls):,} calls" if pays else "-",
    )


# ---------------------------------------------------------------- all of it

ON_CPU: dict[str, Callable[[Benchmark], None]] = {
    "precision": Benchmark.precision,
    "compiled": Benchmark.compiled,
    "attention": Benchmark.attention,
    "calling": Benchmark.calling,
    "images": Benchmark.images,
}
ON_CUDA: dict[str, Callable[[Benchmark], None]] = {
    "launches": Benchmark.launches,
    "half_launches": Benchmark.half_launches,
    "convolutions": Benchmark.convolutions,
    "attention": Benchmark.attention,
}


def main() -> int:
    return run_torch_sections(
        ON_CPU | ON_CUDA,
        lambda is_quick, device: Benchmark(QUICK if is_quick else Effort(), device),
        about=__doc__,
        quick="tiny models and little time; no time means anything.",
        devices={"cpu": list(ON_CPU), "cuda": list(ON_CUDA)},
    )


if __name__ == "__main__":
    raise SystemExit(main())
