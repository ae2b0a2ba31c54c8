"""The catalog: what can be tried on a model, in a table that can be read from top to bottom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any, Literal

from tinytorch.errors import SettingError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload
from tinytorch.transforms.capture_graph import CaptureGraph
from tinytorch.transforms.channels_last import ChannelsLast
from tinytorch.transforms.compile_model import CompileModel
from tinytorch.transforms.compiled_kernels import CompiledKernels
from tinytorch.transforms.fold_batch_norm import FoldBatchNorm
from tinytorch.transforms.fuse_attention import FuseAttention
from tinytorch.transforms.fuse_layers import FuseLayers
from tinytorch.transforms.inference_mode import InferenceMode
from tinytorch.transforms.low_rank import LowRank
from tinytorch.transforms.lower_precision import LowerPrecision
from tinytorch.transforms.plan import Transform
from tinytorch.transforms.prune import Prune
from tinytorch.transforms.quantize import Quantize
from tinytorch.transforms.remove_channels import RemoveChannels
from tinytorch.transforms.remove_layers import RemoveLayers
from tinytorch.transforms.set_threads import SetThreads
from tinytorch.transforms.sparse_layers import SparseLayers
from tinytorch.transforms.static_generation import StaticGeneration
from tinytorch.transforms.tensor_float32 import TensorFloat32

__all__ = [
    "CATALOG",
    "GOALS",
    "INFERENCE_MODE",
    "Entry",
    "Goal",
    "Risk",
    "entries_for",
    "find_entries",
    "left_out",
    "risk_of",
]

Goal = Literal["latency", "throughput", "memory", "size"]
GOALS: tuple[Goal, ...] = ("latency", "throughput", "memory", "size")
INFERENCE_MODE = "inference-mode"
"""What a user gets by calling the model in another way; results show what it brings alone."""
Risk = Literal["exact", "rounding", "approximate"]
RISKS: tuple[Risk, ...] = ("exact", "rounding", "approximate")
"""From the smallest to the largest."""
TIME, BYTES, ALL = (
    frozenset({"latency", "throughput"}),
    frozenset({"memory", "size"}),
    frozenset(GOALS),
)


@dataclass(frozen=True)
class Entry:
    """One thing to try: transforms that belong together, in their order.

    Entries of one `role` are rivals: a stack has at most one of each. `place` is where it stands
    in a stack. `risk` says what happens to the outputs: nothing but the order of sums ("exact"),
    numbers with fewer bits ("rounding"), or another function ("approximate"), which is tried only
    where somebody can say how good a model is. What `is_slow` to carry out is tried last, so that
    it cannot spend the time of the others. `made_for` names the class of models
    that it is for alone, where there is one, and there it comes first; `made_by` says who makes
    such a model.
    """

    name: str
    transforms: tuple[Transform, ...]
    role: str
    place: int
    risk: Risk
    serves: frozenset[str]
    about: str
    frameworks: tuple[str, ...] = ("core", "pytorch")
    devices: tuple[str, ...] = ("cpu", "cuda")
    is_slow: bool = False
    made_for: str = ""
    made_by: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Give what it is called and what it does, ready for JSON."""
        transforms = [
            {"transform": type(each).__name__, "settings": asdict(each)}  # type: ignore[call-overload]
            for each in self.transforms
        ]
        return {"name": self.name, "transforms": transforms, "risk": self.risk}


