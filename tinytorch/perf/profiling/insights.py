"""Sentences about a measurement, each from something that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinytorch.measure.ceilings import Ceilings
from tinytorch.measure.roofline import Bound, classify_bound
from tinytorch.measure.samples import Samples
from tinytorch.workloads.profile_facts import share_of_possible

__all__ = ["Work", "find_insights", "work_bound"]

MOST = 0.5
"""What makes up more than half of something is worth a sentence."""
NOTABLE_TAIL = 2.0
"""A slowest value so many times the median is not what a user usually sees."""


@dataclass(frozen=True)
class Work:
    """What a call computes and moves.

    `flops` are contractions, two per multiply-accumulate, `other_flops` everything else. Bytes are
    None where they are not known.
    """

    flops: int
    other_flops: int = 0
    bytes_moved: int | None = None
    working_set_bytes: int | None = None
    dtype: str = "float32"


def find_insights(
    samples: Samples | None = None,
    memory: Mapping[str, Any] | None = None,
    work: Work | None = None,
    *,
    ceilings: Ceilings | None = None,
) -> tuple[str, ...]:
    """Say what the facts say: about the roofline, the variance, and the pattern of allocation."""
    found: list[str] = []
    if samples is not None and work is not None:
        found += _about_speed(samples, work, ceilings)
    if samples is not None:
        found += _about_variance(samples)
    if memory is not None:
        found += _about_memory(memory)
    return tuple(found)


def work_bound(samples: Samples, work: Work, ceilings: Ceilings | None) -> Bound | None:
    """Place a call under the roofline; None where bytes or the machine's peak are not known."""
    peak = ceilings.peak_flops(work.dtype) if ceilings else None
    if ceilings is None or peak is None or not work.bytes_moved or samples.median <= 0:
        return None
    flops = work.flops + work.other_flops
    return classify_bound(
        achieved=flops / samples.median,
        peak=peak,
        bandwidth=ceilings.bandwidth(work.working_set_bytes),
        intensity=flops / work.bytes_moved,
    )


def _about_speed(samples: Samples, work: Work, ceilings: Ceilings | None) -> list[str]:
    bound = work_bound(samples, work, ceilings)
    if bound is not None and not bound.intensity:
        share = share_of_possible(bound, work.bytes_moved or 0, samples.median)
        return [str(bound), f"reaches {_percent(share or 0.0)} of this machine's bandwidth"]
    if bound is not None:
        limit = "moving bytes" if bound.is_memory_bound else "computing"
        side = "below" if bound.is_memory_bound else "above"
        return [
            f"{bound.bound}-bound: {bound.intensity:.2g} FLOP per byte is {side} this machine's "
            f"ridge of {bound.ridge:.2g}, so {limit} is the limit",
            f"reaches {_percent(bound.of_attainable)} of what the machine allows at this "
            f"intensity, {_percent(bound.efficiency)} of its peak",
        ]
    peak = ceilings.peak_flops(work.dtype) if ceilings else None
    if peak and samples.median > 0 and work.flops:
        reached = _percent(work.flops / samples.median / peak)
        return [
            f"reaches {reached} of this machine's {work.dtype} peak; without the bytes that it "
            "moves nobody can say what limits it"
        ]
    return []


def _percent(share: float) -> str:
    """Write a share of 1; what is there but tiny is not shown as nothing."""
    return f"{share:.1%}" if share >= 0.001 else "less than 0.1%"


def _about_variance(samples: Samples) -> list[str]:
    if samples.count == 1:
        return ["timed once: nothing can be said about how much the time varies"]
    found = [samples.stability.note]
    tail = samples.maximum / samples.median if samples.median > 0 else 1.0
    if tail > NOTABLE_TAIL:
        outliers = samples.outliers.high_mild + samples.outliers.high_severe
        found.append(
            f"the slowest of {samples.count} runs took {tail:.1f} times the median "
            f"({outliers} slow outliers), so the mean of {samples.mean * 1e3:.3g} ms misleads"
        )
    return found


def _about_memory(memory: Mapping[str, Any]) -> list[str]:
    peak = memory["peak_mb"] - memory["baseline_mb"]
    kept = memory["allocated_mb"]
    if kept < 0:
        return [f"frees {-kept:.2f} MB more than it allocates"]
    if peak <= 0:
        return ["allocates nothing on the host"]
    temporary = (peak - kept) / peak
    if temporary > MOST:
        return [
            f"{temporary:.0%} of the {peak:.2f} MB at the peak is freed again: temporaries decide "
            "the memory that it needs"
        ]
    return [f"keeps {kept:.2f} MB of the {peak:.2f} MB at its peak, the result included"]
