"""Which batch size, which sequence length? Answered by measuring growing ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from tinytorch.measure.disturbance import observe
from tinytorch.perf.acceleration.size_advice import SizeAdvice
from tinytorch.perf.acceleration.size_process import CannotSendError, SizeProcess
from tinytorch.perf.acceleration.size_search import (
    SHARE_HERE,
    Progress,
    SearchSettings,
    SizeSearch,
)
from tinytorch.perf.acceleration.size_trial import SizeTrial
from tinytorch.workloads.targets import load_workload
from tinytorch.workloads.workload import Workload, check_workload

__all__ = ["advise_batch_size", "advise_sequence_length"]

Bench = SizeProcess | SizeTrial

TWICE = (
    "the device holds the model twice, here and in the process that was measured; a target such as "
    "file.py:factory leaves more room"
)


def advise_batch_size(
    workload: Workload | str,
    *,
    sizes: Sequence[int] | None = None,
    latency_limit_s: float | None = None,
    memory_limit_bytes: int | None = None,
    budget_s: float = 30.0,
    tolerance: float = 0.1,
    axis: int | None = None,
    progress: Progress | None = None,
) -> SizeAdvice:
    """Measure growing batches, and say which one to use and which one still fits into memory.

    The workload, or the one that a target such as ``"gpt"`` names, is measured in a process of its
    own, whose inputs are made of the example inputs: 1, 2, 4, ... of them, or `sizes`. It may run
    out of memory without harm: on a processor it gets at most 80% of what is free, on a GPU 95%. A
    workload that no other process can have is measured here, up to half of the free memory.
    `memory_limit_bytes` is compared with the peak of each size: everything that was held while the
    model ran.

    A size within `tolerance` of the best throughput is as good as the best. `budget_s` is for
    measuring; loading the model comes on top. `axis` is where examples are counted, if not first.
    """
    settings = SearchSettings(sizes, latency_limit_s, memory_limit_bytes, budget_s, tolerance)
    return _advise(workload, "batch", axis, settings, progress)


def advise_sequence_length(
    workload: Workload | str,
    *,
    sizes: Sequence[int] | None = None,
    latency_limit_s: float | None = None,
    memory_limit_bytes: int | None = None,
    budget_s: float = 30.0,
    tolerance: float = 0.1,
    axis: int | None = None,
    progress: Progress | None = None,
) -> SizeAdvice:
    """Measure growing sequences at the batch of the example inputs: tokens per second, memory.

    Everything else is as for :func:`advise_batch_size`. `axis` is where tokens are counted, if not
    second. The ceiling may be that of the model, which has only so many positions.
    """
    settings = SearchSettings(sizes, latency_limit_s, memory_limit_bytes, budget_s, tolerance)
    return _advise(workload, "sequence", axis, settings, progress)


def _advise(
    source: Workload | str,
    kind: str,
    axis: int | None,
    settings: SearchSettings,
    progress: Progress | None,
) -> SizeAdvice:
    if not isinstance(source, str):
        check_workload(source, "advice about sizes")
    with ExitStack() as stack:
        bench, reason = _bench(source, kind, axis, progress)
        stack.callback(bench.close)
        stack.enter_context(bench.environment())
        search = SizeSearch(bench, kind, settings, progress)
        before = observe()
        search.check_own_size()
        search.set_memory_limit()
        limited_by = search.climb()
        points = search.measure(limited_by)
        ceiling = search.find_ceiling(limited_by)
        doubts = observe().doubts_since(before, is_computing=not bench.is_isolated)
    facts = bench.facts
    return SizeAdvice(
        name=facts.name,
        framework=facts.framework,
        device=facts.device,
        axis=kind,
        unit="examples" if kind == "batch" else "tokens",
        usual=facts.usual,
        points=points,
        ceiling=ceiling,
        limited_by=limited_by,
        tolerance=settings.tolerance,
        latency_limit_s=settings.latency_limit_s,
        memory_limit_bytes=settings.memory_limit_bytes,
        is_isolated=bench.is_isolated,
        notes=tuple(dict.fromkeys([*reason, *facts.notes, *search.notes, *doubts])),
    )


def _bench(
    source: Workload | str, kind: str, axis: int | None, progress: Progress | None
) -> tuple[Bench, list[str]]:
    """Give the place where sizes are tried, and what to know about it."""
    name = source if isinstance(source, str) else source.name
    loading = (lambda: progress.describe(f"{name}: loading")) if progress else lambda: None
    try:
        process = SizeProcess(source, kind, axis, while_waiting=loading)
        is_twice = not isinstance(source, str) and process.facts.device.startswith("cuda")
        return process, [TWICE] if is_twice else []
    except CannotSendError as error:
        workload = load_workload(source) if isinstance(source, str) else source
        note = f"measured in this process, up to {SHARE_HERE:.0%} of the free memory: {error}"
        return SizeTrial(workload, kind, axis), [note]
