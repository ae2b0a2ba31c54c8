"""SetThreads: the transform that gives a PyTorch model the number of threads it is fastest with."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.errors import SettingError
from tinytorch.workloads.plan import Plan, Skipped
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload, check_workload

__all__ = ["SetThreads"]

NAME = "SetThreads"
OF_CORE = "it is a model of core; threads are set for PyTorch models"


@dataclass(frozen=True)
class SetThreads:
    """Let a PyTorch model on a processor compute with another number of threads than the process.

    Small models are often fastest with one: waking the others takes longer than the work. Without
    `threads` the plan measures 1, 2, 4, ... up to the usable cores in turns, in about `budget_s`
    (longer where nine calls of each take longer), and takes the fastest that is shown to beat the
    present number. A number that is given is taken, and what it does is measured.

    The number belongs to the Python thread that calls. Another one that computes for the first time
    meanwhile, without such a model, takes the number over.
    """

    threads: int | None = None
    budget_s: float = 1.0

    def __post_init__(self) -> None:
        number: Any = self.threads
        is_whole = isinstance(number, int) and not isinstance(number, bool)
        if number is not None and not (is_whole and number > 0):
            raise SettingError(f"threads={number!r}; it must be a whole number from 1 on, or None")
        if not 0 < self.budget_s < math.inf:
            raise SettingError(f"budget_s={self.budget_s}; measuring needs some seconds")

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Race numbers of threads against the present one, on a copy of the model."""
        check_workload(workload)
        if adapter_for(workload.model, workload.arguments).name != "pytorch":
            return Plan(NAME, asdict(self), (), (Skipped("", OF_CORE),))
        from tinytorch.perf.acceleration.set_threads_torch import plan_threads

        return plan_threads(workload, self)

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a copy of the model that is called with this number of threads."""
        plan.check_made_by(NAME, asdict(self))
        check_workload(workload)
        copy = adapter_for(workload.model, workload.arguments).clone(workload.model)
        if plan.is_empty:
            return copy
        from tinytorch.perf.acceleration.set_threads_torch import ThreadedModel

        return ThreadedModel(copy, plan.steps[0].settings["threads"])
