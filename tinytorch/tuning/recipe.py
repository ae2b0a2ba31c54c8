"""The recipe of an optimized model: what was done to which model, as JSON that anybody can read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tinytorch.codec import Coded, DataError, encode
from tinytorch.errors import CheckpointError, SettingError, TinyTorchError, first_line
from tinytorch.models.workload import Workload
from tinytorch.transforms.capture_graph import CaptureGraph
from tinytorch.transforms.channels_last import ChannelsLast
from tinytorch.transforms.compile_model import CompileModel
from tinytorch.transforms.compiled_kernels import CompiledKernels
from tinytorch.transforms.fold_batch_norm import FoldBatchNorm
from tinytorch.transforms.fuse_attention import FuseAttention
from tinytorch.transforms.fuse_layers import FuseLayers
from tinytorch.transforms.inference_mode import InferenceMode
from tinytorch.transforms.low_rank import LowRank
from tinytorch.transforms.lower_precision import LowerPrecision
from tinytorch.transforms.pinned_transfers import PinnedTransfers
from tinytorch.transforms.plan import Plan, Transform
from tinytorch.transforms.prune import Prune
from tinytorch.transforms.quantize import Quantize
from tinytorch.transforms.remove_channels import RemoveChannels
from tinytorch.transforms.remove_layers import RemoveLayers
from tinytorch.transforms.set_threads import SetThreads
from tinytorch.transforms.share_weights import ShareWeights
from tinytorch.transforms.sparse_layers import SparseLayers
from tinytorch.transforms.static_generation import StaticGeneration
from tinytorch.transforms.tensor_float32 import TensorFloat32

__all__ = [
    "PREPARED",
    "TRANSFORMS",
    "Recipe",
    "carry_out",
    "last_change",
    "rebuilt_plan",
    "rebuilt_transform",
    "recipe_text",
]

FORMAT, SCHEMA = "tinytorch optimized model", 1

TRANSFORMS: dict[str, type[Any]] = {
    each.__name__: each
    for each in (
        RemoveChannels,
        RemoveLayers,
        FoldBatchNorm,
        LowRank,
        Prune,
        ShareWeights,
        Quantize,
        LowerPrecision,
        TensorFloat32,
        ChannelsLast,
        SparseLayers,
        FuseLayers,
        FuseAttention,
        SetThreads,
        InferenceMode,
        PinnedTransfers,
        CompiledKernels,
        CompileModel,
        CaptureGraph,
        StaticGeneration,
    )
}
"""The name in a recipe -> the transform. Nothing else in a file can be asked for."""

PREPARED = frozenset({"CompileModel", "CaptureGraph", "StaticGeneration"})
"""What calls a model to prepare it, and has to do that again in every process."""
AFTER_WEIGHTS = PREPARED | {
    "SparseLayers",  # zeros take less room in a file than the places of all other weights
    "FuseLayers",
    "FuseAttention",
    "TensorFloat32",
    "SetThreads",
    "InferenceMode",
    "PinnedTransfers",
    "CompiledKernels",
}
"""What is done once the weights are in: it changes none of them, or makes its own from them."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Recipe(Coded):
    """How a saved model is made from the original's architecture.

    The first `weights_after` of the plans are carried out on the original, whatever its weights;
    then those of the file are put in, whose hash is `weights_sha256`; then the other plans follow.
    `tensors` are the names and shapes of the original.
    """

    name: str
    framework: str
    device: str
    model: str
    stack: tuple[str, ...]
    plans: tuple[Plan, ...]
    weights_after: int
    weights_sha256: str
    tensors: Shapes
    versions: Mapping[str, str]

    schema = SCHEMA
    also_written = ("format",)

    @property
    def format(self) -> str:
        return FORMAT

    @classmethod
    def from_dict(cls, fields: Any) -> Recipe:
        """Return what :meth:`to_dict` wrote; raise CheckpointError if these are no such fields."""
        if not isinstance(fields, Mapping) or fields.get("format") != FORMAT:
            raise CheckpointError("it has no recipe: it is no file of save_optimized()")
        if fields.get("schema") != SCHEMA:
            raise CheckpointError(
                f"its recipe has schema {fields.get('schema')!r}, and this TinyTorch reads "
                f"{SCHEMA}; update TinyTorch"
            )
        try:
            recipe = super().from_dict(fields)
            recipe = replace(recipe, plans=tuple(map(rebuilt_plan, recipe.plans)))
        except CheckpointError:
            raise
        except (DataError, TypeError, ValueError) as error:
            raise CheckpointError(f"its recipe is damaged: {first_line(error)}") from error
        count = recipe.weights_after
        if not 0 <= count <= len(recipe.plans):
            raise CheckpointError(
                f"its recipe is damaged: the weights come after {count} of "
                f"{len(recipe.plans)} plans"
            )
        return recipe

    def check_fits(self, tensors: Shapes, model: Any) -> None:
        """Raise unless a model has the architecture of the original."""
        ours = dict(tensors)
        theirs = dict(self.tensors)
        if ours == theirs:
            return
        every = {**theirs, **ours}
        names = [name for name in every if ours.get(name) != theirs.get(name)]
        first = names[0]
        seen, wanted = (_shape_text(each.get(first)) for each in (ours, theirs))
        raise CheckpointError(
            f"it was made from another architecture than this {type(model).__name__}: {first!r} is "
            f"{wanted} there and {seen} here ({len(names)} of {len(every)} tensors differ); build "
            f"the {self.model} that {self.name!r} was, its weights do not matter"
        )


