"""RemoveLayers: the transform that makes a model shallower, by the layers that it misses least."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.errors import SettingError
from tinytorch.perf.compression.missed_layers import (
    Removed,
    choose_layers,
    staying_layers,
    steps_of,
)
from tinytorch.perf.compression.removable_layers import (
    LayerSurvey,
    OutputChange,
    remove_items,
    survey_layers,
)
from tinytorch.workloads.kept_layers import checked_patterns, idle_patterns
from tinytorch.workloads.observing import check_no_cache
from tinytorch.workloads.plan import Gain, Plan
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload, check_workload

__all__ = ["RemoveLayers"]

NAME = "RemoveLayers"
NO_SPEEDUP = "how long a layer takes depends on the machine and the inputs; compare() measures it"


@dataclass(frozen=True)
class RemoveLayers:
    """Remove whole layers, such as the blocks of a transformer: those that are missed least.

    What can go are items of lists of layers (`Sequential.layers`, `GPT.blocks`, any list in a
    module) that multiply by a weight of two or more axes, as linear layers and convolutions do, and
    give what they take: a tensor of the same shape. Norms alone stay, as they hold next to nothing.
    What a layer is worth is how much the outputs change without it, measured on the calibration
    data, or on the inputs where there is none: `count` times over, each time without those that are
    gone already. keep: patterns of layers that stay.
    """

    count: int = 1
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 1:
            raise SettingError(f"count is a number of layers, at least 1, got {self.count!r}")
        object.__setattr__(self, "keep", checked_patterns(self.keep))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Take layers away one by one, and see what the outputs do, on copies of the model."""
        check_workload(workload)
        if adapter_for(workload.model, workload.arguments).name == "pytorch":
            from tinytorch.perf.compression.remove_layers_torch import plan_torch

            return plan_torch(workload, self)
        check_no_cache(adapter_for(workload.model).modules(workload.model))
        survey = survey_layers(workload, self.keep)
        removed: Removed = []
        alone: dict[str, float] = {}
        if survey.candidates:
            judge = OutputChange(workload)
            alone = self._measured_alone(survey, judge)
            removed = choose_layers(survey, judge, alone, count=self.count)
        return self._as_plan(workload, survey, removed, alone)

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a copy of the model whose lists are shorter."""
        plan.check_made_by(NAME, self.to_dict())
        adapter = adapter_for(workload.model, workload.arguments)
        if adapter.name == "pytorch":
            from tinytorch.perf.compression.remove_layers_torch import apply_torch

            return apply_torch(workload, plan, self)
        check_no_cache(adapter.modules(workload.model))
        return remove_items(adapter.clone(workload.model), plan.layers)

    def _measured_alone(self, survey: LayerSurvey, judge: OutputChange) -> dict[str, float]:
        """Measure each candidate; those that cannot be taken out of their list are none."""
        alone: dict[str, float] = {}
        for path in list(survey.candidates):
            change, reason = judge.without((path,))
            if reason:
                survey.reject(path, reason)
            else:
                alone[path] = change
        return alone

    def _as_plan(
        self,
        workload: Workload,
        survey: LayerSurvey,
        removed: Removed,
        alone: dict[str, float],
    ) -> Plan:
        steps = steps_of(removed, alone)
        staying = staying_layers(survey, alone, [path for path, _ in removed])
        notes = idle_patterns(self.keep, survey.parts, change="removed")
        if len(removed) < self.count:
            notes += (too_few(len(removed), self.count),)
        return Plan(
            NAME,
            self.to_dict(),
            steps,
            (*survey.skipped, *staying),
            shrinkage=_shrinkage(workload, [step.layer for step in steps]),
            not_predicted={"speedup": NO_SPEEDUP},
            notes=notes,
        )


def _shrinkage(workload: Workload, gone: list[str]) -> Gain | None:
    if not gone:
        return None
    adapter = adapter_for(workload.model, workload.arguments)
    smaller = remove_items(adapter.clone(workload.model), gone)
    before, after = (
        sum(each.nbytes for each in adapter.parameters(model))
        for model in (workload.model, smaller)
    )
    return Gain.counted(before, after, "counted on a copy")


def too_few(found: int, count: int) -> str:
    """Say that fewer layers can go than were asked for."""
    if not found:
        return "no layer can be removed"
    layers = "1 layer" if found == 1 else f"{found:,} layers"
    return f"only {layers} can be removed, {count:,} were asked for"
