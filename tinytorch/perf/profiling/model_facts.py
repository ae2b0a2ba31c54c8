"""The numbers of the classic reports, taken from recordings and profiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytorch.adapters.adapter import owner_of
from tinytorch.perf.profiling.block_memory import MB
from tinytorch.perf.profiling.per_sample import SampleFlops
from tinytorch.perf.profiling.training_bytes import OPTIMIZER_STATES
from tinytorch.perf.profiling.weights import count_parameters, parameter_bytes
from tinytorch.workloads.memory_timeline import MemoryTimeline
from tinytorch.workloads.profile import BACKWARD, Profile
from tinytorch.workloads.profile_facts import share_of_possible

__all__ = ["backward_facts", "bound_facts", "layer_facts", "memory_facts"]

MS = 1e3
GIGA = 1e9
REPORTED_OPTIMIZERS = ("sgd", "adam", "adamw")


def memory_facts(model: Any, memory: MemoryTimeline) -> dict[str, float]:
    """Give the memory of a recorded call in MB, by bytes of live buffers.

    `activation_memory_mb` is the most that the call itself held at once, `peak_memory_mb` adds what
    was there before: parameters, buffers and inputs. `memory_efficiency` is parameters plus
    activations over that peak. Scratch memory inside of an operation is not seen.
    """
    parameters, activations = parameter_bytes(model), memory.peak_activation_bytes
    peak = memory.peak_bytes
    return {
        "parameter_memory_mb": parameters / MB,
        "activation_memory_mb": activations / MB,
        "peak_memory_mb": peak / MB,
        "memory_efficiency": (parameters + activations) / peak if peak else 0.0,
    }


def layer_facts(model: Any, profile: Profile, flops: SampleFlops) -> dict[str, Any]:
    """Give size, speed and memory of a call.

    `flops` are of one sample, two per multiply-accumulate, contractions only; `flops_per_call` are
    of the whole batch, and `gflops_per_second` is these over the median latency.
    """
    latency, interval = profile.latency.median, profile.latency.median_interval()
    return {
        "layer_type": type(owner_of(model)).__name__,
        "parameters": count_parameters(model),
        "flops": flops.per_sample,
        "flops_per_call": flops.per_call,
        "batch_size": flops.batch_size,
        "latency_ms": latency * MS,
        "latency_ci_low_ms": interval.low * MS,
        "latency_ci_high_ms": interval.high * MS,
        "gflops_per_second": flops.per_call / latency / GIGA,
        **memory_facts(model, profile.memory),
        "not_counted": {each.kind: each.calls for each in profile.not_counted},
        "notes": profile.notes,
    }


def bound_facts(profile: Profile) -> dict[str, Any]:
    """Say what limits a call on this machine.

    `memory_bandwidth_mbs` is the bytes that operations read and wrote over the latency, in MB/s.
    `achieved_gflops_per_second` is the rate of all work, elementwise work included.
    `computational_efficiency` is that rate over the measured peak for the dtype,
    `attainable_efficiency` over what the roofline allows at the model's `arithmetic_intensity`
    (FLOP per byte). Nothing is clamped. What cannot be said is None, and `bound_note` has the
    reason.
    """
    bound, latency = profile.model_bound, profile.latency.median
    return {
        "memory_bandwidth_mbs": profile.bytes_moved / latency / MB,
        "achieved_gflops_per_second": (profile.flops + profile.other_flops) / latency / GIGA,
        "arithmetic_intensity": bound.intensity if bound else None,
        "computational_efficiency": bound.efficiency if bound else None,
        "attainable_efficiency": share_of_possible(bound, profile.bytes_moved, latency),
        "is_memory_bound": bound.is_memory_bound if bound else None,
        "is_compute_bound": bound.is_compute_bound if bound else None,
        "bottleneck": bound.bound if bound else None,
        "bound_note": str(bound) if bound else _why_unbounded(profile),
    }


def _why_unbounded(profile: Profile) -> str:
    if not profile.operations:
        return "no operation of TinyTorch or PyTorch ran, so there is nothing to judge"
    if not profile.bytes_moved:
        return "no operation that ran has bytes in the cost table"
    return f"the peak of this machine for {profile.dtype} was not measured"


def backward_facts(profile: Profile, forward: SampleFlops, both: SampleFlops) -> dict[str, Any]:
    """Give the facts of a training step without its update: forward, and backward of a scalar.

    FLOPs are per sample, rates of the whole batch. Latencies are medians over the watched calls,
    and the total is their sum. `forward_memory_mb` is the peak of the forward pass, which keeps
    what the backward pass needs; `total_memory_mb` the peak of both. What optimizers would keep on
    top is computed from the trainable parameters, in MB.
    """
    forward_s, backward_s = _phase_medians(profile)
    early = [
        each for each in profile.recording.allocations if each.phase in ("resident", "forward")
    ]
    kept = [each for each in profile.recording.allocations if each.category == "gradients"]
    trained = sum(each.nbytes for each in profile.parameters if each.is_trainable)
    bound = profile.model_bound
    return {
        "forward_flops": forward.per_sample,
        "forward_latency_ms": forward_s * MS,
        "forward_memory_mb": MemoryTimeline(tuple(early)).peak_bytes / MB,
        "backward_flops": both.per_sample - forward.per_sample,
        "backward_latency_ms": backward_s * MS,
        "gradient_memory_mb": sum(each.nbytes for each in kept) / MB,
        "total_flops": both.per_sample,
        "total_flops_per_call": both.per_call,
        "batch_size": both.batch_size,
        "total_latency_ms": (forward_s + backward_s) * MS,
        "total_memory_mb": profile.memory.peak_bytes / MB,
        "total_gflops_per_second": both.per_call / (forward_s + backward_s) / GIGA,
        "optimizer_memory_estimates": {
            name: OPTIMIZER_STATES[name] * trained / MB for name in REPORTED_OPTIMIZERS
        },
        "bottleneck": bound.bound if bound else None,
        "bound_note": str(bound) if bound else _why_unbounded(profile),
        "not_counted": {each.kind: each.calls for each in profile.not_counted},
        "notes": profile.notes,
    }


def _phase_medians(profile: Profile) -> tuple[float, float]:
    """Give the median seconds of the forward and of the backward pass."""
    backward = [
        sum(call.end - call.start for call in run if call.path == BACKWARD) for run in profile.runs
    ]
    forward = [total - part for total, part in zip(profile.watched.values, backward, strict=True)]
    return _median(forward), _median(backward)


def _median(values: list[float]) -> float:
    return float(np.median(values))
