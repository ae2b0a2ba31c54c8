"""ShareWeights: the transform that lets the weights of a layer share a few values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tinytorch.adapters.adapter import adapter_for
from tinytorch.core.backends.reference_codebook import LARGEST_CODEBOOK, code_bytes
from tinytorch.core.layers import Linear
from tinytorch.core.module import Module
from tinytorch.core.spatial import Conv2d
from tinytorch.errors import SettingError
from tinytorch.perf.compression.clustering import codes_for, find_codebook
from tinytorch.perf.compression.shared_weight_layers import (
    SharedWeightConv2d,
    SharedWeightLayer,
    SharedWeightLinear,
)
from tinytorch.perf.compression.weight_layers import (
    WeightLayer,
    carry_out,
    find_weight_layers,
)
from tinytorch.workloads.kept_layers import checked_patterns, idle_patterns
from tinytorch.workloads.plan import Plan, Skipped
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.workload import Workload, check_workload

__all__ = ["ShareWeights"]

NAME = "ShareWeights"
NO_SPEEDUP = (
    "this saves memory, not time: each call looks its weights up; compare() measures what that "
    "costs"
)

SHARED: dict[type[Module], Any] = {Linear: SharedWeightLinear, Conv2d: SharedWeightConv2d}
"""What a layer becomes, by its exact class."""


@dataclass(frozen=True)
class ShareWeights:
    """Put the weights of each layer into clusters, and hold codes and a codebook in their place.

    `clusters` is the most different values that a layer has afterwards, 2 to 256: up to 16 take
    four bits for each weight, more take eight. They are those with the least squared error; zeros
    stay zeros. Training such a model moves the values. keep: patterns of layers that stay.
    """

    clusters: int = 16
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.clusters) is not int or not 2 <= self.clusters <= LARGEST_CODEBOOK:
            raise SettingError(
                f"clusters is a number of values from 2 to {LARGEST_CODEBOOK}, got "
                f"{self.clusters!r}"
            )
        object.__setattr__(self, "keep", checked_patterns(self.keep))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Find the clusters of each layer. A copy of the model is called."""
        check_workload(workload)
        if adapter_for(workload.model, workload.arguments).name != "core":
            reason = f"{workload.name} is a model of PyTorch, which has no layer that holds codes"
            return Plan(NAME, self.to_dict(), (), (Skipped("", reason),))
        layers = find_weight_layers(workload, self.keep, verb="clustered")
        layers.choose(self._choose_codebook)
        return Plan(
            NAME,
            self.to_dict(),
            layers.steps,
            layers.skipped,
            shrinkage=layers.shrinkage,
            not_predicted={"speedup": NO_SPEEDUP},
            notes=idle_patterns(self.keep, layers.found, change="clustered"),
        )

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a copy of the model whose layers hold codes; their full weights are gone."""
        plan.check_made_by(NAME, self.to_dict())
        made: dict[int, SharedWeightLayer] = {}  # layers with one weight hold its codes once

        def build(layer: Any, settings: Mapping[str, Any]) -> Module:
            codebook = np.array(settings["codebook"], layer.weight.dtype)
            new: SharedWeightLayer = SHARED[type(layer)](
                layer, codebook, like=made.get(id(layer.weight))
            )
            made.setdefault(id(layer.weight), new)
            return new

        if adapter_for(workload.model, workload.arguments).name != "core":
            return adapter_for(workload.model, workload.arguments).clone(workload.model)
        return carry_out(workload, plan, build)

    def _choose_codebook(self, each: WeightLayer) -> None:
        weight = each.weight
        codebook = find_codebook(weight, self.clusters)
        after = code_bytes(weight.size, len(codebook)) + codebook.nbytes
        if after >= weight.nbytes:
            each.reason = f"it would take {after:,} bytes in the place of {weight.nbytes:,}"
            return
        exact = weight.astype(np.float64)
        lost = float(np.square(codebook[codes_for(weight, codebook)] - exact).sum())
        size = float(np.square(exact).sum())
        error = math.sqrt(lost / size) if size else 0.0
        bits = 8 * code_bytes(2, len(codebook)) // 2
        each.what = f"{len(codebook)} values, codes of {bits} bits"
        each.why = f"{after:,} bytes in the place of {weight.nbytes:,}, relative error {error:.2%}"
        each.settings = {
            "clusters": len(codebook),
            "bits": bits,
            "relative_error": error,
            "codebook": tuple(codebook.tolist()),
        }
        each.new_bytes = after
