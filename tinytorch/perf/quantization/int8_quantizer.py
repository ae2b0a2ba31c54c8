"""INT8Quantizer: calibrate, then quantize a model."""

from __future__ import annotations

from typing import Any, Self

from tinytorch.errors import SettingError
from tinytorch.perf.quantization.calibration import observe_layers
from tinytorch.perf.quantization.calibration_result import Calibration
from tinytorch.perf.quantization.quantize import Quantize
from tinytorch.workloads.plan import Plan
from tinytorch.workloads.samples import Batches, as_batches
from tinytorch.workloads.workload import Workload

__all__ = ["INT8Quantizer", "workload_of"]


class INT8Quantizer:
    """Quantizes models to INT8: ``INT8Quantizer().calibrate(batches).quantize(model)``.

    With calibration data inputs are quantized by fixed ranges (`static`), without by what they are
    (`dynamic`), unless `mode` says otherwise. Other settings are those of :class:`Quantize`. After
    :meth:`quantize`, `plan` says what was done to which layer and why.
    """

    def __init__(self, mode: str | None = None, **settings: Any) -> None:
        if settings.get("bits", 8) != 8:
            raise SettingError("INT8 has eight bits; Quantize('weight_only', bits=4) has four")
        Quantize(mode or "dynamic", **settings)  # wrong settings are told here
        self.mode = mode
        self.settings = settings
        self.batches: Batches = ()
        self.plan: Plan | None = None

    def calibrate(self, samples: Any) -> Self:
        """Remember typical inputs: a tensor, an array, batches of them, or a data loader."""
        self.batches = as_batches(samples)
        if not self.batches:
            raise SettingError(
                "the calibration data is empty; give some typical inputs from the training data"
            )
        return self

    @property
    def transform(self) -> Quantize:
        """The transform that does it."""
        mode = self.mode or ("static" if self.batches else "dynamic")
        return Quantize(mode, **self.settings)

    def statistics(self, model: Any) -> Calibration:
        """Give what the inputs of each layer look like on the calibration data."""
        seen = observe_layers(model, self.batches)
        return Calibration(seen, len(self.batches), self.transform.ranges)

    def quantize(self, model: Any) -> Any:
        """Give a quantized copy of a model, which stays as it is."""
        workload = workload_of(model, self.batches)
        self.plan = self.transform.plan(workload)
        return self.transform.apply(workload, self.plan)


def workload_of(model: Any, batches: Batches) -> Workload:
    """Give a model with its calibration data as a workload; the first batch is its input."""
    inputs = batches[0] if batches else ()
    return Workload(type(model).__name__, model, inputs, calibration=batches)
