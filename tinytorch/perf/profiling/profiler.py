"""Profiler: parameters, FLOPs, memory, latency and bottleneck of a model; what ran in a block."""

from __future__ import annotations

from contextlib import ExitStack
from time import perf_counter
from typing import Any, Self

from tinytorch.adapters.adapter import adapter_for
from tinytorch.errors import SettingError
from tinytorch.measure.device_clock import fitting_clock
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import measure_time
from tinytorch.perf.profiling.example_inputs import as_inputs, check_model, example_inputs
from tinytorch.perf.profiling.flops import record_call
from tinytorch.perf.profiling.model_facts import (
    backward_facts,
    bound_facts,
    layer_facts,
    memory_facts,
)
from tinytorch.perf.profiling.model_profile import profile_workload
from tinytorch.perf.profiling.operation_totals import OperationTotal, OperationTotals
from tinytorch.perf.profiling.per_sample import flops_per_sample
from tinytorch.perf.profiling.timer import check_count
from tinytorch.perf.profiling.weights import count_parameters
from tinytorch.showing import profiling_reports
from tinytorch.workloads.memory_timeline import MemoryTimeline
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload, call_model

__all__ = ["Profiler"]

MS = 1e3


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
        if not budget_s > 0:
            raise SettingError(f"budget_s={budget_s}: a measurement needs some time")
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
        """Give the median milliseconds of a call without gradients; raw values in `latency`."""
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
        """Give type, parameters, FLOPs, latency and memory: see :func:`layer_facts`."""
        inputs = example_inputs(layer, input_shape)
        profile = self._profile(layer, inputs, ceilings=False)
        return layer_facts(layer, profile, flops_per_sample(layer, inputs))

    def profile_forward_pass(self, model: Any, x: Any) -> dict[str, Any]:
        """Give the facts of a call and what limits it on this machine.

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
