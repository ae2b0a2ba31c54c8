"""PinnedTransfers: inputs go to a CUDA device through memory that the device can read by itself."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.errors import SettingError
from tinytorch.workloads.plan import Plan, Skipped
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload, check_workload

__all__ = ["PinnedTransfers", "prefetching"]

NAME = "PinnedTransfers"
OF_CORE = "it is a model of core; transfers are for PyTorch models on a CUDA device"


@dataclass(frozen=True)
class PinnedTransfers:
    """Copy inputs from the processor to a model on a CUDA device without waiting for each copy.

    Each input goes through a buffer of pinned memory, from which the device fetches it while the
    program goes on. Buffers are used again for inputs of the same shapes, and only once the device
    has fetched what is in them. The plan compares that with the plain `.to(device)` in turns, and
    names it only where it is shown to be faster.
    """

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Try it on a copy of the model, if that is on a CUDA device and its inputs are not."""
        check_workload(workload)
        if adapter_for(workload.model, workload.arguments).name != "pytorch":
            return Plan(NAME, asdict(self), (), (Skipped("", OF_CORE),))
        from tinytorch.perf.acceleration.pinned_transfers_torch import plan_transfers

        return plan_transfers(workload, asdict(self))

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a copy of the model that fetches its inputs itself."""
        plan.check_made_by(NAME, asdict(self))
        check_workload(workload)
        copy = adapter_for(workload.model, workload.arguments).clone(workload.model)
        if plan.is_empty:
            return copy
        from tinytorch.perf.acceleration.pinned_transfers_torch import FetchingModel

        return FetchingModel(copy, plan.steps[0].settings["device"])


def prefetching(loader: Iterable[Any], device: Any) -> Iterator[Any]:
    """Yield the batches of a loader on a device, the next one on its way while one is computed.

    Batches are tensors, or tuples, lists and dictionaries with tensors in them; anything else in
    them stays as it is. The transfer runs on a stream of its own; a batch is whole before anything
    that is done with it on the current stream begins. On a processor, batches are given as they
    come. A loader may use its own buffers again: it is asked for the next batch only when the last
    one has left them.
    """
    if "torch" not in sys.modules:
        raise SettingError("prefetching moves tensors of PyTorch; import torch before")
    from tinytorch.perf.acceleration.pinned_transfers_torch import prefetched

    return prefetched(loader, device)
