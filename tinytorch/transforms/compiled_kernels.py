"""CompiledKernels: the transform that lets a faster backend compute a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tinytorch.core.dispatch import KernelCall, active_backend, use_backend
from tinytorch.core.kernels import NUMPY, Backend
from tinytorch.core.module import Module
from tinytorch.errors import BackendError
from tinytorch.models.workload import Workload
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.kernel_choice import (
    prepared,
    recorded_calls,
    set_model_backend,
)
from tinytorch.transforms.plan import TIME, Plan, Skipped, Step, Transform, Variant

NOT_PREDICTED = {
    "speedup": "it depends on the sizes of the operations; compare() measures it",
    "shrinkage": "the same parameters are held",
}


@dataclass(frozen=True)
class CompiledKernels(Transform):
    """Run a model on a backend with compiled kernels.

    The plan names the layers whose operations the backend computes in another way than `numpy`;
    the others are skipped. A speedup is predicted only from choices that were measured here before
    (``OptimizedBackend().tune(...)``).
    """

    variants = (
        Variant(
            "compiled-kernels",
            "kernels compiled for this machine",
            cost="the first call of each kernel compiles it, and the result is cached",
        ),
    )
    role, place, order = "kernels", 9, 170
    risk, serves = "exact", TIME
    frameworks = ("core",)
    follows_weights = True
    may_compete = True

    backend: str = "numba"

    @property
    def missing_extras(self) -> tuple[str, ...]:
        return ("fast",) if self.backend == "numba" and find_spec("numba") is None else ()

    def make_plan(self, workload: Workload, profile: Profile | None) -> Plan:
        """Find the layers that run on compiled kernels. The model is called a few times."""
        try:
            with use_backend(self.backend) as backend:
                pass
        except BackendError as error:
            return self.skipping(str(error))
        if not isinstance(workload.model, Module):
            return self.skipping(f"{workload.name} is no Module; backends compute these")
        with prepared(workload) as running, use_backend(NUMPY):
            steps, skipped = _by_layer(recorded_calls(running), backend)
        is_active = active_backend().name == backend.name
        note = f"this process computes with {backend.name} already: against it nothing is gained"
        return self.planned(
            steps,
            skipped,
            not_predicted=NOT_PREDICTED,
            notes=(note,) if is_active else (),
        )

    def change(self, model: Any, workload: Workload, plan: Plan) -> Any:
        set_model_backend(model, self.backend)
        return model


def _is_replaced(kind: str, backend: Backend) -> bool:
    return backend.kernels[kind] is not NUMPY.kernels[kind]


def _by_layer(
    calls: Sequence[KernelCall], backend: Backend
) -> tuple[tuple[Step, ...], tuple[Skipped, ...]]:
    kinds: dict[str, dict[str, None]] = {}
    for call in calls:
        kinds.setdefault(call.path or "", {})[call.kind] = None
    steps, skipped = [], []
    for layer, its_kinds in kinds.items():
        replaced = [kind for kind in its_kinds if _is_replaced(kind, backend)]
        if replaced:
            what = f"{', '.join(replaced)} by {backend.name}"
            steps.append(Step(layer, what, "the backend has its own kernels for these"))
        else:
            same = f"{backend.name} computes {', '.join(its_kinds)} as numpy does"
            skipped.append(Skipped(layer, same))
    return tuple(steps), tuple(skipped)
