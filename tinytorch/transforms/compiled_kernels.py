"""CompiledKernels: the transform that lets a faster backend compute a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from time import perf_counter
from typing import Any

from tinytorch.core.dispatch import KernelCall, active_backend, use_backend
from tinytorch.core.kernels import NUMPY, REFERENCE, Backend
from tinytorch.core.module import Module
from tinytorch.errors import BackendError
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.estimate import Estimate
from tinytorch.models.workload import Workload
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.kernel_choice import (
    Choice,
    Key,
    choices_file,
    class_of,
    implementations,
    load_choices,
    prepared,
    recorded_calls,
    set_model_backend,
)
from tinytorch.transforms.plan import TIME, Gain, Plan, Skipped, Step, Transform, Variant

SAME_BYTES = "the same parameters are held"
CALLS = 3


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
            running.run()  # what is done once is no part of what repeats
            seconds = min(_timed(running) for _ in range(CALLS))
            calls = min((recorded_calls(running) for _ in range(CALLS)), key=_kernel_seconds)
        steps, skipped = _by_layer(calls, backend)
        gain, reason = _predicted(calls, backend, whole_s=seconds)
        unknown = {"shrinkage": SAME_BYTES} | ({} if gain else {"speedup": reason})
        is_active = active_backend().name == backend.name
        note = f"this process computes with {backend.name} already: against it nothing is gained"
        return self.planned(
            steps,
            skipped,
            speedup=gain,
            not_predicted=unknown,
            notes=(note,) if is_active else (),
        )

    def change(self, model: Any, workload: Workload, plan: Plan) -> Any:
        set_model_backend(model, self.backend)
        return model


def _timed(workload: Workload) -> float:
    started = perf_counter()
    workload.run()
    return perf_counter() - started


def _kernel_seconds(calls: Sequence[KernelCall]) -> float:
    return sum(call.duration for call in calls)


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


# ---------------------------------------------------------------- predicting from measured choices


def _predicted(
    calls: Sequence[KernelCall], backend: Backend, *, whole_s: float
) -> tuple[Gain | None, str]:
    """Predict the speedup from the measured speedups of all operations."""
    choices = load_choices(choices_file(describe_environment().fingerprint))
    affected = [call for call in calls if _is_replaced(call.kind, backend)]
    if not affected:
        return None, f"{backend.name} computes nothing of this model in another way than numpy"
    ratios = [_time_ratio(choices, class_of(call), backend) for call in affected]
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < len(ratios):
        missing = len(ratios) - len(known)
        return None, (
            f"{missing} of {len(ratios)} operations have no measured ratio on this machine; "
            "OptimizedBackend().tune(workload) measures them"
        )
    changed = _kernel_seconds(affected)
    rest = max(0.0, whole_s - changed)
    before = rest + changed

    def speedup(which: str) -> float:
        pairs = zip(affected, known, strict=True)
        after: float = rest + sum(call.duration * getattr(ratio, which) for call, ratio in pairs)
        return before / after

    basis = f"{len(known)} operations by what was measured for their size classes"
    return Gain(speedup("value"), speedup("high"), speedup("low"), basis=basis), ""


def _time_ratio(choices: Mapping[Key, Choice], key: Key, backend: Backend) -> Estimate | None:
    """Return the time of a backend's kernel over that of numpy's for a size class, if measured."""
    choice = choices.get(key)
    if choice is None:
        return None
    names = implementations(key[0], (REFERENCE, NUMPY, backend))
    of_numpy = next(name for name, each in names.items() if each is NUMPY.kernels[key[0]])
    ours, theirs = _relative(choice, backend.name), _relative(choice, of_numpy)
    if ours is None or theirs is None:
        return None
    return Estimate(ours.value / theirs.value, ours.low / theirs.high, ours.high / theirs.low)


def _relative(choice: Choice, name: str) -> Estimate | None:
    """Return the time of an implementation over that of the chosen one."""
    return Estimate.counted(1.0) if name == choice.chosen else choice.against(name)
