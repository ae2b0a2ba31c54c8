"""Sensitivity: how much each layer changes the outputs when it alone is quantized."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinytorch.codec import Coded
from tinytorch.core.kernels import Array
from tinytorch.errors import SettingError
from tinytorch.models.adapter import Adapter, adapter_for
from tinytorch.models.workload import Workload, call_model
from tinytorch.showing import Shown
from tinytorch.transforms.plan import Gain, Plan, Skipped, Step, Transform

OnLayer = Callable[[int, int, str], None]
Unit = tuple[Step, ...]
"""Steps that are carried out together or not at all."""


@dataclass(frozen=True)
class LayerSensitivity:
    """What quantizing one layer does to the outputs of the model.

    error: the change of the outputs over their size (both root mean squares); top1_change: the
    share of rows whose largest output is in another place, None where outputs are no rows;
    bytes_saved: how much less the model then holds.
    """

    layer: str
    what: str
    error: float
    top1_change: float | None
    bytes_saved: int


@dataclass(frozen=True)
class Sensitivity(Coded, Shown):
    """The layers of a model in the order of a plan, and all of them quantized together."""

    layers: tuple[LayerSensitivity, ...]
    together: LayerSensitivity
    batches: int

    @property
    def worst_first(self) -> tuple[LayerSensitivity, ...]:
        """Return the layers that change the outputs most, first."""
        return tuple(sorted(self.layers, key=lambda each: -each.error))

    @property
    def largest_error(self) -> float:
        """The largest error that is a number, of one layer or of all together."""
        errors = [each.error for each in (*self.layers, self.together)]
        return max((error for error in errors if math.isfinite(error)), default=0.0)

    def share(self, layer: LayerSensitivity) -> float:
        """Return an error as a share of the largest one."""
        if not math.isfinite(layer.error):
            return 1.0
        return layer.error / self.largest_error if layer.error else 0.0


def measure_sensitivity(
    workload: Workload,
    transform: Transform,
    plan: Plan | None = None,
    *,
    on_layer: OnLayer | None = None,
) -> Sensitivity:
    """Quantize each layer of a plan alone, and see how far the outputs move.

    The outputs are those of the calibration data, or of the example inputs where there is none.
    `on_layer(done, all, layer)` is told how far it is.
    """
    plan = transform.plan(workload) if plan is None else plan
    judge = _Judge(workload, transform, plan)
    units = _units(plan)
    found = []
    for number, unit in enumerate(units):
        if on_layer is not None:
            on_layer(number, len(units), _name(unit))
        found.append(judge.of_unit(unit))
    return Sensitivity(tuple(found), judge.of(plan.steps), batches=len(judge.calls))


def within_error(workload: Workload, transform: Any, plan: Plan) -> Plan:
    """Spare layers until the outputs change by at most `transform.max_error`.

    Those go first that change the outputs most for each byte that they save: from four bits to
    eight, and if that is not enough, to floats. What is judged in the end is the whole model,
    measured, not a sum over layers.
    """
    judge, limit = _Judge(workload, transform, plan), transform.max_error
    together = judge.of(plan.steps)
    if plan.is_empty or together.error <= limit:
        return plan
    measured = [(unit, judge.of_unit(unit)) for unit in _units(plan)]
    measured.sort(key=lambda pair: -_harm(pair[1]))
    ranked = [unit for unit, _ in measured]
    wider: list[Unit] = []
    if judge.adapter.name == "core" and transform.bits == 4:
        wider = [_widened(unit, alone.error, limit) for unit, alone in measured]
    if wider and judge.of(_joined(wider)).error <= limit:
        count = _fewest(
            len(ranked), lambda n: judge.of(_joined(wider[:n] + ranked[n:])).error <= limit
        )
        steps, kept = _joined(wider[:count] + ranked[count:]), measured[:0]
    else:
        rest = wider or ranked
        count = _fewest(len(rest), lambda n: judge.of(_joined(rest[n:])).error <= limit)
        steps, kept = _joined(rest[count:]), measured[:count]
    final = judge.of(steps)
    by_layer = {step.layer: step for step in steps}
    note = (
        f"all layers as asked would change the outputs by {together.error:.2%}, these change them "
        f"by {final.error:.2%} (calibration data)"
    )
    hurts = tuple(
        Skipped(step.layer, _hurts(alone.error, limit)) for unit, alone in kept for step in unit
    )
    return replace(
        plan,
        steps=tuple(by_layer[step.layer] for step in plan.steps if step.layer in by_layer),
        skipped=plan.skipped + hurts,
        shrinkage=judge.shrinkage(final) if steps else None,
        notes=(*plan.notes, note),
    )


def _units(plan: Plan) -> list[Unit]:
    """Group the steps of layers that share a weight: one alone would hold it twice."""
    units: dict[str, list[Step]] = {}
    for step in plan.steps:
        units.setdefault(step.settings.get("shares_with", step.layer), []).append(step)
    return [tuple(steps) for steps in units.values()]


def _joined(units: Iterable[Unit]) -> list[Step]:
    return [step for unit in units for step in unit]


def _name(steps: Iterable[Step]) -> str:
    return " and ".join(step.layer for step in steps)


def _fewest(most: int, is_enough: Callable[[int], bool]) -> int:
    """Return the smallest number that is enough, where `most` is known to be."""
    low, high = 0, most  # too few, enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _hurts(error: float, limit: float) -> str:
    return (
        f"quantized alone it changes the outputs by {error:.2%}; with it the model would be beyond "
        f"max_error={limit:g}"
    )


def _widened(unit: Unit, error: float, limit: float) -> Unit:
    """Return the steps with eight bits instead of four."""
    return tuple(
        replace(
            step,
            what="INT8 weight",
            why=f"{step.why}; with four bits the model would be beyond max_error={limit:g}",
            settings={
                **{key: value for key, value in step.settings.items() if key != "group_size"},
                "bits": 8,
                "error_with_int4": error,
            },
        )
        if step.settings.get("bits") == 4
        else step
        for step in unit
    )


def _harm(layer: LayerSensitivity) -> float:
    """Squared, because the errors of layers add up like noise."""
    return layer.error**2 / max(1, layer.bytes_saved)


class _Judge:
    """Compares a model with parts of a plan carried out to the model itself."""

    def __init__(self, workload: Workload, transform: Any, plan: Plan) -> None:
        if not workload.calibration and not workload.arguments:
            raise SettingError(
                "how much outputs change is seen on calibration data, and there is none; give the "
                "workload `calibration`, or inputs"
            )
        self.calls = workload.calibration_calls or (workload.call,)
        self._workload, self._transform, self._plan = workload, transform, plan
        self.adapter: Adapter = adapter_for(workload.model, workload.arguments)
        self._before = self.adapter.held_bytes(workload.model)
        self._expected = self._outputs(self.adapter.clone(workload.model))

    def of(self, steps: Sequence[Step]) -> LayerSensitivity:
        """Measure a model in which only these steps were carried out."""
        if not steps:
            return LayerSensitivity("no layers", "as it is", 0.0, None, 0)
        part = replace(self._plan, steps=tuple(steps))
        model = self._transform.apply(self._workload, part)
        error, change = _difference(self._expected, self._outputs(model))
        saved = self._before - self.adapter.held_bytes(model)
        return LayerSensitivity(f"{len(steps)} layers", "together", error, change, saved)

    def of_unit(self, unit: Unit) -> LayerSensitivity:
        """Measure a model in which only one layer, and those tied to it, are quantized."""
        return replace(self.of(unit), layer=_name(unit), what=unit[0].what)

    def shrinkage(self, final: LayerSensitivity) -> Gain:
        """Return how many times fewer bytes the chosen layers leave, which were counted."""
        ratio = self._before / (self._before - final.bytes_saved)
        return Gain(ratio, ratio, ratio, 1.0, basis="bytes held, counted on a quantized copy")

    def _outputs(self, model: Any) -> list[Array]:
        self.adapter.switch_to_eval(model)
        arrays: list[Array] = []
        with self.adapter.plain_calls(model):
            for call in self.calls:
                inputs = self.adapter.copy_inputs(call.arguments)
                output = call_model(model, *inputs, **call.keywords)
                arrays += [a for a in self.adapter.arrays(output) if a.dtype.kind == "f"]
        if not arrays:
            raise SettingError(
                "the model returns no floating-point numbers, so it is unknown how much "
                "quantizing a layer changes them"
            )
        return arrays


def _difference(expected: Iterable[Array], found: Iterable[Array]) -> tuple[float, float | None]:
    """Return the relative error over all outputs, and the share of rows with another maximum."""
    signal = noise = 0.0
    moved = rows = 0
    for one, other in zip(expected, found, strict=True):
        exact = one.astype(np.float64)
        signal += float(np.square(exact).sum())
        noise += float(np.square(exact - other).sum())
        if one.ndim >= 2 and one.shape[-1] >= 2:
            moved += int((one.argmax(axis=-1) != other.argmax(axis=-1)).sum())
            rows += math.prod(one.shape[:-1])
    if not math.isfinite(noise):
        return math.inf, moved / rows if rows else None
    if noise == 0:
        return 0.0, 0.0 if rows else None
    error = math.sqrt(noise / signal) if signal else math.inf
    return error, moved / rows if rows else None
