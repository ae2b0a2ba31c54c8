"""Profiler: parameters, FLOPs, memory, latency and bottleneck of a model; what ran in a block."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tinytorch.core.dispatch import recording
from tinytorch.errors import ModelError, SettingError, check_number
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import fitting_clock, measure_time
from tinytorch.models.adapter import adapter_for, owner_of
from tinytorch.models.costs import COSTS
from tinytorch.models.workload import Workload, call_model
from tinytorch.profiling.flops import (
    SampleFlops,
    as_inputs,
    check_model,
    example_inputs,
    flops_per_sample,
    record_call,
)
from tinytorch.profiling.layers import BACKWARD
from tinytorch.profiling.memory_profiler import MB
from tinytorch.profiling.model_profile import profile_workload
from tinytorch.profiling.profile import MemoryTimeline, Profile, share_of_possible
from tinytorch.profiling.timer import check_count
from tinytorch.showing import profiling_reports

# ---------------------------------------------------------------- what ran inside a block, by
# operation: names that people use, calls and time

# The first word that occurs in the kind of an operation names it, forward and backward alike:
# first what contracts something, all else of which is a matrix multiplication.
PRODUCTS = (
    ("conv", "Convolution"),
    ("attention", "Attention"),
    ("encoder_layer", "Transformer layer"),
    ("rnn", "Recurrent layer"),
    ("lstm", "Recurrent layer"),
    ("gru", "Recurrent layer"),
    ("", "Matrix multiplication"),
)
WORDS = (
    *PRODUCTS[:-1],
    ("layer_norm", "Layer normalization"),
    ("batch_norm", "Batch normalization"),
    ("group_norm", "Group normalization"),
    ("rms_norm", "RMS normalization"),
    ("cross_entropy", "Cross entropy"),
    ("nll_loss", "Cross entropy"),
    ("mse_loss", "Squared error"),
    ("softmax", "Softmax"),
    ("max_pool", "Max pooling"),
    ("avg_pool", "Average pooling"),
    ("embedding", "Embedding look-up"),
    ("dropout", "Dropout"),
    ("gelu", "GELU"),
    ("relu", "ReLU"),
    ("threshold", "ReLU"),  # what PyTorch calls its derivative
    ("silu", "SiLU"),
    ("sigmoid", "Sigmoid"),
    ("tanh", "Tanh"),
    ("adamw", "Adam update"),
    ("adam", "Adam update"),
    ("sgd", "SGD update"),
)
# Operations that the two frameworks call differently, without what stands before the last dot.
PLAIN = {
    "add": "Addition",
    "sub": "Subtraction",
    "subtract": "Subtraction",
    "mul": "Multiplication",
    "multiply": "Multiplication",
    "div": "Division",
    "divide": "Division",
    "neg": "Negation",
    "negative": "Negation",
    "pow": "Power",
    "power": "Power",
    "power_scalar": "Power",
    "sqrt": "Square root",
    "sum": "Sum",
    "mean": "Mean",
    "max": "Maximum",
    "amax": "Maximum",
    "cat": "Concatenation",
    "concatenate": "Concatenation",
    "getitem": "Indexing",
    "index": "Indexing",
    "copy": "Copy",
    "clone": "Copy",
    "_to_copy": "Copy",
    "reshape": "Reshape",
    "view": "Reshape",
    "t": "Transpose",
    "transpose": "Transpose",
}


@dataclass(frozen=True)
class OperationTotal:
    """All operations of one name inside a block; `share` is of the time of all operations."""

    name: str
    kinds: tuple[str, ...]
    calls: int
    seconds: float
    share: float


class OperationTotals:
    """Add up the operations of TinyTorch and, once torch is imported, of PyTorch."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[int, float]] = {}

    def see(self, kind: str, seconds: float) -> None:
        """Count one operation; PyTorch's marks for its own profiler are none."""
        if kind.startswith("profiler."):
            return
        calls, total = self._kinds.get(kind, (0, 0.0))
        self._kinds[kind] = calls + 1, total + seconds

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what this thread runs inside the block."""
        with ExitStack() as watchers:
            watchers.enter_context(recording(lambda call: self.see(call.kind, call.duration)))
            if "torch" in sys.modules:
                from tinytorch.profiling.torch import OperatorClock, load_dispatcher

                load_dispatcher()
                watchers.enter_context(OperatorClock(self.see))
            yield

    @property
    def seconds(self) -> float:
        """The time of all operations together."""
        return sum(seconds for _, seconds in self._kinds.values())

    @property
    def operations(self) -> tuple[OperationTotal, ...]:
        """What ran, slowest first."""
        groups: dict[str, list[str]] = {}
        for kind in self._kinds:
            groups.setdefault(operation_name(kind), []).append(kind)
        everything = self.seconds or 1.0
        totals = []
        for name, kinds in groups.items():
            seconds = sum(self._kinds[kind][1] for kind in kinds)
            calls = sum(self._kinds[kind][0] for kind in kinds)
            totals.append(OperationTotal(name, tuple(kinds), calls, seconds, seconds / everything))
        return tuple(sorted(totals, key=lambda total: (-total.seconds, total.name)))


def operation_name(kind: str) -> str:
    """Return the common name of a kind of operation.

    >>> operation_name("aten.addmm"), operation_name("layer_norm_backward")
    ('Matrix multiplication', 'Layer normalization')
    """
    rule = COSTS.get(kind)
    is_product = rule is not None and rule.family == "contraction"
    for word, name in PRODUCTS if is_product else WORDS:
        if word in kind:
            return name
    own = kind.rpartition(".")[2].removeprefix("_foreach_").removesuffix("_backward")
    return PLAIN.get(own) or own.strip("_").replace("_", " ").capitalize()


# ---------------------------------------------------------------- the numbers of the classic
# reports, taken from recordings and profiles

MS = 1e3
GIGA = 1e9
REPORTED_OPTIMIZERS = ("sgd", "adam", "adamw")


def memory_facts(model: Any, memory: MemoryTimeline) -> dict[str, float]:
    """Return the memory of a recorded call in MB, by bytes of live buffers.

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
    """Return size, speed and memory of a call.

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
    """Return what bounds a call on this machine.

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
    """Return the facts of a training step without its update: forward, and backward of a scalar.

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
    """Return the median seconds of the forward and of the backward pass."""
    backward = [
        sum(call.end - call.start for call in run if call.path == BACKWARD) for run in profile.runs
    ]
    forward = [total - part for total, part in zip(profile.watched.values, backward, strict=True)]
    return _median(forward), _median(backward)


def _median(values: list[float]) -> float:
    return float(np.median(values))


# ---------------------------------------------------------------- profiler: parameters, FLOPs,
# memory, latency and bottleneck of a model; what ran in a block


class Profiler:
    """Measure a model piece by piece, or watch which operations a block runs.

    Models are TinyTorch layers, PyTorch modules or objects with `forward`. They are measured in
    the mode that they are in (train or eval) and left as they were: gradients, buffers and random
    state are put back. Inputs of several arguments are given as a tuple. `budget_s` is about how
    long the methods that measure a profile may take for timing.

    As a context manager it adds up every operation that this thread runs inside the block:

    >>> from tinytorch.core.layers import Linear
    >>> from tinytorch import Tensor
    >>> with Profiler() as p:
    ...     output = Linear(4, 2)(Tensor([[1.0, 2.0, 3.0, 4.0]]))
    >>> [operation.name for operation in p.operations]
    ['Matrix multiplication']
    """

    def __init__(self, *, budget_s: float = 0.5) -> None:
        check_number("budget_s", budget_s, above=0)
        self.budget_s = budget_s
        self.latency: Samples | None = None
        """The seconds behind the last :meth:`measure_latency`."""
        self._totals = OperationTotals()
        self._blocks: list[tuple[ExitStack, float]] = []
        self._elapsed_s: float | None = None

    # ------------------------------------------------------------ one question at a time

    def count_parameters(self, model: Any) -> int:
        """Count what a model learns; shared parameters once."""
        return count_parameters(model)

    def count_flops(self, model: Any, input_shape: Any) -> int:
        """Count the FLOPs of one sample, whatever the batch: contractions, two per MAC."""
        return flops_per_sample(model, example_inputs(model, input_shape)).per_sample

    def measure_memory(self, model: Any, input_shape: Any) -> dict[str, float]:
        """Run the forward pass once and give its memory in MB: see :func:`memory_facts`."""
        recording = record_call(model, *example_inputs(model, input_shape))
        return memory_facts(model, MemoryTimeline(recording.allocations))

    def measure_latency(self, model: Any, x: Any, warmup: int = 10, iterations: int = 100) -> float:
        """Return the median milliseconds of a call without gradients; `latency` has raw values."""
        check_model(model)
        check_count("warmup", warmup, at_least=0)
        check_count("iterations", iterations, at_least=1)
        inputs = as_inputs(x)
        adapter = adapter_for(model, inputs)
        adapter.device(model, inputs)  # refuses inputs that are elsewhere
        with adapter.preserving(model), adapter.without_gradients():
            with adapter.naming_failures(model):
                call_model(model, *inputs)
            self.latency = measure_time(
                lambda: call_model(model, *inputs),
                name=f"{type(model).__name__} latency",
                runs=iterations,
                warmup=warmup,
                clock=fitting_clock(),
            )
        return self.latency.median * MS

    # ------------------------------------------------------------ everything at once

    def profile_layer(self, layer: Any, input_shape: Any) -> dict[str, Any]:
        """Measure type, parameters, FLOPs, latency and memory: see :func:`layer_facts`."""
        inputs = example_inputs(layer, input_shape)
        profile = self._profile(layer, inputs, ceilings=False)
        return layer_facts(layer, profile, flops_per_sample(layer, inputs))

    def profile_forward_pass(self, model: Any, x: Any) -> dict[str, Any]:
        """Measure a call and what bounds it on this machine.

        The keys are those of :func:`layer_facts` and :func:`bound_facts`. The first time on a
        machine its ceilings are measured, which takes some seconds.
        """
        inputs = as_inputs(x)
        check_model(model)
        profile = self._profile(model, inputs)
        return layer_facts(model, profile, flops_per_sample(model, inputs)) | bound_facts(profile)

    def profile_backward_pass(self, model: Any, x: Any) -> dict[str, Any]:
        """Run and time forward and backward of a scalar loss: see :func:`backward_facts`."""
        inputs = as_inputs(x)
        check_model(model)
        profile = self._profile(model, inputs, training=True, optimizer=None)
        return backward_facts(
            profile,
            flops_per_sample(model, inputs),
            flops_per_sample(model, inputs, backward=True),
        )

    def _profile(self, model: Any, inputs: tuple[Any, ...], **settings: Any) -> Profile:
        workload = Workload(type(model).__name__, model, inputs)
        return profile_workload(workload, budget_s=self.budget_s, **settings)

    # ------------------------------------------------------------ what a block runs

    def __enter__(self) -> Self:
        if not self._blocks:
            self._totals = OperationTotals()
        block = ExitStack()
        if not self._blocks:  # entered again inside, its operations are seen already
            block.enter_context(self._totals.watching())
        self._blocks.append((block, perf_counter()))
        return self

    def __exit__(self, *exception: object) -> None:
        block, begun = self._blocks.pop()
        self._elapsed_s = perf_counter() - begun
        block.close()

    @property
    def elapsed(self) -> float:
        """Milliseconds of the block, watching included; inside it, milliseconds so far."""
        if self._blocks:
            return (perf_counter() - self._blocks[0][1]) * MS
        if self._elapsed_s is None:
            raise SettingError("no block was watched yet; use `with Profiler() as p:`")
        return self._elapsed_s * MS

    @property
    def operations(self) -> tuple[OperationTotal, ...]:
        """The operations of TinyTorch and PyTorch that ran in the block, slowest first."""
        return self._totals.operations

    def print_top_operations(self, n: int = 10) -> None:
        """Print the `n` slowest operations with their share of the time of all operations."""
        check_count("n", n, at_least=1)
        reports = profiling_reports()
        reports.show(reports.render_top_operations(self.operations, self.elapsed / MS, n))


# ---------------------------------------------------------------- quick_profile: the most
# important numbers of a model, printed and returned


def quick_profile(model: Any, x: Any, profiler: Profiler | None = None) -> dict[str, Any]:
    """Profile the forward pass of a model, print the result, and return it.

    It is what :meth:`Profiler.profile_forward_pass` gives.
    """
    facts = (profiler or Profiler()).profile_forward_pass(model, x)
    reports = profiling_reports()
    reports.show(reports.render_quick_profile(facts))
    return facts


# ---------------------------------------------------------------- weights

SMALL = {"0001": 0.001, "001": 0.01, "01": 0.1}
"""Thresholds by the end of their key."""


def parameter_tensors(model: Any) -> list[Any]:
    """Return the parameters of a model, each tensor once: from `parameters()`, or by inspection.

    A bound method learns what its owner does, a function what the models that it uses do.
    """
    model = owner_of(model)
    listed = getattr(model, "parameters", None)
    found = list(listed()) if callable(listed) else list(_found_inside(model))
    return list({id(tensor): tensor for tensor in found}.values())


def count_parameters(model: Any) -> int:
    """Count the numbers that a model learns; what is shared counts once."""
    return sum(math.prod(tensor.shape) for tensor in parameter_tensors(model))


def parameter_bytes(model: Any) -> int:
    """Return the bytes of the parameters."""
    return sum(int(tensor.data.nbytes) for tensor in parameter_tensors(model))


def analyze_weight_distribution(
    model: Any, percentiles: Sequence[float] = (10, 25, 50, 75, 90)
) -> dict[str, Any]:
    """Describe how large the weights of a model are, all parameters together.

    Everything is about magnitudes, ``|w|``: `mean`, `std`, `min`, `max`, `percentile_N` for each N,
    and `below_threshold_0001`, `_001`, `_01`, the percentage (0 to 100) of weights with a magnitude
    below 0.001, 0.01 and 0.1. `signed_mean`, `signed_min` and `signed_max` are of the weights
    themselves, `zeros` counts those that are exactly zero.
    """
    for each in percentiles:
        check_number("percentile", each, least=0, most=100)
    arrays = [_as_array(tensor).ravel() for tensor in parameter_tensors(model)]
    if not sum(array.size for array in arrays):
        raise ModelError(f"{type(model).__name__} has no weights: no parameters() and none inside")
    weights = np.concatenate(arrays)
    sizes = np.abs(weights)
    stats = {
        "total_weights": int(sizes.size),
        "mean": float(sizes.mean()),
        "std": float(sizes.std()),
        "min": float(sizes.min()),
        "max": float(sizes.max()),
    }
    stats |= {f"percentile_{each}": float(np.percentile(sizes, each)) for each in percentiles}
    stats |= {
        f"below_threshold_{key}": 100 * float(np.mean(sizes < limit))
        for key, limit in SMALL.items()
    }
    return stats | {
        "signed_mean": float(weights.mean()),
        "signed_min": float(weights.min()),
        "signed_max": float(weights.max()),
        "zeros": int(np.count_nonzero(weights == 0)),
    }


def _found_inside(model: Any) -> Iterator[Any]:
    """Find the parameters of an object that does not list them, by the names the adapter gives."""
    adapter = adapter_for(model)
    modules = adapter.modules(model)
    for spec in adapter.parameters(model):
        if not spec.is_buffer:
            tensor = modules[spec.path]
            for part in spec.name.removeprefix(spec.path).strip(".").split("."):
                tensor = _member(tensor, part)
            yield tensor


def _member(holder: Any, name: str) -> Any:
    if isinstance(holder, (list, tuple)):
        return holder[int(name)]
    return holder[name] if isinstance(holder, dict) else getattr(holder, name)


def _as_array(tensor: Any) -> npt.NDArray[np.float64]:
    if hasattr(tensor, "cpu"):  # PyTorch; NumPy does not know its bfloat16
        tensor = tensor.detach().double().cpu().numpy()
    values = getattr(tensor, "data", tensor)
    return np.asarray(tensor if isinstance(values, memoryview) else values, dtype=np.float64)


# ---------------------------------------------------------------- what training needs in memory,
# from the number of parameters

OPTIMIZER_STATES: Mapping[str, int] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""How many numbers an optimizer keeps for each parameter between steps."""
ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class TrainingMemory(int):
    """A number of bytes that knows what it is made of. It is computed, not measured."""

    weights: int
    gradients: int
    optimizer_state: int
    activations: int

    def __new__(
        cls, weights: int, gradients: int, optimizer_state: int, activations: int = 0
    ) -> Self:
        self = super().__new__(cls, weights + gradients + optimizer_state + activations)
        self.weights = weights
        self.gradients = gradients
        self.optimizer_state = optimizer_state
        self.activations = activations
        return self

    def __getnewargs__(self) -> tuple[int, int, int, int]:  # type: ignore[override]
        return self.weights, self.gradients, self.optimizer_state, self.activations

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by what they are for; they add up to the total."""
        return {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer_state": self.optimizer_state,
            "activations": self.activations,
        }

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={size:,}" for name, size in self.parts.items())
        return f"TrainingMemory({int(self):,} bytes: {parts})"


def training_memory(
    parameters: int | Any,
    optimizer: str = "adam",
    dtype: str = "float32",
    activations: int = 0,
) -> TrainingMemory:
    """Return the bytes that training holds between and inside of steps.

    `parameters` is a number, or a model to count them of. Weights, gradients and what the
    optimizer keeps (sgd nothing, momentum one number per parameter, adam and adamw two) all have
    `dtype`. `activations` are bytes, which depend on the batch: measure them. Copies of weights in
    another dtype, buffers and what the allocator wastes are not in it.

    >>> training_memory(125_000_000, optimizer="adam") == 2e9
    True
    """
    if optimizer.lower() not in OPTIMIZER_STATES:
        raise SettingError(f"optimizer={optimizer!r}; there are {', '.join(OPTIMIZER_STATES)}")
    if dtype not in ITEM_BYTES:
        raise SettingError(f"dtype={dtype!r}; there are {', '.join(ITEM_BYTES)}")
    count = _whole("parameters", parameters if _is_number(parameters) else _count(parameters))
    size = count * ITEM_BYTES[dtype]
    state = OPTIMIZER_STATES[optimizer.lower()] * size
    return TrainingMemory(size, size, state, _whole("activations", activations))


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or hasattr(value, "__index__")


def _whole(name: str, value: Any) -> int:
    """Return a whole number, which may be given as a float such as 125e6."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    check_count(name, value, at_least=0)
    return int(value)


def _count(model: Any) -> int:
    if not hasattr(model, "parameters") and not hasattr(model, "forward"):
        raise SettingError(f"parameters={model!r}; give a whole number, or a model")
    return count_parameters(model)