# fmt: off
CATALOG: tuple[Entry, ...] = (
    # what the model is made of
    Entry("fewer-channels", (RemoveChannels(macs=0.5),), "structure", 1, "approximate", ALL,
          "remove the channels that matter least, until half of the multiply-accumulates are left"),
    Entry("fewer-layers", (RemoveLayers(count=1),), "structure", 1, "approximate", ALL,
          "remove the block that matters least"),
    Entry("fold-batch-norm", (FoldBatchNorm(),), "norms", 2, "exact", ALL,
          "fold batch norms into the convolutions before them", ("pytorch",)),
    Entry("fused-attention", (FuseAttention(),), "attention", 2, "exact", ALL,
          "compute attention in one kernel where a model writes it out", ("pytorch",)),
    Entry("fused-layers", (FuseLayers(),), "fusing", 6, "exact", TIME,
          "compute neighbouring layers in one pass", ("core",)),
    # the numbers that it holds
    Entry("low-rank", (LowRank(energy=0.95),), "factors", 3, "approximate", ALL,
          "write weights as products of two smaller matrices"),
    Entry("pruned-sparse", (Prune(sparsity=0.8), SparseLayers()), "numbers", 4, "approximate", ALL,
          "set four of five weights to zero, and skip them where that is faster", ("core",),
          is_slow=True),
    Entry("int8-dynamic", (Quantize(mode="dynamic"),), "numbers", 4, "rounding", ALL,
          "hold weights in 8 bits and multiply in integers"),
    Entry("int8-static", (Quantize(mode="static"),), "numbers", 4, "rounding", ALL,
          "the same, with ranges known from calibration data"),
    Entry("int8-weights", (Quantize(mode="weight_only"),), "numbers", 4, "rounding", ALL,
          "hold weights in 8 bits and multiply in floats"),
    Entry("int4-weights", (Quantize(mode="weight_only", bits=4),), "numbers", 4, "rounding", ALL,
          "hold weights in 4 bits, in groups"),
    Entry("bfloat16-layers", (LowerPrecision(how="layers"),), "numbers", 4, "rounding", ALL,
          "multiply in bfloat16, keep the rest in float32", ("pytorch",)),
    Entry("bfloat16", (LowerPrecision(),), "numbers", 4, "rounding", ALL,
          "hold and compute everything in bfloat16", ("pytorch",)),
    Entry("tf32", (TensorFloat32(),), "numbers", 4, "rounding", TIME,
          "multiply float32 numbers as TF32", ("pytorch",), ("cuda",)),
    # how they lie in memory and how the model is called
    Entry("channels-last", (ChannelsLast(),), "layout", 5, "exact", TIME,
          "keep the channels of a pixel together", ("pytorch",)),
    Entry("threads", (SetThreads(),), "threads", 7, "exact", TIME,
          "compute with as many threads as is fastest", ("pytorch",), ("cpu",)),
    Entry(INFERENCE_MODE, (InferenceMode(),), "calling", 8, "exact", ALL,
          "do without the book-keeping for gradients", ("pytorch",)),
    Entry("compiled-kernels", (CompiledKernels(),), "kernels", 9, "exact", TIME,
          "compute with kernels compiled for this machine", ("core",)),
    Entry("compiled", (CompileModel(),), "kernels", 9, "exact", TIME,
          "let torch.compile fuse operations", ("pytorch",), is_slow=True),
    Entry("captured", (CaptureGraph(),), "kernels", 9, "exact", TIME,
          "launch all kernels of a call at once", ("pytorch",), ("cuda",), is_slow=True),
    Entry("compiled-captured", (CaptureGraph(compile=True),), "kernels", 9, "exact", TIME,
          "fuse operations and launch them at once", ("pytorch",), ("cuda",), is_slow=True),
    Entry("static-generation", (StaticGeneration(),), "kernels", 9, "exact", TIME,
          "generate with a cache that is allocated once, and a compiled step", ("pytorch",),
          made_for="Generation", made_by="tinytorch.perf.memoization.generation_call"),
)
# fmt: on


def entries_for(
    workload: Workload,
    goal: str,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    catalog: Sequence[Entry] = CATALOG,
) -> tuple[Entry, ...]:
    """Give what can be tried on a workload for a goal, in the order of the catalog.

    Where nothing is left of what somebody asked for, the error says why.
    """
    reasons = _reasons(workload, goal, only, skip, catalog)
    if only and reasons and all(reasons.values()):
        raise SettingError(f"there is nothing to try: {'; '.join(_told(reasons))}")
    return tuple(each for each, reason in reasons.items() if not reason)


def left_out(
    workload: Workload,
    goal: str,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    catalog: Sequence[Entry] = CATALOG,
) -> tuple[str, ...]:
    """Say of each entry that was named in `only` and does not fit why it is not tried."""
    return tuple(_told(_reasons(workload, goal, only, skip, catalog))) if only else ()


def _reasons(
    workload: Workload,
    goal: str,
    only: Sequence[str],
    skip: Sequence[str],
    catalog: Sequence[Entry],
) -> dict[Entry, str]:
    """Give what is wanted, each with why it does not fit, or nothing where it does."""
    adapter = adapter_for(workload.model, workload.arguments)
    device = adapter.device(workload.model, workload.arguments).partition(":")[0]
    unwanted = find_entries(skip, catalog)
    wanted = [x for x in (find_entries(only, catalog) if only else catalog) if x not in unwanted]
    kind = type(workload.model).__name__
    return {each: _why_not(each, goal, adapter.name, device, kind) for each in wanted}


def _told(reasons: Mapping[Entry, str]) -> list[str]:
    return [f"{each.name} {reason}" for each, reason in reasons.items() if reason]


def _why_not(entry: Entry, goal: str, framework: str, device: str, kind: str) -> str:
    """Say why an entry is not for this goal or this model, or nothing."""
    if framework not in entry.frameworks:
        return f"is for models of {' and '.join(entry.frameworks)}, and this is one of {framework}"
    if device not in entry.devices:
        return f"is for {' and '.join(entry.devices)}, and this model is on {device}"
    if entry.made_for not in ("", kind):
        return f"is for a {entry.made_for}, which {entry.made_by} makes, and this is a {kind}"
    return "" if goal in entry.serves else f"does nothing for the goal {goal}"


def risk_of(entries: Sequence[Entry]) -> Risk:
    """Return the risk of a stack: the largest of its entries'."""
    return max((each.risk for each in entries), key=RISKS.index, default="exact")


def find_entries(names: Sequence[str], catalog: Sequence[Entry] = CATALOG) -> tuple[Entry, ...]:
    """Give the entries of these names."""
    known = {each.name: each for each in catalog}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise SettingError(f"nothing in the catalog is called {name!r}; {hint}")
    return tuple(known[name] for name in names)