def rebuilt_transform(name: Any, settings: Any) -> Transform:
    """Give the transform that a recipe names."""
    if name not in TRANSFORMS:
        raise CheckpointError(
            f"it needs the transform {name!r}, which this TinyTorch does not know (it knows "
            f"{', '.join(TRANSFORMS)}); update TinyTorch"
        )
    try:
        transform: Transform = TRANSFORMS[name](**settings)
    except (SettingError, TypeError) as error:
        raise CheckpointError(
            f"its recipe is damaged, or of another version: {name} does not take "
            f"{settings!r} ({first_line(error)})"
        ) from error
    return transform


def rebuilt_plan(plan: Plan) -> Plan:
    """Give a plan that may come from JSON with the settings that its transform has.

    There, a tuple is a list; `check_made_by` compares settings, and tells these apart.
    """
    transform = rebuilt_transform(plan.transform, plan.settings)
    own: dict[str, Any] = asdict(transform)  # type: ignore[call-overload]
    if encode(own) != encode(dict(plan.settings)):
        raise CheckpointError(
            f"its recipe is damaged, or of another version: {plan.transform} has the settings "
            f"{own!r}, the recipe {dict(plan.settings)!r}"
        )
    return replace(plan, settings=own)


def last_change(plans: Sequence[Plan]) -> int:
    """Give how many plans it takes until no weight changes any more."""
    places = [place for place, plan in enumerate(plans, 1) if plan.transform not in AFTER_WEIGHTS]
    return max(places, default=0)


def carry_out(workload: Workload, plans: Sequence[Plan]) -> Any:
    """Carry out plans on copies of a workload's model, one on what the other gave."""
    for plan in plans:
        if plan.transform in PREPARED and not workload.arguments:
            raise SettingError(
                f"{plan.transform} prepares a model for its inputs, and there are none; give a "
                "workload, Workload(name, model, inputs), instead of the model alone"
            )
        transform = rebuilt_transform(plan.transform, plan.settings)
        try:
            workload = replace(workload, model=transform.apply(workload, plan))
        except Exception as error:  # code of the model runs, too
            reason = str(error) if isinstance(error, TinyTorchError) else first_line(error)
            raise CheckpointError(
                f"{plan.transform} cannot be carried out on this "
                f"{type(workload.model).__name__}: {reason}"
            ) from error
    return workload.model


def recipe_text(recipe: Mapping[str, Any]) -> str:
    """Give a recipe as a file of its own has it."""
    return json.dumps(recipe, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _shape_text(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(shape)
